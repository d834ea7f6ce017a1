"""Tests run side by side, one process per core (``make test``); those that share a server stay
together.

A server that a whole session shares is started once in each process whose tests ask for it. So all
tests of one server go to the same process, one after the other, and the server ends with the last
of them; every other test goes wherever there is room.
"""

import contextlib
import gc
import itertools
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.apache_kafka import QUICK, KafkaOptions, running
from tests.clouds import (
    AzureServer,
    GcsServer,
    KmsServer,
    VersityServer,
    running_azurite,
    running_gcs,
    running_kms,
    running_versity,
)
from tests.effort import examples
from tests.kafka_programs import kafka_jars
from tests.leftover_sockets import collect_left_sockets
from tests.lock_order import check_lock_order, end_check, reported
from tests.suites.packages import Missing
from tidemark_devcluster.controlplane.launcher import ControlPlane
from tidemark_devcluster.controlplane.minio import MinioServer
from tidemark_devcluster.kafka_nodes import KafkaNodes

#: The one Hypothesis profile. Machines that run tests are slow and shared, so no example has a
#: deadline; a fixture may be the same for every example of a test. A test says at most how much it
#: tries.
settings.register_profile(
    "tidemark",
    deadline=None,
    max_examples=examples(100),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("tidemark")

#: Fixtures that start what many tests share, most expensive first: the first that a test requests
#: is the group it runs in. Fixtures of the same name that exist for each test alone do not count.
SHARED = (
    "apache_kafka",
    "engines",
    "cluster",
    "local_cluster",
    "control_plane",
    "s3_cluster",
    "session",
    "kubernetes",
    "minio",
    "versity",
    "azurite",
    "gcs",
    "kms",
    "kafka",
)

#: Groups that take minutes of one process in `make test`.
LONGEST = frozenset({"control_plane", "apache_kafka", "cluster", "session"})


class _FailuresAtOnce:
    """Print a failure of a parallel run when it occurs: such a run takes a quarter of an hour,
    and may be ended before its summary.
    """

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = str(crash.message).partition("\n")[0] if crash else ""
            self._terminal.ensure_newline()
            self._terminal.write_line(f"{report.nodeid} ({report.when}): {why[:200]}")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Turn the lock order check on in each process. Failures of the worker processes are named at
    once."""
    check_lock_order()
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if getattr(config.option, "numprocesses", None) and terminal is not None:
        config.pluginmanager.register(_FailuresAtOnce(terminal), "failures-at-once")


def pytest_unconfigure() -> None:
    """Remove the report of the lock order check."""
    end_check()


@pytest.fixture(autouse=True)
def _locks_in_order() -> Iterator[None]:
    """Fail the test if a broker takes a lock out of order (``tidemark_broker/lock_order.py``), in
    this process or in one that the test starts, whether or not it deadlocks."""
    yield
    assert not reported()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    """Assign groups before xdist reads them.

    What takes longest starts first, otherwise in random order: a long test, or a long chain of
    tests in one process, that starts last would run alone.
    """
    for item in items:
        shared = _shared(item)
        if shared is not None:
            item.add_marker(pytest.mark.xdist_group(shared))
    yield
    items.sort(key=_start_order)
    if getattr(config.option, "loadgroup", False) and any(map(_is_scattered, items)):
        raise pytest.UsageError("this pytest-xdist does not group tests with this pytest")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """All that is imported stays: looking for garbage meanwhile takes a quarter of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """The last test of a group ends the shared fixture: an idle cluster costs a twentieth of a
    core.

    A process that runs all tests has them in no order of groups.
    """
    yield
    if not getattr(item.config.option, "loadgroup", False):
        return
    group = _shared(item)
    if group is not None and (nextitem is None or _shared(nextitem) != group):
        # pytest has no hook for the end of a shared fixture, so its cache is finished here.
        made = item.session._fixturemanager._arg2fixturedefs
        for fixture in itertools.chain.from_iterable(made.get(name, ()) for name in SHARED):
            if _outlives(fixture):
                fixture.finish(item._request)  # type: ignore[attr-defined]
        collect_left_sockets()


def pytest_collection_finish() -> None:
    """Thousands of tests stay until the run ends. No collection of garbage looks at them any more:
    some tests ask for one, others measure for how long nothing else happens."""
    gc.collect()
    gc.freeze()


def _shared(item: pytest.Item) -> str | None:
    fixtures = getattr(item, "_fixtureinfo", None)
    if fixtures is None:
        return None
    made = fixtures.name2fixturedefs
    return next((name for name in SHARED if name in made and _outlives(made[name][-1])), None)


def _start_order(item: pytest.Item) -> int:
    """Return 0 for the longest chains, 1 for slow tests and other chains, and 2 for the rest."""
    group = _shared(item)
    if group in LONGEST:
        return 0
    return 1 if group is not None or item.get_closest_marker("slow") else 2


def _outlives(fixture: pytest.FixtureDef[object]) -> bool:
    """Return whether the fixture lives for more than one test."""
    return fixture.scope != "function"


def _is_scattered(item: pytest.Item) -> bool:
    """Is it of a group, and xdist will not know (pytest-xdist 3.8.0 with pytest 9.2)?"""
    return _shared(item) is not None and "@" not in item.nodeid


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A running control plane whose store is not synced to disk."""
    with ControlPlane.start(tmp_path_factory.mktemp("control-plane"), fsync=False) as running:
        yield running


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaNodes]:
    """Three brokers, 1 to 3, each in a rack, and a controller; a remote storage in a folder. Each
    test makes its own topics, and leaves three brokers that run. Skipped where there is no Java or
    no Maven."""
    kafka_jars()
    wanted = KafkaOptions(
        brokers=3, controllers=1, racks=("a", "b", "c"), tiered=True, entries=QUICK
    )
    with running(tmp_path_factory.mktemp("apache-kafka"), wanted) as nodes:
        yield nodes


@pytest.fixture(scope="session")
def versity(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VersityServer]:
    """A running Versity S3 Gateway. Skipped where it cannot be built."""
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(running_versity(tmp_path_factory.mktemp("versity")))
        except Missing as missing:
            pytest.skip(str(missing))
        yield server


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    """A running emulator of Azure Blob Storage. Skipped where there is no node."""
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(running_azurite(tmp_path_factory.mktemp("azurite")))
        except Missing as missing:
            pytest.skip(str(missing))
        yield server


@pytest.fixture(scope="session")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    """A running emulator of Google Cloud Storage. Skipped where it cannot be built."""
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(running_gcs(tmp_path_factory.mktemp("gcs")))
        except Missing as missing:
            pytest.skip(str(missing))
        yield server


@pytest.fixture(scope="session")
def kms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KmsServer]:
    """A running implementation of AWS KMS. Skipped where it cannot be built."""
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(running_kms(tmp_path_factory.mktemp("kms")))
        except Missing as missing:
            pytest.skip(str(missing))
        yield server


@pytest.fixture(scope="session")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    """A running MinIO server."""
    with MinioServer.start(tmp_path_factory.mktemp("minio")) as running:
        yield running
