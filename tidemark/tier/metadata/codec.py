"""Heads and pages as JSON bytes (format version 3; versions 1 and 2 are read too).

A writer reads, changes and writes the whole head, so a field that it does not know would be lost.
Unknown fields and versions are therefore refused, and every new field has a new ``formatVersion``.
Version 2 has each copied entry's digests, which are SHA-256. Version 3 names their algorithm.
Writers always write the newest version, so a head of an older version becomes one of version 3 with
its next commit. Its entries keep the digests that they have, if any. Entries omit what follows from
other fields (their key) and what has its usual value. References to pages and marks are rows,
because there can be thousands.
"""

import base64
import json
import uuid
from collections.abc import Mapping, Sequence
from typing import cast

from tidemark.ids import id_text, parse_id
from tidemark.tier.metadata.head import Head, ManifestError, ManifestPage, Mark, PageRef
from tidemark.tier.metadata.layout import segment_key
from tidemark.tier.metadata.segment import (
    DigestAlgorithm,
    Digests,
    SegmentEntry,
    SegmentState,
    check_range,
)
from tidemark.tiering import DisablePolicy, Tiering, TieringState

FORMAT_VERSION = 3
#: The first version whose entries may have digests.
_DIGESTS_SINCE = 2
#: The first version that names the algorithm of digests. Earlier ones are SHA-256.
_ALGORITHMS_SINCE = 3
_DIGEST_BYTES = 32
_INT64_MAX = 2**63 - 1
#: Kafka's ``segment.bytes`` is an int32.
_SEGMENT_BYTES_MAX = 2**31 - 1
#: What JSON of another shape raises, and JSON that is nested too deeply.
_UNREADABLE = (ValueError, KeyError, TypeError, RecursionError)
_Json = Mapping[str, object]


class ManifestCorrupt(ManifestError):
    """The object exists, but is not a manifest of a version that this code knows."""


def encode_head(head: Head) -> bytes:
    """Return the head object's bytes."""
    # Field order is fixed, so that equal heads have equal bytes.
    return _dump(
        {
            "formatVersion": FORMAT_VERSION,
            "topic": head.topic,
            "topicId": id_text(head.topic_id),
            "partition": head.partition,
            "clusterId": head.cluster_id,
            "version": head.version,
            "commitId": head.commit_id,
            "leaderEpoch": head.leader_epoch,
            "tieredEpoch": head.tiering.epoch,
            "brokerId": head.broker_id,
            "state": head.tiering.state.name,
            "policy": None if head.tiering.policy is None else head.tiering.policy.name,
            # The floor: entries below either value count as marked for deletion.
            "logStartOffset": head.log_start_offset,
            "floorEpoch": head.floor_epoch,
            "lineStartOffset": head.line_start_offset,
            "nextPage": head.next_page,
            "marks": [[mark.offset, mark.tiered_epoch, mark.at_ms] for mark in head.marks],
            "pages": [_encode_ref(ref) for ref in head.pages],
            "entries": [encode_entry(entry) for entry in head.entries],
            "trash": list(head.trash),
            "deletedAtMs": head.deleted_at_ms,
        }
    )


def decode_head(data: bytes, where: str) -> Head:
    """Return the head in ``data``. ``where`` names the object in errors. Raises ManifestCorrupt."""
    try:
        fields = _Fields(_parse(data), "head")
        head = _head_of(fields)
        # An unknown field would be lost with the next commit, so the head is refused.
        fields.done()
    except _UNREADABLE as error:
        raise _corrupt(where, error) from error
    return head


def decode_entry(
    fields: dict[str, object], topic: str, topic_id: uuid.UUID, partition: int
) -> SegmentEntry:
    """Inverse of ``encode_entry``. Raises ValueError, KeyError, TypeError."""
    return _decode_entry(
        _Fields(dict(fields), "entry"), (topic, topic_id, partition), FORMAT_VERSION
    )


def encode_page(page: ManifestPage) -> bytes:
    """Return a page object's bytes."""
    return _dump(
        {
            "formatVersion": FORMAT_VERSION,
            "name": page.name,
            "topic": page.topic,
            "topicId": id_text(page.topic_id),
            "partition": page.partition,
            "entries": [encode_entry(entry) for entry in page.entries],
        }
    )


def decode_page(data: bytes, where: str) -> ManifestPage:
    """Return the page in ``data``. Raises ManifestCorrupt."""
    try:
        fields = _Fields(_parse(data), "page")
        version, place = _version_of(fields), _place_of(fields)
        page = ManifestPage(fields.text("name"), *place, _entries_of(fields, place, version))
        fields.done()
    except _UNREADABLE as error:
        raise _corrupt(where, error) from error
    return page


def _corrupt(where: str, error: Exception) -> ManifestCorrupt:
    return ManifestCorrupt(
        f"{where} is no manifest that this version of Tidemark reads ({error}); if a newer version "
        "wrote it, upgrade this one; nothing is copied or deleted meanwhile"
    )


