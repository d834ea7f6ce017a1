"""A full disk: replicas are reported to the controller, give up leadership, and recover."""

import asyncio
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.replication.replica_nodes import TOPIC_ID, ReplicaNode, batch, row
from tidemark.wire import control
from tidemark_broker.replication.following.follower import FetchOutcome
from tidemark_broker.replication.partition import Role, isr_and_high_watermark, produce

Nodes = Callable[[int], ReplicaNode]
STORAGE_ERROR = int(ErrorCode.kafka_storage_error.value)
FAILED = (control.TopicPartitions(topic_id=TOPIC_ID, partitions=(0,)),)


@contextmanager
def full_disk(room: int = 0) -> Iterator[None]:
    """Let the kernel refuse files larger than ``room`` bytes (EFBIG), as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def refused(node: ReplicaNode) -> None:
    result = await produce.append(node.partition, batch(), acks=1, timeout_ms=0)
    assert result.error is ErrorCode.kafka_storage_error


@pytest.mark.parametrize(
    ("replicas", "errors"),
    [((1, 2), []), ((1, 2, 3), [STORAGE_ERROR])],
    ids=["the state needs no disk", "with other replicas it does"],
)
async def test_a_leader_on_a_full_disk_obeys_a_new_leader(
    node: Nodes, replicas: tuple[int, ...], errors: list[int]
) -> None:
    one = node(1)
    await one.lead(1)
    # A producer waits for the ISR when the controller elects another leader.
    waiting = asyncio.create_task(
        produce.append(one.partition, batch(), acks=-1, timeout_ms=60_000)
    )
    await asyncio.sleep(0)
    with full_disk():
        found = await one.receive(
            row(leader=2, leader_epoch=2, partition_epoch=2, replicas=replicas)
        )
        # The state cannot be persisted, but serving as leader would violate the new epoch.
        assert [error.error_code for error in found] == errors
        async with asyncio.timeout(5):
            assert (await waiting).error is ErrorCode.not_leader_or_follower
        late = await produce.append(one.partition, batch(), acks=1, timeout_ms=0)
        assert late.error is ErrorCode.not_leader_or_follower
        await one.context.states.written()
        assert one.manager.failed_replicas() == FAILED
    # With space again the role is persisted. 40 s are more than the longest pause.
    one.now_s += 40
    await one.manager.retry()
    assert one.manager.failed_replicas() == ()
    assert one.partition.role is Role.FOLLOWER
    assert one.partition.leader_epoch == 2


async def test_a_replica_on_a_full_disk_does_not_start_to_lead(node: Nodes) -> None:
    one = node(1)
    await one.follow(2, 1)
    with full_disk():
        [error] = await one.receive(row(leader_epoch=2, partition_epoch=2))
        assert error.error_code == STORAGE_ERROR
        assert one.partition.role is Role.FOLLOWER
        assert one.manager.failed_replicas() == FAILED
    one.now_s += 40
    await one.manager.retry()
    assert one.partition.is_leader


async def test_a_leader_on_a_full_disk_continues_if_only_its_isr_changes(node: Nodes) -> None:
    one = node(1)
    await one.lead(1)
    with full_disk():
        assert await one.receive(row(leader_epoch=1, partition_epoch=2, isr=(1,))) == []
        assert one.partition.is_leader
        assert one.partition.isr == (1,)
        await one.context.states.written()
        assert one.manager.failed_replicas() == FAILED


async def test_a_leader_commits_without_a_caught_up_replica_that_the_controller_refuses(
    node: Nodes,
) -> None:
    """A former leader whose disk fails fetches at the log end, but can append nothing."""
    one, two = node(1), node(2)
    proposals: list[control.IsrChange] = []
    one.context.propose_isr = lambda _, change: proposals.append(change)
    await one.receive(row(leader_epoch=1, partition_epoch=1, isr=(1,)))
    await two.receive(row(leader_epoch=1, partition_epoch=1, isr=(1,)))
    await two.fetch_once(one)
    [change] = proposals
    assert change.new_isr == (1, 2)
    refusal = control.IsrResult(
        topic_id=TOPIC_ID,
        partition=0,
        error_code=ErrorCode.ineligible_replica.value,
        leader=1,
        leader_epoch=1,
        partition_epoch=1,
        isr=(1,),
    )
    isr_and_high_watermark.answered(one.partition, change, refusal)
    await one.append()
    assert one.partition.log.high_watermark == 1
    # Once it catches up again, it is waited for as usual.
    await two.catch_up(one)
    await one.append()
    assert one.partition.log.high_watermark == 1


async def test_a_replica_without_disk_space_is_reported_and_recovers_by_itself(node: Nodes) -> None:
    one = node(1)
    await one.lead(1)
    await one.append(1)
    assert one.manager.failed_replicas() == ()
    with full_disk():
        await refused(one)
        assert one.manager.failed_replicas() == FAILED
        one.now_s += 40
        await one.manager.retry()
        assert one.manager.failed_replicas() == FAILED
    one.now_s += 40
    await one.manager.retry()
    assert one.manager.failed_replicas() == ()
    assert one.log_directory.error() == ""
    # The probe file of the retries was deleted.
    assert list(one.folder.glob("*.tmp")) == []
    await one.append(1)


async def test_a_probe_needs_more_than_a_few_free_bytes(node: Nodes) -> None:
    one = node(1)
    await one.lead(1)
    with full_disk():
        await refused(one)
    with full_disk(room=100_000):
        one.now_s += 40
        await one.manager.retry()
    assert one.manager.failed_replicas() == FAILED


async def test_retries_on_a_full_disk_back_off_up_to_30_seconds(node: Nodes) -> None:
    one = node(1)
    await one.lead(1)
    # The disk always has space for the probe, and is full again for the next append.
    healed_s = []
    for _ in range(100):
        if not one.manager.failed_replicas():
            healed_s.append(one.now_s - 1000)
            with full_disk():
                await refused(one)
        await one.manager.retry()
        one.now_s += 1
    assert healed_s == [0, 1, 2, 4, 8, 16, 32, 62, 92]


async def test_a_follower_without_disk_space_is_reported(node: Nodes) -> None:
    one, two = node(1), node(2)
    await one.lead(1)
    await two.follow(1, 1)
    await one.append(5)
    with full_disk():
        assert await two.fetch_once(one) is FetchOutcome.BACK_OFF
    assert two.manager.failed_replicas() == FAILED
    two.now_s += 40
    await two.manager.retry()
    await two.catch_up(one)
    assert two.manager.failed_replicas() == ()


async def test_a_follower_removed_from_the_isr_does_not_block_the_high_watermark(
    node: Nodes,
) -> None:
    """The leader waits for a caught-up follower that is about to join. It does not wait for one
    that the controller has removed, although that one is alive and fetches."""
    one, two = node(1), node(2)
    await one.lead(1)
    await two.follow(1, 1)
    await one.append(1)
    await two.catch_up(one)
    await one.append(5)
    with full_disk():
        assert await two.fetch_once(one) is FetchOutcome.BACK_OFF
    # The follower is in the ISR and cannot append, so nothing more is committed.
    assert one.partition.high_watermark == 1
    await one.receive(row(leader_epoch=1, partition_epoch=2, isr=(1,)))
    assert one.partition.high_watermark == 6
    await one.append(1)
    with full_disk():
        assert await two.fetch_once(one) is FetchOutcome.BACK_OFF
    assert one.partition.high_watermark == 7
    # With space again it catches up.
    await two.catch_up(one)
    assert two.partition.next_offset == 7


async def test_the_first_fetch_after_removal_from_the_isr_does_not_block_the_high_watermark(
    node: Nodes,
) -> None:
    """The fetch requests the follower's former end. It does not prove that the follower is in
    sync."""
    one, two = node(1), node(2)
    await one.lead(1)
    await two.follow(1, 1)
    await one.append(1)
    await two.catch_up(one)
    await one.append(5)
    await one.receive(row(leader_epoch=1, partition_epoch=2, isr=(1,)))
    with full_disk():
        assert await two.fetch_once(one) is FetchOutcome.BACK_OFF
    await one.append(1)
    assert one.partition.high_watermark == 7


async def test_a_full_disk_is_an_error_of_the_directory(node: Nodes) -> None:
    one = node(1)
    await one.lead(1)
    with full_disk():
        await refused(one)
        one.now_s += 40
        await one.manager.retry()
        assert one.log_directory.directory_error() != ""
    one.now_s += 40
    await one.manager.retry()
    assert one.log_directory.directory_error() == ""
