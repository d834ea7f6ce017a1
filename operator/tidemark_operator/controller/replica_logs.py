"""Log ends of replicas that may have lost a tail (KIP-966's GetReplicaLogInfo).

A broker is queried for two reasons: for offline partitions that wait for an election by log end,
and after a start without proof, to find out whether a replica that counts as a holder has lost
committed records. Both are in memory and level-based. What has no valid answer is queried again,
and an answer counts only under its broker epoch and leader epoch. The loss of a replica is reported
once.
"""

import bisect
import dataclasses

from kio.schema.errors import ErrorCode

from tidemark.message_text import count, numbers
from tidemark.wire.control import ReplicaLog, ReplicaLogInfoResponse
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.events import Event, warning
from tidemark_operator.controller.state.model import BrokerInfo, RowKey

#: Partitions in one request.
ASKED_MAX = 1000
#: Lost ranges that one Event lists; the rest are counted.
LISTED_MAX = 5


@dataclasses.dataclass(slots=True)
class _Start:
    """A broker's start: the replicas yet to be queried because of it, and those that answered."""

    broker_epoch: int
    pending: set[RowKey]
    answered: set[RowKey] = dataclasses.field(default_factory=set)


class ReplicaLogs:
    """Queries of one controller term; the answers about logs are in the state."""

    def __init__(self) -> None:
        self._starts: dict[int, _Start] = {}
        #: By broker, the last partition of its last answer: the next request continues after it.
        self._reached: dict[int, RowKey] = {}

    def unanswered(self, state: ControllerState, node_id: int) -> list[RowKey]:
        """Return the partitions to query a broker for now, at most ``ASKED_MAX``.

        They rotate: a replica whose storage fails stays in the list, and must not block others.
        """
        broker = state.brokers.get(node_id)
        if broker is None or not broker.live:
            return []
        waiting = {
            key for key in state.partitions.awaiting_logs if _awaits_report(state, key, node_id)
        }
        # Sorted keys and the last answered one make the rotation independent of what is added
        # meanwhile.
        keys = sorted(waiting | self._start(state, broker).pending)
        reached = self._reached.get(node_id)
        first = 0 if reached is None else bisect.bisect_right(keys, reached)
        return [*keys[first:], *keys[:first]][:ASKED_MAX]

    def forget_gone(self, state: ControllerState) -> None:
        """Forget partitions that no longer exist."""
        for start in self._starts.values():
            for keys in (start.pending, start.answered):
                keys.difference_update([key for key in keys if state.row(key) is None])

    def _start(self, state: ControllerState, broker: BrokerInfo) -> _Start:
        start = self._starts.get(broker.node_id)
        # Another process may have lost other records, so its replicas are queried again.
        if start is None or start.broker_epoch != broker.broker_epoch:
            start = _Start(broker.broker_epoch, _unproven_replicas(state, broker))
            self._starts[broker.node_id] = start
        return start

    def take(
        self, state: ControllerState, node_id: int, answer: ReplicaLogInfoResponse
    ) -> tuple[list[RowKey], list[Event]]:
        """Take a broker's response about log ends; return the partitions answered, and Events."""
        broker = state.brokers.get(node_id)
        if broker is None or broker.broker_epoch != answer.broker_epoch:
            return [], []
        start, lost = self._start(state, broker), []
        # Each log end counts for an election, and for the report of records lost in a crash.
        for log in answer.logs:
            key = log.topic_id, log.partition
            # An election may wait for this report.
            if key in state.partitions.awaiting_logs:
                reports = state.log_reports.setdefault(key, {})
                reports[node_id] = broker.broker_epoch, log
            # The storage may work later, so the loss of this replica is not settled yet.
            if log.error_code == int(ErrorCode.kafka_storage_error):
                continue
            if key not in start.answered and log.lost_end_offset > log.lost_start_offset:
                lost.append(log)
            start.pending.discard(key)
            start.answered.add(key)
        keys = [(log.topic_id, log.partition) for log in answer.logs]
        if keys:
            self._reached[node_id] = keys[-1]
        return keys, _lost_events(state, node_id, lost)


def _unproven_replicas(state: ControllerState, broker: BrokerInfo) -> set[RowKey]:
    """Return the replicas that count as holders of committed records without proof."""
    if broker.proven:
        return set()
    rows = (state.row(key) for key in state.partitions.keys_on(broker.node_id))
    return {row.key for row in rows if row is not None and broker.node_id in row.holders}


def _awaits_report(state: ControllerState, key: RowKey, node_id: int) -> bool:
    """Return whether an election, or a person, waits for this broker's answer (or its storage)."""
    row = state.row(key)
    # If every copy was lost, any replica's end is of use to a person.
    if row is None or node_id not in (row.last_known_elr if row.holders else row.hosts):
        return False
    return state.logs_of(row).get(node_id) is None


def _lost_events(state: ControllerState, node_id: int, lost: list[ReplicaLog]) -> list[Event]:
    """Return one Event per Topic."""
    by_topic: dict[str, list[ReplicaLog]] = {}
    for log in lost:
        topic = state.topics.by_id(log.topic_id)
        if topic is not None:
            by_topic.setdefault(topic.key, []).append(log)
    return [
        warning("Topic", key, "RecordsLost", _lost_text(node_id, logs))
        for key, logs in by_topic.items()
    ]


def _lost_text(node_id: int, logs: list[ReplicaLog]) -> str:
    ranges = [
        f"partition {log.partition} offsets {log.lost_start_offset} to {log.lost_end_offset - 1}"
        for log in logs[:LISTED_MAX]
    ]
    more = [log.partition for log in logs[LISTED_MAX:]]
    if more:
        ranges.append(f"{count(len(more), 'more partition')} ({numbers(more)})")
    return (
        f"broker {node_id} has lost committed records: {'; '.join(ranges)}. "
        "They are lost unless another replica has them"
    )
