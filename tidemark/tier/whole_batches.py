"""Whole batches out of a segment that comes in parts: a batch that a part cuts is finished by the
next.

Whoever reads a segment in order needs this, and all need the same checks with it: digests while the
bytes pass, and a length that is the manifest's. Memory is one part and what is left of the one
before it. Nothing is fetched here.
"""

from collections.abc import Iterable, Iterator, Sequence

from tidemark.records.batch import BatchHeader, CorruptBatch, iter_headers
from tidemark.tier.integrity import CheckedStream, damaged
from tidemark.tier.segment import SegmentEntry

#: (position in the log, bytes from there on, the batches in them: where each begins there).
Batches = tuple[int, bytes, list[tuple[int, BatchHeader]]]


def whole_batches(
    entry: SegmentEntry,
    parts: Iterable[bytes],
    digests: Sequence[bytes],
    store: str,
    *,
    begin: int = 0,
    position: int = 0,
    end: int | None = None,
) -> Iterator[Batches]:
    """Checked as far as digests go. ``parts``: the log's bytes from ``begin`` to ``end``, which lie
    between two pieces (:class:`CheckedStream`), or all of it. ``digests``: of the log's pieces;
    none where the entry has none. ``position``: where the first batch that is wanted begins.

    What belongs to a batch that ``end`` cuts is left out. Raises ObjectDamaged, and what taking a
    part raises."""
    stream = CheckedStream(entry, digests, store, begin=begin, end=end)
    held, skip = b"", position - begin
    for part in parts:
        held += stream.feed(part)
        if skip:
            held, skip = held[skip:], max(0, skip - len(held))
        try:
            headers = list(iter_headers(held))
        except CorruptBatch as error:
            raise damaged(entry, entry.log_key, store, str(error)) from error
        whole = headers[-1][0] + headers[-1][1].size_bytes if headers else 0
        yield position, held, headers
        position, held = position + whole, held[whole:]
    stream.finish()
