"""Content of a PartitionSlice and its codec: rows, tombstones, directories and placements.

The API server walks every node of a structured list on each write, so a partition is one string. A
row is ``3|<topic id>|<partition>|<replicas>|<leader>|<leader epoch>|<partition epoch>|<isr>|
<adding>|<removing>|<manifest>|<leader recovery state>|<elr>|<last known elr>|<name>``. The version
is first, ids are in Kafka's text form (base64url of the UUID, 22 characters), and lists are joined
by commas. Kafka names contain neither separator.

Version 1 has no leader recovery state, which is read as RECOVERED. Versions 1 and 2 have no
eligible leaders, which are read as none. Every write is of version 3. A text that this codec cannot
read is an error that names it, because an invalid slice must never count as an empty one.

A log directory is ``<node id>|<directory id>``: the one with a broker's replicas of this slice when
the slice was written. It stays known when the ``Broker`` object is deleted and created again. A
record of a placement is ``<topic id>|<partitions>`` (:mod:`commit`).

The command line imports this module too, and starts faster without the rest of the state.
"""

import dataclasses
import hashlib
import uuid
from collections import Counter
from collections.abc import Mapping
from typing import TypeAlias

from tidemark.ids import id_text, parse_id
from tidemark.leader_recovery import LeaderRecoveryState

NO_LEADER = -1

