"""Group commit: decisions are drafted, written per slice, and applied only once they are stored.

A :class:`Draft` overlays the state: decisions read through it and see each other, and the state
does not change. :func:`plan` turns it into one write per touched slice. The caller writes them with
resourceVersion checks and calls :func:`apply` for each that is known to have succeeded. A conflict
is never forced: the draft is discarded, the slice is read again, and the decision is made again.
After a time-out the slice is read, and :func:`is_stored` compares its commit number. Each slice's
write is complete by itself, so the order of slices does not matter.

Placement records are one write for the placements of many new topics, ahead of their statuses. A
broker receives a partition only after its placement is stored in another object than its slice. A
slice that loses its rows then never counts as one that had none (absence is not evidence). Usually
that object is the Topic, by ``status.partitionsPlaced``. When many topics are placed at once, a
slice stores the records of all of them in one write, and each status is written once, when the
brokers have answered. The next write of the slice drops a record that the status counts, or of
whose topic nothing is left.
"""

import dataclasses
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.events import Event
from tidemark_operator.controller.state.model import (
    BrokerInfo,
    Json,
    PartitionRow,
    RowKey,
    Tombstone,
    TopicInfo,
)
from tidemark_operator.controller.state.rows import (
    JSON_BYTES,
    BadRow,
    decode_directory,
    decode_record,
    decode_row,
    decode_tombstone,
    encode_directory,
    encode_record,
    encode_row,
    encode_tombstone,
)

#: Bytes beyond which a slice is not written (etcd's default limit of a request is 1.5 MiB).
SLICE_BYTES_MAX = 1024 * 1024
#: Bytes that new partitions leave free, so that existing rows can always change.
SLICE_BYTES_RESERVE = 64 * 1024


class SliceFull(Exception):
    """A slice would grow beyond its limit."""

    def __init__(self, index: int, size_bytes: int) -> None:
        super().__init__(
            f"partition slice {index} would have {size_bytes} bytes, the limit "
            f"is {SLICE_BYTES_MAX}. Delete topics or create fewer partitions"
        )


