"""One replica with a real log: role changes, ISR proposals, and what a follower's fetch shows."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from tidemark.leader_recovery import LeaderRecoveryState
from tidemark.records.builder import Record, build_batch
from tidemark.tiering import NEVER_TIERED, Tiering, TieringState
from tidemark.wire import control
from tidemark_broker.log import (
    LogConfig,
    TieredRetention,
    create_log,
    read_state,
    write_state,
)
from tidemark_broker.log.bounds import Starts
from tidemark_broker.log.start_offsets import note_recorded_starts
from tidemark_broker.purgatory import Purgatory
from tidemark_broker.replication.following import fetch_responses
from tidemark_broker.replication.metadata import MetadataCache, TopicMetadata
from tidemark_broker.replication.partition import (
    Partition,
    ReplicaContext,
    Role,
    consumer_reads,
    isr_and_high_watermark,
    log_start,
    produce,
    remote_end,
    roles,
)
from tidemark_broker.replication.partition.isr_decisions import FollowerFetch
from tidemark_broker.replication.partition.state_file import StoredState, from_json, to_json
from tidemark_broker.replication.remote import RemoteEnd, TierEnd
from tidemark_broker.replication.threads import in_thread

TOPIC_ID = uuid.UUID("12345678-1234-5678-1234-567812345678")
VIEW = TopicMetadata(topic_id=TOPIC_ID, name="t", config={}, tiering=NEVER_TIERED)
TIERED = replace(VIEW, tiering=Tiering(TieringState.ENABLED, 0))
ROW = control.PartitionState(
    partition=0,
    leader=1,
    leader_epoch=5,
    partition_epoch=10,
    replicas=(1, 2, 3),
    isr=(1,),
    manifest=False,
)


class RoleClock:
    # A clock in the test's hand: lag and retries depend on it.
    now_s = 1000.0


class Host:
    """The parts a partition needs of a broker, real ones, on one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = RoleClock()
        self.proposals: list[control.IsrChange] = []
        self.persisting = asyncio.Event()
        self._disk = asyncio.Event()
        self._disk.set()
        self.metadata = MetadataCache("c")
        self.metadata.brokers = {
            node: control.BrokerState(
                broker_id=node, broker_epoch=node * 10, rack=None, fenced=False, listeners=()
            )
            for node in (1, 2, 3)
        }
        self.context = ReplicaContext(
            node_id=1,
            metadata=self.metadata,
            purgatory=Purgatory(),
            lag_max_s=10.0,
            monotonic=lambda: self.clock.now_s,
            wall_ms=lambda: 1_700_000_000_000,
            propose_isr=lambda _, change: self.proposals.append(change),
            persist=self._persist,
            # Checkpoints never complete, so log starts become durable only when a test says so.
            checkpoint_log_start=lambda _: asyncio.get_running_loop().create_future(),
        )

    @asynccontextmanager
    async def slow_disk(self) -> AsyncIterator[None]:
        """Let no state file be written until the block ends."""
        self._disk.clear()
        yield
        self._disk.set()

    async def _persist(self, directory: Path, state: StoredState) -> None:
        self.persisting.set()
        await self._disk.wait()
        await in_thread(write_state, directory, to_json(state))

    def partition(self, *, min_isr: int = 1) -> Partition:
        log = create_log(
            self.folder / "t-0",
            topic="t",
            topic_id=TOPIC_ID,
            partition=0,
            config=LogConfig(min_insync_replicas=min_isr),
        )
        return Partition(self.context, log, stored=None, view=None)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def batch(count: int = 1) -> bytes:
    return build_batch(
        [Record(key=None, value=b"v", headers=(), timestamp_ms=1_700_000_000_000)] * count
    )


def follower_fetch(
    partition: Partition, offset: int, *, node: int = 2, log_start: int = 0
) -> FollowerFetch:
    return FollowerFetch(
        fetch_offset=offset,
        log_start_offset=log_start,
        local_log_start_offset=log_start,
        broker_epoch=node * 10,
        leader_next_offset=partition.next_offset,
        now_s=partition.context.monotonic(),
    )


def answer(change: control.IsrChange, row: control.PartitionState, code: int) -> control.IsrResult:
    return control.IsrResult(
        topic_id=change.topic_id,
        partition=0,
        error_code=code,
        leader=row.leader,
        leader_epoch=row.leader_epoch,
        partition_epoch=row.partition_epoch,
        isr=row.isr,
    )


