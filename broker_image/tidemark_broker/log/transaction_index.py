"""Index of the aborted transactions whose markers are in one segment (Kafka's
``TransactionIndex``).

Entries are in the order of the markers. Like those of the other indexes they stay in memory until
the next flush; after a crash they are rebuilt from the batches. A segment without aborted
transactions has no such file.
"""

import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path

from tidemark.logfiles.transaction_index import (
    ENTRY_BYTES,
    AbortedTxn,
    TransactionIndexError,
    decode_aborted,
    encode_aborted,
)
from tidemark_broker.log.errors import StorageError, storage_errors
from tidemark_broker.log.files import opened, pread_exactly, put_at

_READ_ENTRIES = 1000


class TransactionIndex:
    """Transaction index of the segment whose ``.txnindex`` is ``path``.

    The log's lock guards changes. Readers use the single value that has the complete content.
    """

    __slots__ = ("_content", "_is_stale", "path")

    def __init__(self, path: Path, entries: int = 0) -> None:
        self.path = path
        #: Number of entries in the file, and the entries that follow them.
        self._content: tuple[int, list[AbortedTxn]] = (entries, [])
        self._is_stale = False

    @classmethod
    def opened(cls, path: Path) -> "TransactionIndex | None":
        """Open the file of a former run (blocking).

        Return None if its size or its last entry is invalid. Raises ``OSError``.
        """
        size = path.stat().st_size
        with path.open("rb") as file:
            last = os.pread(file.fileno(), ENTRY_BYTES, max(0, size - ENTRY_BYTES))
        try:
            list(decode_aborted(last))
        except TransactionIndexError:
            return None
        return None if size % ENTRY_BYTES else cls(path, size // ENTRY_BYTES)

    def __len__(self) -> int:
        saved, unsaved = self._content
        return saved + len(unsaved)

    def append(self, transaction: AbortedTxn) -> None:
        """Add a transaction whose marker was appended to the segment."""
        self._content[1].append(transaction)

    def forget(self) -> None:
        """Discard all entries before a rebuild.

        The next :meth:`save` replaces the file's content.
        """
        self._content, self._is_stale = (0, []), True

    def save(self) -> int:
        """Write the entries that the file lacks. Blocks.

        Return the number of entries in the file, for :meth:`saved`.
        """
        saved, unsaved = self._content
        data, position = encode_aborted(unsaved), saved * ENTRY_BYTES
        # A segment without aborted transactions has no file.
        if not data and not self._is_stale:
            return saved
        count = saved + len(data) // ENTRY_BYTES
        with storage_errors(f"{self.path} cannot be written"):
            if not count:
                self.path.unlink(missing_ok=True)
            else:
                put_at(self.path, data, position)
        self._is_stale = False
        return count

    def saved(self, count: int) -> None:
        """Note that ``count`` entries are in the file.

        The caller holds the log's lock, as for all changes.
        """
        saved, unsaved = self._content
        self._content = (count, unsaved[count - saved :])

    def truncate_to(self, offset: int) -> None:
        """Drop the transactions that ended at or above ``offset`` (blocking)."""
        saved, unsaved = self._content
        kept = unsaved[: bisect_left(unsaved, offset, key=_last_offset)]
        if not kept and saved:
            with (
                storage_errors(f"{self.path} cannot be cut"),
                opened(self.path, os.O_RDWR) as descriptor,
            ):
                saved = _first_ended_from(descriptor, saved, offset)
                os.ftruncate(descriptor, saved * ENTRY_BYTES)
        self._content = (saved, kept)

    def between(self, start: int, end: int) -> tuple[list[AbortedTxn], bool]:
        """Return the transactions that ended at or above ``start`` and started below ``end``
        (blocking), and whether these are all, because everything below ``end`` was stable by
        then.
        """
        found = []
        for item in self._ended_from(start):
            if item.first_offset < end:
                found.append(item)
            if item.last_stable_offset >= end:
                return found, True
        return found, False

    def _ended_from(self, offset: int) -> Iterator[AbortedTxn]:
        saved, unsaved = self._content
        if saved:
            yield from self._saved_from(offset, saved)
        yield from unsaved[bisect_left(unsaved, offset, key=_last_offset) :]

    def _saved_from(self, offset: int, saved: int) -> Iterator[AbortedTxn]:
        """Yield the file's entries of transactions that ended at or above ``offset``. Blocks.

        ``saved``: number of entries in the file. Raises StorageError if it is damaged.
        """
        with storage_errors(f"{self.path} cannot be read"):
            try:
                with opened(self.path) as descriptor:
                    number = _first_ended_from(descriptor, saved, offset)
                    while number < saved:
                        count = min(_READ_ENTRIES, saved - number)
                        yield from decode_aborted(_entries(descriptor, number, count))
                        number += count
            except FileNotFoundError:
                return  # the segment was removed meanwhile, and its records too
            except TransactionIndexError as error:
                raise StorageError(
                    f"{self.path} is damaged: {error}. If another replica has these records, "
                    "stop this broker, remove this replica's directory and start the broker again"
                ) from error


def _last_offset(transaction: AbortedTxn) -> int:
    return transaction.last_offset


def _first_ended_from(descriptor: int, count: int, offset: int) -> int:
    """Return the number of the first entry whose transaction ended at or above ``offset``."""

    def ended(number: int) -> int:
        return next(decode_aborted(_entries(descriptor, number, 1))).last_offset

    return bisect_left(range(count), offset, key=ended)


def _entries(descriptor: int, number: int, count: int) -> bytes:
    """Read ``count`` entries. Fewer mean that the file was replaced or is damaged."""
    return pread_exactly(descriptor, count * ENTRY_BYTES, number * ENTRY_BYTES)


def aborted_between(indexes: Iterable[TransactionIndex], start: int, end: int) -> list[AbortedTxn]:
    """Return all aborted transactions with records in [start, end) (blocking), from the indexes
    of the segments from that of ``start``.
    """
    found = []
    for index in indexes:
        some, complete = index.between(start, end)
        found += some
        if complete:
            break
    return found
