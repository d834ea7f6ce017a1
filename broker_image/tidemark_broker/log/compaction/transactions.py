"""Transactions during a compaction: which data and markers may be dropped (Kafka's
``CleanedTransactionMetadata``).

Batches are passed in the order of the log. Data of an aborted transaction is dropped. Its marker
stays until none of that data is left, and so does the marker of a committed one. The caller gets
the aborted transactions from the transaction index and adds them before the batches that they span.
Adding one twice is harmless.
"""

import heapq
from collections.abc import Iterable

from tidemark.logfiles.transaction_index import AbortedTxn
from tidemark.records.batch import BatchHeader
from tidemark.records.control import EndMarker


class CleanedTransactions:
    """State between batches, which must be passed in order."""

    def __init__(self) -> None:
        #: Aborted transactions that start later, a heap by first offset.
        self._aborted: list[tuple[int, AbortedTxn]] = []
        #: Aborted transactions in progress by producer id: the entry, and whether data was seen.
        self._ongoing: dict[int, tuple[AbortedTxn, bool]] = {}
        self._committed: set[int] = set()
        self._kept: list[AbortedTxn] = []

    def add_aborted(self, aborted: Iterable[AbortedTxn]) -> None:
        """Add aborted transactions that have records in the following batches."""
        for item in aborted:
            heapq.heappush(self._aborted, (item.first_offset, item))

    def take_kept(self) -> list[AbortedTxn]:
        """Return the aborted transactions whose markers were passed since the last call and
        whose data was present: the entries of the new transaction index.
        """
        kept, self._kept = self._kept, []
        return kept

    def may_drop_data(self, header: BatchHeader) -> bool:
        """Pass a data batch; return whether its transaction was aborted."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        ongoing = self._ongoing.get(header.producer_id)
        if ongoing is None:
            self._committed.add(header.producer_id)
            return False
        self._ongoing[header.producer_id] = (ongoing[0], True)
        return True

    def may_drop_marker(self, header: BatchHeader, marker: EndMarker | None) -> bool:
        """Pass a control batch; return whether no data of its transaction is left in the log.

        ``marker``: its commit or abort marker, None if it has another or no record.
        """
        self._begin_up_to(header.last_offset)
        producer_id = header.producer_id
        if marker is None:
            return not header.count  # empty batches were cleaned before
        if marker.is_commit:
            seen = producer_id in self._committed
            self._committed.discard(producer_id)
            return not seen
        entry, seen = self._ongoing.pop(producer_id, (None, False))
        if entry is not None and seen:
            self._kept.append(entry)
        return not seen

    def _begin_up_to(self, offset: int) -> None:
        while self._aborted and self._aborted[0][0] <= offset:
            _, entry = heapq.heappop(self._aborted)
            self._ongoing.setdefault(entry.producer_id, (entry, False))