def stored_row(partition: Partition) -> control.PartitionState | None:
    stored = read_state(partition.log.directory)
    assert stored is not None
    return from_json(stored).row


async def test_state_is_on_disk_before_the_role_changes(host: Host) -> None:
    partition = host.partition()
    assert await roles.apply(partition, VIEW, ROW, 3)
    assert partition.is_leader
    stored = read_state(partition.log.directory)
    assert stored is not None
    # A restart must not forget the epochs of the role (state before role).
    assert from_json(stored).row == ROW
    assert partition.log.epochs.latest_epoch == 5


async def test_joining_follower_bounds_the_high_watermark(host: Host) -> None:
    partition = host.partition()
    await roles.apply(partition, VIEW, ROW, 3)
    assert (await produce.append(partition, batch(10), acks=1, timeout_ms=0)).base_offset == 0
    assert partition.high_watermark == 10
    isr_and_high_watermark.follower_fetched(partition, 2, follower_fetch(partition, 10))
    # The proposed member counts for the high watermark already, as Kafka's maximalIsr.
    assert [change.new_isr for change in host.proposals] == [(1, 2)]
    host.clock.now_s += 60  # the follower is no more caught up, but it may be in the ISR already
    await produce.append(partition, batch(5), acks=1, timeout_ms=0)
    assert partition.high_watermark == 10
    await roles.apply(partition, VIEW, ROW, 3)  # another partition of the topic changed
    await produce.append(partition, batch(5), acks=1, timeout_ms=0)
    assert partition.high_watermark == 10

    # Settled: the follower is in the ISR, and its fetch position counts.
    committed = replace(ROW, isr=(1, 2), partition_epoch=11)
    isr_and_high_watermark.answered(
        partition, host.proposals[0], answer(host.proposals[0], committed, 0)
    )
    assert partition.isr == (1, 2)
    isr_and_high_watermark.follower_fetched(partition, 2, follower_fetch(partition, 20))
    assert partition.high_watermark == 20


async def test_refused_proposal_is_dropped_once_the_row_is_known(host: Host) -> None:
    partition = host.partition()
    await roles.apply(partition, VIEW, ROW, 3)
    isr_and_high_watermark.follower_fetched(partition, 2, follower_fetch(partition, 0))
    assert partition.leader is not None
    unknown = replace(ROW, leader_epoch=6, partition_epoch=12)
    isr_and_high_watermark.answered(
        partition, host.proposals[0], answer(host.proposals[0], unknown, 74)
    )
    # The answer is about an epoch that this leader does not know, so the proposal may have
    # succeeded.
    assert partition.leader.pending == (1, 2)
    isr_and_high_watermark.answered(
        partition, host.proposals[0], answer(host.proposals[0], ROW, 107)
    )
    # The row is known and does not have the member: the proposal is dropped.
    assert partition.leader.pending is None


async def test_late_answer_settles_only_its_own_proposal(host: Host) -> None:
    """Invariant 1: while replica 2 may be in the ISR already, nothing commits without it."""
    partition = host.partition()
    both = replace(ROW, isr=(1, 2))
    await roles.apply(partition, VIEW, both, 3)
    await produce.append(partition, batch(5), acks=1, timeout_ms=0)
    host.clock.now_s += 60
    # Replica 2 is behind, so the leader proposes to remove it.
    isr_and_high_watermark.shrink_isr(partition)
    shrink = host.proposals[-1]
    assert shrink.new_isr == (1,)
    alone = replace(ROW, partition_epoch=11)
    await roles.apply(partition, VIEW, alone, 3)  # the push overtakes the answer
    isr_and_high_watermark.follower_fetched(partition, 2, follower_fetch(partition, 5))
    assert host.proposals[-1].new_isr == (1, 2)
    # The answer to the shrink comes last; it must not settle the later proposal.
    isr_and_high_watermark.answered(partition, shrink, answer(shrink, alone, 0))
    assert partition.leader is not None
    assert partition.leader.pending == (1, 2)
    host.clock.now_s += 60  # replica 2 is no more caught up, but it may have been taken in
    await produce.append(partition, batch(5), acks=1, timeout_ms=0)
    assert partition.high_watermark == 5


