"""Leader elections.

A leader comes from the ISR, else from the eligible leaders (KIP-966, :mod:`eligible_leaders`), else
from an unclean election if the topic allows it.

A fenced broker leaves every ISR that has a live member. If no member is live, the ISR stays as it
is, because each member has every acknowledged record. Unless an eligible replica can lead, the
partition is offline (leader -1) until one can. Each change of leader raises the leader epoch, each
change of a row its partition epoch. A placeholder never leads and is never in the ISR (invariant
19). A replica whose storage fails counts as not live while there is another one.

An unclean election leaves the partition RECOVERING (KIP-704), and so do all elections after it,
until a leader reports that its log is in order (:mod:`isr`). A leader of a RECOVERING partition
must check whether it lacks records that are in the tier (the prefix rule).

A client may request elections (Kafka's ElectLeaders, KIP-460): of the preferred leader, or an
unclean one if no other replica can lead.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping

from kio.schema.errors import ErrorCode

from tidemark.leader_recovery import LeaderRecoveryState
from tidemark.message_text import count, numbered
from tidemark.reasons import Reason
from tidemark_operator.controller.state import eligible_leaders
from tidemark_operator.controller.state.commit import Draft
from tidemark_operator.controller.state.events import normal, warning
from tidemark_operator.controller.state.model import (
    NO_LEADER,
    BrokerInfo,
    LogEnd,
    PartitionRow,
    RowKey,
    TopicInfo,
    unclean_election,
)

_NO_LOGS: Mapping[int, LogEnd | None] = {}


def with_elr_and_epochs(old: PartitionRow, new: PartitionRow, min_isr: int) -> PartitionRow:
    """Return ``new`` with its eligible leaders (:func:`eligible_leaders.carried`) and epochs
    updated.
    """
    return with_raised_epochs(old, eligible_leaders.with_eligible_leaders(old, new, min_isr))


def with_raised_epochs(old: PartitionRow, new: PartitionRow) -> PartitionRow:
    """Return ``new`` with its epochs raised above those of ``old`` where they differ."""
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
    """Return a partition's row with the best leader that it can have now.

    In order of preference:

    - the present leader, if it is live and in the ISR
    - the first live replica of the ISR
    - a live eligible leader replica (ELR, KIP-966)
    - with ``unclean``, and if no replica with all committed records may return: any live replica

    The ISR shrinks to its live members if one of them leads; otherwise the leader is its only
    member. If every complete copy was lost, no leader is elected, not even uncleanly: a person
    decides. ``logs``: log ends that live brokers reported, by node id, for replicas that may have
    lost the end of their log.
    """
    # A live leader in the ISR stays: every change of leader interrupts clients.
    live_isr = tuple(replica for replica in row.isr if is_live(replica))
    leader = row.leader
    if leader not in live_isr:
        leader = next((replica for replica in row.hosts if replica in live_isr), NO_LEADER)
    if leader != NO_LEADER:
        return with_elr_and_epochs(
            row, dataclasses.replace(row, leader=leader, isr=live_isr), min_isr
        )
    # A replica outside the ISR leads alone: the others have to fetch from it first.
    leader = eligible_leaders.elected(row, is_live, min_isr, logs)
    if leader != NO_LEADER:
        return with_elr_and_epochs(
            row, dataclasses.replace(row, leader=leader, isr=(leader,)), min_isr
        )
    # Unclean only if no replica with all committed records may return.
    if (
        unclean
        and row.holders
        and not eligible_leaders.only_awaits_live_brokers(row, is_live, min_isr, logs)
    ):
        leader = _best_unclean(row, is_live, logs)
        if leader != NO_LEADER:
            return with_elr_and_epochs(row, _with_unclean_leader(row, leader), min_isr)
    return with_elr_and_epochs(row, dataclasses.replace(row, leader=NO_LEADER), min_isr)


def _best_unclean(
    row: PartitionRow, is_live: Callable[[int], bool], logs: Mapping[int, LogEnd | None]
) -> int:
    """Return the live replica with which an unclean election loses the least records.

    The longest reported log wins, then any member of the last known ELR, then any live replica. A
    replica that a reassignment is adding is never chosen: with its empty log in the ISR the
    reassignment would complete, and the other replicas would be deleted.
    """
    longest = eligible_leaders.longest(row, eligible_leaders.reported(row, is_live, logs))
    if longest != NO_LEADER:
        return longest
    live = [replica for replica in row.hosts if is_live(replica) and replica not in row.adding]
    last_known = [replica for replica in live if replica in row.last_known_elr]
    return next(iter(last_known or live), NO_LEADER)


def _with_unclean_leader(row: PartitionRow, leader: int) -> PartitionRow:
    recovering = LeaderRecoveryState.RECOVERING
    return dataclasses.replace(row, leader=leader, isr=(leader,), leader_recovery_state=recovering)


def best(draft: Draft, row: PartitionRow, *, unclean: bool) -> PartitionRow:
    """Return a partition's row with the best leader, considering all that the draft knows.

    A replica with failed storage leads or stays in the ISR only if no other can take over.
    """
    min_isr, logs = draft.state.min_isr(row), draft.state.logs_of(row)

    def served(replica: int) -> bool:
        return draft.can_serve(replica, row.key)

    # First try without the failed replicas; they are better than no leader at all.
    if draft.state.storage_failures.has_replica(row.key):
        new = elect(row, served, unclean=False, min_isr=min_isr, logs=logs)
        if new.leader != NO_LEADER:
            return new
    return elect(row, draft.is_live, unclean=unclean, min_isr=min_isr, logs=logs)


def fence(draft: Draft, node_ids: Collection[int], *, reason: str) -> None:
    """Fence brokers whose sessions have expired: they lose leadership and leave ISRs.

    All brokers of one moment are fenced together, so that none of them is elected. ``reason`` is
    for the Event.
    """
    known = [
        broker for node_id in sorted(node_ids) if (broker := draft.broker(node_id)) is not None
    ]
    for broker in known:
        draft.put_broker(dataclasses.replace(broker, fenced=True))
    # Every broker is marked as fenced before the first election.
    for broker in known:
        moved, offline = _settle(draft, draft.rows_on(broker.node_id))
        if broker.shutting_down:
            continue  # its shutdown has already emitted an event
        text = (
            f"broker {broker.node_id} is fenced ({reason}): {count(moved, 'leader')} moved, "
            f"{count(offline, 'partition')} offline"
        )
        draft.emit(warning("Broker", broker.key, "BrokerFenced", text))


def shut_down(draft: Draft, node_id: int) -> None:
    """Start a controlled shutdown: the broker loses leadership and ISRs, but still answers."""
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


def withdraw_shutdown(draft: Draft, node_id: int) -> None:
    """Withdraw a broker's shutdown: it may lead again if it is not fenced."""
    broker = draft.broker(node_id)
    if broker is None or not broker.shutting_down:
        return
    draft.put_broker(dataclasses.replace(broker, shutting_down=False))
    if not broker.fenced:
        _lead_again(draft, broker)


