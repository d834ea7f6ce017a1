"""What the last audit of each topic found: one small object beside the tier, for whoever shows it.

An audit reads for hours, somewhere, and ends; the operator lives and asks nobody. So the audit
leaves its outcome in the store, topic by topic: counts, the worst findings, when, by whom, and over
what range of manifests. It is a note and no evidence: nothing is deleted or refused on its account,
and whoever can write to the store can write it. So there is no free text in it that could be shown:
kinds of a closed set, numbers, and keys that are a segment's of that topic. What is anything else
makes all of it unreadable, and a record that cannot be read is written anew by the next audit.
"""

import json
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tidemark.ids import id_text, parse_id
from tidemark.tier.findings import FindingKind
from tidemark.tier.layout import AUDIT_KEY, place_of_data, topic_data_prefix
from tidemark.tier.objects import (
    AlreadyExists,
    ObjectNotFound,
    ObjectStore,
    ObjectTooLarge,
    PreconditionFailed,
    StoreUnavailable,
    Version,
)

_FORMAT_VERSION = 1
#: Of one record. Those with findings come first, then the latest.
TOPICS_MAX = 10_000
#: Findings that are described, of one topic and in all; the others are counted.
WORST_MAX, DESCRIBED_MAX = 3, 1000
#: More than all of that comes to is no record, and is not read.
BYTES_MAX = 16 * 1024 * 1024
_ATTEMPTS = 4
_NUMBER_MAX = 2**63 - 1
_NAME = re.compile(r"[\w.-]{1,249}", re.ASCII)
_WRITER = re.compile(r"[\w.+-]{1,60}", re.ASCII)


class AuditUnreadable(ValueError):
    """What lies there is no record of an audit that this version reads; the message says why, in
    words that are none of the object's."""


@dataclass(frozen=True, slots=True)
class Worst:
    """One finding. ``object``: key of the segment's log, "" where it is about no segment; offsets
    and partition -1 where there are none."""

    kind: FindingKind
    partition: int
    object: str = ""
    start_offset: int = -1
    end_offset_inclusive: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAudit:
    """The last audit of one topic. ``at_ms``: when it began; what was copied later was not looked
    at. ``manifests``: how many heads were read, and ``versions`` the lowest and the highest of
    theirs ((0, 0) for none). ``counts``: of each kind of which there is something."""

    topic_id: uuid.UUID
    name: str
    at_ms: int
    by: str
    manifests: int
    versions: tuple[int, int]
    segments: int
    size_bytes: int
    counts: Mapping[FindingKind, int] = field(default_factory=dict)
    worst: tuple[Worst, ...] = ()


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """Of a store. ``serial`` grows with each write, lest two bodies be equal."""

    topics: Mapping[uuid.UUID, TopicAudit] = field(default_factory=dict)
    serial: int = 0


def read_record(store: ObjectStore) -> AuditRecord:
    """An empty one where there is none. Raises AuditUnreadable, StoreError."""
    try:
        data = store.get_range(AUDIT_KEY, 0, BYTES_MAX + 1)
    except ObjectNotFound:
        return AuditRecord()
    return decode(data)


def write_record(store: ObjectStore, audits: Iterable[TopicAudit], *, whole: bool) -> int:
    """Put these over what is known of their topics; ``whole``: they are all that there is, and
    what else stands there goes, deleted topics' above all. Gives how many topics the record has no
    room for; one whose name is none that Kafka takes is left out. Raises StoreError."""
    audits = tuple(filter(None, map(_readable, audits)))
    for _ in range(_ATTEMPTS):
        former, version = _former(store)
        topics = {} if whole else dict(former.topics)
        topics |= {audit.topic_id: audit for audit in audits}
        kept = _kept(topics.values())
        if _write(store, encode(AuditRecord(kept, former.serial + 1)), version):
            return len(topics) - len(kept)
    raise StoreUnavailable(
        f"{AUDIT_KEY} is written by others all the time: audit again",
        reason="ManifestContended",
        retriable=True,
    )


def _former(store: ObjectStore) -> tuple[AuditRecord, Version | None]:
    try:
        got = store.get(AUDIT_KEY)
    except ObjectNotFound:
        return AuditRecord(), None
    except ObjectTooLarge:
        store.delete(AUDIT_KEY)
        return AuditRecord(), None
    try:
        return decode(got.data), got.version
    except AuditUnreadable:
        return AuditRecord(), got.version


def _write(store: ObjectStore, data: bytes, expected: Version | None) -> bool:
    """False where another was quicker, or our own answer was lost: then ours is written again."""
    try:
        if expected is None:
            store.create(AUDIT_KEY, data)
        else:
            store.replace(AUDIT_KEY, data, expected)
    except (AlreadyExists, PreconditionFailed):
        return False
    return True


