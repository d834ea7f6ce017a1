"""The segments that answer for a partition's offsets, chosen from all that are in the bucket.

This module does no I/O. Kafka's remote log metadata is not read, so everything follows from the
segments themselves:

- The *newest* segment has the highest leader epoch and, of that epoch, the highest end. Its copy of
  ``leader-epoch-checkpoint`` is the lineage of the log: which epoch wrote which offsets.
- Records below the start of the lineage have expired.
- A segment is valid as far as its epochs are those of the lineage. Behind that it has records that
  an unclean election removed from the log. Two logs with the same epoch at an offset have the same
  records up to it, so the valid part is always a beginning.
- Leaders cut their logs at different offsets, so segments overlap. Each offset is read from one
  segment. At the end of one, the next is the one that reaches furthest.
"""

import bisect
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from tidemark.logfiles.leader_epochs import LeaderEpochs
from tidemark.logfiles.transaction_index import AbortedTxn, decode_aborted, encode_aborted
from tidemark.tier.metadata.segment import SegmentEntry

_END = struct.Struct(">q")


def newest(segments: Iterable[SegmentEntry]) -> SegmentEntry | None:
    """Return the segment that has the lineage of the log, None without segments."""
    return max(
        segments,
        key=lambda entry: (
            entry.end_leader_epoch,
            entry.end_offset_inclusive,
            entry.event_time_ms,
            entry.key,
        ),
        default=None,
    )


def line(segments: Iterable[SegmentEntry], lineage: LeaderEpochs) -> tuple[SegmentEntry, ...]:
    """Return the segments that are read, in order, each trimmed to the offsets it answers for.

    A gap between two of them means that objects are missing.
    """
    numbers = {item.epoch: number for number, item in enumerate(lineage.entries)}
    valid = filter(None, (_valid_part(entry, lineage, numbers) for entry in segments))
    waiting = deque(sorted(valid, key=lambda entry: (entry.start_offset, entry.key)))
    chosen: list[SegmentEntry] = []
    position = 0
    while waiting:
        # Behind a gap, the line continues with the next segment.
        begin = max(position, waiting[0].start_offset)
        best = waiting.popleft()
        while waiting and waiting[0].start_offset <= begin:
            best = max(best, waiting.popleft(), key=lambda entry: entry.end_offset_inclusive)
        # All of them may end below the position.
        if best.end_offset_inclusive >= begin:
            chosen.append(replace(best, from_offset=begin))
            position = best.end_offset_inclusive + 1
    return tuple(chosen)


def _valid_part(
    entry: SegmentEntry, lineage: LeaderEpochs, numbers: Mapping[int, int]
) -> SegmentEntry | None:
    """Return the segment up to the last offset that is in the log, None if it has none.

    ``numbers``: place of each epoch in the lineage.
    """
    behind = entry.start_offset
    starts = [*(start for _, start in entry.leader_epochs), entry.end_offset_inclusive + 1]
    for (epoch, start), until in zip(entry.leader_epochs, starts[1:], strict=True):
        # Epochs below the lineage are those of expired records.
        if epoch < lineage.entries[0].epoch:
            behind = until
            continue
        number = numbers.get(epoch)
        first = max(start, entry.start_offset)
        # The log has no record of this epoch, or the first one at a higher offset.
        if number is None or (number and first < lineage.entries[number].start_offset):
            break
        # In the log the epoch may end earlier.
        following = lineage.entries[number + 1 : number + 2]
        behind = min([until, *(item.start_offset for item in following)])
        if behind < until:
            break
    if behind <= entry.start_offset:
        return None
    return replace(entry, end_offset_inclusive=behind - 1)


def with_details(
    entries: Sequence[SegmentEntry],
    copied_ends: Mapping[str, int],
    transactions: Iterable[AbortedTxn],
) -> tuple[SegmentEntry, ...]:
    """Return the entries with what a task needs, in their custom metadata.

    That is the last offset of the log object (``copied_ends``, by key), and the aborted
    transactions that overlap the segment. The transaction index of a segment names those whose
    markers are in it, and their records may be in earlier segments. ``transactions``: of the
    entries, in any order.
    """
    firsts = [entry.from_offset for entry in entries]
    overlapping: list[list[AbortedTxn]] = [[] for _ in entries]
    # Segments overlap, so two indexes may name the same transaction.
    for transaction in sorted(set(transactions), key=lambda item: item.last_offset):
        begin = max(0, bisect.bisect_right(firsts, transaction.first_offset) - 1)
        end = bisect.bisect_right(firsts, transaction.last_offset)
        for number in range(begin, end):
            overlapping[number].append(transaction)
    return tuple(
        replace(entry, custom_metadata=_END.pack(copied_ends[entry.key]) + encode_aborted(found))
        for entry, found in zip(entries, overlapping, strict=True)
    )


def copied_end(entry: SegmentEntry) -> int:
    """Return the last offset of an entry's log object."""
    assert entry.custom_metadata is not None
    return int(_END.unpack_from(entry.custom_metadata)[0])


def aborted_of(entry: SegmentEntry) -> Iterator[AbortedTxn]:
    """Return the aborted transactions that overlap an entry."""
    assert entry.custom_metadata is not None
    return decode_aborted(entry.custom_metadata[_END.size :])
