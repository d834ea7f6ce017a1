"""Losses that a person accepts by name: no permanent switch ever gives up records.

If every complete copy of a partition was lost, or the copies that may be complete cannot be
compared, no leader is elected (:mod:`elections`). ``tidemark.dev/accept-copy`` on the Topic then
names the copy that is to lead: ``<topic id>/<partition>=<broker>@<leader epoch>:<log end>``,
several separated by commas. It counts only while it matches exactly: a topic that is created again
has another id, the leader epoch changes with each election, and the broker reports the log end
(:mod:`replica_logs`). A partition without any replica left restarts empty: its copy ends at 0.

A consent is recorded in the Topic's status before it is acted on. The partition is RECOVERING
afterwards, as after any unclean election, so that its leader restores from the tier what it lacks.

``tidemark.dev/accept-lost-directory`` on a Broker that is being deleted names the log directory and
the registration that are lost: ``<directory id>@<broker epoch>``.
"""

import bisect
import dataclasses
import itertools
import re
import uuid
from collections.abc import Iterable, Sequence

from tidemark.annotations import ACCEPT_COPY, ACCEPT_LOST_DIRECTORY
from tidemark.ids import id_text
from tidemark.leader_recovery import LeaderRecoveryState
from tidemark.message_text import count, names, quoted
from tidemark_operator.controller import elections
from tidemark_operator.controller.state.commit import Draft
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.eligible_leaders import awaits_logs, longest
from tidemark_operator.controller.state.events import Event, normal, warning
from tidemark_operator.controller.state.model import (
    ACCEPTED_CHARS_MAX,
    NO_LEADER,
    Acceptance,
    BrokerInfo,
    Json,
    LogEnd,
    PartitionRow,
    RowKey,
    TopicInfo,
)

_COPY = re.compile(r"([0-9]{1,9})=([0-9]{1,9})@([0-9]{1,9}):([0-9]{1,18})")
#: Copies that one message offers; the next ones are offered after these were accepted.
OFFERED_MAX = 10
#: Characters of the offered copies: a value truncated with its message could not be copied.
_OFFERED_CHARS_MAX = 250
#: Topics that an Event names; the rest are counted.
NAMED_MAX = 3


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Copy:
    """One replica's copy of a partition as it is now."""

    partition: int
    node_id: int
    leader_epoch: int
    log_end: int

    def __str__(self) -> str:
        return f"{self.partition}={self.node_id}@{self.leader_epoch}:{self.log_end}"


def offers(state: ControllerState, rows: Iterable[PartitionRow]) -> list[Copy]:
    """Return the best copy of each waiting partition; none before a broker has reported."""
    found = (_best(state, row) for row in rows if awaits_logs(row))
    return sorted(copy for copy in found if copy is not None)


def _best(state: ControllerState, row: PartitionRow) -> Copy | None:
    ends = _live_ends(state, row)
    # A replica with the longest log goes before an empty start.
    best = longest(row, ends)
    if best != NO_LEADER:
        return Copy(row.partition, best, row.leader_epoch, ends[best].next_offset)
    empty_host = _empty_host(state, row)
    return None if empty_host is None else Copy(row.partition, empty_host, row.leader_epoch, 0)


def _live_ends(state: ControllerState, row: PartitionRow) -> dict[int, LogEnd]:
    reports = state.logs_of(row)
    # Only live replicas are offered: another one could not lead after the consent.
    ends = ((node_id, reports.get(node_id)) for node_id in row.hosts if state.is_live(node_id))
    return {node_id: end for node_id, end in ends if end is not None}


def _empty_host(state: ControllerState, row: PartitionRow) -> int | None:
    """Return the broker on which a partition without any replica would restart empty."""
    if row.hosts or not row.placeholders:
        return None
    takers = [broker.node_id for broker in state.live_brokers() if not broker.leaving]
    # The broker with the fewest replicas takes the new log.
    return min(
        takers, key=lambda node_id: (state.partitions.replica_count(node_id), node_id), default=None
    )