def _kept(audits: Iterable[TopicAudit]) -> dict[uuid.UUID, TopicAudit]:
    ordered = sorted(audits, key=lambda each: (not each.counts, -each.at_ms, each.topic_id))
    return {audit.topic_id: audit for audit in ordered[:TOPICS_MAX]}


def _readable(audit: TopicAudit) -> TopicAudit | None:
    """As it will be read. Manifests are others' work, too: what they call an object may be no key,
    and then the findings are counted only."""
    for candidate in (audit, replace(audit, worst=())):
        try:
            return _topic_of(_row(candidate, candidate.worst[:WORST_MAX]))
        except ValueError:
            continue
    return None


# ---------------------------------------------------------------- its text


def encode(record: AuditRecord) -> bytes:
    """Compact JSON, never more than BYTES_MAX."""
    left = DESCRIBED_MAX
    rows = []
    for audit in record.topics.values():
        worst = audit.worst[: min(left, WORST_MAX)]
        left -= len(worst)
        rows.append(_row(audit, worst))
    fields = {"formatVersion": _FORMAT_VERSION, "serial": record.serial, "topics": rows}
    return json.dumps(fields, separators=(",", ":")).encode("utf-8")


def _row(audit: TopicAudit, worst: Iterable[Worst]) -> dict[str, object]:
    row: dict[str, object] = {
        "topicId": id_text(audit.topic_id),
        "name": audit.name,
        "atMs": audit.at_ms,
        "by": audit.by,
        "manifests": audit.manifests,
        "versions": list(audit.versions),
        "segments": audit.segments,
        "sizeBytes": audit.size_bytes,
    }
    if audit.counts:
        row["findings"] = {kind.value: number for kind, number in audit.counts.items()}
        row["worst"] = [
            {
                "kind": each.kind.value,
                "partition": each.partition,
                "object": each.object,
                "offsets": [each.start_offset, each.end_offset_inclusive],
            }
            for each in worst
        ]
    return row


def decode(data: bytes) -> AuditRecord:
    """Raises AuditUnreadable."""
    if len(data) > BYTES_MAX:
        raise AuditUnreadable(f"it has more than {BYTES_MAX} bytes")
    try:
        fields = json.loads(data)
        version, serial = _number(fields["formatVersion"]), _number(fields["serial"])
        rows = fields["topics"] if version == _FORMAT_VERSION else []
        audits = [_topic_of(row) for row in rows]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise AuditUnreadable("it is no record of an audit") from error
    if version != _FORMAT_VERSION:
        text = f"it is of format version {version}, this program reads {_FORMAT_VERSION}"
        raise AuditUnreadable(text)
    if len(audits) > TOPICS_MAX:
        raise AuditUnreadable(f"it has more than {TOPICS_MAX} topics")
    return AuditRecord({audit.topic_id: audit for audit in audits}, serial)


def _topic_of(row: Mapping[str, Any]) -> TopicAudit:
    topic_id = parse_id(_text(row["topicId"]))
    name, writer = _text(row["name"]), _text(row["by"])
    if not _NAME.fullmatch(name) or not _WRITER.fullmatch(writer):
        raise ValueError("no names")
    lowest, highest = map(_number, row["versions"])
    worst, folder = row.get("worst", ()), topic_data_prefix(name, topic_id)
    if len(worst) > WORST_MAX:
        raise ValueError("too many findings are described")
    return TopicAudit(
        topic_id=topic_id,
        name=name,
        at_ms=_number(row["atMs"]),
        by=writer,
        manifests=_number(row["manifests"]),
        versions=(lowest, highest),
        segments=_number(row["segments"]),
        size_bytes=_number(row["sizeBytes"]),
        counts=dict(_counted(row.get("findings", {}))),
        worst=tuple(_worst_of(folder, each) for each in worst),
    )


def _counted(found: Mapping[str, Any]) -> Iterable[tuple[FindingKind, int]]:
    for name, number in found.items():
        kind = FindingKind(name)
        if not kind.is_damage or not _number(number):
            raise ValueError("no findings of a topic")
        yield kind, number


def _worst_of(folder: str, fields: Mapping[str, Any]) -> Worst:
    key = _text(fields["object"])
    if key and place_of_data(key).folder != folder:
        raise ValueError("another topic's object")
    start, end = fields["offsets"]
    kind, partition = FindingKind(fields["kind"]), _number(fields["partition"], least=-1)
    return Worst(kind, partition, key, _number(start, least=-1), _number(end, least=-1))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _number(value: object, *, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= _NUMBER_MAX:
        raise ValueError("no number")
    return value
