"""``.txnindex``: aborted transactions whose markers are in a segment, in their order.

Per transaction 34 bytes: i16 version 0, producer id i64, first offset i64, last offset i64 (of the
marker), last stable offset i64 right after the marker.
"""

import struct
from collections.abc import Iterable, Iterator
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