def unfence(draft: Draft, node_id: int) -> None:
    """Unfence a broker and elect it in offline partitions that it can lead."""
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
    """Elect again in a topic's partitions that are offline, or have eligible leaders.

    Its configuration may now allow an unclean election, or a smaller min.insync.replicas that needs
    no eligible leaders.
    """
    rows = draft.rows_of(topic.id).values()
    _settle(draft, [row for row in rows if row.leader == NO_LEADER or row.holders != row.isr])


def settle_rows(draft: Draft, keys: Iterable[RowKey]) -> tuple[int, int]:
    """Elect again in partitions whose facts have changed.

    Return the leaders moved and the partitions that lost theirs.
    """
    rows = (draft.row(key) for key in sorted(keys))
    return _settle(draft, [row for row in rows if row is not None])


def storage_changed(draft: Draft, node_id: int, keys: Collection[RowKey]) -> None:
    """Remove replicas with failed storage from leadership and ISRs, where others can take over.

    ``keys``: partitions whose storage state on this broker has changed. A replica whose storage
    works again rejoins the ISR as any follower does.
    """
    broker = draft.broker(node_id)
    moved, _ = settle_rows(draft, keys)
    failed = draft.state.storage_failures.on(node_id).intersection(keys)
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
    """Remove replicas with failed storage from ISRs that no longer depend on them.

    Return leaders moved.

    Called periodically, because the other replicas may have caught up later.
    """
    rows = {key: draft.row(key) for _, key in draft.state.storage_failures.all()}
    due = {
        key
        for node_id, key in draft.state.storage_failures.all()
        if (row := rows[key]) is not None and node_id in row.isr and len(row.holders) > 1
    }
    return settle_rows(draft, due)[0]


def broker_gone(draft: Draft, node_id: int) -> None:
    """Stop the leadership of a ``Broker`` object that disappeared while partitions name it.

    Its finalizer was removed by hand, or it returns with a backup. It leads nothing until it
    registers.
    """
    _settle(draft, draft.rows_on(node_id))


def _settle(
    draft: Draft, rows: Iterable[PartitionRow], *, unclean: bool = False
) -> tuple[int, int]:
    """Elect leaders where necessary; return (leaders moved, partitions left without a leader).

    ``unclean`` allows unclean elections, regardless of the topic's configuration.
    """
    moved = offline = 0
    for row in rows:
        # Rows that may be outdated after a loss of slices are not touched.
        if row.key in draft.state.unverified_rows:
            continue
        # A row without a Topic never elects uncleanly: no configuration allows it.
        topic = draft.state.topics.by_id(row.topic_id)
        allowed = unclean or unclean_election(topic, draft.state.cluster)
        new = best(draft, row, unclean=allowed)
        if new != row:
            draft.put_row(new)
        if new.leader != row.leader:
            moved += new.leader != NO_LEADER
            offline += new.leader == NO_LEADER
        # A leader from outside ISR and ELR may mean lost records, so it is always reported.
        if new.leader not in (NO_LEADER, *row.isr, *row.elr):
            _emit_elected(draft, row, new)
    return moved, offline


