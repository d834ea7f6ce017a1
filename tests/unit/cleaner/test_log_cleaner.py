"""Log cleaner of a broker: choice of the next log, logs that cannot be cleaned, and its metrics."""

from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.unit.log.conftest import LogBench
from tests.unit.replication.replica_nodes import T0, ReplicaNode
from tidemark_broker.cleaner import CleanerCollector, LogCleaner
from tidemark_broker.cleaner.throttle import IoThrottle
from tidemark_broker.config import BrokerConfig, parse
from tidemark_broker.config_entries import ConfigError
from tidemark_broker.log import LogConfig
from tidemark_broker.log.compaction import CleaningAborted
from tidemark_broker.log.compaction.cleaning_pace import CleaningPace
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
        for family in CleanerCollector(of).collect()
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
    told = figures(found)
    assert node.partition.log.size_bytes < size
    assert (told["runs_total"], told["failures_total"], told["uncleanable_partitions"]) == (1, 0, 0)
    assert told["max_dirty_percent"] == 100
    assert told["read_bytes_total"] > told["written_bytes_total"] > 0
    assert 0 < told["max_buffer_utilization_percent"] < 100
    node.now_s += 9
    assert not await found.clean_one()
    told = figures(found)
    assert (told["max_dirty_percent"], told["seconds_since_last_run"]) == (0, 9)
    await node.append(20)
    assert await found.clean_one()


async def test_a_log_that_cannot_be_compacted_is_set_aside_for_ever_longer(
    node: ReplicaNode,
) -> None:
    await node.append(40)
    node.partition.log.config = COMPACT
    await node.append(10)
    node.partition.log.flush()
    path = min(node.log_folder.glob("*.log"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    found = cleaner(node)
    assert await found.clean_one()
    assert not await found.clean_one()
    told = figures(found)
    assert (told["uncleanable_partitions"], told["failures_total"]) == (1, 1)
    for _ in range(2):
        node.now_s += 61
        assert await found.clean_one()
        assert not await found.clean_one()
        node.now_s += 61
    assert node.partition.log.failure is None
    path.write_bytes(whole)
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
    assert node.partition.log.reopen()
    assert LogBench(node.log_folder, config=COMPACT).check(node.partition.log)


async def test_a_cleaner_that_stops_begins_nothing_and_ends_what_it_does(node: ReplicaNode) -> None:
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
    partition.log.raise_local_log_start(20)
    assert partition.log.log_start_offset < partition.log.local_log_start_offset
    assert not await cleaner(node).clean_one()


async def test_no_thread_no_compaction(node: ReplicaNode) -> None:
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


def test_what_is_read_and_written_stays_below_the_limit() -> None:
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        assert seconds <= 0.5
        now_s += seconds

    throttle = IoThrottle(1000, now=lambda: now_s)
    pace = CleaningPace(lambda: False, throttle.moved, lambda: now_s, sleep)
    for _ in range(60):
        now_s += 0.01
        pace.step(1000)
    assert 50 <= now_s <= 62
    assert IoThrottle(2**63 - 1).moved(10**15) == 0


def test_a_cleaning_that_rests_gives_up_soon() -> None:
    slept = list[float]()
    pace = CleaningPace(
        lambda: len(slept) == 3, lambda _: 1000.0, iter(range(9)).__next__, slept.append
    )
    with pytest.raises(CleaningAborted):
        pace.step(1)
    assert slept == [0.5] * 3
