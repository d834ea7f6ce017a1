"""``.txnindex``: aborted transactions whose markers are in a segment, in their order.

Per transaction 34 bytes: i16 version 0, producer id i64, first offset i64, last offset i64 (of the
marker), last stable offset i64 right after the marker.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

_ENTRY = struct.Struct(">hqqqq")
ENTRY_BYTES = _ENTRY.size
_VERSION = 0


class TransactionIndexError(ValueError):
    """The bytes are not a transaction index."""


class AbortedTxn(NamedTuple):
    """Offsets inclusive, of the first record and of the marker; all transactions that began below
    ``last_stable_offset`` have ended by then."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class OpenTransactions:
    """Open transactions of a log, whose batches are noted in their order."""

    def __init__(self, first_offsets: Mapping[int, int]) -> None:
        """``first_offsets``: that of each producer's transaction, in ascending order."""
        self.first_offsets = dict(first_offsets)

    def note_data(self, producer_id: int, base_offset: int) -> None:
        """Account for a batch of a transaction."""
        self.first_offsets.setdefault(producer_id, base_offset)

    def end(self, producer_id: int, offset: int, *, is_commit: bool) -> AbortedTxn | None:
        """Account for the marker at ``offset``; return the transaction that it aborts, or None."""
        first = self.first_offsets.pop(producer_id, None)
        # A transaction may have no records in this partition.
        if first is None or is_commit:
            return None
        stable = next(iter(self.first_offsets.values()), offset + 1)
        return AbortedTxn(producer_id, first, offset, stable)


def encode_aborted(transactions: Iterable[AbortedTxn]) -> bytes:
    """Return the file's bytes."""
    return b"".join(_ENTRY.pack(_VERSION, *transaction) for transaction in transactions)


def decode_aborted(data: bytes) -> Iterator[AbortedTxn]:
    """Return the entries of a file.

    Raises :class:`TransactionIndexError` for an unknown version or an impossible length.
    """
    if len(data) % ENTRY_BYTES:
        raise TransactionIndexError(f"{len(data)} bytes are no multiple of {ENTRY_BYTES}")
    for version, *fields in _ENTRY.iter_unpack(data):
        if version != _VERSION:
            raise TransactionIndexError(f"version {version}: only {_VERSION} is known")
        yield AbortedTxn(*fields)