class BadSlice(ValueError):
    """A slice's content is invalid, and nothing may be decided from it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SliceWrite:
    """New content of one slice.

    ``payload`` has the object's fields ``controllerEpoch``, ``commit``, ``partitions``,
    ``directories``, ``tombstones`` and ``placed``. ``rows``, ``removed`` and ``tombstones`` are the
    changes against the state; ``directories`` and ``records`` are the new values as a whole.
    """

    index: int
    commit: int
    payload: dict[str, object]
    rows: tuple[PartitionRow, ...] = ()
    removed: tuple[RowKey, ...] = ()
    tombstones: tuple[tuple[uuid.UUID, Tombstone | None], ...] = ()
    directories: Mapping[int, uuid.UUID] = dataclasses.field(default_factory=dict)
    records: Mapping[uuid.UUID, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GroupCommit:
    """Writes of one group commit: slices first, then the registrations in ``brokers``.

    The order matters: a persisted registration implies that its broker has left the ISRs that it
    had to leave.
    """

    number: int
    writes: tuple[SliceWrite, ...]
    brokers: tuple[BrokerInfo, ...]
    events: tuple[Event, ...]

    @property
    def empty(self) -> bool:
        return not self.writes and not self.brokers


class Draft:
    """Decisions not yet persisted, over a state that does not change meanwhile."""

    def __init__(self, state: ControllerState) -> None:
        #: The state as persisted; everything below is drafted on top of it.
        """Start an empty draft on top of a state."""
        self.state = state
        self.rows: dict[RowKey, PartitionRow] = {}
        self.removed: set[RowKey] = set()
        #: By topic id and slice; None removes a tombstone.
        self.tombstones: dict[tuple[uuid.UUID, int], Tombstone | None] = {}
        self.brokers: dict[int, BrokerInfo] = {}
        self.records: dict[uuid.UUID, int] = {}
        self.events: list[Event] = []
        #: By slice: keys that differ from the persisted rows.
        self._keys_in: dict[int, set[RowKey]] = {}
        #: By topic id: partitions that were touched.
        self._partitions: dict[uuid.UUID, set[int]] = {}
        #: Drafted rows as text, and by slice the growth in bytes.
        self._texts: dict[RowKey, str] = {}
        self._grown: dict[int, int] = {}
        #: By node id: changes of the numbers of replicas and of preferred leaderships.
        self._replicas: Counter[int] = Counter()
        self._preferred: Counter[int] = Counter()

    # ---- reading

    def row(self, key: RowKey) -> PartitionRow | None:
        if key in self.removed:
            return None
        return self.rows.get(key) or self.state.row(key)

    def rows_of(self, topic_id: uuid.UUID) -> dict[int, PartitionRow]:
        """Return the rows of a topic by partition, in order."""
        partitions = {*self.state.rows_of(topic_id), *self._partitions.get(topic_id, ())}
        rows = (self.row((topic_id, partition)) for partition in sorted(partitions))
        return {row.partition: row for row in rows if row is not None}

    def rows_on(self, node_id: int) -> list[PartitionRow]:
        """Return the rows with a replica on a broker, ordered by key."""
        keys = set(self.state.partitions.keys_on(node_id))
        keys.update(key for key, row in self.rows.items() if node_id in row.replicas)
        rows = (self.row(key) for key in sorted(keys))
        return [row for row in rows if row is not None and node_id in row.replicas]

    def broker(self, node_id: int) -> BrokerInfo | None:
        return self.brokers.get(node_id) or self.state.brokers.get(node_id)

    def is_live(self, node_id: int) -> bool:
        broker = self.broker(node_id)
        return broker is not None and broker.live

    def can_serve(self, node_id: int, key: RowKey) -> bool:
        """Return whether a broker may lead this partition or join its ISR."""
        return self.is_live(node_id) and key not in self.state.storage_failures.on(node_id)

    def is_in_doubt(self, key: RowKey) -> bool:
        """Return whether a row may be older than brokers' state and the draft does not replace
        it.
        """
        return key in self.state.unverified_rows and key not in self.rows

    def directory_of(self, node_id: int, index: int) -> uuid.UUID | None:
        """Return the log directory with a broker's replicas of one slice; None if it is not known.

        A registration in this draft counts before the state.
        """
        drafted = self.brokers.get(node_id)
        if drafted is not None and drafted.directory_id is not None:
            return drafted.directory_id
        return self.state.directory_of(node_id, index)

    def live_brokers(self) -> list[BrokerInfo]:
        """Return the live brokers by node id."""
        merged = {**self.state.brokers, **self.brokers}
        return [broker for _, broker in sorted(merged.items()) if broker.live]

    def replica_count(self, node_id: int) -> int:
        return self.state.partitions.replica_count(node_id) + self._replicas[node_id]

    def preferred_count(self, node_id: int) -> int:
        return self.state.partitions.preferred_count(node_id) + self._preferred[node_id]

    # ---- deciding

    def put_row(self, row: PartitionRow) -> None:
        """Draft a row, unless the stored one may be out of date (:mod:`rebuilding`)."""
        if row.key not in self.state.unverified_rows:
            self.settle_row(row)

    def settle_row(self, row: PartitionRow) -> None:
        """Draft a row, also in place of one that is in doubt."""
        self._count(self.row(row.key), -1)
        self._count(row, 1)
        self.removed.discard(row.key)
        self.rows[row.key] = row
        self._touch(row.key, encode_row(row))

    def remove_row(self, key: RowKey) -> None:
        self._count(self.row(key), -1)
        self.rows.pop(key, None)
        if self.state.row(key) is not None:
            self.removed.add(key)
        self._touch(key, "")

    def put_tombstone(self, index: int, tombstone: Tombstone) -> None:
        self.tombstones[tombstone.topic_id, index] = tombstone

    def drop_tombstone(self, index: int, topic_id: uuid.UUID) -> None:
        self.tombstones[topic_id, index] = None

    def put_broker(self, broker: BrokerInfo) -> None:
        self.brokers[broker.node_id] = broker

    def put_record(self, topic_id: uuid.UUID, partitions: int) -> None:
        """Record how many partitions of a topic are placed (see above)."""
        self.records[topic_id] = partitions

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def retract(self, key: str, reason: str) -> None:
        """Drop a drafted event about an object, together with the decision that it was about."""
        self.events = [e for e in self.events if (e.key, e.reason) != (key, reason)]

    def _touch(self, key: RowKey, text: str) -> None:
        """Record a row's new ``text`` ("" for removed), and the growth of its slice."""
        index = self.state.slice_index(key)
        # The size grows relative to what this draft had drafted before, not to what is persisted.
        persisted = self.state.slices[index].encoded.get(key, "")
        before = self._texts.get(key, persisted)
        self._grown[index] = self._grown.get(index, 0) + _json_bytes(text) - _json_bytes(before)
        self._partitions.setdefault(key[0], set()).add(key[1])
        self._texts[key] = text
        touched = self._keys_in.setdefault(index, set())
        if text == persisted:
            # Back to the persisted text: there is nothing to write.
            touched.discard(key)
        else:
            touched.add(key)

    def _count(self, row: PartitionRow | None, step: int) -> None:
        if row is not None:
            self._replicas.update(dict.fromkeys(row.hosts, step))
            self._preferred.update(dict.fromkeys(row.hosts[:1], step))

    # ---- limits

    def slices_touched(self) -> list[int]:
        touched = {index for index, keys in self._keys_in.items() if keys}
        touched.update(index for _, index in self.tombstones)
        return sorted(touched.union(map(self.state.record_home, self.records)))

    def keys_in(self, index: int) -> list[RowKey]:
        """Return the keys of the rows put or removed in one slice."""
        return sorted(self._keys_in.get(index, ()))

    def texts_in(self, index: int) -> dict[RowKey, str]:
        """Return the rows of one slice as they will be written."""
        texts = dict(self.state.slices[index].encoded)
        texts.update((key, self._texts[key]) for key in self._keys_in.get(index, ()))
        return {key: text for key, text in texts.items() if text}

    def check_room(self, keys: Iterable[RowKey]) -> None:
        """Raise :class:`SliceFull` if new rows leave less than the reserve in a slice."""
        for index in {self.state.slice_index(key) for key in keys}:
            size = self.state.slices[index].row_bytes + self._grown.get(index, 0)
            if size > SLICE_BYTES_MAX - SLICE_BYTES_RESERVE:
                raise SliceFull(index, size)