def offer_text(state: ControllerState, topic: TopicInfo, rows: Sequence[PartitionRow]) -> str:
    """Return the end of a condition's message: the offers, and why an annotation does not match."""
    copies = offers(state, rows)
    refused = _refused(ACCEPT_COPY, topic.annotations.get(ACCEPT_COPY, ""))
    if not copies:
        return refused
    shown = _shown(copies)
    offered = ", ".join(_offer(copy) for copy in shown)
    rest = f" ({len(copies) - len(shown)} more follow)" if len(copies) > len(shown) else ""
    return (
        f"{refused}. Alternatively, accept the available copies and the loss of "
        f"other records ({offered}). Annotate this Topic with {ACCEPT_COPY}: "
        f"{id_text(topic.id)}/{','.join(map(str, shown))}{rest}"
    )


def _shown(copies: Sequence[Copy]) -> Sequence[Copy]:
    """Return as many copies as one message has room for."""
    chars = list(itertools.accumulate(len(f"{_offer(copy)}{copy}") for copy in copies))
    return copies[: min(OFFERED_MAX, max(1, bisect.bisect_right(chars, _OFFERED_CHARS_MAX)))]


def _refused(annotation: str, value: str) -> str:
    """Return why an annotation is not acted on; "" if there is none."""
    if len(value) > ACCEPTED_CHARS_MAX:
        return (
            f". {annotation} has {len(value)} characters, the limit is "
            f"{ACCEPTED_CHARS_MAX}. Name fewer copies at a time"
        )
    if not value:
        return ""
    return f". {annotation} names {quoted(value)}, which does not match the current state"


def _offer(copy: Copy) -> str:
    if not copy.log_end:
        return f"partition {copy.partition} starts empty on broker {copy.node_id}"
    return f"partition {copy.partition} up to offset {copy.log_end} on broker {copy.node_id}"


# ---------------------------------------------------------------- acting upon it


def parse_copies(text: str, topic_id: uuid.UUID) -> list[Copy]:
    """Return the copies that an annotation names for this topic; malformed ones are ignored.

    Semicolons are accepted too, but messages offer commas, because a semicolon ends a shell
    command.
    """
    named, _, copies = text.strip().partition("/")
    # An annotation of a deleted topic of the same name has another id, and gives up nothing.
    if named != id_text(topic_id):
        return []
    matches = (_COPY.fullmatch(part.strip()) for part in re.split("[,;]", copies))
    return sorted({Copy(*map(int, match.groups())) for match in matches if match is not None})


def settle(draft: Draft, topic: TopicInfo) -> tuple[Acceptance, ...]:
    """Act on the annotation by which a person accepts a copy that may lack acknowledged records.

    Returns the consent to record in the status. A consent that is already recorded is acted on: the
    draft makes the accepted replicas leaders. Recording comes first, so that the reason for a lossy
    election is known even after a crash.
    """
    annotation = topic.annotations.get(ACCEPT_COPY, "")
    # The status has no room for a longer value, and what is not recorded is not acted on.
    if len(annotation) > ACCEPTED_CHARS_MAX:
        return ()
    copies = [
        copy for copy in parse_copies(annotation, topic.id) if _still_matches(draft, topic, copy)
    ]
    if not copies:
        return ()
    # Not recorded yet: the next reconciliation acts on it.
    if not is_recorded(topic.status, ACCEPT_COPY, annotation):
        effect = f"accepted: {', '.join(map(_offer, copies))}. Later records are lost"
        return (Acceptance(ACCEPT_COPY, annotation, effect),)
    for copy in copies:
        _lead(draft, topic, copy)
    return ()


def _still_matches(draft: Draft, topic: TopicInfo, copy: Copy) -> bool:
    """Return whether a copy still matches.

    Any reporting replica may be named, not only the best.
    """
    row = draft.row((topic.id, copy.partition))
    if row is None or not awaits_logs(row) or row.leader_epoch != copy.leader_epoch:
        return False
    end = _live_ends(draft.state, row).get(copy.node_id)
    if end is not None:
        return end.next_offset == copy.log_end
    return copy.log_end == 0 and _can_restart_empty(draft, row, copy.node_id)


