"""Kinds of findings of an audit, and the checks of a manifest against itself: pure.

The code that writes a manifest keeps these rules, and an audit verifies them independently. A
violation means that another program changed bytes, or a defect of Tidemark.
"""

import enum
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tidemark.tier.metadata.head import Head
from tidemark.tier.metadata.segment import SegmentEntry


class FindingKind(enum.StrEnum):
    """Kinds of findings; a closed set, because metrics have it as a label."""

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
        """Whether the finding concerns records; otherwise it is a leftover object that costs
        storage.
        """
        return self not in (FindingKind.UNNAMED, FindingKind.UNFINISHED, FindingKind.UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One violation.

    ``object``: its key, if the finding concerns one object. ``partition`` -1 and ``topic_id`` None
    if no topic is known. Offsets are -1 where there are none.
    """

    kind: FindingKind
    topic: str
    topic_id: uuid.UUID | None
    partition: int
    detail: str
    object: str = ""
    start_offset: int = -1
    end_offset_inclusive: int = -1


def of_entry(head: Head, entry: SegmentEntry, kind: FindingKind, detail: str) -> Finding:
    """Return a finding about one segment."""
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
    """Yield the violations among the live segments, which must cover the log without a gap.

    Exactly one segment serves each offset (invariant 5). Leader epochs and tiered epochs never
    decrease from segment to segment, and none is above the head's.
    """
    before: SegmentEntry | None = None
    for entry in live:
        yield from _ranges(head, before, entry)
        yield from _epochs(head, before, entry)
        before = entry


def _ranges(head: Head, before: SegmentEntry | None, entry: SegmentEntry) -> Iterator[Finding]:
    """Yield findings about the offsets that one entry covers.

    Entries of a manifest must cover the log without a gap (GAP) and without an overlap (OVERLAP).
    ``before``: the preceding live entry, None for the first one. ``entry.from_offset``: first
    offset that readers are served from this segment, at or above its first record.
    """
    # The first entry starts where the manifest's live offsets start.
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
    # A segment cannot serve offsets that it does not contain.
    if not entry.start_offset <= entry.from_offset <= entry.end_offset_inclusive:
        what = (
            f"it holds the offsets {entry.start_offset} to {entry.end_offset_inclusive} and is to "
            f"answer from {entry.from_offset} on"
        )
        yield of_entry(head, entry, FindingKind.OVERLAP, what)


def _epochs(head: Head, before: SegmentEntry | None, entry: SegmentEntry) -> Iterator[Finding]:
    """Yield findings about an entry's leader epochs (LINEAGE) and tiered epoch (EPOCH).

    The tiered epoch is KIP-950's counter of disablements. Neither epoch may decrease from entry to
    entry, and none may exceed the head's. ``before``: the preceding live entry, None for the first
    one.
    """
    # Epochs never decrease along a log, so a lower one belongs to another history.
    epoch = entry.epoch_at(entry.from_offset)
    if before is not None and epoch < before.end_leader_epoch:
        what = (
            f"its offset {entry.from_offset} is of leader epoch {epoch}, the one before it of "
            f"{before.end_leader_epoch}"
        )
        yield of_entry(head, entry, FindingKind.LINEAGE, what)
    # A segment is copied under a claim of the head, so its epochs cannot be above the head's.
    highest = max(entry.end_leader_epoch, entry.leader_epoch)
    if highest > head.leader_epoch:
        what = f"it is of leader epoch {highest}, the manifest of none above {head.leader_epoch}"
        yield of_entry(head, entry, FindingKind.LINEAGE, what)
    # The same two rules for the tiered epoch.
    if before is not None and entry.tiered_epoch < before.tiered_epoch:
        what = (
            f"it is of tiered epoch {entry.tiered_epoch}, the one before it of "
            f"{before.tiered_epoch}"
        )
        yield of_entry(head, entry, FindingKind.EPOCH, what)
    if entry.tiered_epoch > head.tiering.epoch:
        what = f"it is of tiered epoch {entry.tiered_epoch}, the topic of {head.tiering.epoch}"
        yield of_entry(head, entry, FindingKind.EPOCH, what)
