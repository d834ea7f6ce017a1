"""Content of one PartitionSlice as it is known to be stored."""

import uuid
from collections import Counter

from tidemark_operator.controller.state.model import PartitionRow, RowKey, Tombstone
from tidemark_operator.controller.state.rows import encode_row

#: Bytes that JSON adds to a string in a list: two quotes and a comma.
JSON_BYTES = 3


class SliceContent:
    """One PartitionSlice.

    Invariant: ``encoded`` is the stored text of exactly the rows of this slice, ``row_bytes`` is
    the size of that text in JSON, and ``hosted`` counts the rows that name each broker. So the
    size of a write is known before it is made.
    """

    def __init__(self) -> None:
        self.encoded: dict[RowKey, str] = {}
        self.row_bytes = 0
        self.hosted: Counter[int] = Counter()
        #: By node id: the log directory of each broker as stored.
        self.directories: dict[int, uuid.UUID] = {}
        #: Placements that no Topic's status counts yet (:mod:`commit`), by topic id.
        self.records: dict[uuid.UUID, int] = {}
        self.tombstones: dict[uuid.UUID, Tombstone] = {}

    def add(self, row: PartitionRow) -> None:
        """Add a row that is not in the slice."""
        text = self.encoded[row.key] = encode_row(row)
        self.row_bytes += len(text) + JSON_BYTES
        self.hosted.update(row.hosts)

    def remove(self, row: PartitionRow) -> None:
        """Remove a row as it was added."""
        self.row_bytes -= len(self.encoded.pop(row.key)) + JSON_BYTES
        self.hosted.subtract(row.hosts)