def _can_restart_empty(draft: Draft, row: PartitionRow, node_id: int) -> bool:
    broker = draft.broker(node_id)
    free = broker is not None and broker.live and not broker.leaving
    return free and not row.hosts and bool(row.placeholders)


def _lead(draft: Draft, topic: TopicInfo, copy: Copy) -> None:
    """Draft the accepted copy as the partition's leader and only ISR member; emit an Event."""
    row = draft.row((topic.id, copy.partition))
    if row is None:
        return
    replicas = row.replicas
    # A broker outside the replicas starts with an empty log, in place of the first placeholder.
    if copy.node_id not in replicas:
        place = next(index for index, replica in enumerate(replicas) if replica < 0)
        replicas = (*replicas[:place], copy.node_id, *replicas[place + 1 :])
    # RECOVERING makes the leader look into the tier for records that its log lacks (KIP-704).
    led = dataclasses.replace(
        row,
        replicas=replicas,
        leader=copy.node_id,
        isr=(copy.node_id,),
        leader_recovery_state=LeaderRecoveryState.RECOVERING,
    )
    draft.put_row(elections.with_elr_and_epochs(row, led, draft.state.min_isr(row)))
    text = f"{_offer(copy)}, accepted by {ACCEPT_COPY}. Records acknowledged after that are lost"
    draft.emit(warning("Topic", topic.key, "CopyAccepted", text))


def is_recorded(status: Json, annotation: str, value: str) -> bool:
    """Return whether the status already records a consent."""
    records = status.get("accepted")
    return any(
        record.get("annotation") == annotation and record.get("value") == value
        for record in (records if isinstance(records, list | tuple) else ())
        if isinstance(record, dict)
    )


# ---------------------------------------------------------------- a Broker that never comes back


def lost_directory(broker: BrokerInfo) -> str:
    """Return the annotation's value for a Broker's present directory and registration."""
    return f"{broker.directory_id or 'unknown'}@{broker.broker_epoch}"


def is_given_up(broker: BrokerInfo) -> bool:
    """Return whether a person gives up a deleted Broker's log directory, even as the last copy."""
    # A live broker may still bring its records back, so it is never given up.
    return not broker.live and broker.annotations.get(ACCEPT_LOST_DIRECTORY) == lost_directory(
        broker
    )


def give_up_text(broker: BrokerInfo) -> str:
    """Return how to give up a blocked Broker, or why its annotation does not match."""
    if broker.live:
        return ""
    refused = _refused(ACCEPT_LOST_DIRECTORY, broker.annotations.get(ACCEPT_LOST_DIRECTORY, ""))
    return (
        f"{refused}. If its log directory is lost for good, annotate this "
        f"Broker with {ACCEPT_LOST_DIRECTORY}: {lost_directory(broker)}"
    )


def removal_event(state: ControllerState, broker: BrokerInfo, given_up: Sequence[RowKey]) -> Event:
    """Return the Event for the removal of a Broker object.

    ``given_up``: partitions whose last live copy was on this broker; without any, the Event is a
    normal one.
    """
    text = f"broker {broker.node_id} is removed"
    if not given_up:
        return normal("Broker", broker.key, "BrokerRemoved", text)
    found = (state.topics.by_id(topic_id) for topic_id in {topic_id for topic_id, _ in given_up})
    topics = sorted(topic.name for topic in found if topic is not None)
    text += (
        f" by {ACCEPT_LOST_DIRECTORY}. {count(len(given_up), 'partition')} of "
        f"{'topic' if len(topics) == 1 else 'topics'} {names(topics, shown=NAMED_MAX)} "
        "had the last live copy there, or one of too few. "
        "See the conditions of the Topics for what can be accepted now"
    )
    return warning("Broker", broker.key, "BrokerRemoved", text)