def _head_of(fields: "_Fields") -> Head:
    """Return the head from the fields of its JSON object; the inverse of ``encode_head``.

    Raises ValueError, KeyError or TypeError for missing fields and wrong types.
    """
    version, place = _version_of(fields), _place_of(fields)
    # Every field is read exactly once: ``done`` refuses the object if one is left.
    return Head(
        topic=place[0],
        topic_id=place[1],
        partition=place[2],
        cluster_id=fields.text("clusterId"),
        version=fields.integer("version"),
        commit_id=fields.text("commitId"),
        leader_epoch=fields.integer("leaderEpoch"),
        tiering=_tiering_of(fields),
        broker_id=fields.integer("brokerId"),
        log_start_offset=fields.integer("logStartOffset"),
        floor_epoch=fields.integer("floorEpoch"),
        line_start_offset=fields.integer("lineStartOffset"),
        next_page=fields.integer("nextPage"),
        marks=tuple(Mark(*_integers(row, 3)) for row in fields.items("marks")),
        pages=tuple(_decode_ref(row) for row in fields.items("pages")),
        entries=_entries_of(fields, place, version),
        trash=tuple(_text(name) for name in fields.items("trash")),
        deleted_at_ms=fields.optional_integer("deletedAtMs"),
    )


def _tiering_of(fields: "_Fields") -> Tiering:
    policy = fields.optional_text("policy")
    return Tiering(
        TieringState[fields.text("state")],
        fields.integer("tieredEpoch"),
        None if policy is None else DisablePolicy[policy],
    )


_Place = tuple[str, uuid.UUID, int]


def _version_of(fields: "_Fields") -> int:
    version = fields.integer("formatVersion")
    if not 1 <= version <= FORMAT_VERSION:
        raise ValueError(f"format version {version}, known are 1 to {FORMAT_VERSION}")
    return version


def _place_of(fields: "_Fields") -> _Place:
    return fields.text("topic"), parse_id(fields.text("topicId")), fields.integer("partition")


def _entries_of(fields: "_Fields", place: _Place, version: int) -> tuple[SegmentEntry, ...]:
    return tuple(
        _decode_entry(_Fields(_object(item), "entry"), place, version)
        for item in fields.items("entries")
    )


def encode_entry(entry: SegmentEntry) -> dict[str, object]:
    """Encode an entry for heads and pages, without its topic and partition."""
    fields: dict[str, object] = {
        "segmentId": id_text(entry.segment_id),
        "startOffset": entry.start_offset,
        "endOffset": entry.end_offset_inclusive,
        "maxTimestampMs": entry.max_timestamp_ms,
        "sizeBytes": entry.size_bytes,
        "brokerId": entry.broker_id,
        "eventTimeMs": entry.event_time_ms,
        "leaderEpochs": [list(pair) for pair in entry.leader_epochs],
        "leaderEpoch": entry.leader_epoch,
        "tieredEpoch": entry.tiered_epoch,
    }
    # Fields with their usual value are omitted: most entries are finished copies without overlap.
    if entry.state is not SegmentState.COPY_FINISHED:
        fields["state"] = entry.state.name
    if entry.from_offset != entry.start_offset:
        fields["fromOffset"] = entry.from_offset
    if entry.custom_metadata is not None:
        fields["customMetadata"] = base64.b64encode(entry.custom_metadata).decode("ascii")
    if entry.marked_at_ms is not None:
        fields["markedAtMs"] = entry.marked_at_ms
    if entry.digests is not None:
        joined = entry.digests.log + entry.digests.aux
        text = base64.b64encode(joined).decode("ascii")
        fields["digests"] = f"{entry.digests.algorithm}:{text}"
    return fields


def _decode_entry(fields: "_Fields", place: _Place, version: int) -> SegmentEntry:
    """Return one segment's entry from its JSON object; the inverse of ``encode_entry``.

    ``place``: name, topic id and partition, which the head or page has once for all entries.
    ``version``: format version of the head or page. Raises ValueError for unknown fields or
    impossible ranges.
    """
    # Absent fields have the usual value, see ``encode_entry``.
    segment_id, start = parse_id(fields.text("segmentId")), fields.integer("startOffset")
    from_offset = fields.optional_integer("fromOffset")
    custom = fields.optional_text("customMetadata")
    state = fields.optional_text("state")
    pairs = [_integers(pair, 2) for pair in fields.items("leaderEpochs")]
    entry = SegmentEntry(
        segment_id=segment_id,
        start_offset=start,
        end_offset_inclusive=fields.integer("endOffset"),
        from_offset=start if from_offset is None else from_offset,
        max_timestamp_ms=fields.integer("maxTimestampMs"),
        size_bytes=fields.integer("sizeBytes"),
        broker_id=fields.integer("brokerId"),
        event_time_ms=fields.integer("eventTimeMs"),
        leader_epochs=tuple((epoch, offset) for epoch, offset in pairs),
        leader_epoch=fields.integer("leaderEpoch"),
        tiered_epoch=fields.integer("tieredEpoch"),
        key=segment_key(*place, start, segment_id),
        state=SegmentState.COPY_FINISHED if state is None else SegmentState[state],
        custom_metadata=None if custom is None else base64.b64decode(custom, validate=True),
        marked_at_ms=fields.optional_integer("markedAtMs"),
        digests=_decode_digests(fields, version) if version >= _DIGESTS_SINCE else None,
    )
    # The arithmetic of offset ranges relies on these limits, so an entry outside of them is refused
    # here.
    check_range(start, entry.end_offset_inclusive, entry.leader_epochs)
    if not 0 < entry.size_bytes <= _SEGMENT_BYTES_MAX:
        raise ValueError(f"the segment at {start} has {entry.size_bytes} bytes")
    fields.done()
    return entry