def plan(draft: Draft) -> GroupCommit:
    """Return the writes of a draft under a commit number that no other plan has.

    The number is never reused, so that it settles the outcome of a time-out. Raises
    :class:`SliceFull`.
    """
    number = draft.state.next_commit()
    writes = tuple(_slice_write(draft, index, number) for index in draft.slices_touched())
    brokers = tuple(broker for _, broker in sorted(draft.brokers.items()))
    return GroupCommit(number=number, writes=writes, brokers=brokers, events=tuple(draft.events))


def take_over(state: ControllerState) -> tuple[SliceWrite, ...]:
    """Return writes of all slices as read, under this controller's epoch.

    They fence the previous controller: its resourceVersions are outdated afterwards.
    """
    draft = Draft(state)
    number = state.next_commit()
    return tuple(_slice_write(draft, index, number) for index in range(state.cluster.slices))


def apply(state: ControllerState, write: SliceWrite) -> None:
    """Apply one slice's write to the state. Call it only after the API server has stored it."""
    # Acknowledgements compare the old row with the new one, so they come before the state changes.
    for key in write.removed:
        removed = state.row(key)
        if removed is not None:
            state.acknowledgements.row_removed(removed)
        state.remove_row(key)
    for row in write.rows:
        old = state.row(row.key)
        state.acknowledgements.row_stored(old, row)
        # Keep the row as this term found it: brokers' reports are compared with it (rebuilding).
        if old is not None and row.key not in state.unverified_rows:
            state.at_first.setdefault(row.key, old)
        state.unverified_rows.discard(row.key)
        state.put_row(row)
    for topic_id, tombstone in write.tombstones:
        state.put_tombstone(topic_id, write.index, tombstone)
    state.slices[write.index].directories = dict(write.directories)
    state.stored_commit = max(state.stored_commit, write.commit)
    state.put_records(write.index, write.records)
    state.commit = max(state.commit, write.commit)


