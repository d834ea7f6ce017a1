"""Selection of adjacent small segments of the tier that are merged into a larger one. Pure.

A topic with a maximum lag closes segments early, so the tier fills with small objects. Merging
bounds their number. Three rules bound the bytes that are written again:

* Only segments of at most an eighth of a merged one's largest size take part, at least eight at
  once. Without early closing segments are larger, and nothing is merged.
* The merged segment has at least four times the bytes of each that it replaces. So a byte of a
  segment of *s* bytes is written again at most ``1 + log4(largest size / 8 s)`` times. For equal
  segments it is eight times instead of four.
* Of several candidates those with the smallest segments are first.

A merged segment expires with its newest record, so the time between its first and last segment is
limited, too. What cannot be a part of it: a segment in a sealed page, one with deleted records, one
of an earlier tiered epoch, and one whose beginning is served from the segment before it.
"""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidemark.logfiles.offset_index import RELATIVE_OFFSET_MAX
from tidemark.tier.metadata.head import PAGE_ENTRIES, Head
from tidemark.tier.metadata.retention import newest_ms
from tidemark.tier.metadata.segment import SegmentEntry, SegmentState, new_segment

#: Segments of one merge. The upper bound limits the requests of one merge.
SEGMENTS_MIN, SEGMENTS_MAX = 8, 64
#: Least growth: bytes of the merged segment for each byte of the largest one that it replaces.
_GROWTH = 4
#: Replaced entries that may wait for their deletion in the head, whose size they add to.
_WAITING_MAX = PAGE_ENTRIES


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeLimits:
    """Limits of a merged segment: its bytes, and the time (ms) between the newest records of its
    oldest and newest part.
    """

    size_bytes: int
    span_ms: int


def merge_limits(
    *, size_bytes: int, segment_bytes: int, segment_ms: int, retention_bytes: int, retention_ms: int
) -> MergeLimits:
    """Return the limits for a topic: those of a segment that is not closed early.

    ``size_bytes``: limit of the broker, 0 for no merges. Retention removes whole segments, so a
    merged one has at most an eighth of it (-1: no limit).
    """
    return MergeLimits(
        size_bytes=_within(min(size_bytes, segment_bytes), retention_bytes),
        span_ms=_within(segment_ms, retention_ms),
    )


def _within(limit: int, retention: int) -> int:
    return limit if retention < 0 else min(limit, retention // 8)


def next_merge(head: Head, limits: MergeLimits) -> tuple[SegmentEntry, ...]:
    """Return the adjacent segments to merge next, oldest first; () if there are none."""
    waiting = sum(entry.state is SegmentState.DELETE_STARTED for entry in head.entries)
    if waiting > _WAITING_MAX:
        return ()
    best: tuple[SegmentEntry, ...] = ()
    best_rank = (0, 0)
    for run in _runs(head, limits):
        for first in range(len(run)):
            count, largest = _longest_from(run, first, limits)
            # Segments of about one size (within a factor of four) are equivalent: more are better.
            rank = (largest.bit_length() // 2, -count)
            if count and (not best or rank < best_rank):
                best, best_rank = run[first : first + count], rank
    return best


def merged_segment(
    head: Head, parts: Sequence[SegmentEntry], *, segment_id: uuid.UUID, broker_id: int
) -> SegmentEntry:
    """Return the entry (COPY_STARTED) of the segment that replaces ``parts``."""
    epochs: list[tuple[int, int]] = []
    for entry in parts:
        for epoch, start in entry.leader_epochs:
            if not epochs or epoch > epochs[-1][0]:
                # An epoch may begin below the first segment that has a record of it.
                epochs.append((epoch, max(start, entry.start_offset) if epochs else start))
    return new_segment(
        topic=head.topic,
        topic_id=head.topic_id,
        partition=head.partition,
        segment_id=segment_id,
        start_offset=parts[0].start_offset,
        end_offset_inclusive=parts[-1].end_offset_inclusive,
        max_timestamp_ms=max(entry.max_timestamp_ms for entry in parts),
        size_bytes=sum(entry.size_bytes for entry in parts),
        broker_id=broker_id,
        # Records without timestamps expire by the time of their copy, which a merge does not renew.
        event_time_ms=max(entry.event_time_ms for entry in parts),
        leader_epochs=epochs,
        leader_epoch=head.leader_epoch,
        tiered_epoch=head.tiering.epoch,
    )


def _runs(head: Head, limits: MergeLimits) -> Iterator[tuple[SegmentEntry, ...]]:
    """Yield the longest sequences of adjacent segments that may be merged."""
    run: list[SegmentEntry] = []
    for entry in head.finished_entries:
        fits = _may_be_merged(head, entry, limits)
        if run and not (fits and entry.start_offset == run[-1].end_offset_inclusive + 1):
            yield tuple(run)
            run = []
        if fits:
            run.append(entry)
    yield tuple(run)


def _may_be_merged(head: Head, entry: SegmentEntry, limits: MergeLimits) -> bool:
    return (
        entry.size_bytes * SEGMENTS_MIN <= limits.size_bytes
        and entry.start_offset == entry.from_offset
        and entry.start_offset >= head.log_start_offset
        and entry.tiered_epoch == head.tiering.epoch
        # Entries of the manifest's first format cannot be verified.
        and entry.digests is not None
    )


def _longest_from(run: Sequence[SegmentEntry], first: int, limits: MergeLimits) -> tuple[int, int]:
    """Return the number of segments from ``first`` on that may become one, and the bytes of the
    largest of them; 0 for none.
    """
    found = size_bytes = largest = 0
    oldest_ms = latest_ms = newest_ms(run[first])
    for count, entry in enumerate(run[first : first + SEGMENTS_MAX], 1):
        size_bytes += entry.size_bytes
        oldest_ms, latest_ms = min(oldest_ms, newest_ms(entry)), max(latest_ms, newest_ms(entry))
        offsets = entry.end_offset_inclusive - run[first].start_offset
        if (
            size_bytes > limits.size_bytes
            or latest_ms - oldest_ms > limits.span_ms
            or offsets > RELATIVE_OFFSET_MAX
        ):
            break
        largest_here = max(largest, entry.size_bytes)
        # A larger segment ends the sequence if those before it may be merged without it.
        if found and largest_here.bit_length() // 2 > largest.bit_length() // 2:
            break
        largest = largest_here
        if count >= SEGMENTS_MIN and size_bytes >= _GROWTH * largest:
            found = count
    return found, largest
