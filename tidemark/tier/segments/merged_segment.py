"""Content of a segment that replaces adjacent ones: their logs in sequence, and new indexes.

The parts are read from the store, verified as for a reader, and passed on. So damage is found
before it would spread, and at most a few MiB are in memory. The indexes are built from the batches,
as the log builds them. Leader epochs and producer snapshot are those at the end of the last part.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tidemark.tier.metadata.segment import SegmentEntry
from tidemark.tier.segments.auxiliary import AbortedRanges, Aux
from tidemark.tier.segments.integrity import BatchLine, list_batches, verified_batches
from tidemark.tier.segments.local_segment import BatchIndexes
from tidemark.tier.segments.remote_storage_manager import RemoteStorageManager

_READ_BYTES = 4 << 20


class MergedSegment:
    """Segment made of ``parts``, which are adjacent, oldest first. Calls block.

    ``index_interval_bytes``: bytes of the log between two entries of its indexes.
    """

    def __init__(
        self,
        segments: RemoteStorageManager,
        parts: Sequence[SegmentEntry],
        index_interval_bytes: int,
    ) -> None:
        self._segments = segments
        self._parts = parts
        size_bytes = sum(part.size_bytes for part in parts)
        self._indexes = BatchIndexes(parts[0].start_offset, size_bytes, index_interval_bytes)
        #: Auxiliary data of the parts that were read.
        self._aux: list[Aux] = []

    def log(self) -> Iterator[bytes]:
        """Yield the bytes of the log, once.

        Raises ObjectDamaged if a part is not what was copied, ObjectNotFound, StoreUnavailable.
        """
        before = 0
        for entry in self._parts:
            aux, store = self._segments.fetch_aux(entry), self._segments.describe(entry)
            self._aux.append(aux)
            line = BatchLine(entry, store)
            for position, data, headers in verified_batches(
                entry, self._fetched(entry, aux), aux.pieces, store, list_batches
            ):
                complete_bytes = 0
                for at, header in headers:
                    last, size_bytes = header.last_offset, header.size_bytes
                    line.follow(header.base_offset, last, position + at, size_bytes)
                    line.check_batch(data, at)
                    self._indexes.note(header, last, before + position + at, size_bytes)
                    complete_bytes = at + size_bytes
                # The rest of the last batch comes again with the next data.
                yield data[:complete_bytes]
            line.finish()
            before += entry.size_bytes

    def aux(self) -> Aux:
        """Return the auxiliary data; only after :meth:`log` was read to its end."""
        last = self._aux[-1]
        # A transaction that several parts contain is in the list of each, with equal values.
        aborted = dict.fromkeys(
            transaction for aux in self._aux for transaction in aux.aborted.transactions
        )
        merged = replace(
            last,
            aborted=AbortedRanges(
                tuple(sorted(aborted, key=lambda item: item.last_offset)),
                last.aborted.first_open_offset,
            ),
            # Each batch of the parts was checked.
            has_sound_batches=True,
            # Those of the merged segment are added when it is stored.
            origin=b"",
            frames=None,
        )
        return self._indexes.put_into(merged)

    def _fetched(self, entry: SegmentEntry, aux: Aux) -> Iterator[bytes]:
        for begin in range(0, entry.size_bytes, _READ_BYTES):
            yield self._segments.fetch(entry, begin, begin + _READ_BYTES, aux.frames)