#: (topic id, partition)
RowKey: TypeAlias = tuple[uuid.UUID, int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """One partition as a PartitionSlice stores it.

    ``name`` is the topic's name and is set only in the row of partition 0. It keeps the name known
    after the Topic object has disappeared. ``elr`` and ``last_known_elr`` (KIP-966,
    :mod:`eligible_leaders`) are replicas outside the ISR that have, or may have, all committed
    records. If the ISR and both lists are empty, every copy was lost and a person must decide.
    ``leader_recovery_state`` (KIP-704) is RECOVERING from an unclean election until a leader
    reports that its log is in order. Meanwhile the ISR is that leader alone.
    """

    topic_id: uuid.UUID
    partition: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int = NO_LEADER
    leader_epoch: int = 0
    partition_epoch: int = 0
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    manifest: bool = False
    leader_recovery_state: LeaderRecoveryState = LeaderRecoveryState.RECOVERED
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    name: str = ""

    @property
    def key(self) -> RowKey:
        return self.topic_id, self.partition

    @property
    def hosts(self) -> tuple[int, ...]:
        """Return the replicas that are brokers, in order of preference."""
        return tuple(replica for replica in self.replicas if replica >= 0)

    @property
    def holders(self) -> tuple[int, ...]:
        """Return the replicas that have, or may have, all committed records.

        Empty for a lost partition.
        """
        return self.isr + self.elr + self.last_known_elr

    @property
    def recovering(self) -> bool:
        return self.leader_recovery_state is LeaderRecoveryState.RECOVERING

    @property
    def placeholders(self) -> int:
        return sum(replica < 0 for replica in self.replicas)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """Record of a deleted topic in a slice, in place of its rows.

    Each slice that had rows of the topic has one, so that each slice's write is complete by itself.
    ``pending`` are the brokers that hosted a replica of those rows and may still have it.
    ``partitions`` counts the whole topic. ``tiered_epoch`` is -1 for a topic that was never tiered.
    """

    topic_id: uuid.UUID
    name: str
    partitions: int
    tiered_epoch: int
    pending: tuple[int, ...]


_ROW_VERSION = "3"
_TOMBSTONE_VERSION = "1"
#: Readable versions, with their number of fields.
_ROW_FIELDS = {"1": 12, "2": 13, _ROW_VERSION: 15}
_TOMBSTONE_FIELDS = {_TOMBSTONE_VERSION: 6}
#: Partitions of a topic that share a slice.
PARTITIONS_TOGETHER = 64
#: Bytes that JSON adds to a string in a list: two quotes and a comma.
JSON_BYTES = 3


class BadRow(ValueError):
    """A row or tombstone of a slice cannot be read."""


def slice_of(topic_id: uuid.UUID, partition: int, slices: int = 64) -> int:
    """Return the slice of a partition: a hash of the topic id and partition // 64.

    It is the same in every process and release. Creating or deleting a topic of up to 64 partitions
    is one write.
    """
    # blake2b instead of hash(): Python's own hash differs from process to process.
    group = (partition // PARTITIONS_TOGETHER).to_bytes(4, "big")
    digest = hashlib.blake2b(topic_id.bytes + group, digest_size=8).digest()
    return int.from_bytes(digest, "big") % slices


def _numbers(values: tuple[int, ...]) -> str:
    return ",".join(map(str, values))


def _tuple(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()


def encode_row(row: PartitionRow) -> str:
    """Return a partition's row in the text form that PartitionSlices store.

    The fields are separated by ``|``, with the version of the format first.
    """
    # The order is part of the stored format; a new field needs a new version.
    return "|".join(
        (
            _ROW_VERSION,
            id_text(row.topic_id),
            str(row.partition),
            _numbers(row.replicas),
            str(row.leader),
            str(row.leader_epoch),
            str(row.partition_epoch),
            _numbers(row.isr),
            _numbers(row.adding),
            _numbers(row.removing),
            "1" if row.manifest else "0",
            str(int(row.leader_recovery_state)),
            _numbers(row.elr),
            _numbers(row.last_known_elr),
            row.name,
        )
    )


def decode_row(text: str) -> PartitionRow:
    """Parse the stored text of a partition's row. Raises :class:`BadRow` for any other text."""
    fields = _split(text, _ROW_FIELDS)
    if fields[10] not in ("0", "1"):
        raise BadRow(f"invalid manifest flag in row {text!r}")
    # Older versions have fewer fields, with the name always last.
    has_elr = fields[0] == _ROW_VERSION
    try:
        return PartitionRow(
            topic_id=parse_id(fields[1]),
            partition=int(fields[2]),
            replicas=_tuple(fields[3]),
            leader=int(fields[4]),
            leader_epoch=int(fields[5]),
            partition_epoch=int(fields[6]),
            isr=_tuple(fields[7]),
            adding=_tuple(fields[8]),
            removing=_tuple(fields[9]),
            manifest=fields[10] == "1",
            leader_recovery_state=_recovery_state(fields),
            elr=_tuple(fields[12]) if has_elr else (),
            last_known_elr=_tuple(fields[13]) if has_elr else (),
            name=fields[-1],
        )
    except ValueError as error:
        raise BadRow(f"invalid row {text!r}: {error}") from error


def _recovery_state(fields: list[str]) -> LeaderRecoveryState:
    """Return the leader recovery state of a row of any version.

    ValueError for an unknown number.
    """
    return LeaderRecoveryState(0 if fields[0] == "1" else int(fields[11]))


def encode_tombstone(tombstone: Tombstone) -> str:
    return "|".join(
        (
            _TOMBSTONE_VERSION,
            id_text(tombstone.topic_id),
            tombstone.name,
            str(tombstone.partitions),
            str(tombstone.tiered_epoch),
            _numbers(tombstone.pending),
        )
    )


def decode_tombstone(text: str) -> Tombstone:
    """Decode a tombstone; raises :class:`BadRow`."""
    fields = _split(text, _TOMBSTONE_FIELDS)
    try:
        return Tombstone(
            topic_id=parse_id(fields[1]),
            name=fields[2],
            partitions=int(fields[3]),
            tiered_epoch=int(fields[4]),
            pending=_tuple(fields[5]),
        )
    except ValueError as error:
        raise BadRow(f"invalid tombstone {text!r}: {error}") from error


def encode_directory(node_id: int, directory_id: uuid.UUID) -> str:
    return f"{node_id}|{id_text(directory_id)}"


def decode_directory(text: str) -> tuple[int, uuid.UUID]:
    """Decode a log directory; raises :class:`BadRow`."""
    node_id, separator, directory_id = text.partition("|")
    if not separator or not node_id.isdecimal():
        raise BadRow(f"invalid log directory {text!r}")
    try:
        return int(node_id), parse_id(directory_id)
    except ValueError as error:
        raise BadRow(f"invalid log directory {text!r}: {error}") from error


def encode_record(topic_id: uuid.UUID, partitions: int) -> str:
    return f"{id_text(topic_id)}|{partitions}"


def decode_record(text: str) -> tuple[uuid.UUID, int]:
    """Decode a record of a placement; raises :class:`BadRow`."""
    topic_id, separator, partitions = text.partition("|")
    if not separator or not partitions.isdecimal():
        raise BadRow(f"invalid placement record {text!r}")
    try:
        return parse_id(topic_id), int(partitions)
    except ValueError as error:
        raise BadRow(f"invalid placement record {text!r}: {error}") from error


def _split(text: str, counts: Mapping[str, int]) -> list[str]:
    """Split a text into its fields; ``counts`` is the number of fields of each readable version."""
    fields = text.split("|")
    count = counts.get(fields[0])
    if count is None:
        raise BadRow(f"unknown row version {fields[0]!r}: {text!r}")
    if len(fields) != count:
        raise BadRow(f"{len(fields)} fields instead of {count} in {text!r}")
    return fields


class SliceContent:
    """One PartitionSlice.

    Invariant: ``encoded`` is the stored text of exactly the rows of this slice, ``row_bytes`` is
    the size of that text in JSON, and ``hosted`` counts the rows that name each broker. So the
    size of a write is known before it is made.
    """

    def __init__(self) -> None:
        self.encoded: dict[RowKey, str] = {}
        self.row_bytes = 0
        self.hosted: Counter[int] = Counter()
        #: By node id: the log directory of each broker as stored.
        self.directories: dict[int, uuid.UUID] = {}
        #: Placements that no Topic's status counts yet (:mod:`commit`), by topic id.
        self.records: dict[uuid.UUID, int] = {}
        self.tombstones: dict[uuid.UUID, Tombstone] = {}

    def add(self, row: PartitionRow) -> None:
        """Add a row that is not in the slice."""
        text = self.encoded[row.key] = encode_row(row)
        self.row_bytes += len(text) + JSON_BYTES
        self.hosted.update(row.hosts)

    def remove(self, row: PartitionRow) -> None:
        """Remove a row as it was added."""
        self.row_bytes -= len(self.encoded.pop(row.key)) + JSON_BYTES
        self.hosted.subtract(row.hosts)
