"""Questions that readers and the deleter have about a head and its pages: pure functions.

``pages`` returns a sealed page by its name (a dict in tests, a loading cache in the shells). A page
is loaded only where its reference in the head does not answer the question.
"""

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from tidemark.tier.metadata.codec import ManifestCorrupt
from tidemark.tier.metadata.head import Head, ManifestPage, PageRef
from tidemark.tier.metadata.segment import SegmentEntry, SegmentState
from tidemark.tier.metadata.transitions import PendingDelete


class Pages(Protocol):
    """Sealed pages of one partition by name."""

    def __getitem__(self, name: str, /) -> ManifestPage:
        """Return the page of this name."""


class TierOffsetOutOfRange(Exception):
    """No live segment of the tier has this offset.

    ``log_start_offset`` distinguishes expired data (below it) from data that only brokers have.
    """

    def __init__(self, message: str, *, log_start_offset: int) -> None:
        super().__init__(message)
        self.log_start_offset = log_start_offset


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """Part of a plan that one segment answers."""

    entry: SegmentEntry
    from_offset: int
    to_offset_inclusive: int


@dataclass(frozen=True, slots=True)
class Totals:
    """Segments and log bytes that are live, and that are still to be deleted."""

    live_segments: int
    live_bytes: int
    pending_segments: int
    pending_bytes: int


def state_of(head: Head, entry: SegmentEntry) -> SegmentState:
    """Return the entry's state under the head's overlay.

    A copy under way is never below the floor: it is refused when it tries to finish, and its copier
    gives it up.
    """
    if entry.state is SegmentState.COPY_FINISHED and _below_floor(head, entry):
        return SegmentState.DELETE_STARTED
    return entry.state


def marked_at(head: Head, entry: SegmentEntry) -> int | None:
    """Return the time (ms) at which the entry became DELETE_STARTED; None if it is not."""
    if state_of(head, entry) is not SegmentState.DELETE_STARTED:
        return None
    # The entry's own mark is exact. Otherwise the first mark of the floor that covers the entry
    # counts.
    if entry.marked_at_ms is not None:
        return entry.marked_at_ms
    for mark in head.marks:
        if mark.covers(entry.end_offset_inclusive, entry.tiered_epoch):
            return mark.at_ms
    return head.deleted_at_ms


def live_segments(head: Head, pages: Pages, start_offset: int = 0) -> Iterator[SegmentEntry]:
    """Yield live segments that serve offsets at or above ``start_offset``, in order of offsets."""
    for ref in head.pages:
        if not _wholly_marked(head, ref) and ref.end_offset_inclusive >= start_offset:
            yield from _live(head, _entries(pages, ref), start_offset)
    yield from _live(head, head.entries, start_offset)


def find(head: Head, pages: Pages, offset: int) -> SegmentEntry | None:
    """Return the live segment that serves an offset, or None. It is unique (invariant 5)."""
    start = head.remote_log_start_offset
    if start is None or not start <= offset <= head.highest_remote_offset:
        return None
    return next(live_segments(head, pages, offset), None)


def find_by_timestamp(head: Head, pages: Pages, timestamp_ms: int) -> SegmentEntry | None:
    """Return the first live segment that has a record with this timestamp or a later one.

    A record of it below the log start does not count: the caller searches from the log start on.
    """
    for ref in head.pages:
        if ref.max_timestamp_ms >= timestamp_ms and not _wholly_marked(head, ref):
            for entry in _live(head, _entries(pages, ref), 0):
                if entry.max_timestamp_ms >= timestamp_ms:
                    return entry
    entries = _live(head, head.entries, 0)
    return next((entry for entry in entries if entry.max_timestamp_ms >= timestamp_ms), None)


def by_newest(head: Head, pages: Pages) -> Iterator[SegmentEntry]:
    """Yield live entries by largest timestamp, descending, then by offset.

    A page is loaded only when its largest timestamp is the next one, so a caller that stops early
    loads few pages.
    """
    heap: list[tuple[int, int, int, SegmentEntry | PageRef]] = []
    numbers = itertools.count()  # a tie-breaker: items cannot be compared

    def push(timestamp_ms: int, offset: int, item: SegmentEntry | PageRef) -> None:
        heapq.heappush(heap, (-timestamp_ms, offset, next(numbers), item))

    # A page enters the heap by its largest timestamp, and its entries replace it when it is
    # reached.
    for ref in head.pages:
        if not _wholly_marked(head, ref):
            push(ref.max_timestamp_ms, ref.start_offset, ref)
    # Entries that are still in the head are known without loading.
    for entry in _live(head, head.entries, 0):
        push(entry.max_timestamp_ms, entry.from_offset, entry)
    while heap:
        item = heapq.heappop(heap)[-1]
        if isinstance(item, SegmentEntry):
            yield item
            continue
        # A page was reached: its entries compete with the rest, and none is newer than the page.
        for entry in _live(head, _entries(pages, item), 0):
            push(entry.max_timestamp_ms, entry.from_offset, entry)