async def test_answer_is_applied_before_its_row_is_on_disk(host: Host) -> None:
    """No answer waits behind another partition's fsync; the file follows soon."""
    partition = host.partition()
    await roles.apply(partition, VIEW, ROW, 3)
    isr_and_high_watermark.follower_fetched(partition, 2, follower_fetch(partition, 0))
    change = host.proposals[-1]
    joined = replace(ROW, isr=(1, 2), partition_epoch=11)
    async with partition.lock:  # a role change is under way
        isr_and_high_watermark.answered(partition, change, answer(change, joined, 0))
        assert partition.isr == (1, 2)
    await host.context.states.written()
    stored = read_state(partition.log.directory)
    assert stored is not None
    assert from_json(stored).row == joined


async def test_changed_isr_takes_effect_before_its_row_is_on_disk(host: Host) -> None:
    """A fenced broker leaves many ISRs at once: new leaders do not wait for all their files."""
    partition = host.partition()
    both = replace(ROW, isr=(1, 2))
    await roles.apply(partition, VIEW, both, 3)
    alone = replace(ROW, isr=(1,), partition_epoch=11)
    async with host.slow_disk():
        await asyncio.wait_for(roles.apply(partition, VIEW, alone, 3), 5)
        assert partition.isr == (1,)
        assert stored_row(partition) == both
    await host.context.states.written()
    assert stored_row(partition) == alone


async def test_former_leader_follows_before_its_row_is_on_disk(host: Host) -> None:
    partition = host.partition()
    await roles.apply(partition, VIEW, ROW, 3)
    follows = replace(ROW, leader=2, leader_epoch=6, partition_epoch=11, isr=(2,))
    async with host.slow_disk():
        await asyncio.wait_for(roles.apply(partition, VIEW, follows, 3), 5)
        assert partition.role is Role.FOLLOWER
    await host.context.states.written()
    assert stored_row(partition) == follows


@pytest.mark.parametrize(
    "changes",
    [{"leader_epoch": 6}, {"leader_epoch": 7, "isr": (1, 2)}, {"replicas": (1, 2)}],
    ids=["leads in another epoch", "leads with another ISR", "other replicas"],
)
async def test_other_changes_wait_until_they_are_on_disk(
    host: Host, changes: dict[str, object]
) -> None:
    partition = host.partition()
    await roles.apply(partition, VIEW, ROW, 3)
    changed = replace(ROW, partition_epoch=11, **changes)  # type: ignore[arg-type]
    async with host.slow_disk():
        pushed = asyncio.create_task(roles.apply(partition, VIEW, changed, 3))
        await asyncio.sleep(0.05)
        assert partition.row == ROW
        assert not pushed.done()
    await pushed
    assert partition.row == changed
    assert stored_row(partition) == changed


async def test_concurrent_state_write_does_not_revert_the_row(host: Host) -> None:
    """The answer comes while a push of the row before it is being written."""
    partition = host.partition()
    await roles.apply(partition, VIEW, ROW, 3)
    isr_and_high_watermark.follower_fetched(partition, 2, follower_fetch(partition, 0))
    change = host.proposals[-1]
    joined = replace(ROW, isr=(1, 2), partition_epoch=11)
    pushed = asyncio.create_task(roles.apply(partition, VIEW, replace(ROW, manifest=True), 3))
    # Clear the event first, then wait for the write of the pushed row.
    host.persisting.clear()
    await host.persisting.wait()
    isr_and_high_watermark.answered(partition, change, answer(change, joined, 0))
    await pushed
    assert partition.row == joined
    assert partition.leader is not None
    assert partition.leader.row == joined


async def test_unsettled_proposal_is_repeated(host: Host) -> None:
    partition = host.partition()
    await roles.apply(partition, VIEW, ROW, 3)
    isr_and_high_watermark.follower_fetched(partition, 2, follower_fetch(partition, 0))
    isr_and_high_watermark.shrink_isr(partition)
    assert host.proposals[0] == host.proposals[1]


