"""Broken rules, put in the place of real ones for one run: what the simulation has to find.

Production code has no switch for this. Each entry of :data:`BUGS` names one rule that is broken,
the profile of runs in which it shows soonest, and how it is broken.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from kio.schema.errors import ErrorCode

from tests.simulation.cluster import (
    BACKUPS,
    DOWN,
    HEADS,
    MOVES,
    READERS,
    RESTORES,
    TORN,
    Profile,
)
from tidemark.tier.metadata import transitions
from tidemark.tier.metadata.head import Head
from tidemark.wire import control
from tidemark_broker.api.records import fetch_reader
from tidemark_broker.log.retention import RetentionInput
from tidemark_broker.remote_log.head_writer import HeadWriter
from tidemark_broker.remote_log.leader_tasks import LeaderTasks
from tidemark_broker.replication.metadata import MetadataCache
from tidemark_broker.replication.partition import Partition, isr_decisions, log_start
from tidemark_broker.replication.partition.leader import LeaderRole
from tidemark_broker.replication.types import DeleteResult
from tidemark_operator.controller import catch_up_limits, elections, reassignment, registration
from tidemark_operator.controller.state.commit import Draft, apply
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.model import NO_LEADER, PartitionRow, RowKey, TopicInfo
from tidemark_operator.controller.state.replica_state_reports import ReplicaStateReports
from tidemark_operator.slices.slice_store import SliceStore

_delete_records = log_start.delete_records
_after_restart = registration.after_restart
_put = SliceStore._put
_merge = MetadataCache._merge
_settled = reassignment.settled
_raise_floor = transitions._raise_floor
_ask = fetch_reader._ask

CALM = Profile(users={}, unclean=False, late_broker=False, settle=False)
#: Three replicas that drop out of the ISR and come back all the time, with late answers.
ISR_CHANGES = dataclasses.replace(
    CALM,
    factor=3,
    min_isr=1,
    tiered=False,
    fault_s=0.4,
    trouble_s=40.0,
    lag_ms=700,
    faults={"brokers cut off": 6, "overtaken answers": 2, "slow API server": 2},
)
#: Machines that lose their power, one after the other.
POWER = dataclasses.replace(
    CALM,
    factor=3,
    min_isr=2,
    tiered=False,
    fault_s=1.2,
    trouble_s=60.0,
    faults={"power cut": 4, "kill": 4, "shut down": 1},
)
#: The same under a tiered topic with one copy that must be in sync.
TIERED_POWER = dataclasses.replace(POWER, min_isr=1, tiered=True)
#: Brokers that die and leave everything on their disks, so that only divergence takes records.
KILLS = dataclasses.replace(
    POWER, min_isr=1, faults={"kill": 4, "stall": 3, "brokers cut off": 3}, settle=True
)
#: Users who delete, and delete again, in a log that keeps everything else.
DELETIONS = dataclasses.replace(
    CALM,
    tiered=False,
    users={"delete records": 2, "delete again": 1},
    user_s=1.5,
    faults={"kill": 1},
    settle=True,
)
#: Two operators, of which the one that leads stalls, and an API server that answers late.
OPERATORS = dataclasses.replace(
    POWER,
    fault_s=0.8,
    faults={"operator stalls": 3, "bad API server": 4, "slow API server": 3, "kill": 3},
)
#: Users who switch tiering on and off.
TIERING = dataclasses.replace(
    CALM, tiered=True, users={"tiering": 1}, user_s=2.5, faults={"bad store": 1, "kill": 1}
)
#: Copiers whose store fails again and again.
BAD_STORE = dataclasses.replace(
    CALM,
    tiered=True,
    fault_s=0.5,
    trouble_s=12.0,
    faults={"bad store": 1},
    settle=True,
    settle_s=30.0,
)
#: Leaders that stall for longer than a session while they copy.
TIERED_STALLS = dataclasses.replace(
    CALM, factor=3, tiered=True, faults={"stall": 4, "bad store": 1}, fault_s=1.0, trouble_s=40.0
)
#: Brokers that are drained and deleted, and factors that change, while brokers die.
MOVING = dataclasses.replace(
    MOVES,
    unclean=False,
    tiered=False,
    users={"drain": 3, "factor": 3, "delete broker": 1},
    user_s=1.5,
    faults={"kill": 3, "power cut": 2, "brokers cut off": 2, "operator killed": 1},
    trouble_s=40.0,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Bug:
    """``plant`` breaks the rule while it is entered; ``invariants`` are those that may show it;
    ``first``: where its runs begin, as most of them do not show it."""

    name: str
    profile: Profile
    invariants: frozenset[str]
    plant: Callable[[], contextlib.AbstractContextManager[Any]]
    first: int = 0


def replaced(target: str, value: Any) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """A rule function replaced by another."""
    return lambda: mock.patch(target, value)


# ---------------------------------------------------------------- broken rules


def _only_committed(leader: LeaderRole) -> frozenset[int]:
    return frozenset(leader.row.isr)


async def _ask_once(candidates: Any, services: Any) -> None:
    await _ask([candidate for candidate in candidates if not candidate.is_cold], services)


def _as_if_stored(leader: LeaderRole) -> frozenset[int]:
    return frozenset(leader.pending or leader.row.isr)


def _same_leader_epoch(old: PartitionRow, new: PartitionRow) -> PartitionRow:
    if new == old:
        return old
    epoch = old.partition_epoch + 1
    return dataclasses.replace(new, leader_epoch=old.leader_epoch, partition_epoch=epoch)


def _any_answer(
    row: Any, pending: Any, change: Any, result: Any
) -> isr_decisions.AlterPartitionAnswer:
    """An answer that shows the row we have settles whatever is proposed."""
    if result.leader_epoch == row.leader_epoch and result.partition_epoch > row.partition_epoch:
        return isr_decisions.AlterPartitionAnswer.ADOPT
    same = result.partition_epoch == row.partition_epoch and pending is not None
    return (
        isr_decisions.AlterPartitionAnswer.SETTLED
        if same
        else isr_decisions.AlterPartitionAnswer.NOTHING
    )


def _last_is_believed(
    row: PartitionRow, node_id: int, draft: Any, *, proof: bool, same_disk: bool
) -> PartitionRow:
    """The last member of an ISR stays in it, and leads, whatever its disk has lost."""
    others = tuple(replica for replica in row.isr if replica != node_id)
    leaves = not same_disk or (not proof and bool(others))
    live = [replica for replica in row.hosts if replica in others and draft.is_live(replica)]
    leader = row.leader if row.leader != node_id else next(iter(live), NO_LEADER)
    new = dataclasses.replace(row, isr=others if leaves else row.isr, leader=leader)
    if new == row and not proof:
        return dataclasses.replace(row, partition_epoch=row.partition_epoch + 1)
    return elections.with_raised_epochs(row, new)


def _proven(row: PartitionRow, node_id: int, draft: Any, **how: Any) -> PartitionRow:
    return _after_restart(row, node_id, draft, **{**how, "proof": True})


def _any_taker(draft: Draft, *_: Any) -> int:
    """Also one that has a replica of the partition already."""
    return min(broker.node_id for broker in catch_up_limits.takers(draft))


def _every_live_broker(draft: Draft) -> list[Any]:
    return draft.live_brokers()


def _deletes_to_the_end(partition: Partition, offset: int) -> DeleteResult:
    """DeleteRecords that takes the log's end for the high watermark."""
    wanted = partition.next_offset if offset == -1 else offset
    log = partition.log
    local_start = max(wanted, log.bounds.local_start)
    log.bounds = log.bounds._replace(log_start=wanted, local_start=local_start)
    return DeleteResult(ErrorCode.none, wanted, wanted)


