"""Result of each topic's last audit: one small object beside the tier.

An audit reads for hours and ends; the operator runs all the time and reads only this object. The
audit records its result topic by topic: counts, the worst findings, time, writer, and range of
manifest versions. The record is information and not evidence: nothing is deleted or refused because
of it, and every writer of the store can write it. It therefore contains no free text that could be
shown, only kinds of a closed set, numbers, and keys of that topic's segments. Anything else makes
the record unreadable, and the next audit overwrites an unreadable record.
"""

import json
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tidemark.ids import id_text, parse_id
from tidemark.reasons import Reason
from tidemark.tier.maintenance.findings import FindingKind
from tidemark.tier.metadata.layout import AUDIT_KEY, place_of_data, topic_data_prefix
from tidemark.tier.stores.objects import (
    AlreadyExists,
    ObjectNotFound,
    ObjectStore,
    ObjectTooLarge,
    PreconditionFailed,
    StoreUnavailable,
    Version,
)

_FORMAT_VERSION = 1
#: Topics of one record. Those with findings come first, then the latest.
TOPICS_MAX = 10_000
#: Findings that are described, per topic and in all; further ones are only counted.
WORST_MAX, DESCRIBED_MAX = 3, 1000
#: Upper bound of a full record: a larger object is not read.
BYTES_MAX = 16 * 1024 * 1024
_ATTEMPTS = 4
_NUMBER_MAX = 2**63 - 1
_NAME = re.compile(r"[\w.-]{1,249}", re.ASCII)
_WRITER = re.compile(r"[\w.+-]{1,60}", re.ASCII)


class AuditUnreadable(ValueError):
    """The object is not a record of an audit that this version reads.

    The message contains no text from the object.
    """


@dataclass(frozen=True, slots=True)
class WorstFinding:
    """One finding.

    ``object``: key of the segment's log, "" if the finding concerns no segment. Offsets and
    partition are -1 where there are none.
    """

    kind: FindingKind
    partition: int
    object: str = ""
    start_offset: int = -1
    end_offset_inclusive: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAudit:
    """Last audit of one topic.

    ``at_ms``: when it began; later copies were not examined. ``manifests``: number of heads read,
    and ``versions`` their lowest and highest version ((0, 0) for none). ``counts``: by kind,
    without zeros.
    """

    topic_id: uuid.UUID
    name: str
    at_ms: int
    by: str
    manifests: int
    versions: tuple[int, int]
    segments: int
    size_bytes: int
    counts: Mapping[FindingKind, int] = field(default_factory=dict)
    worst: tuple[WorstFinding, ...] = ()


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """Record of a store. ``serial`` grows with each write, so that no two bodies are equal."""

    topics: Mapping[uuid.UUID, TopicAudit] = field(default_factory=dict)
    serial: int = 0


def read_record(store: ObjectStore) -> AuditRecord:
    """Return the record, empty if there is none. Raises AuditUnreadable, StoreError."""
    try:
        data = bytes(store.get_range(AUDIT_KEY, 0, BYTES_MAX + 1))
    except ObjectNotFound:
        return AuditRecord()
    return decode(data)


def write_record(store: ObjectStore, audits: Iterable[TopicAudit], *, replaces_all: bool) -> int:
    """Replace the recorded results of the audited topics in the store's audit object.

    Returns the number of topics that were left out because the object is limited in size.
    ``replaces_all``: ``audits`` has all topics of the store, so the record of any other topic is
    removed (the topic may be deleted). Topics whose names Kafka would not accept are left out, too.

    Raises StoreError; StoreUnavailable if other writers win every attempt.
    """
    audits = tuple(filter(None, map(_validated, audits)))
    for _ in range(_ATTEMPTS):
        # Compare-and-set: another audit may write at the same time, so read and merge again.
        previous, version = _read_previous(store)
        topics = {} if replaces_all else dict(previous.topics)
        # This audit's results win over older ones of the same topics.
        topics |= {audit.topic_id: audit for audit in audits}
        # The object has a size limit, so the topics that matter least are dropped.
        kept = _most_important(topics.values())
        if _write(store, encode(AuditRecord(kept, previous.serial + 1)), version):
            return len(topics) - len(kept)
    raise StoreUnavailable(
        f"{AUDIT_KEY} is written by others all the time: audit again",
        reason=Reason.MANIFEST_CONTENDED,
        retriable=True,
    )


def _read_previous(store: ObjectStore) -> tuple[AuditRecord, Version | None]:
    """Return the record to merge with and its version; an unreadable record counts as empty."""
    try:
        stored = store.get(AUDIT_KEY)
    except ObjectNotFound:
        return AuditRecord(), None
    except ObjectTooLarge:
        store.delete(AUDIT_KEY)
        return AuditRecord(), None
    try:
        return decode(stored.data), stored.version
    except AuditUnreadable:
        return AuditRecord(), stored.version


