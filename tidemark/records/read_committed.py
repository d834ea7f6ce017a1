"""Records that a read_committed reader skips in a range of a log (KIP-98).

It receives the aborted transactions with records in the range, by producer and first offset. From
that offset on, the producer's transactional batches are skipped, up to the marker that aborts the
transaction; its next transaction may be committed. Control batches are never records.
"""

from collections.abc import Iterable, Iterator

from tidemark.records.batch import BatchHeader, Buffer, check_crc
from tidemark.records.control import read_end_marker


def committed(
    data: Buffer,
    batches: Iterable[tuple[int, BatchHeader]],
    aborted: "AbortedProducers",
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the batches that a read_committed consumer receives, with their positions.

    ``data``: bytes that contain the ``batches``, each given by position and header. ``aborted``:
    aborted transactions in the range. Raises :class:`CorruptBatch` if the CRC of a skipped batch is
    wrong.
    """
    view = memoryview(data)
    for position, header in batches:
        # Nothing else would notice a damaged header, by which committed records are skipped.
        if aborted.excludes(header, view[position : position + header.size_bytes]):
            check_crc(data, position, header)
        else:
            yield position, header


class AbortedProducers:
    """Producers of aborted transactions at one place of a log.

    It must be given all batches in their order.
    """

    def __init__(self, transactions: Iterable[tuple[int, int]]) -> None:
        """``transactions``: producer id and first offset of each."""
        #: Transactions that begin later in the log, the next one last.
        self._later = sorted(transactions, key=_first_offset, reverse=True)
        self._now: set[int] = set()

    def excludes(self, header: BatchHeader, batch: Buffer) -> bool:
        """Return whether the batch has no records for this reader: aborted data, or a marker."""
        # The transactions that have begun up to this batch.
        while self._later and self._later[-1][1] <= header.last_offset:
            self._now.add(self._later.pop()[0])
        if not header.is_control:
            return header.is_transactional and header.producer_id in self._now
        # The marker ends the transaction. The producer's next one may be committed.
        if header.producer_id in self._now:
            marker = read_end_marker(batch)
            if marker is not None and not marker.is_commit:
                self._now.discard(header.producer_id)
        return True


def _first_offset(transaction: tuple[int, int]) -> int:
    return transaction[1]