async def test_acks_all_waits_and_leadership_lost_answers_it(host: Host) -> None:
    partition = host.partition(min_isr=2)
    await roles.apply(partition, VIEW, ROW, 3)
    refused = await produce.append(partition, batch(), acks=-1, timeout_ms=1000)
    assert refused.error is ErrorCode.not_enough_replicas
    # Refused before anything is appended.
    assert partition.next_offset == 0

    await roles.apply(partition, VIEW, replace(ROW, isr=(1, 2), partition_epoch=11), 3)
    waiting = asyncio.create_task(produce.append(partition, batch(), acks=-1, timeout_ms=10_000))
    await asyncio.sleep(0)
    isr_and_high_watermark.follower_fetched(partition, 2, follower_fetch(partition, 1))
    assert (await waiting).error is ErrorCode.none

    waiting = asyncio.create_task(produce.append(partition, batch(), acks=-1, timeout_ms=10_000))
    await asyncio.sleep(0)
    # The waiting append is answered by the loss of leadership.
    moved = replace(ROW, leader=2, leader_epoch=6, partition_epoch=12, isr=(1, 2))
    await roles.apply(partition, VIEW, moved, 3)
    assert (await waiting).error is ErrorCode.not_leader_or_follower
    assert partition.role is Role.FOLLOWER


async def test_stored_row_ahead_of_the_controller_gives_no_role(host: Host) -> None:
    partition = host.partition()
    # The disk has a newer row than the controller sends, as after a restored API server.
    ahead = replace(ROW, partition_epoch=20)
    await roles.apply(partition, VIEW, ahead, 3)
    restarted = Partition(host.context, partition.log, stored=partition.stored, view=None)
    assert not await roles.apply(restarted, VIEW, ROW, 3)
    assert restarted.role is Role.IDLE
    assert await roles.apply(restarted, VIEW, ahead, 3)
    assert restarted.is_leader


async def test_low_watermark_counts_live_followers_and_durable_starts(host: Host) -> None:
    partition = host.partition()
    await roles.apply(partition, VIEW, ROW, 3)
    await produce.append(partition, batch(10), acks=1, timeout_ms=0)
    # No follower has fetched yet, so the low watermark is unknown.
    assert log_start.low_watermark(partition) == -1
    for node in (2, 3):
        isr_and_high_watermark.follower_fetched(
            partition, node, follower_fetch(partition, 10, node=node)
        )
    result = log_start.delete_records(partition, -1)
    assert (result.error, result.offset, result.low_watermark) == (ErrorCode.none, 10, 0)
    for node in (2, 3):
        isr_and_high_watermark.follower_fetched(
            partition, node, follower_fetch(partition, 10, node=node, log_start=10)
        )
    assert log_start.low_watermark(partition) == 0  # the leader's own start is not on disk yet
    # The checkpoint is complete: the leader's start is on disk.
    note_recorded_starts(partition.log, Starts(10, 10))
    log_start.after_checkpoint(partition)
    assert log_start.low_watermark(partition) == 10
    assert log_start.delete_records(partition, 11).error is ErrorCode.offset_out_of_range
    assert log_start.delete_records(partition, 3).low_watermark == 10


async def test_created_manifest_is_reported_until_the_row_has_it(host: Host) -> None:
    partition = host.partition()
    await roles.apply(partition, VIEW, ROW, 3)
    isr_and_high_watermark.report_manifest_created(partition)
    assert host.proposals[-1].remote_manifest
    assert host.proposals[-1].new_isr == ROW.isr
    noted = replace(ROW, partition_epoch=11)
    isr_and_high_watermark.answered(
        partition, host.proposals[-1], answer(host.proposals[-1], noted, 0)
    )
    assert partition.row is not None
    assert partition.row.manifest
    before = len(host.proposals)
    isr_and_high_watermark.shrink_isr(partition)
    # Nothing is left to report.
    assert len(host.proposals) == before


async def test_undecidable_request_is_not_repeated_all_the_time(host: Host) -> None:
    """While a row is in doubt the controller refuses at once what its leader has to report."""
    partition = host.partition()
    await roles.apply(partition, VIEW, ROW, 3)
    isr_and_high_watermark.report_manifest_created(partition)
    # OPERATION_NOT_ATTEMPTED: the controller cannot decide at the moment.
    refused = answer(host.proposals[-1], ROW, int(ErrorCode.operation_not_attempted))
    isr_and_high_watermark.answered(partition, host.proposals[-1], refused)
    assert len(host.proposals) == 1
    # The periodic check sends it again.
    isr_and_high_watermark.shrink_isr(partition)
    assert [proposal.remote_manifest for proposal in host.proposals] == [True, True]