def _decode_digests(fields: "_Fields", version: int) -> Digests | None:
    """Return the digests of the log and of the auxiliary object, which are one text."""
    text = fields.optional_text("digests")
    if text is None:
        return None
    algorithm = DigestAlgorithm.SHA256
    if version >= _ALGORITHMS_SINCE:
        name, _, text = text.rpartition(":")
        algorithm = DigestAlgorithm.of_name(name)
    joined = base64.b64decode(text, validate=True)
    if len(joined) != 2 * _DIGEST_BYTES:
        raise ValueError(f"digests of {len(joined)} bytes, not two of {_DIGEST_BYTES}")
    return Digests(algorithm, joined[:_DIGEST_BYTES], joined[_DIGEST_BYTES:])


def _encode_ref(ref: PageRef) -> list[object]:
    """Return a page's reference as a JSON array, in the order that ``_decode_ref`` expects."""
    return [
        ref.name,
        ref.count,
        ref.start_offset,
        ref.first_end_offset_inclusive,
        ref.end_offset_inclusive,
        ref.end_leader_epoch,
        ref.size_bytes,
        ref.min_tiered_epoch,
        ref.max_tiered_epoch,
        ref.max_timestamp_ms,
        # The bit mask of deleted entries, as text: it has more bits than JSON numbers safely have.
        f"{ref.gone:x}",
        ref.gone_bytes,
    ]


def _decode_ref(row: object) -> PageRef:
    """Return the page reference from its JSON array; the inverse of ``_encode_ref``."""
    values = _array(row)
    if len(values) != 12:
        raise ValueError(f"a page reference has 12 values, not {len(values)}")
    # Only the name (0) and the hexadecimal bit mask of deleted entries (10) are text.
    numbers = [_integer(value) for value in (*values[1:10], values[11])]
    return PageRef(
        name=_text(values[0]),
        count=numbers[0],
        start_offset=numbers[1],
        first_end_offset_inclusive=numbers[2],
        end_offset_inclusive=numbers[3],
        end_leader_epoch=numbers[4],
        size_bytes=numbers[5],
        min_tiered_epoch=numbers[6],
        max_tiered_epoch=numbers[7],
        max_timestamp_ms=numbers[8],
        gone=int(_text(values[10]), 16),
        gone_bytes=numbers[9],
    )


class _Fields:
    """JSON object that is read field by field, and that refuses fields that were not read."""

    def __init__(self, fields: dict[str, object], what: str) -> None:
        """Take over ``fields``, which is emptied."""
        self._fields = fields
        self._what = what

    def integer(self, name: str) -> int:
        return _integer(self._fields.pop(name))

    def optional_integer(self, name: str) -> int | None:
        value = self._fields.pop(name, None)
        return None if value is None else _integer(value)

    def text(self, name: str) -> str:
        return _text(self._fields.pop(name))

    def optional_text(self, name: str) -> str | None:
        value = self._fields.pop(name, None)
        return None if value is None else _text(value)

    def items(self, name: str) -> Sequence[object]:
        return _array(self._fields.pop(name))

    def done(self) -> None:
        if self._fields:
            raise ValueError(
                f"unknown fields in the {self._what}: {', '.join(sorted(self._fields))}"
            )


def _dump(value: _Json) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("utf-8")


def _parse(data: bytes) -> dict[str, object]:
    return _object(json.loads(data))


def _object(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise TypeError("not a JSON object")
    return cast("dict[str, object]", value)


def _array(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError("not a JSON array")
    return cast("list[object]", value)


def _integers(value: object, count: int) -> list[int]:
    numbers = [_integer(item) for item in _array(value)]
    if len(numbers) != count:
        raise ValueError(f"a row of {count} numbers, not {len(numbers)}")
    return numbers


def _integer(value: object) -> int:
    if type(value) is not int:  # True and False are ints too; a long manifest checks this often
        raise TypeError(f"{value!r} is not a whole number")
    if not -_INT64_MAX <= value <= _INT64_MAX:
        raise ValueError("a number of more than 64 bits")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value