def is_stored(write: SliceWrite, payload: Json) -> bool:
    """Return whether a write of unknown outcome is the present content of a slice."""
    written = write.payload
    return all(payload.get(name) == written[name] for name in ("controllerEpoch", "commit"))


def load_slice(state: ControllerState, index: int, payload: Json) -> None:
    """Replace a slice in the state by the one that was read from the API server.

    Raises :class:`BadSlice` if any part is invalid or belongs to another slice, or if a later
    controller wrote it; the state is then unchanged.
    """
    epoch, number = _int(payload, "controllerEpoch"), _int(payload, "commit")
    if epoch > state.controller_epoch:
        raise BadSlice(
            f"slice {index} was written at controller epoch {epoch}, above "
            f"{state.controller_epoch}. Another controller has taken over"
        )
    # Decode everything before the state changes: a slice is taken as a whole or not at all.
    try:
        rows = [decode_row(text) for text in _strings(payload, "partitions")]
        tombs = [decode_tombstone(text) for text in _strings(payload, "tombstones")]
        directories = dict(map(decode_directory, _strings(payload, "directories")))
        records = dict(map(decode_record, _strings(payload, "placed")))
    except BadRow as error:
        raise BadSlice(f"slice {index}: {error}") from error
    # A row in the wrong slice means that the slice was copied or edited, or the number of slices
    # changed.
    misplaced = [row.key for row in rows if state.slice_index(row.key) != index]
    if misplaced:
        raise BadSlice(
            f"slice {index} contains partition {misplaced[0]}, which belongs to another slice"
        )
    # Rows and tombstones that the slice no longer has are removed from the indexes first.
    present = {row.key for row in rows}
    for key in [key for key in state.slices[index].encoded if key not in present]:
        state.remove_row(key)
    for old in list(state.slices[index].tombstones.values()):
        state.put_tombstone(old.topic_id, index, None)
    for row in rows:
        state.put_row(row)
    for tomb in tombs:
        state.put_tombstone(tomb.topic_id, index, tomb)
    # The numbers only grow: an old slice must not let a commit number be used again.
    state.slices[index].directories = directories
    state.stored_commit = max(state.stored_commit, number)
    state.put_records(index, records)
    state.commit = max(state.commit, number)


def goes_back(state: ControllerState, index: int, payload: Json) -> bool:
    """Return whether a slice in the API server is older than what is known to be stored.

    It then lacks rows or has older epochs, as after a restored backup or an edit. Raises
    :class:`BadSlice` if it cannot be read.
    """
    try:
        rows = {row.key: row for row in map(decode_row, _strings(payload, "partitions"))}
    except BadRow as error:
        raise BadSlice(f"slice {index}: {error}") from error
    known = ((state.row(key), rows.get(key)) for key in state.slices[index].encoded)
    return any(
        old is not None
        and (
            now is None
            or (now.leader_epoch, now.partition_epoch) < (old.leader_epoch, old.partition_epoch)
        )
        for old, now in known
    )