def _emit_elected(draft: Draft, row: PartitionRow, new: PartitionRow) -> None:
    """Emit an event for a leader from outside the ISR, with the effect on acknowledged records."""
    topic = draft.state.topics.by_id(row.topic_id)
    if topic is None:
        return
    election = f"partition {row.partition}: broker {new.leader} leads"
    if not new.recovering:
        ends = eligible_leaders.reported(row, draft.is_live, draft.state.logs_of(row))
        text = (
            f"{election}. Of {numbered('broker', ends)}, it has the longest log (end "
            f"offset {ends[new.leader].next_offset})"
        )
        draft.emit(normal("Topic", topic.key, "LongestLogElected", text))
    else:
        text = f"{election} although it was not in sync. Acknowledged records may be lost"
        draft.emit(warning("Topic", topic.key, "UncleanElection", text))


def balance_leaders(draft: Draft, *, limit: int, flapping: Collection[int] = frozenset()) -> int:
    """Move up to ``limit`` partitions back to their preferred leader; return how many moved.

    Called periodically, like Kafka's ``auto.leader.rebalance.enable``. The preferred leader (first
    replica) must be live, in the ISR, not leaving, and not in ``flapping`` (brokers that restarted
    recently). Paused topics are skipped. Partitions of one slice come together, so that one write
    moves many.
    """
    state, moved = draft.state, 0
    for key in sorted(state.partitions.unbalanced, key=lambda key: (state.slice_index(key), key)):
        if moved >= limit:
            break
        row = draft.row(key)
        if row is not None and row.hosts and row.hosts[0] not in flapping:
            moved += prefer(draft, row)
    return moved


def lead_uncleanly(draft: Draft, row: PartitionRow) -> bool:
    """Elect a leader of an offline partition uncleanly, with a person's consent.

    The topic's configuration does not matter. Records may be lost.
    """
    return _settle(draft, [row], unclean=True)[0] > 0


def prefer(draft: Draft, persisted: PartitionRow) -> bool:
    """Move a partition's leadership to its preferred leader, if that can lead; return whether.

    ``persisted`` is the stored row; the draft may have a newer one.
    """
    row, topic = draft.row(persisted.key), draft.state.topics.by_id(persisted.topic_id)
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
    # The ISR stays as it is; only the leader and the epochs change.
    new = dataclasses.replace(row, leader=preferred)
    draft.put_row(with_elr_and_epochs(row, new, draft.state.min_isr(row)))
    return True


_NOT_NEEDED = "Leader election not needed for topic partition."


def elect_as_requested(
    draft: Draft, topic: TopicInfo, partitions: Iterable[int], *, unclean: bool
) -> dict[int, tuple[ErrorCode, str | None]]:
    """Draft elections; return Kafka's code and message for each partition."""
    rows = draft.rows_of(topic.id)
    return {
        partition: _elect_preferred(draft, topic, rows.get(partition), unclean)
        for partition in partitions
    }


def _elect_preferred(
    draft: Draft, topic: TopicInfo, row: PartitionRow | None, unclean: bool
) -> tuple[ErrorCode, str | None]:
    """Decide one partition of Kafka's ElectLeaders (KIP-460); return Kafka's error and message."""
    if row is None:
        return ErrorCode.unknown_topic_or_partition, "This server does not host this partition."
    if topic.paused:
        return ErrorCode.policy_violation, f"Topic {topic.key} is paused"
    if unclean:
        return _elect_uncleanly(draft, row)
    # Kafka answers a request without effect with an error of its own.
    if row.hosts and row.leader == row.hosts[0]:
        return ErrorCode.election_not_needed, _NOT_NEEDED
    if prefer(draft, row):
        return ErrorCode.none, None
    text = f"the preferred leader of partition {row.partition} is not live, or not in sync"
    return ErrorCode.preferred_leader_not_available, text


def _elect_uncleanly(draft: Draft, row: PartitionRow) -> tuple[ErrorCode, str | None]:
    # An unclean election is only for offline partitions, as in Kafka.
    if row.leader != NO_LEADER:
        return ErrorCode.election_not_needed, _NOT_NEEDED
    if lead_uncleanly(draft, row):
        return ErrorCode.none, None
    text = f"partition {row.partition} has no live replica that can lead"
    return ErrorCode.eligible_leaders_not_available, text
