"""What of a log's transactions compaction may take away (Kafka's ``CleanedTransactionMetadata``).

Batches are shown in the order of the log. Data of an aborted transaction goes; its marker stays
until none of that data is left, and so does the marker of a committed one. The caller knows from
the transaction index which transactions were aborted, and hands these over, by their first offset,
before the batches that they span.
"""

import heapq
import struct
from collections.abc import Iterable
from typing import NamedTuple

from tidemark.records.batch import BatchHeader

_MARKER_KEY = struct.Struct(">hh")
_ABORT, _COMMIT = 0, 1


class AbortedTransaction(NamedTuple):
    """An entry of ``.txnindex``; offsets are inclusive. The order is that of the first offsets."""

    first_offset: int
    last_offset: int
    producer_id: int
    last_stable_offset: int


def marker_type(key: bytes | None) -> int | None:
    """Of a control record's key: 0 aborts, 1 commits; None where it is too short to say."""
    if key is None or len(key) < _MARKER_KEY.size:
        return None
    found: int = _MARKER_KEY.unpack_from(key)[1]
    return found


class CleanedTransactions:
    """State between batches, which must come in order. ``kept`` gathers the aborted transactions of
    which something is left: what the new transaction index has."""

    def __init__(self, aborted: Iterable[AbortedTransaction] = ()) -> None:
        self._aborted = sorted(aborted)
        #: Aborted transactions under way by producer id: the entry, and whether data was seen.
        self._ongoing: dict[int, tuple[AbortedTransaction, bool]] = {}
        self._committed: set[int] = set()
        self.kept: list[AbortedTransaction] = []

    def add_aborted(self, aborted: Iterable[AbortedTransaction]) -> None:
        """More of them, of segments that come now."""
        for each in aborted:
            heapq.heappush(self._aborted, each)

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

    def may_drop_marker(self, header: BatchHeader, marker: int | None) -> bool:
        """Show a control batch with its :func:`marker_type` (None: it is empty, so it was cleaned
        already); is nothing left of what it ends?"""
        self._begin_up_to(header.last_offset)
        producer_id = header.producer_id
        if marker is None:
            return True
        if marker == _COMMIT:
            seen = producer_id in self._committed
            self._committed.discard(producer_id)
            return not seen
        if marker != _ABORT:
            return False
        entry, seen = self._ongoing.pop(producer_id, (None, False))
        if entry is not None and seen:
            self.kept.append(entry)
        return not seen

    def _begin_up_to(self, offset: int) -> None:
        while self._aborted and self._aborted[0].first_offset <= offset:
            entry = heapq.heappop(self._aborted)
            self._ongoing.setdefault(entry.producer_id, (entry, False))