def _refused_below_the_start(partition: Partition, offset: int) -> DeleteResult:
    """DeleteRecords that takes what was deleted already for an error."""
    if 0 <= offset < partition.log_start_offset:
        return DeleteResult(ErrorCode.policy_violation, offset, -1)
    return _delete_records(partition, offset)


def _to_the_end_of_its_segment(partition: Partition, offset: int) -> DeleteResult:
    """DeleteRecords by whole segments, the one that holds the offset included."""
    wanted = partition.high_watermark if offset == -1 else offset
    ends = (segment.next_base_offset for segment in partition.log.segment_infos())
    end = next((end for end in ends if end >= wanted), wanted)
    return _delete_records(partition, min(end, partition.high_watermark))


def _every_segment_that_begins_below(log: RetentionInput, *, tiered: bool) -> Any:
    """Retention lets the segment go that holds the log start."""
    start = log.local_log_start_offset if tiered else log.log_start_offset
    return lambda segment: segment.base_offset < start and not segment.is_active


def _round_and_round(draft: Draft, row: PartitionRow) -> bool:
    """Balancing gives leadership to the next in the ISR, and never to whom is preferred."""
    others = [replica for replica in row.isr if replica != row.hosts[0]]
    if row.leader not in others or len(others) < 2:
        return False
    leader = others[(others.index(row.leader) + 1) % len(others)]
    new = dataclasses.replace(row, leader=leader)
    draft.put_row(elections.with_elr_and_epochs(row, new, draft.state.min_isr(row)))
    return True


