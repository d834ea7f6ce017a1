"""The integration tests of Rust's rdkafka, which come with the published crate."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from tests.suites import batches, packages
from tests.suites.outcomes import Report
from tests.suites.outputs import RustTest
from tests.suites.targets import KAFKA_VERSION, SuiteTarget, Wants, bootstrap

VERSION = "0.39.0"
_SHA256 = "d7956f9ac12b5712e50372d9749a3102f4810a8d42481c5eae3748d36d585bcf"
LIMIT_S = 120.0
_CARGO = ("cargo", "test", "--locked", "--tests", "--no-run", "--message-format=json", "--quiet")


class RdkafkaRs:
    """The suite with its authors' settings: one broker, whose id and port its tests know, and
    three partitions by default.
    """

    name = "rdkafka-rs"
    title = f"rdkafka {VERSION} (Rust), tests"
    wants = Wants(
        brokers=1,
        first_node=0,
        ports=(9092,),
        entries={"auto.create.topics.enable": "true", "num.partitions": "3"},
    )

    def prepare(self) -> "ReadyRdkafkaRs":
        folder = packages.crate("rdkafka", VERSION, _SHA256)
        print("compiling rdkafka's tests, where that was not done before", flush=True)
        found = programs(packages.command(*_CARGO, folder=folder))
        tests = [
            f"{name}::{test}"
            for name, program in sorted(found.items())
            for test in named_tests(
                packages.command(program, "--list", "--format=terse", folder=folder)
            )
        ]
        return ReadyRdkafkaRs(folder, found, tests)


def programs(said: str) -> dict[str, str]:
    """The compiled test programs by the names of their files, as cargo tells of them."""
    messages = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return {
        message["target"]["name"]: message["executable"]
        for message in messages
        if message["reason"] == "compiler-artifact"
        and message["executable"]
        and message["target"]["kind"] == ["test"]
    }


def named_tests(listed: str) -> list[str]:
    """As such a program lists them."""
    return [line.removesuffix(": test") for line in listed.splitlines() if line.endswith(": test")]


@dataclass(frozen=True, slots=True)
class ReadyRdkafkaRs:
    """``programs``: compiled tests by the names of their files."""

    folder: Path
    programs: dict[str, str]
    tests: Sequence[str]

    def run(self, tests: Sequence[str], target: SuiteTarget, folder: Path, report: Report) -> None:
        # A compiled program for each file of tests.
        for name, those in groupby(tests, key=lambda test: test.partition("::")[0]):
            program = batches.Program(
                command=lambda some, name=name: command(self.programs[name], some),  # type: ignore[misc]
                reader=RustTest(name),
                folder=self.folder,
                environ={
                    "KAFKA_HOST": bootstrap(target),
                    "KAFKA_VERSION": KAFKA_VERSION,
                    "RUST_LOG": os.environ.get("RUST_LOG", "off"),
                },
            )
            batches.run(
                program,
                list(those),
                limit_s=lambda _: LIMIT_S,
                log=folder / "output.log",
                report=report,
            )


def command(program: str, tests: Sequence[str]) -> list[str]:
    """Exactly these, one at a time."""
    names = [test.partition("::")[2] for test in tests]
    return [program, "--test-threads=1", "--exact", *names]
