"""Use of sources, registry and cluster by each kind of suite."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import apache_kafka as kafka
from tests.suites import (
    go_suites,
    java_apps,
    java_clients,
    kafka_python,
    librdkafka,
    packages,
    rdkafka_rs,
    short_selection,
)
from tests.suites.broker_proxies import docker, obey, proxies
from tests.suites.catalogue import SUITES
from tests.suites.checks import CheckBench, CheckFailed, run_check
from tests.suites.go_suites import FRANZ_GO, KAFKA_GO, SARAMA, GoSuite, ReadyGoSuite, named_tests
from tests.suites.outcomes import SuiteOutcome
from tests.suites.recorded_results import KAFKAS, OURS, Recorded, dumped, noted
from tests.suites.targets import divided

SOURCES = {
    "b_test.go": "package x\n\nfunc TestB(t *testing.T) {}\nfunc helper(t *testing.T) {}\n",
    "a_test.go": "func TestMain(m *testing.M) {}\nfunc TestA1(tt *testing.T) {\n\tTestB(tt)\n}\n",
    "f_test.go": "//go:build functional\n\npackage x\n\nfunc TestF(t *testing.T) {}\n",
    "a.go": "func TestNone(t *testing.T) {}\n",
}


class RecordingTarget:
    """Target that records its requests."""

    name = "none"
    listeners = ("127.0.0.1:1", "127.0.0.1:2")

    def __init__(self, folder: Path) -> None:
        self.requests: list[tuple[str, int]] = []
        self._folder = folder

    def stop_broker(self, node: int) -> None:
        self.requests.append(("stop", node))

    def start_broker(self, node: int) -> None:
        self.requests.append(("start", node))

    def log_file(self, _: int) -> Path:
        path = self._folder / "log"
        path.write_text("what it said")
        return path

    def log_folders(self, *_: Any) -> list[Path]:
        return []


def test_gos_tests_are_found_in_the_sources() -> None:
    assert named_tests(SOURCES, "") == ["TestA1", "TestB"]
    assert named_tests(SOURCES, "functional") == ["TestF"]


def test_gos_program_is_given_exact_names() -> None:
    ready = ReadyGoSuite(FRANZ_GO, Path("/p"), Path("/s"), [])
    assert ready.command(["TestA", "TestB"])[-1] == "-test.run=^(TestA|TestB)$"


def test_brokers_that_a_test_has_stopped_are_started(tmp_path: Path) -> None:
    for suite, started in ((SARAMA, [("start", 1), ("start", 2)]), (FRANZ_GO, [])):
        brokers = RecordingTarget(tmp_path)
        ReadyGoSuite(suite, Path("/p"), Path("/s"), []).mend(brokers)
        assert brokers.requests == started


def test_kafka_gos_tests_receive_the_version(tmp_path: Path) -> None:
    """Without the version they return at once, and Go counts them as passed."""
    with KAFKA_GO.environ(RecordingTarget(tmp_path), tmp_path) as environ:
        assert environ["KAFKA_VERSION"] == kafka.VERSION


@pytest.mark.parametrize(
    "suite",
    [item for item in SUITES.values() if isinstance(item, GoSuite)],
    ids=lambda item: item.name,
)
def test_a_go_suite_is_pinned_with_hashes(suite: GoSuite) -> None:
    module = packages.MODULES / suite.name
    version = suite.title.rpartition(" ")[2]
    assert f"{suite.module} {version} h1:" in (module / "go.sum").read_text()
    assert f'import _ "{suite.package}"' in (module / "suite.go").read_text()


def test_pythons_tests_are_listed() -> None:
    listed = (
        "test/integration/a.py::test_a[x y]\ntest/integration/a.py::test_b\n\n2 tests collected\n"
    )
    assert kafka_python.named_tests(listed) == [
        "test/integration/a.py::test_a[x y]",
        "test/integration/a.py::test_b",
    ]


def test_rusts_programs_are_those_of_tests() -> None:
    def artifact(kind: str, name: str, executable: str | None) -> str:
        target = {"kind": [kind], "name": name}
        return json.dumps(
            {"reason": "compiler-artifact", "target": target, "executable": executable}
        )

    output = "\n".join(
        [
            artifact("lib", "rdkafka", "/t/deps/rdkafka-1"),
            artifact("test", "test_admin", "/t/deps/test_admin-1"),
            artifact("test", "none", None),
            json.dumps({"reason": "build-finished", "success": True}),
        ]
    )
    assert rdkafka_rs.programs(output) == {"test_admin": "/t/deps/test_admin-1"}
    assert rdkafka_rs.named_tests("test_a: test\nm::test_b: test\nbench_c: bench\n\n") == [
        "test_a",
        "m::test_b",
    ]
    assert rdkafka_rs.command("/p", ["test_admin::m::test_b"])[-1] == "m::test_b"


def test_docker_stops_and_starts_brokers(tmp_path: Path) -> None:
    brokers = RecordingTarget(tmp_path)
    assert obey(brokers, ["compose", "stop", "kafka-2"]) == (0, "")
    assert obey(brokers, ["compose", "start", "kafka-2"]) == (0, "")
    assert obey(brokers, ["compose", "logs", "--since", "x", "kafka-1"]) == (0, "what it said")
    assert brokers.requests == [("stop", 2), ("start", 2)]


@pytest.mark.parametrize(
    "words", ["compose up -d", "compose stop zookeeper-1", "run x", "compose stop kafka-x", ""]
)
def test_other_docker_commands_are_refused(tmp_path: Path, words: str) -> None:
    brokers = RecordingTarget(tmp_path)
    status, output = obey(brokers, words.split())
    assert status == 1
    assert "no docker" in output
    assert brokers.requests == []


def test_docker_requests_reach_the_process_that_runs_the_suite(tmp_path: Path) -> None:
    brokers = RecordingTarget(tmp_path)
    with docker(brokers, tmp_path) as programs:
        command = [str(programs / "docker"), "compose", "stop", "kafka-2"]
        assert subprocess.run(command, check=False, timeout=30).returncode == 0
        # A command that the stub does not know fails in the program too.
        finished = subprocess.run(
            [*command[:1], "ps"], check=False, timeout=30, capture_output=True, text=True
        )
    assert brokers.requests == [("stop", 2)]
    assert finished.returncode == 1
    assert "no docker here: ps" in finished.stdout


def test_settings_are_sent_to_the_cluster_or_to_each_broker() -> None:
    entries = {"num.partitions": "3", "offsets.topic.num.partitions": "5"}
    assert divided(entries) == ({"num.partitions": "3"}, {"offsets.topic.num.partitions": "5"})
    with pytest.raises(ValueError, match="know nothing of what"):
        divided({"what.is.that": "1"})


def test_proxies_listen_on_the_loopback_alone() -> None:
    assert proxies(["127.0.0.1:1", "127.0.0.1:2"], range(29091, 29093)) == [
        {"name": "kafka1", "listen": "127.0.0.1:29091", "upstream": "127.0.0.1:1", "enabled": True},
        {"name": "kafka2", "listen": "127.0.0.1:29092", "upstream": "127.0.0.1:2", "enabled": True},
    ]


def test_a_check_that_raises_has_failed(tmp_path: Path) -> None:
    def fails(_: CheckBench) -> None:
        raise CheckFailed("the tool said no")

    def passes(_: CheckBench) -> None:
        """Run a suite that passes."""

    bench = CheckBench(RecordingTarget(tmp_path), tmp_path, tmp_path, 1)
    failed = run_check("fails", fails, bench)
    assert (failed.outcome, failed.said) == (SuiteOutcome.FAILED, "CheckFailed: the tool said no")
    assert run_check("passes", passes, bench).outcome is SuiteOutcome.PASSED


def test_verifiable_clients_events_are_their_lines_of_json() -> None:
    output = 'SLF4J: none\n{"name":"startup_complete"}\n{"name":"records_consumed","count":3}\n'
    assert [event["name"] for event in java_clients.events(output)] == [
        "startup_complete",
        "records_consumed",
    ]


def test_member_owns_partitions_until_they_are_revoked() -> None:
    def event(name: str, *partitions: int) -> str:
        given = [{"topic": "t", "partition": partition} for partition in partitions]
        return json.dumps({"name": name, "partitions": given})

    lines = [
        event("partitions_assigned", 0, 1, 2),
        event("partitions_revoked", 2),
        json.dumps({"name": "records_consumed", "partitions": [{"partition": 1}]}),
        event("partitions_assigned", 3, 4),
    ]
    assert java_clients.held("\n".join(lines)) == 4


def test_properties_are_lines() -> None:
    assert java_apps.properties({"a": 1, "b": Path("/x")}) == "a=1\nb=/x\n"


def test_every_suite_has_a_description() -> None:
    assert len({suite.title for suite in SUITES.values()}) == len(SUITES)
    assert all(suite.wants.brokers > 0 for suite in SUITES.values())
    assert list(go_suites.SARAMA_PORTS) == [29091, 29092, 29093, 29094, 29095]


def test_cached_folder_is_built_once_and_completely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "file").write_text("x")
        # The first attempt fails after it has written a file.
        if len(made) == 1:
            raise packages.Missing("the network is away")

    with pytest.raises(packages.Missing):
        packages.kept("thing", {"pin": b"1"}, make)
    first = packages.kept("thing", {"pin": b"1"}, make)
    assert packages.kept("thing", {"pin": b"1"}, make) == first
    assert packages.kept("thing", {"pin": b"2"}, make) != first
    assert len(made) == 3
    # No temporary folder of the failed attempt is left.
    assert sorted(path.name for path in first.parent.iterdir() if path.name.startswith(".")) == []


def test_make_test_runs_suites_that_were_run_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.json"
    monkeypatch.setattr(short_selection, "RESULTS", path)
    path.write_text("{}")
    assert not short_selection.has_been_run("franz-go")
    record = Recorded(60, (), ())
    path.write_text(dumped(noted({}, "franz-go", "franz 1", KAFKAS, record)))
    # A run against Kafka alone says nothing about Tidemark.
    assert not short_selection.has_been_run("franz-go")
    path.write_text(dumped(noted({}, "franz-go", "franz 1", OURS, record)))
    assert short_selection.has_been_run("franz-go")
    assert set(short_selection.SHORT) <= set(SUITES)


def test_librdkafkas_tests_for_other_setups_are_left_out() -> None:
    source = """