def _at_once(draft: Draft, row: PartitionRow) -> PartitionRow:
    """A move is done before those that come have caught up."""
    new = _settled(draft, dataclasses.replace(row, adding=()))
    return row if new.adding == row.adding and not row.removing else new


async def _acted_first(store: SliceStore, state: Any, write: Any, slice_stored: Any) -> bool:
    """Advance the state, and so the brokers' view, before the write is stored."""
    if slice_stored is not None:
        slice_stored(state, write)
    apply(state, write)
    await asyncio.sleep(0.05)
    return bool(await _put(store, write))


async def _settled_at_once(tasks: LeaderTasks) -> None:
    """A disablement is acknowledged before the head is claimed."""
    del tasks


def _no_floor(head: Head, floor: Any, delete_delay_ms: int) -> Head:
    """The log start moves, the floor's tiered epoch does not."""
    return _raise_floor(
        head, dataclasses.replace(floor, tiered_epoch=head.floor_epoch), delete_delay_ms
    )


@contextlib.contextmanager
def _everybody_writes() -> Iterator[None]:
    """Neither the claim in the head nor the leader's own term keeps a former copier from
    writing."""
    with (
        mock.patch.object(transitions, "check_holder", return_value=None),
        mock.patch.object(HeadWriter, "_check_term", return_value=None),
        mock.patch.object(HeadWriter, "retire", return_value=None),
        mock.patch.object(LeaderTasks, "cancel", return_value=None),
    ):
        yield


@contextlib.contextmanager
def _nobody_asks_the_tier() -> Iterator[None]:
    """The prefix rule: no leader compares its log with the tier before it takes a produce."""
    with (
        mock.patch(
            "tidemark_broker.replication.partition.prefix_rule.reason_to_query_tier",
            return_value="",
        ),
        mock.patch(
            "tidemark_broker.replication.partition.roles.stop_if_behind_tier",
            return_value=False,
        ),
    ):
        yield


def _every_replica_is_intact(reports: ReplicaStateReports, key: RowKey, node_id: int) -> bool:
    """A replica that may have lost its tail proves what a broker that is down could report."""
    return node_id in reports.of(key)


def _named_rows_only(cache: MetadataCache, topic: control.TopicState, _: Any) -> None:
    """Forget the places of partitions that the controller does not name."""
    _merge(cache, dataclasses.replace(topic, partition_count=-1), {})


@contextlib.contextmanager
def _unknown_is_deleted() -> Iterator[None]:
    """Give up the marker of a partition that is not named at present."""

    def is_deleted(cache: MetadataCache, topic: str, partition: int) -> bool:
        view = cache.topics.get(topic)
        return view is None or partition not in view.partitions

    with (
        mock.patch.object(MetadataCache, "_merge", _named_rows_only),
        mock.patch.object(MetadataCache, "is_deleted", is_deleted),
        mock.patch("tests.simulation.checks.Checks._shown", return_value=None),
    ):
        yield