def plan(
    head: Head, pages: Pages, start_offset: int, until_offset: int
) -> tuple[SegmentRange, ...]:
    """Return the segments, with offset ranges, that serve ``start_offset`` to ``until_offset``.

    ``until_offset`` is exclusive. The ranges are contiguous, and exactly one segment serves each
    offset. Offsets beyond the end of the tier are left out, because brokers still have them. Raises
    TierOffsetOutOfRange if the tier no longer has the first offset.
    """
    return tuple(iter_plan(head, pages, start_offset, until_offset))


def iter_plan(
    head: Head, pages: Pages, start_offset: int, until_offset: int
) -> Iterator[SegmentRange]:
    """Yield the ranges of :func:`plan` one by one, so that a long manifest is never in memory."""
    # Nothing of the range is in the tier. That is only an error if the records are expired.
    if until_offset <= start_offset or start_offset > head.highest_remote_offset:
        _check_not_expired(head, start_offset)
        return
    first = head.remote_log_start_offset
    if first is None or start_offset < first:
        raise _out_of_range(head, start_offset, first)
    for entry in live_segments(head, pages, start_offset):
        if entry.from_offset >= until_offset:
            break
        # The first and the last segment may reach beyond the range.
        begin = max(entry.from_offset, start_offset)
        yield SegmentRange(entry, begin, min(entry.end_offset_inclusive, until_offset - 1))


def sizes(
    head: Head, pages: Pages, start_offset: int, until_offset: int
) -> Iterator[tuple[int, int, int]]:
    """Yield (first offset, exclusive end, log bytes) of consecutive ranges of the tier.

    They cover the live offsets from ``start_offset`` to ``until_offset`` (exclusive), in order. A
    range is one segment, and its size is its share of the segment's bytes. Behind the first page
    that is loaded, a page that is wholly within the offsets is one range: its reference has the
    sum, so it need not be loaded.
    """
    is_first = True
    for ref in head.pages:
        if _wholly_marked(head, ref) or ref.end_offset_inclusive < start_offset:
            continue
        if ref.start_offset >= until_offset:
            return
        # A page that is wholly within the offsets, and wholly live, counts by its sum.
        within = ref.start_offset >= start_offset and ref.end_offset_inclusive < until_offset
        if within and not is_first and _wholly_live(head, ref):
            yield ref.start_offset, ref.end_offset_inclusive + 1, ref.size_bytes
            continue
        # Of the first page, and of those that reach beyond the offsets, each segment counts.
        is_first = False
        yield from _sizes(head, _entries(pages, ref), start_offset, until_offset)
    yield from _sizes(head, head.entries, start_offset, until_offset)


def _sizes(
    head: Head, entries: tuple[SegmentEntry, ...], start_offset: int, until_offset: int
) -> Iterator[tuple[int, int, int]]:
    for entry in _live(head, entries, start_offset):
        first = max(entry.from_offset, start_offset)
        end = min(entry.end_offset_inclusive + 1, until_offset)
        if first < end:
            offsets = entry.end_offset_inclusive + 1 - entry.start_offset
            # Records are assumed to be of equal size, since the indexes are not read.
            yield first, end, entry.size_bytes * (end - first) // offsets


def present_entries(head: Head, pages: Pages) -> Iterator[tuple[SegmentEntry, SegmentState]]:
    """Yield each entry whose objects are not known to be deleted, with its state under the overlay.

    Entries are in the order in which they were finished; live ones form a line, oldest first.
    """
    for ref in head.pages:
        if ref.left:
            for index, entry in enumerate(_entries(pages, ref)):
                if not ref.gone >> index & 1:
                    yield entry, state_of(head, entry)
    for entry in head.entries:
        yield entry, state_of(head, entry)


def pending_deletes(
    head: Head, pages: Pages, *, now_ms: int, delay_ms: int, limit: int = 1000
) -> tuple[PendingDelete, ...]:
    """Return entries whose objects may be deleted now, oldest first, at most ``limit``.

    An entry is due once it has been DELETE_STARTED for ``delay_ms``, so that readers with an older
    plan can finish. The caller deletes the objects and then calls ``finish_delete``.
    """
    # Marked entries are a prefix, so the oldest come first.
    found: list[PendingDelete] = []
    for item in _marked_entries(head, pages):
        since = marked_at(head, item.entry)
        if since is None or since + delay_ms > now_ms:
            continue
        found.append(item)
        if len(found) >= limit:
            break
    return tuple(found)


