"""Whole batches of a segment that is received in parts: the next part completes a batch that a
part cuts.

Every sequential reader of a segment needs this, with the same checks: digests of the passing bytes,
and the length in the manifest. Memory is one part and the rest of the one before it. Nothing is
fetched here.
"""

from collections.abc import Iterable, Iterator, Sequence

from tidemark.records.batch import BatchHeader, CorruptBatch, iter_headers
from tidemark.tier.integrity import CheckedStream, damaged
from tidemark.tier.segment import SegmentEntry

#: (position in the log, bytes from there on, the batches in them: where each begins there).
Batches = tuple[int, bytes, list[tuple[int, BatchHeader]]]


def verified_batches(
    entry: SegmentEntry,
    parts: Iterable[bytes],
    digests: Sequence[bytes],
    store: str,
    *,
    begin: int = 0,
    position: int = 0,
    end: int | None = None,
) -> Iterator[Batches]:
    """Yield whole record batches of a log that arrives in parts, verified by its digests.

    Each item is (position of the data in the log, data, batch headers with positions in it).

    - ``parts``: the log's bytes from ``begin`` to ``end``, which are boundaries of pieces
      (:class:`CheckedStream`), or all of it
    - ``digests``: of the log's pieces; none if the entry has none
    - ``position``: byte of the log at which the first requested batch starts

    A batch that ``end`` cuts is left out. Raises ObjectDamaged, and errors of the iterator.
    """
    stream = CheckedStream(entry, digests, store, begin=begin, end=end)
    pending, skip = b"", position - begin
    for part in parts:
        pending += stream.feed(part)
        # Verified ranges start at a piece, which may be before the first requested batch.
        if skip:
            pending, skip = pending[skip:], max(0, skip - len(pending))
        try:
            headers = list(iter_headers(pending))
        except CorruptBatch as error:
            raise damaged(entry, entry.log_key, store, str(error)) from error
        # The rest of the last batch is completed by the next part.
        complete_bytes = headers[-1][0] + headers[-1][1].size_bytes if headers else 0
        yield position, pending, headers
        position, pending = position + complete_bytes, pending[complete_bytes:]
    # Fails if the parts ended before the expected end.
    stream.finish()
