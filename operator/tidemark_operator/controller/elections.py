"""Who leads: from the ISR only, unclean only where the topic allows it.

A fenced broker leaves every ISR that has a live member; where none is live the ISR stays as it is
(each of its members has every acknowledged record) and the partition is offline, leader -1, until
one of them is live again. Each change of leader raises the leader epoch, each change of a row its
partition epoch. A placeholder never leads and is never in the ISR (invariant 19).

An unclean election leaves the partition RECOVERING (KIP-704), and so do all elections after it,
until a leader has reported that its log is in order (:mod:`isr`): whoever leads meanwhile must look
whether it lacks what is in the tier (the prefix rule).
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable

from tidemark.wire.control import LeaderRecoveryState
from tidemark_operator.controller.commit import Draft
from tidemark_operator.controller.events import count, normal, warning
from tidemark_operator.controller.model import NO_LEADER, PartitionRow, TopicView, unclean_election


def changed(old: PartitionRow, new: PartitionRow) -> PartitionRow:
    """``new`` with its epochs raised as the difference from ``old`` demands."""
    if new == old:
        return old
    return dataclasses.replace(
        new,
        leader_epoch=old.leader_epoch + (new.leader != old.leader),
        partition_epoch=old.partition_epoch + 1,
    )


def elect(row: PartitionRow, is_live: Callable[[int], bool], *, unclean: bool) -> PartitionRow:
    """The row under the best leader it can have now: the present one if it is live and in the ISR,
    else the first replica of the ISR that is live, else (unclean) the first live replica, else
    none. The ISR shrinks to its live members where a leader is found. An empty ISR (every copy
    lost) is never answered by an election, not even an unclean one: a person decides."""
    live_isr = tuple(replica for replica in row.isr if is_live(replica))
    if row.leader in live_isr:
        return changed(row, dataclasses.replace(row, isr=live_isr))
    leader = next((replica for replica in row.hosts if replica in live_isr), NO_LEADER)
    if leader == NO_LEADER and unclean and row.isr:
        leader = next((replica for replica in row.hosts if is_live(replica)), NO_LEADER)
        if leader != NO_LEADER:
            return changed(row, _led_uncleanly(row, leader))
    isr = row.isr if leader == NO_LEADER else live_isr
    return changed(row, dataclasses.replace(row, leader=leader, isr=isr))


def _led_uncleanly(row: PartitionRow, leader: int) -> PartitionRow:
    recovering = LeaderRecoveryState.RECOVERING
    return dataclasses.replace(row, leader=leader, isr=(leader,), leader_recovery_state=recovering)


def fence(draft: Draft, node_ids: Collection[int], *, reason: str) -> None:
    """Brokers whose session ended (all of one moment together): they leave ISRs and leadership."""
    known = [
        broker for node_id in sorted(node_ids) if (broker := draft.broker(node_id)) is not None
    ]
    for broker in known:
        draft.put_broker(dataclasses.replace(broker, fenced=True))
    for broker in known:
        moved, offline = _settle(draft, draft.rows_on(broker.node_id))
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
        f"broker {node_id} shuts down: {count(moved, 'leader')} moved, "
        f"{count(offline, 'partition')} offline"
    )
    draft.emit(normal("Broker", broker.key, "BrokerShutdown", text))


def unfence(draft: Draft, node_id: int) -> None:
    """A broker may lead again: offline partitions that it can lead elect it."""
    broker = draft.broker(node_id)
    if broker is None or not broker.fenced:
        return
    draft.put_broker(dataclasses.replace(broker, fenced=False))
    waiting = [row for row in draft.rows_on(node_id) if row.leader == NO_LEADER]
    moved, _ = _settle(draft, waiting)
    text = f"broker {node_id} is registered and ready: it leads {count(moved, 'partition')} that waited"
    draft.emit(normal("Broker", broker.key, "BrokerReady", text))


def settle_topic(draft: Draft, topic: TopicView) -> None:
    """Elect again where a topic's partitions are offline (its configuration may allow more now)."""
    rows = draft.rows_of(topic.id).values()
    _settle(draft, [row for row in rows if row.leader == NO_LEADER])


def _settle(draft: Draft, rows: Iterable[PartitionRow]) -> tuple[int, int]:
    """Elect in each row; (leaders moved, partitions left without one)."""
    moved = offline = 0
    for row in rows:
        topic = draft.state.topic_by_id(row.topic_id)
        new = elect(row, draft.is_live, unclean=unclean_election(topic, draft.state.cluster))
        if new != row:
            draft.put_row(new)
        if new.leader != row.leader:
            moved += new.leader != NO_LEADER
            offline += new.leader == NO_LEADER
        if topic is not None and new.leader != NO_LEADER and new.leader not in row.isr:
            text = (
                f"partition {row.partition}: broker {new.leader} leads though it was not in sync; "
                "records that were acknowledged may be lost"
            )
            draft.emit(warning("Topic", topic.key, "UncleanElection", text))
    return moved, offline


def balance_leaders(draft: Draft, *, limit: int) -> int:
    """Give up to ``limit`` partitions back to their preferred leader (the first replica), where it
    is live and in the ISR; not those of a paused topic. A step of its own, called now and then;
    returns how many moved."""
    moved = 0
    for row in sorted(draft.state.all_rows(), key=lambda row: row.key):
        if moved >= limit:
            break
        moved += _prefer(draft, row)
    return moved


def _prefer(draft: Draft, persisted: PartitionRow) -> bool:
    row, topic = draft.row(persisted.key), draft.state.topic_by_id(persisted.topic_id)
    if row is None or not row.hosts or (topic is not None and topic.paused):
        return False
    preferred = row.hosts[0]
    if (
        row.leader in (preferred, NO_LEADER)
        or preferred not in row.isr
        or not draft.is_live(preferred)
    ):
        return False
    draft.put_row(changed(row, dataclasses.replace(row, leader=preferred)))
    return True