_TEST_DECL(0001_multiobj);
struct test tests[] = {
    {.name = "<MAIN>", .flags = TEST_F_LOCAL},
    _TEST(0000_unittests, TEST_F_LOCAL, _THRES(.ucpu = 100.0)),
    _TEST(0001_multiobj, 0),
    _TEST(0028_long,
          TEST_F_KNOWN_ISSUE,
          .extra = "x, y"),
    _TEST(0045_a, 0, TEST_BRKVER(0, 9, 0, 0), .scenario = "noautocreate"),
    _TEST(0045_b,
          0,
          /* a comment, with a comma */
          .scenario = "default,ak23"),
    _TEST(0049_close, TEST_F_SOCKEM),
    _TEST(0171_share_consumer_consume, 0, TEST_BRKVER(4, 2, 0, 0)),
    _TEST(8000_idle, TEST_F_MANUAL),
    {NULL}};
    _TEST(9999_elsewhere, 0),
"""
    # Left out: local, slow, manual and share group tests, and those with other settings or a proxy.
    assert librdkafka.named_tests(source) == ["0001_multiobj", "0045_b"]
    assert librdkafka.command(["0001_multiobj", "0045_a", "0045_b"])[-1] == "TESTS=0001,0045"


@pytest.mark.parametrize("name", SUITES)
def test_settings_of_a_suite_are_known(name: str) -> None:
    cluster, broker = divided(SUITES[name].wants.entries)
    assert {**cluster, **broker} == SUITES[name].wants.entries
