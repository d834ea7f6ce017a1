"""Who leads: from the ISR, else from the eligible leaders (KIP-966, :mod:`eligible_leaders`),
unclean only where the topic allows it.

A fenced broker leaves every ISR that has a live member; where none is live the ISR stays as it is
(each of its members has every acknowledged record) and, unless an eligible replica can lead, the
partition is offline, leader -1, until one can. Each change of leader raises the leader epoch, each
change of a row its partition epoch. A placeholder never leads and is never in the ISR (invariant
19). A replica whose storage refuses counts as one that is not live as long as there is another.

An unclean election leaves the partition RECOVERING (KIP-704), and so do all elections after it,
until a leader has reported that its log is in order (:mod:`isr`): whoever leads meanwhile must look
whether it lacks what is in the tier (the prefix rule).
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping

from tidemark.reasons import Reason
from tidemark.wire.control import LeaderRecoveryState
from tidemark_operator.controller import eligible_leaders
from tidemark_operator.controller.commit import Draft
from tidemark_operator.controller.events import count, normal, numbers, warning
from tidemark_operator.controller.model import (
    NO_LEADER,
    BrokerInfo,
    LogEnd,
    PartitionRow,
    RowKey,
    TopicInfo,
    unclean_election,
)

_NO_LOGS: Mapping[int, LogEnd | None] = {}


def changed(old: PartitionRow, new: PartitionRow, min_isr: int) -> PartitionRow:
    """``new`` with the eligible leaders (see :func:`eligible.carried`) and the epochs that its
    difference from ``old`` demands."""
    return raised(old, eligible_leaders.carried(old, new, min_isr))


def raised(old: PartitionRow, new: PartitionRow) -> PartitionRow:
    """``new`` with its epochs one above those of ``old`` where they have to be."""
    as_before = dataclasses.replace(
        new, leader_epoch=old.leader_epoch, partition_epoch=old.partition_epoch
    )
    if as_before == old:
        return old
    return dataclasses.replace(
        new,
        leader_epoch=old.leader_epoch + (new.leader != old.leader),
        partition_epoch=old.partition_epoch + 1,
    )


def elect(
    row: PartitionRow,
    is_live: Callable[[int], bool],
    *,
    unclean: bool,
    min_isr: int,
    logs: Mapping[int, LogEnd | None] = _NO_LOGS,
) -> PartitionRow:
    """The row under the best leader it can have now: the present one if it is live and in the ISR,
    else the first replica of the ISR that is live, else an eligible one, else (unclean, and no
    clean one is in sight) a live one, else none. The ISR shrinks to its live members where a leader
    is found there. Where every copy was lost no election is an answer, not even an unclean one: a
    person decides. ``logs``: what live brokers said of replicas that may have lost a tail."""
    live_isr = tuple(replica for replica in row.isr if is_live(replica))
    leader = row.leader
    if leader not in live_isr:
        leader = next((replica for replica in row.hosts if replica in live_isr), NO_LEADER)
    if leader != NO_LEADER:
        return changed(row, dataclasses.replace(row, leader=leader, isr=live_isr), min_isr)
    leader = eligible_leaders.elected(row, is_live, min_isr, logs)
    if leader != NO_LEADER:
        return changed(row, dataclasses.replace(row, leader=leader, isr=(leader,)), min_isr)
    if unclean and row.holders and not eligible_leaders.in_sight(row, is_live, min_isr, logs):
        leader = _best_unclean(row, is_live, logs)
        if leader != NO_LEADER:
            return changed(row, _led_uncleanly(row, leader), min_isr)
    return changed(row, dataclasses.replace(row, leader=NO_LEADER), min_isr)


def _best_unclean(
    row: PartitionRow, is_live: Callable[[int], bool], logs: Mapping[int, LogEnd | None]
) -> int:
    """The least bad: of those that may have everything the longest, else any of them, else any. Not
    one that is on its way to become a replica: it may have nothing at all yet, and with it in the
    ISR the move would be done, and the others would delete what they have."""
    longest = eligible_leaders.longest(row, eligible_leaders.reported(row, is_live, logs))
    if longest != NO_LEADER:
        return longest
    live = [replica for replica in row.hosts if is_live(replica) and replica not in row.adding]
    last_known = [replica for replica in live if replica in row.last_known_elr]
    return next(iter(last_known or live), NO_LEADER)


def _led_uncleanly(row: PartitionRow, leader: int) -> PartitionRow:
    recovering = LeaderRecoveryState.RECOVERING
    return dataclasses.replace(row, leader=leader, isr=(leader,), leader_recovery_state=recovering)


def best(draft: Draft, row: PartitionRow, *, unclean: bool) -> PartitionRow:
    """The row under the best leader that it can have by all that the draft knows. A replica whose
    storage refuses leads, or is in the ISR, only while there is nobody to take over from it."""
    min_isr, logs = draft.min_isr(row), draft.state.logs_of(row)

    def served(replica: int) -> bool:
        return draft.can_serve(replica, row.key)

    if draft.state.has_failed_replica(row.key):
        new = elect(row, served, unclean=False, min_isr=min_isr, logs=logs)
        if new.leader != NO_LEADER:
            return new
    return elect(row, draft.is_live, unclean=unclean, min_isr=min_isr, logs=logs)


def fence(draft: Draft, node_ids: Collection[int], *, reason: str) -> None:
    """Brokers whose session ended (all of one moment together): they leave ISRs and leadership."""
    known = [
        broker for node_id in sorted(node_ids) if (broker := draft.broker(node_id)) is not None
    ]
    for broker in known:
        draft.put_broker(dataclasses.replace(broker, fenced=True))
    for broker in known:
        moved, offline = _settle(draft, draft.rows_on(broker.node_id))
        if broker.shutting_down:
            continue  # it said so, and that was told
        text = (
            f"broker {broker.node_id} is fenced ({reason}): {count(moved, 'leader')} moved, "
            f"{count(offline, 'partition')} offline"
        )
        draft.emit(warning("Broker", broker.key, "BrokerFenced", text))


def shut_down(draft: Draft, node_id: int) -> None:
    """A broker asked to stop: as fencing, but it may answer until it is gone."""
    broker = draft.broker(node_id)
    if broker is None or broker.shutting_down:
        return
    draft.put_broker(dataclasses.replace(broker, shutting_down=True))
    moved, offline = _settle(draft, draft.rows_on(node_id))
    text = (
        f"broker {node_id} is shutting down: {count(moved, 'leader')} moved, "
        f"{count(offline, 'partition')} offline"
    )
    draft.emit(normal("Broker", broker.key, "BrokerShutdown", text))


def stay(draft: Draft, node_id: int) -> None:
    """A broker that asked to stop asks for it no more: as unfencing, once it is not fenced."""
    broker = draft.broker(node_id)
    if broker is None or not broker.shutting_down:
        return
    draft.put_broker(dataclasses.replace(broker, shutting_down=False))
    if not broker.fenced:
        _lead_again(draft, broker)


def unfence(draft: Draft, node_id: int) -> None:
    """A broker may lead again: offline partitions that it can lead elect it."""
    broker = draft.broker(node_id)
    if broker is None or not broker.fenced:
        return
    draft.put_broker(dataclasses.replace(broker, fenced=False))
    _lead_again(draft, broker)


def _lead_again(draft: Draft, broker: BrokerInfo) -> None:
    node_id = broker.node_id
    waiting = [row for row in draft.rows_on(node_id) if row.leader == NO_LEADER]
    moved, _ = _settle(draft, waiting)
    text = f"broker {node_id} is registered and ready" + (
        f" and leads {count(moved, 'partition')} that had no leader" if moved else ""
    )
    draft.emit(normal("Broker", broker.key, "BrokerReady", text))


def settle_topic(draft: Draft, topic: TopicInfo) -> None:
    """Elect again where a topic's partitions are offline (its configuration may allow more now),
    and give up the eligible leaders where a smaller min.insync.replicas has no need of them."""
    rows = draft.rows_of(topic.id).values()
    _settle(draft, [row for row in rows if row.leader == NO_LEADER or row.holders != row.isr])


def settle_rows(draft: Draft, keys: Iterable[RowKey]) -> tuple[int, int]:
    """Elect again in some partitions, about which something else is known now; (leaders moved,
    partitions that lost theirs)."""
    rows = (draft.row(key) for key in sorted(keys))
    return _settle(draft, [row for row in rows if row is not None])


def storage_changed(draft: Draft, node_id: int, keys: Collection[RowKey]) -> None:
    """A broker reported that the storage of some replicas refuses, or works again: they leave
    leadership and ISRs where another can take over, and come back as any follower does."""
    broker = draft.broker(node_id)
    moved, _ = settle_rows(draft, keys)
    failed = draft.state.failed_on(node_id).intersection(keys)
    if broker is None or not failed:
        return
    text = (
        f"storage of broker {node_id} failed for "
        f"{count(len(failed), 'more replica')}: {count(moved, 'leader')} moved. "
        "Leadership returns when the storage works. See the condition Ready of "
        "the Broker"
    )
    draft.emit(warning("Broker", broker.key, Reason.STORAGE_FAILED, text))


def leave_failed(draft: Draft) -> int:
    """Have replicas whose storage refuses leave the ISRs in which others can go on by now; leaders
    moved. Called now and then: those others may have come later."""
    rows = {key: draft.row(key) for _, key in draft.state.failed()}
    due = {
        key
        for node_id, key in draft.state.failed()
        if (row := rows[key]) is not None and node_id in row.isr and len(row.holders) > 1
    }
    return settle_rows(draft, due)[0]


def broker_gone(draft: Draft, node_id: int) -> None:
    """A ``Broker`` object vanished though partitions name it (its finalizer was taken off by hand,
    or it comes again from a backup): it leads nothing until it has registered again."""
    _settle(draft, draft.rows_on(node_id))


def _settle(
    draft: Draft, rows: Iterable[PartitionRow], *, unclean: bool = False
) -> tuple[int, int]:
    """Elect in each row, ``unclean`` whatever its topic says; (leaders moved, partitions left
    without one)."""
    moved = offline = 0
    for row in rows:
        if row.key in draft.state.doubted:
            continue
        topic = draft.state.topic_by_id(row.topic_id)
        allowed = unclean or unclean_election(topic, draft.state.cluster)
        new = best(draft, row, unclean=allowed)
        if new != row:
            draft.put_row(new)
        if new.leader != row.leader:
            moved += new.leader != NO_LEADER
            offline += new.leader == NO_LEADER
        if new.leader not in (NO_LEADER, *row.isr, *row.elr):
            _emit_elected(draft, row, new)
    return moved, offline


def _emit_elected(draft: Draft, row: PartitionRow, new: PartitionRow) -> None:
    """A leader from outside the ISR is told, with what it means for acknowledged records."""
    topic = draft.state.topic_by_id(row.topic_id)
    if topic is None:
        return
    what = f"partition {row.partition}: broker {new.leader} leads"
    if not new.recovering:
        ends = eligible_leaders.reported(row, draft.is_live, draft.state.logs_of(row))
        text = (
            f"{what}. Of brokers {numbers(ends)}, it has the longest log (end "
            f"offset {ends[new.leader].next_offset})"
        )
        draft.emit(normal("Topic", topic.key, "LongestLogElected", text))
    else:
        text = f"{what} although it was not in sync. Acknowledged records may be lost"
        draft.emit(warning("Topic", topic.key, "UncleanElection", text))


def balance_leaders(draft: Draft, *, limit: int, held_back: Collection[int] = frozenset()) -> int:
    """Give up to ``limit`` partitions back to their preferred leader (the first replica), where it
    is live and in the ISR, and is not to leave, nor one of those that are ``held_back``
    (:mod:`flapping_brokers`); not those of a paused topic. Slice by slice, so that one write holds
    many. A step of its own, called now and then; returns how many moved."""
    state, moved = draft.state, 0
    for key in sorted(state.unbalanced, key=lambda key: (state.slice_index(key), key)):
        if moved >= limit:
            break
        row = draft.row(key)
        if row is not None and row.hosts and row.hosts[0] not in held_back:
            moved += prefer(draft, row)
    return moved


def lead_uncleanly(draft: Draft, row: PartitionRow) -> bool:
    """Have somebody lead a partition that nobody leads, though records may be lost by it, whatever
    the topic's configuration says: a person wants it."""
    return _settle(draft, [row], unclean=True)[0] > 0


def prefer(draft: Draft, persisted: PartitionRow) -> bool:
    """Give a partition to its preferred leader, if that does not lead it and can."""
    row, topic = draft.row(persisted.key), draft.state.topic_by_id(persisted.topic_id)
    if row is None or not row.hosts or (topic is not None and topic.paused):
        return False
    preferred = row.hosts[0]
    broker = draft.broker(preferred)
    if (
        row.leader in (preferred, NO_LEADER)
        or (broker is not None and broker.leaving)
        or preferred not in row.isr
        or not draft.can_serve(preferred, row.key)
    ):
        return False
    new = dataclasses.replace(row, leader=preferred)
    draft.put_row(changed(row, new, draft.min_isr(row)))
    return True