def _slice_write(draft: Draft, index: int, number: int) -> SliceWrite:
    """Return one slice's content with the draft's changes, ready to write.

    Raises :class:`SliceFull`. ``number`` is the number of the commit.
    """
    partitions, tombs = _content(draft, index)
    directories = _directories(draft, index)
    # Sorted lists keep the text of an unchanged slice the same, whatever the order of decisions.
    lines = [encode_directory(node_id, where) for node_id, where in sorted(directories.items())]
    records = _kept_records(draft.state, index, draft.records)
    placed = sorted(encode_record(topic_id, number) for topic_id, number in records.items())
    size = _size(partitions, tombs, lines, placed)
    # The API server would reject a larger object, and with it every later change of the slice.
    if size > SLICE_BYTES_MAX:
        raise SliceFull(index, size)
    keys = draft.keys_in(index)
    return SliceWrite(
        index=index,
        commit=number,
        payload={
            "controllerEpoch": draft.state.controller_epoch,
            "commit": number,
            "partitions": partitions,
            "directories": lines,
            "tombstones": tombs,
            "placed": placed,
        },
        directories=directories,
        records=records,
        rows=tuple(draft.rows[key] for key in keys if key in draft.rows),
        removed=tuple(key for key in keys if key in draft.removed),
        tombstones=tuple(
            (topic_id, tomb) for (topic_id, home), tomb in draft.tombstones.items() if home == index
        ),
    )


def _content(draft: Draft, index: int) -> tuple[list[str], list[str]]:
    state = draft.state
    tombs: dict[uuid.UUID, Tombstone | None] = dict(state.slices[index].tombstones)
    tombs.update({id_: tomb for (id_, home), tomb in draft.tombstones.items() if home == index})
    lines = [encode_tombstone(tomb) for tomb in tombs.values() if tomb is not None]
    return sorted(draft.texts_in(index).values()), sorted(lines)


def _directories(draft: Draft, index: int) -> dict[int, uuid.UUID]:
    """Return the known log directory of every broker that a row of the slice names."""
    rows = Counter(draft.state.slices[index].hosted)
    for key in draft.keys_in(index):
        old, new = draft.state.row(key), draft.row(key)
        rows.subtract(old.hosts if old is not None else ())
        rows.update(new.hosts if new is not None else ())
    hosts = (node_id for node_id, number in rows.items() if number > 0)
    found = ((node_id, draft.directory_of(node_id, index)) for node_id in hosts)
    return {node_id: directory for node_id, directory in found if directory is not None}


def _size(*lists: Sequence[str]) -> int:
    return sum(sum(map(len, texts)) + JSON_BYTES * len(texts) for texts in lists)


def _json_bytes(text: str) -> int:
    return len(text) + JSON_BYTES if text else 0


def _int(payload: Json, name: str) -> int:
    value = payload.get(name, 0)
    if not isinstance(value, int):
        raise BadSlice(f"{name} is not a number: {value!r}")
    return value


def _strings(payload: Mapping[str, object], name: str) -> list[str]:
    values = payload.get(name) or []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise BadSlice(f"{name} is not a list of strings")
    return values


def partitions_in_rows(state: ControllerState, topic: TopicInfo) -> int:
    """Return the number of partitions placed from 0 without a gap, which are sent to brokers."""
    rows, count = state.rows_of(topic.id), max(topic.partitions, state.partitions_of(topic))
    return next((part for part in range(count) if part not in rows), count)


def _kept_records(
    state: ControllerState, index: int, fresh: Mapping[uuid.UUID, int]
) -> dict[uuid.UUID, int]:
    """Return the records with which a slice is written."""
    # A record that the status counts is dropped by this write.
    found = {
        id_: number
        for id_, number in state.slices[index].records.items()
        if _is_record_needed(state, id_)
    }
    found.update((id_, number) for id_, number in fresh.items() if state.record_home(id_) == index)
    return found


def counted_partitions(topic: TopicInfo) -> int:
    """Return the number of partitions that the status itself counts as placed."""
    number = topic.status.get("partitionsPlaced")
    return number if isinstance(number, int) else 0


def _is_record_needed(state: ControllerState, topic_id: uuid.UUID) -> bool:
    topic = state.topics.by_id(topic_id)
    if topic is None:
        # Without a Topic the record is still the evidence that the rows were placed.
        return bool(state.rows_of(topic_id) or state.tombstones_of(topic_id))
    return counted_partitions(topic) < state.slices[state.record_home(topic_id)].records[topic_id]