def _as_placed(state: ControllerState, topic: TopicInfo) -> int:
    """Ignore partitions of brokers beyond those in the Topic's status."""
    return topic.partitions_placed


def _property(function: Any) -> Any:
    return replaced(
        "tidemark_broker.replication.partition.leader.LeaderRole.maximal_isr", property(function)
    )


BUGS: tuple[Bug, ...] = (
    Bug(
        "the end of the tier is not requested",
        TIERED_POWER,
        frozenset({"1", "3"}),
        _nobody_asks_the_tier,
        first=16,
    ),
    Bug(
        "a late answer settles another proposal",
        ISR_CHANGES,
        frozenset({"1"}),
        replaced("tidemark_broker.replication.partition.isr_decisions.meaning", _any_answer),
        first=109,
    ),
    Bug(
        "the last of an ISR is believed",
        POWER,
        frozenset({"1"}),
        replaced("tidemark_operator.controller.registration.after_restart", _last_is_believed),
    ),
    Bug("only the committed ISR bounds", ISR_CHANGES, frozenset({"1"}), _property(_only_committed)),
    Bug(
        "a shrunk ISR counts before it is stored",
        ISR_CHANGES,
        frozenset({"1"}),
        _property(_as_if_stored),
    ),
    Bug(
        "every fetching replica joins the ISR",
        ISR_CHANGES,
        frozenset({"1"}),
        replaced(
            "tidemark_broker.replication.partition.isr_decisions.may_join",
            lambda view, node: node in view.followers and node not in view.maximal_isr,
        ),
    ),
    Bug(
        "a new leader gets no new epoch",
        POWER,
        frozenset({"24"}),
        replaced("tidemark_operator.controller.elections.with_raised_epochs", _same_leader_epoch),
    ),
    Bug(
        "a start without proof keeps its place in the ISR",
        POWER,
        frozenset({"1", "3"}),
        replaced("tidemark_operator.controller.registration.after_restart", _proven),
    ),
    Bug(
        "an unclean election where none is allowed",
        POWER,
        frozenset({"1"}),
        replaced("tidemark_operator.controller.elections.unclean_election", lambda *_: True),
    ),
    Bug(
        "leader epochs are not compared",
        KILLS,
        frozenset({"1", "3", "convergence"}),
        replaced(
            "tidemark_broker.replication.partition.consumer_reads.diverging_end", lambda *_: None
        ),
        first=3,
    ),
    Bug(
        "a placeholder goes to whom has a replica",
        dataclasses.replace(CALM, factor=3, min_isr=2, late_broker=True),
        frozenset({"16", "17"}),
        replaced("tidemark_operator.controller.placement.newcomer", _any_taker),
    ),
    Bug(
        "a deletion beyond the high watermark",
        dataclasses.replace(POWER, users={"delete records": 1}, user_s=2.0),
        frozenset({"13", "15", "2"}),
        replaced(
            "tidemark_broker.replication.partition.log_start.delete_records", _deletes_to_the_end
        ),
    ),
    Bug(
        "a deletion of already deleted records is refused",
        DELETIONS,
        frozenset({"12"}),
        replaced(
            "tidemark_broker.replication.partition.log_start.delete_records",
            _refused_below_the_start,
        ),
        first=2,
    ),
    Bug(
        "a deletion takes the rest of its segment along",
        DELETIONS,
        frozenset({"14"}),
        replaced(
            "tidemark_broker.replication.partition.log_start.delete_records",
            _to_the_end_of_its_segment,
        ),
    ),
    Bug(
        "the segment that holds the log start goes",
        DELETIONS,
        frozenset({"14", "15"}),
        replaced("tidemark_broker.log.retention._start_breached", _every_segment_that_begins_below),
    ),
    Bug(
        "leaders are moved round and round",
        dataclasses.replace(DELETIONS, trouble_s=8.0, factor=3, users={}),
        frozenset({"21", "convergence"}),
        replaced("tidemark_operator.controller.elections.prefer", _round_and_round),
    ),
    Bug(
        "brokers receive a decision before it is stored",
        OPERATORS,
        frozenset({"24"}),
        replaced("tidemark_operator.slices.slice_store.SliceStore._write", _acted_first),
    ),
    Bug(
        "a disablement is acknowledged before the claim",
        TIERING,
        frozenset({"8", "9"}),
        replaced(
            "tidemark_broker.remote_log.leader_tasks.LeaderTasks.wait_settled", _settled_at_once
        ),
    ),
    Bug(
        "a disablement with Delete moves no floor",
        dataclasses.replace(TIERING, settle=True, settle_s=40.0, trouble_s=20.0),
        frozenset({"convergence", "8", "9", "4"}),
        replaced("tidemark.tier.metadata.transitions._raise_floor", _no_floor),
    ),
    Bug(
        "a move does not wait for those that come",
        MOVING,
        frozenset({"1", "moves"}),
        replaced("tidemark_operator.controller.reassignment.settled", _at_once),
    ),
    Bug(
        "a drained broker is given new replicas",
        MOVING,
        frozenset({"moves", "convergence"}),
        replaced("tidemark_operator.controller.catch_up_limits.takers", _every_live_broker),
    ),
    Bug(
        "no broker sweeps the tier",
        BAD_STORE,
        frozenset({"10"}),
        replaced("tidemark_broker.remote_log.sweeps.Sweeps._sweep_if_due", lambda *_: None),
        first=4,
    ),
    Bug(
        "an older head is believed",
        HEADS,
        frozenset({"1", "2", "3", "4", "5", "6", "9", "10", "11", "convergence"}),
        replaced("tidemark.tier.metadata.head.HeadPosition.is_behind", lambda *_: False),
    ),
    Bug(
        "a Reader trusts an earlier confirmation",
        READERS,
        frozenset({"2", "8"}),
        replaced("tidemark_broker.api.records.fetch_reader._ask", _ask_once),
        first=10,
    ),
    Bug("a former copier still writes", TIERED_STALLS, frozenset({"6"}), _everybody_writes),
    Bug(
        "an old backup is not detected",
        BACKUPS,
        frozenset({"24", "1", "2", "convergence"}),
        replaced(
            "tidemark_operator.term.broker_requests.BrokerRequests._is_behind", lambda *_: False
        ),
    ),
    Bug(
        "a restored API is not detected",
        RESTORES,
        frozenset({"24", "1", "2", "convergence"}),
        replaced("tidemark_operator.objects.store.ObjectCache._restart", lambda *_: None),
    ),
    Bug(
        "a partition is rebuilt from the first report",
        TORN,
        frozenset({"24", "1", "convergence"}),
        replaced(
            "tidemark_operator.controller.rebuilding._Rebuilding._needed", lambda *_: set[int]()
        ),
    ),
    Bug(
        "a partition in doubt loses its place",
        DOWN,
        frozenset({"28"}),
        replaced("tidemark_broker.replication.metadata.MetadataCache._merge", _named_rows_only),
        first=1,
    ),
    Bug(
        "a partition in doubt needs no marker",
        DOWN,
        frozenset({"28"}),
        _unknown_is_deleted,
        first=3,
    ),
    Bug(
        "a broker that is down is always waited for",
        DOWN,
        frozenset({"28"}),
        replaced(
            "tidemark_operator.controller.rebuilding._Proof.candidates",
            lambda *_, **__: frozenset(),
        ),
        first=2,
    ),
    Bug(
        "an incomplete replica proves a rebuilt row",
        TORN,
        frozenset({"1"}),
        replaced(
            "tidemark_operator.controller.state.replica_state_reports.ReplicaStateReports.is_intact",
            _every_replica_is_intact,
        ),
        first=3,
    ),
    Bug(
        "partitions beyond the Topic's status are not counted",
        DOWN,
        frozenset({"28", "convergence", "24"}),
        replaced(
            "tidemark_operator.controller.state.controller_state.ControllerState.partitions_of",
            _as_placed,
        ),
    ),
)