def totals(head: Head, pages: Pages) -> Totals:
    """Return counts and bytes of live entries and of those pending deletion.

    A copy in progress counts as neither. At most one page is loaded.
    """
    live = live_bytes = pending = pending_bytes = 0
    # All entries below the floor are marked for deletion, and the floor crosses at most one page.
    # Of all other pages the references have the sums.
    for ref in head.pages:
        marked, marked_bytes = _marked_of_page(head, ref, pages)
        live += ref.count - marked
        live_bytes += ref.size_bytes - marked_bytes
        # Entries that are deleted already have their bit in ``gone``.
        pending += marked - ref.gone.bit_count()
        pending_bytes += marked_bytes - ref.gone_bytes
    # Entries that are not sealed into a page yet.
    for entry in head.entries:
        state = state_of(head, entry)
        live += state is SegmentState.COPY_FINISHED
        live_bytes += entry.size_bytes * (state is SegmentState.COPY_FINISHED)
        pending += state is SegmentState.DELETE_STARTED
        pending_bytes += entry.size_bytes * (state is SegmentState.DELETE_STARTED)
    return Totals(live, live_bytes, pending, pending_bytes)


def bytes_below(head: Head, pages: Pages, offset: int) -> int:
    """Return the log bytes of the live segments that end below an offset."""
    found = 0
    for ref in head.pages:
        if ref.end_offset_inclusive < offset:
            found += ref.size_bytes - _marked_of_page(head, ref, pages)[1]
        elif ref.first_end_offset_inclusive < offset:
            found += _bytes_below(head, _entries(pages, ref), offset)
    return found + _bytes_below(head, head.entries, offset)


def _entries(pages: Pages, ref: PageRef) -> tuple[SegmentEntry, ...]:
    """Return a page's entries, checked against the head's reference. Raises ManifestCorrupt."""
    # An old version of the page object would have other entries than the head describes.
    page = pages[ref.name]
    if len(page.entries) != ref.count or (
        page.entries[0].from_offset,
        page.entries[0].end_offset_inclusive,
        page.entries[-1].end_offset_inclusive,
        page.entries[-1].end_leader_epoch,
    ) != (
        ref.start_offset,
        ref.first_end_offset_inclusive,
        ref.end_offset_inclusive,
        ref.end_leader_epoch,
    ):
        raise ManifestCorrupt(
            f"page {page.name} of {page.topic}-{page.partition} is not the one that the head "
            "refers to. Restore the version of that object that the head refers to"
        )
    return page.entries


def _bytes_below(head: Head, entries: tuple[SegmentEntry, ...], offset: int) -> int:
    return sum(
        entry.size_bytes for entry in _live(head, entries, 0) if entry.end_offset_inclusive < offset
    )


def _below_floor(head: Head, entry: SegmentEntry) -> bool:
    return head.is_below_floor(entry.end_offset_inclusive, entry.tiered_epoch)


def _wholly_marked(head: Head, ref: PageRef) -> bool:
    return head.is_below_floor(ref.end_offset_inclusive, ref.max_tiered_epoch)


def _wholly_live(head: Head, ref: PageRef) -> bool:
    return not head.is_below_floor(ref.first_end_offset_inclusive, ref.min_tiered_epoch)


def _live(
    head: Head, entries: tuple[SegmentEntry, ...], start_offset: int
) -> Iterator[SegmentEntry]:
    for entry in entries:
        live = state_of(head, entry) is SegmentState.COPY_FINISHED
        if live and entry.end_offset_inclusive >= start_offset:
            yield entry


def _marked_entries(head: Head, pages: Pages) -> Iterator[PendingDelete]:
    # The floor marks a prefix: behind the first page that is wholly live nothing is marked.
    for ref in head.pages:
        if _wholly_live(head, ref):
            break
        for index, entry in enumerate(_entries(pages, ref)):
            if not ref.gone >> index & 1:
                yield PendingDelete(entry, ref.name, index)
    for entry in head.entries:
        yield PendingDelete(entry)


def _marked_of_page(head: Head, ref: PageRef, pages: Pages) -> tuple[int, int]:
    """Return (entries, bytes) of a page that are below the floor, deleted ones included."""
    if _wholly_live(head, ref):
        return 0, 0
    if _wholly_marked(head, ref):
        return ref.count, ref.size_bytes
    marked = [entry for entry in _entries(pages, ref) if _below_floor(head, entry)]
    return len(marked), sum(entry.size_bytes for entry in marked)


def _check_not_expired(head: Head, offset: int) -> None:
    if offset < head.log_start_offset:
        raise _out_of_range(head, offset, head.remote_log_start_offset)


def _out_of_range(head: Head, offset: int, first: int | None) -> TierOffsetOutOfRange:
    if offset < head.log_start_offset:
        advice = f"it is expired: the log starts at {head.log_start_offset}"
    elif first is None:
        advice = "the tier has nothing of this partition: read it from the brokers"
    else:
        advice = f"the tier begins at {first}: read what is before it from the brokers"
    text = f"{head.name}: offset {offset} is not in the tier; {advice}"
    return TierOffsetOutOfRange(text, log_start_offset=head.log_start_offset)
