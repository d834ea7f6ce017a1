"""What an audit of the tier may find, and what a manifest alone tells against itself: pure.

The code that writes a manifest keeps these rules; an audit does not take its word for it. A rule
that is broken means that bytes were changed by another hand, or a defect of ours.
"""

import enum
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tidemark.tier.head import Head
from tidemark.tier.segment import SegmentEntry


class FindingKind(enum.StrEnum):
    """A closed set: metrics have it as a label."""

    MISSING = "Missing"
    DAMAGED = "Damaged"
    GAP = "Gap"
    OVERLAP = "Overlap"
    LINEAGE = "Lineage"
    EPOCH = "TieredEpoch"
    MANIFEST = "Manifest"
    UNNAMED = "Unnamed"
    UNFINISHED = "UnfinishedUpload"
    UNKNOWN = "Unknown"

    @property
    def is_damage(self) -> bool:
        """Else it is a leftover: it costs money, no record."""
        return self not in (FindingKind.UNNAMED, FindingKind.UNFINISHED, FindingKind.UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it should be. ``object``: its key, where it is one object's;
    ``partition`` -1 and ``topic_id`` None for what is nobody's; offsets -1 where there are none."""

    kind: FindingKind
    topic: str
    topic_id: uuid.UUID | None
    partition: int
    detail: str
    object: str = ""
    start_offset: int = -1
    end_offset_inclusive: int = -1


def of_entry(head: Head, entry: SegmentEntry, kind: FindingKind, detail: str) -> Finding:
    """A finding about one segment."""
    return Finding(
        kind=kind,
        topic=head.topic,
        topic_id=head.topic_id,
        partition=head.partition,
        detail=detail,
        object=entry.log_key,
        start_offset=entry.from_offset,
        end_offset_inclusive=entry.end_offset_inclusive,
    )


def of_line(head: Head, live: Iterable[SegmentEntry]) -> Iterator[Finding]:
    """What is wrong with the line of live segments (``queries.live_segments``): each offset between
    its ends must have one that answers for it (invariant 5), leader epochs and tiered epochs never
    go back, and none is above the head's."""
    before: SegmentEntry | None = None
    for entry in live:
        yield from _ranges(head, before, entry)
        yield from _epochs(head, before, entry)
        before = entry


def _ranges(head: Head, before: SegmentEntry | None, entry: SegmentEntry) -> Iterator[Finding]:
    if before is None:
        expected = max(head.line_start_offset, head.log_start_offset)
    else:
        expected = before.end_offset_inclusive + 1
    if entry.from_offset > expected:
        what = f"nothing answers for the offsets {expected} to {entry.from_offset - 1}"
        yield of_entry(head, entry, FindingKind.GAP, what)
    if before is not None and entry.from_offset < expected:
        what = f"it answers from {entry.from_offset} on, the one before it to {expected - 1}"
        yield of_entry(head, entry, FindingKind.OVERLAP, what)
    if not entry.start_offset <= entry.from_offset <= entry.end_offset_inclusive:
        what = (
            f"it holds the offsets {entry.start_offset} to {entry.end_offset_inclusive} and is to "
            f"answer from {entry.from_offset} on"
        )
        yield of_entry(head, entry, FindingKind.OVERLAP, what)


def _epochs(head: Head, before: SegmentEntry | None, entry: SegmentEntry) -> Iterator[Finding]:
    epoch = entry.epoch_at(entry.from_offset)
    if before is not None and epoch < before.end_leader_epoch:
        what = (
            f"its offset {entry.from_offset} is of leader epoch {epoch}, the one before it of "
            f"{before.end_leader_epoch}"
        )
        yield of_entry(head, entry, FindingKind.LINEAGE, what)
    highest = max(entry.end_leader_epoch, entry.leader_epoch)
    if highest > head.leader_epoch:
        what = f"it is of leader epoch {highest}, the manifest of none above {head.leader_epoch}"
        yield of_entry(head, entry, FindingKind.LINEAGE, what)
    if before is not None and entry.tiered_epoch < before.tiered_epoch:
        what = (
            f"it is of tiered epoch {entry.tiered_epoch}, the one before it of "
            f"{before.tiered_epoch}"
        )
        yield of_entry(head, entry, FindingKind.EPOCH, what)
    if entry.tiered_epoch > head.tiering.epoch:
        what = f"it is of tiered epoch {entry.tiered_epoch}, the topic of {head.tiering.epoch}"
        yield of_entry(head, entry, FindingKind.EPOCH, what)
