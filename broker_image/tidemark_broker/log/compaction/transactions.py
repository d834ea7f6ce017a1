"""What of a log's transactions compaction may take away (Kafka's ``CleanedTransactionMetadata``).

Batches are shown in the order of the log. Data of an aborted transaction goes; its marker stays
until none of that data is left, and so does the marker of a committed one. The caller knows from
the transaction index which transactions were aborted, and hands these over before the batches that
they span; handing one over twice is as good as once.
"""

import heapq
from collections.abc import Iterable

from tidemark.logfiles.transaction_index import AbortedTransaction
from tidemark.records.batch import BatchHeader
from tidemark.records.control import EndMarker


class CleanedTransactions:
    """State between batches, which must come in order."""

    def __init__(self) -> None:
        #: Not begun yet, a heap by their first offsets.
        self._aborted: list[tuple[int, AbortedTransaction]] = []
        #: Aborted transactions under way by producer id: the entry, and whether data was seen.
        self._ongoing: dict[int, tuple[AbortedTransaction, bool]] = {}
        self._committed: set[int] = set()
        self._kept: list[AbortedTransaction] = []

    def add_aborted(self, aborted: Iterable[AbortedTransaction]) -> None:
        """They have records in what comes now."""
        for each in aborted:
            heapq.heappush(self._aborted, (each.first_offset, each))

    def take_kept(self) -> list[AbortedTransaction]:
        """The aborted transactions whose markers were shown since the last call and of which data
        was there: what the new transaction index has."""
        kept, self._kept = self._kept, []
        return kept

    def may_drop_data(self, header: BatchHeader) -> bool:
        """Show a batch of data; is it of an aborted transaction?"""
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
        """Show a control batch and its marker, None where it has another kind of record, or none at
        all; is nothing left of what it ends?"""
        self._begin_up_to(header.last_offset)
        producer_id = header.producer_id
        if marker is None:
            return not header.count  # it was cleaned already
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
