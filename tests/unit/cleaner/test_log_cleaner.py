"""Log cleaner of a broker: choice of the next log, logs that cannot be cleaned, and its metrics."""

from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.unit.log.conftest import LogBench
from tests.unit.replication.replica_nodes import T0, ReplicaNode
from tidemark_broker.admission.rate import ByteRateQuota
from tidemark_broker.config import BrokerConfig, parse
from tidemark_broker.config_entries import ConfigError
from tidemark_broker.log import LogConfig, flushing, opening
from tidemark_broker.log.compaction import CleaningAborted
from tidemark_broker.log.compaction.cleaning_pace import CleaningPace
from tidemark_broker.log_cleaner import LogCleaner
from tidemark_broker.replication.partition import Partition

COMPACT = LogConfig(segment_bytes=300, cleanup_policy=frozenset({"compact"}))


@pytest.fixture
async def node(tmp_path: Path) -> Any:
    made = ReplicaNode(1, tmp_path)
    await made.lead_alone(1)
    yield made
    await made.stop()


def config(**entries: str) -> BrokerConfig:
    needed = {
        "node.id": "1",
        "cluster.id": "c",
        "log.dir": "/nowhere",
        "listeners": "127.0.0.1:0",
        "controller.addresses": "127.0.0.1:1",
        "tidemark.tls.directory": "/nowhere",
    }
    named = {key.replace("_", "."): value for key, value in entries.items()}
    return parse(MappingProxyType(needed | named))


def cleaner(node: ReplicaNode, **entries: str) -> LogCleaner:
    return LogCleaner(
        config(**entries),
        lambda: node.manager.partitions,
        monotonic=lambda: node.now_s,
        wall_ms=lambda: T0,
    )


def figures(of: LogCleaner) -> dict[str, float]:
    return {
        sample.name.removeprefix("tidemark_broker_cleaner_"): sample.value
        for family in of.metrics()
        for sample in family.samples
    }


async def test_a_log_that_is_dirty_enough_is_compacted_and_then_left_alone(
    node: ReplicaNode,
) -> None:
    await node.append(40)
    found = cleaner(node)
    assert not await found.clean_one()  # its policy is delete
    node.partition.log.config = COMPACT
    await node.append(10)
    size = node.partition.log.size_bytes
    assert await found.clean_one()
    metrics = figures(found)
    assert node.partition.log.size_bytes < size
    assert (
        metrics["runs_total"],
        metrics["failures_total"],
        metrics["uncleanable_partitions"],
    ) == (1, 0, 0)
    assert metrics["max_dirty_percent"] == 100
    assert metrics["read_bytes_total"] > metrics["written_bytes_total"] > 0
    assert 0 < metrics["max_buffer_utilization_percent"] < 100
    # A clean log is not compacted again, however much time passes.
    node.now_s += 9
    assert not await found.clean_one()
    metrics = figures(found)
    assert (metrics["max_dirty_percent"], metrics["seconds_since_last_run"]) == (0, 9)
    await node.append(20)
    assert await found.clean_one()


async def test_uncleanable_log_is_retried_with_growing_pauses(node: ReplicaNode) -> None:
    await node.append(40)
    node.partition.log.config = COMPACT
    await node.append(10)
    flushing.flush(node.partition.log)
    path = min(node.log_folder.glob("*.log"))
    original = path.read_bytes()
    # A flipped bit at the end of the first segment fails the CRC.
    path.write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
    found = cleaner(node)
    assert await found.clean_one()
    assert not await found.clean_one()
    metrics = figures(found)
    assert (metrics["uncleanable_partitions"], metrics["failures_total"]) == (1, 1)
    # The first pause is one minute, and the next ones are longer.
    for _ in range(2):
        node.now_s += 61
        assert await found.clean_one()
        assert not await found.clean_one()
        node.now_s += 61
    assert node.partition.log.failure is None
    # The segment is repaired, and the longest possible pause passes.
    path.write_bytes(original)
    node.now_s += 3600
    assert await found.clean_one()
    assert figures(found)["uncleanable_partitions"] == 0
    assert node.context.failures.count == 0


async def test_a_log_with_doubtful_files_is_reported(
    node: ReplicaNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.append(40)
    node.partition.log.config = COMPACT
    await node.append(10)
    # The cleaned segment cannot be renamed, so that the files on disk are in doubt.
    real = Path.replace

    def replace(path: Path, target: Path) -> Path:
        if path.name.endswith(".log.swap"):
            raise OSError(5, "Input/output error")
        return real(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        assert await cleaner(node).clean_one()
    assert node.partition.log.failure is not None
    assert node.context.failures.count == 1
    # Reopening recovers a consistent log from these files.
    assert opening.reopen(node.partition.log)
    assert LogBench(node.log_folder, config=COMPACT).check(node.partition.log)


async def test_stopping_cleaner_aborts_without_a_failure(node: ReplicaNode) -> None:
    await node.append(40)
    node.partition.log.config = COMPACT
    await node.append(10)
    before, found = node.bytes(), cleaner(node)
    found.stop()
    assert await found.clean_one()
    assert figures(found)["failures_total"] == 0
    assert len(node.bytes()) <= len(before)


async def test_a_log_with_a_part_in_the_tier_is_left_alone(node: ReplicaNode) -> None:
    await node.append(40)
    partition: Partition = node.partition
    partition.log.config = COMPACT
    await node.append(10)
    # The records below 20 are in the tier only, where compaction does not reach them.
    partition.log.bounds = partition.log.bounds.with_local_start(20)
    assert partition.log.log_start_offset < partition.log.local_log_start_offset
    assert not await cleaner(node).clean_one()


async def test_cleaner_without_threads_does_nothing(node: ReplicaNode) -> None:
    await cleaner(node, log_cleaner_threads="0").run()
    await cleaner(node, log_cleaner_enable="false").run()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("log.cleaner.threads", "-1"),
        ("log.cleaner.enable", "perhaps"),
        ("log.cleaner.io.buffer.load.factor", "1.5"),
        ("log.cleaner.dedupe.buffer.size", "0"),
    ],
)
def test_a_meaningless_value_is_reported_with_its_key(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=key.replace(".", "[.]")):
        LogCleaner(
            config(**{key.replace(".", "_"): value}),
            tuple,
            monotonic=lambda: 0.0,
            wall_ms=lambda: 0,
        )


def test_io_of_the_cleaner_is_throttled() -> None:
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        assert seconds <= 0.5
        now_s += seconds

    quota = ByteRateQuota(1000, now=lambda: now_s)
    pace = CleaningPace(lambda: False, quota.record, lambda: now_s, sleep)
    for _ in range(60):
        now_s += 0.01
        pace.step(1000)
    # 60 steps of 1,000 bytes take about 60 s at 1,000 bytes/s.
    assert 50 <= now_s <= 62
    assert ByteRateQuota(2**63 - 1).record(10**15) == 0


def test_throttled_cleaning_can_be_aborted() -> None:
    slept = list[float]()
    pace = CleaningPace(
        lambda: len(slept) == 3, lambda _: 1000.0, iter(range(9)).__next__, slept.append
    )
    with pytest.raises(CleaningAborted):
        pace.step(1)
    # The pause of 1,000 s is slept in parts, so that an abort is noticed within 0.5 s.
    assert slept == [0.5] * 3