@pytest.mark.parametrize(
    ("apply", "error"),
    [
        (
            lambda p: consumer_reads.fetch(p, 11, max_bytes=100, min_one=True),
            ErrorCode.offset_out_of_range,
        ),
        (
            lambda p: consumer_reads.fetch(
                p, 0, max_bytes=100, min_one=True, current_leader_epoch=4
            ),
            ErrorCode.fenced_leader_epoch,
        ),
        (
            lambda p: consumer_reads.fetch(
                p, 0, max_bytes=100, min_one=True, current_leader_epoch=6
            ),
            ErrorCode.unknown_leader_epoch,
        ),
    ],
)
async def test_fetches_are_fenced_and_bounded(
    host: Host, apply: Callable[[Partition], object], error: ErrorCode
) -> None:
    partition = host.partition()
    await roles.apply(partition, VIEW, ROW, 3)
    await produce.append(partition, batch(10), acks=1, timeout_ms=0)
    assert getattr(apply(partition), "error") is error  # noqa: B009  the result's type is the api's
    assert consumer_reads.fetch(partition, 10, max_bytes=100, min_one=True).data == b""


async def test_unclean_leader_adds_no_replica_before_its_recovery_is_recorded(
    host: Host,
) -> None:
    """KIP-704: the proposal is lost once and repeated."""
    partition = host.partition()
    recovering = replace(ROW, leader_recovery_state=int(LeaderRecoveryState.RECOVERING))
    assert await roles.apply(partition, VIEW, recovering, 3)
    assert partition.is_leader
    assert partition.recovering
    # The proposal has the leader alone and RECOVERED: it ends the recovery.
    (change,) = host.proposals
    assert change.new_isr == (1,)
    assert change.leader_recovery_state == LeaderRecoveryState.RECOVERED
    isr_and_high_watermark.follower_fetched(partition, 2, follower_fetch(partition, 0))
    isr_and_high_watermark.shrink_isr(partition)
    # Neither the follower nor the shrink changes the proposal, which is repeated.
    assert host.proposals == [change, change]
    recovered = replace(ROW, partition_epoch=11)
    isr_and_high_watermark.answered(partition, change, answer(change, recovered, 0))
    assert not partition.recovering
    await host.context.states.written()
    stored = read_state(partition.log.directory)
    assert stored is not None
    assert from_json(stored).row == recovered
    # Only now members may be added.
    isr_and_high_watermark.follower_fetched(partition, 2, follower_fetch(partition, 0))
    assert host.proposals[-1].new_isr == (1, 2)


async def test_leader_adopts_a_newer_recovering_row(host: Host) -> None:
    partition = host.partition()
    recovering = replace(ROW, leader_recovery_state=int(LeaderRecoveryState.RECOVERING))
    await roles.apply(partition, VIEW, recovering, 3)
    (change,) = host.proposals
    newer = replace(recovering, partition_epoch=11)
    response = replace(answer(change, newer, 95), leader_recovery_state=1)
    isr_and_high_watermark.answered(partition, change, response)
    assert partition.recovering
    assert host.proposals[-1].partition_epoch == 11
    await roles.apply(partition, VIEW, replace(recovering, partition_epoch=12), 3)
    assert host.proposals[-1].partition_epoch == 12


@pytest.mark.parametrize(
    ("timestamp", "offset"), [(-2, 0), (-4, 0), (-5, 7), (1_600_000_000_000, 0)]
)
async def test_lagging_high_watermark_refuses_only_unknown_offsets(
    host: Host, timestamp: int, offset: int
) -> None:
    """As Kafka's Partition.fetchOffsetForTimestamp after an election."""
    partition = host.partition()
    await roles.apply(partition, VIEW, ROW, 3)
    await produce.append(partition, batch(5), acks=1, timeout_ms=0)
    await roles.apply(partition, VIEW, replace(ROW, isr=(1, 2), partition_epoch=11), 3)
    await produce.append(partition, batch(5), acks=1, timeout_ms=0)
    remote_end.note(partition, 7, 5)
    await roles.apply(
        partition, TIERED, replace(ROW, leader_epoch=6, partition_epoch=12, isr=(1, 2)), 3
    )
    # Five records of the former epoch are not committed in the new one.
    assert partition.high_watermark == 5
    assert (await consumer_reads.list_offset(partition, -1)).error is ErrorCode.offset_not_available
    found = await consumer_reads.list_offset(partition, timestamp)
    assert (found.error, found.offset) == (ErrorCode.none, offset)
    beyond = await consumer_reads.list_offset(partition, 1_700_000_000_000 - 1)
    assert (beyond.error, beyond.offset) == (ErrorCode.none, 0)


