"""librdkafka's own tests. Its releases are not in a registry, but Confluent's client for JavaScript
is, and carries all of it.

Those that need no broker, a person, or another scenario of brokers are left out, as are those that
it counts as known issues, and those of share groups (KIP-932), which are not served. All others run
one after another, in its quick mode. Some call Kafka's own command for topics, which a script of
ours starts from Kafka's jars.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import apache_kafka as kafka
from tests.suites import batches, packages
from tests.suites.outcomes import Report, Result, SuiteOutcome
from tests.suites.outputs import Began, Event
from tests.suites.targets import KAFKA_VERSION, SuiteTarget, Wants, bootstrap
from tidemark.configuration.broker_keys import RACK_AWARE_SELECTOR

VERSION = "2.15.1"
_PACKAGE = "@confluentinc/kafka-javascript"
_PACKAGE_VERSION = "1.10.1"
_INTEGRITY = (
    "sha512-KVePUBn21EqCVP9mfxzEuM3SYJHHEF7X+iiC2e43QQgDSyEaksInmCGooT3w5q+"
    "cNAdkSCrK71j0ICfqoSqZLw=="
)
LIMIT_S = 240.0
_LEFT_OUT = ("TEST_F_LOCAL", "TEST_F_MANUAL", "TEST_F_SOCKEM", "TEST_F_KNOWN_ISSUE")
_TOPICS = """#!/bin/sh
exec java -Xmx256m -XX:TieredStopAtLevel=1 -cp '{jars}/*' org.apache.kafka.tools.TopicCommand "$@"
"""
_RUN = 'exec env "$0" ./test-runner -p1 -Q -E -L 2>&1'


def named_tests(source: str) -> list[str]:
    """Those of the table in ``test.c`` that are for any broker."""
    table = source.partition("struct test tests[] = {")[2].partition("{NULL}")[0]
    found = []
    # Entries of the C table: name and flags, perhaps a scenario.
    for entry in table.split("_TEST(")[1:]:
        name, flags = (part.strip() for part in re.split(r"[,)]", entry, maxsplit=2)[:2])
        scenario = re.search(r'\.scenario = "([^"]*)"', entry)
        for_any = scenario is None or "default" in scenario[1]
        if for_any and "_share_" not in name and not any(item in flags for item in _LEFT_OUT):
            found.append(name)
    return found


class LibrdkafkaTest:
    """Output of the test runner for each test. A failure is final, whatever is reported later."""

    _BEGAN = re.compile(r"={5,} Running test (\w+) ={5,}")
    _ENDED = re.compile(r"={5,} Test (\w+) (PASSED|FAILED|SKIPPED) ={5,}")
    _FAILED = re.compile(r'### Test "(\w+)[^"]*" failed at')
    _SKIPPED = re.compile(r"\[(\w+) */.*SKIPPING TEST: ")

    def read(self, line: str) -> Iterator[Event]:
        if found := self._BEGAN.search(line):
            yield Began(found[1])
        elif found := self._ENDED.search(line):
            yield Result(found[1], SuiteOutcome(found[2].lower()))
        elif found := self._FAILED.search(line):
            yield Result(found[1], SuiteOutcome.FAILED)
        elif found := self._SKIPPED.search(line):
            yield Result(found[1], SuiteOutcome.SKIPPED)


class Librdkafka:
    """The suite, on brokers with the settings that its authors start them with: topics come into
    being with four partitions where a test names a new one, and consumers may read from followers.
    """

    name = "librdkafka"
    title = f"librdkafka {VERSION}, tests"
    wants = Wants(
        brokers=3,
        entries={
            "auto.create.topics.enable": "true",
            "num.partitions": "4",
            "default.replication.factor": "3",
            "replica.selector.class": RACK_AWARE_SELECTOR,
        },
        kafka_entries={"group.share.min.record.lock.duration.ms": "1000"},
        racks=("RACK1", "RACK2", "RACK3"),
    )

    def prepare(self) -> "ReadyLibrdkafka":
        built = packages.npm_package(_PACKAGE, _PACKAGE_VERSION, _INTEGRITY, _build)
        tests = built / "package" / "deps" / "librdkafka" / "tests"
        return ReadyLibrdkafka(tests, named_tests((tests / "test.c").read_text("utf-8")))


def _build(folder: Path) -> None:
    """The library and its test runner, where the package was unpacked."""
    library = folder / "package" / "deps" / "librdkafka"
    (library / "configure").chmod(0o755)
    jobs = f"-j{os.cpu_count() or 1}"
    packages.command("./configure", folder=library)
    packages.command("make", jobs, "libs", folder=library)
    packages.command("make", jobs, "-C", "tests", "build", folder=library)


@dataclass(frozen=True, slots=True)
class ReadyLibrdkafka:
    """``folder``: of its tests, where the runner was built."""

    folder: Path
    tests: Sequence[str]

    def run(self, tests: Sequence[str], target: SuiteTarget, folder: Path, report: Report) -> None:
        programs = folder / "kafka" / "bin"
        programs.mkdir(parents=True)
        # The tests call kafka-topics.sh, which is found below KAFKA_PATH.
        script = programs / "kafka-topics.sh"
        script.write_text(_TOPICS.format(jars=kafka.jars()), encoding="utf-8")
        script.chmod(0o755)
        settings = folder / "test.conf"
        settings.write_text(
            f"bootstrap.servers={bootstrap(target)}\ntest.topic.random=true\n", encoding="utf-8"
        )
        # The runner was linked with the library that was built beside it.
        program = batches.Program(
            command=command,
            reader=LibrdkafkaTest(),
            folder=self.folder,
            environ={
                "RDKAFKA_TEST_CONF": str(settings),
                "TEST_KAFKA_VERSION": KAFKA_VERSION,
                "KAFKA_PATH": str(programs.parent),
                "BROKERS": bootstrap(target),
                "LD_LIBRARY_PATH": os.pathsep.join(
                    str(self.folder.with_name(value)) for value in ("src", "src-cpp")
                ),
            },
        )
        batches.run(
            program,
            tests,
            limit_s=lambda _: LIMIT_S,
            log=folder / "output.log",
            report=report,
        )


def command(tests: Sequence[str]) -> list[str]:
    """Return the command for these tests.

    Tests that share a number run again, but keep their known results.
    """
    # The runner selects tests by their numbers.
    numbers = dict.fromkeys(test.partition("_")[0] for test in tests)
    return ["sh", "-c", _RUN, f"TESTS={','.join(numbers)}"]