def _write(store: ObjectStore, data: bytes, expected: Version | None) -> bool:
    """Write unless another writer was first; return whether it was written.

    A lost answer counts as another writer: the record is then merged and written again.
    """
    try:
        if expected is None:
            store.create(AUDIT_KEY, data)
        else:
            store.replace(AUDIT_KEY, data, expected)
    except (AlreadyExists, PreconditionFailed):
        return False
    return True


def _most_important(audits: Iterable[TopicAudit]) -> dict[uuid.UUID, TopicAudit]:
    # Topics with findings come first, then the most recent audits.
    ordered = sorted(audits, key=lambda item: (not item.counts, -item.at_ms, item.topic_id))
    return {audit.topic_id: audit for audit in ordered[:TOPICS_MAX]}


def _validated(audit: TopicAudit) -> TopicAudit | None:
    """Return the audit as it will be read back, or None.

    Manifests can contain keys that are not valid. The findings of such an audit are only counted.
    """
    for candidate in (audit, replace(audit, worst=())):
        try:
            return _parse_topic(_row(candidate, candidate.worst[:WORST_MAX]))
        except ValueError:
            continue
    return None


# ---------------------------------------------------------------- its text


def encode(record: AuditRecord) -> bytes:
    """Return the record as compact JSON of at most BYTES_MAX bytes."""
    # Findings of all topics share one limit, which bounds the size of the record.
    left = DESCRIBED_MAX
    rows = []
    for audit in record.topics.values():
        worst = audit.worst[: min(left, WORST_MAX)]
        left -= len(worst)
        rows.append(_row(audit, worst))
    fields = {"formatVersion": _FORMAT_VERSION, "serial": record.serial, "topics": rows}
    return json.dumps(fields, separators=(",", ":")).encode("utf-8")


def _row(audit: TopicAudit, worst: Iterable[WorstFinding]) -> dict[str, object]:
    """Return one topic's audit as a JSON object; ``_parse_topic`` reads it back.

    ``worst``: the findings to describe in full. All others are only counted by kind.
    """
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
    # Findings are optional fields, because most topics have none.
    if audit.counts:
        row["findings"] = {kind.value: number for kind, number in audit.counts.items()}
        row["worst"] = [
            {
                "kind": finding.kind.value,
                "partition": finding.partition,
                "object": finding.object,
                "offsets": [finding.start_offset, finding.end_offset_inclusive],
            }
            for finding in worst
        ]
    return row


def decode(data: bytes) -> AuditRecord:
    """Parse the audit object. Raises AuditUnreadable with the cause."""
    # Bound the size first: the object may have been written by any program.
    if len(data) > BYTES_MAX:
        raise AuditUnreadable(f"it has more than {BYTES_MAX} bytes")
    try:
        fields = json.loads(data)
        version, serial = _number(fields["formatVersion"]), _number(fields["serial"])
        rows = fields["topics"] if version == _FORMAT_VERSION else []
        audits = [_parse_topic(row) for row in rows]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise AuditUnreadable("it is no record of an audit") from error
    # Checked after parsing, so that an unknown version is named in the message.
    if version != _FORMAT_VERSION:
        text = f"it is of format version {version}, this program reads {_FORMAT_VERSION}"
        raise AuditUnreadable(text)
    if len(audits) > TOPICS_MAX:
        raise AuditUnreadable(f"it has more than {TOPICS_MAX} topics")
    return AuditRecord({audit.topic_id: audit for audit in audits}, serial)


def _parse_topic(row: Mapping[str, Any]) -> TopicAudit:
    """Return the audit of one topic from its JSON object; the inverse of ``_row``.

    Raises ValueError, KeyError or TypeError for a row that this program would not write.
    """
    topic_id = parse_id(_text(row["topicId"]))
    name, writer = _text(row["name"]), _text(row["by"])
    # Names and keys are shown to users, so anything that Kafka would not accept is refused.
    if not _NAME.fullmatch(name) or not _WRITER.fullmatch(writer):
        raise ValueError("no names")
    # Lowest and highest version among the heads that the audit read.
    lowest, highest = map(_number, row["versions"])
    # A finding that names an object outside of the topic's folder is refused.
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
        counts=dict(_parse_counts(row.get("findings", {}))),
        worst=tuple(_parse_worst(folder, finding) for finding in worst),
    )


def _parse_counts(found: Mapping[str, Any]) -> Iterable[tuple[FindingKind, int]]:
    for name, number in found.items():
        kind = FindingKind(name)
        if not kind.is_damage or not _number(number):
            raise ValueError("no findings of a topic")
        yield kind, number


def _parse_worst(folder: str, fields: Mapping[str, Any]) -> WorstFinding:
    key = _text(fields["object"])
    # The key is shown as the topic's, so it must be in the topic's folder.
    if key and place_of_data(key).folder != folder:
        raise ValueError("another topic's object")
    start, end = fields["offsets"]
    kind, partition = FindingKind(fields["kind"]), _number(fields["partition"], least=-1)
    return WorstFinding(kind, partition, key, _number(start, least=-1), _number(end, least=-1))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _number(value: object, *, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= _NUMBER_MAX:
        raise ValueError("no number")
    return value