async def test_timestamp_beyond_a_lagging_high_watermark_is_unavailable(host: Host) -> None:
    partition = host.partition()
    await roles.apply(partition, VIEW, replace(ROW, isr=(1, 2)), 3)
    await produce.append(partition, batch(5), acks=1, timeout_ms=0)
    assert (await consumer_reads.list_offset(partition, 1_600_000_000_000)).offset == -1
    await roles.apply(
        partition, VIEW, replace(ROW, leader_epoch=6, partition_epoch=12, isr=(1, 2)), 3
    )
    for timestamp in (1_600_000_000_000, -3):
        found = await consumer_reads.list_offset(partition, timestamp)
        assert found.error is ErrorCode.offset_not_available
    assert (await consumer_reads.list_offset(partition, 1_800_000_000_000)).error is ErrorCode.none


async def test_retention_and_followers_use_a_durable_tier_end(host: Host) -> None:
    partition = host.partition()
    await roles.apply(partition, TIERED, ROW, 3)
    await produce.append(partition, batch(10), acks=1, timeout_ms=0)
    remote_end.note_head(partition, 0, 7, 5)
    assert partition.local_retention() == TieredRetention(highest_remote_offset=-1)
    # The tier's end is not announced before it is on disk.
    response = fetch_responses.answer(partition, ErrorCode.none)
    assert (response.head_tiered_epoch, response.remote_end_offset) == (-1, -1)
    await host.context.states.written()
    assert partition.local_retention() == TieredRetention(highest_remote_offset=7)
    response = fetch_responses.answer(partition, ErrorCode.none)
    assert (response.head_tiered_epoch, response.remote_end_offset, response.remote_end_epoch) == (
        0,
        7,
        5,
    )


async def elected_again(partition: Partition, row: control.PartitionState) -> "asyncio.Task[bool]":
    """Start to make a leader the leader of the next epoch; its row is in force, its role is not."""
    task = asyncio.create_task(roles.apply(partition, VIEW, row, 3))
    while partition.leader_epoch != row.leader_epoch:  # noqa: ASYNC110 - there is no event
        await asyncio.sleep(0)
    assert partition.leader is not None
    assert partition.leader.epoch < row.leader_epoch
    return task


async def test_answer_to_a_former_epoch_does_not_revert_the_row(host: Host) -> None:
    partition = host.partition()
    await roles.apply(partition, VIEW, ROW, 3)
    isr_and_high_watermark.follower_fetched(partition, 2, follower_fetch(partition, 0))
    change = host.proposals[-1]
    again = replace(ROW, leader_epoch=6, partition_epoch=12)
    task = await elected_again(partition, again)
    isr_and_high_watermark.answered(
        partition, change, answer(change, replace(ROW, isr=(1, 2), partition_epoch=11), 0)
    )
    await task
    assert partition.row == again
    assert partition.leader is not None
    assert partition.leader.row == again


async def test_incomplete_replica_that_is_reelected_reads_the_tier(host: Host) -> None:
    partition = host.partition()
    await roles.apply(partition, VIEW, ROW, 3)
    task = await elected_again(partition, replace(ROW, leader_epoch=6, partition_epoch=12))
    assert roles.stop_if_behind_tier(partition, TierEnd(RemoteEnd(99, 5), 0))
    await task
    assert partition.role is Role.TAKING_OVER
    assert (await produce.append(partition, batch(), acks=1, timeout_ms=0)).error is (
        ErrorCode.not_leader_or_follower
    )


async def test_tier_end_from_before_a_delete_is_not_trusted(host: Host) -> None:
    """The replica was away during a Delete: its stored tier end is outdated."""
    partition = host.partition()
    await roles.apply(partition, TIERED, ROW, 3)
    await produce.append(partition, batch(10), acks=1, timeout_ms=0)
    remote_end.note_head(partition, 0, 7, 5)
    await host.context.states.written()
    assert partition.local_retention() == TieredRetention(highest_remote_offset=7)
    # Tiered again after a Delete: a new tiered epoch.
    again = replace(VIEW, tiering=Tiering(TieringState.ENABLED, 1))
    await roles.apply(partition, again, replace(ROW, partition_epoch=11), 3)
    assert partition.local_retention() == TieredRetention(highest_remote_offset=-1)
    remote_end.note_head(partition, 1, 3, 5)
    await host.context.states.written()
    assert partition.local_retention() == TieredRetention(highest_remote_offset=3)
