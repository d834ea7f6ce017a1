"""Which aborted transactions have their markers in one segment (Kafka's ``TransactionIndex``).

Entries stand in the order of their markers. They are kept in memory until the next flush, as those
of the other indexes are; after a crash the batches tell them again. A segment without aborted
transactions has no such file.
"""

import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path

from tidemark.logfiles.transaction_index import (
    ENTRY_BYTES,
    AbortedTransaction,
    TransactionIndexError,
    decode_aborted,
    encode_aborted,
)
from tidemark_broker.log.batch_walk import pread_exactly
from tidemark_broker.log.errors import StorageError, storage_errors
from tidemark_broker.log.files import put_at

_READ_ENTRIES = 1000


class TransactionIndex:
    """Of the segment whose ``.txnindex`` is ``path``. The log's lock guards changes; readers go by
    the one value that holds all of it."""

    __slots__ = ("_content", "_is_stale", "path")

    def __init__(self, path: Path, entries: int = 0) -> None:
        self.path = path
        #: How many entries the file holds, and those that follow them.
        self._content: tuple[int, list[AbortedTransaction]] = (entries, [])
        self._is_stale = False

    @classmethod
    def opened(cls, path: Path) -> "TransactionIndex | None":
        """Blocks: what a run left; None where its size or its last entry shows that it is damaged
        (``OSError`` as it comes)."""
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

    def append(self, transaction: AbortedTransaction) -> None:
        """Its marker was appended to the segment."""
        self._content[1].append(transaction)

    def forget(self) -> None:
        """All of it is told anew; what the file holds goes with the next :meth:`save`."""
        self._content, self._is_stale = (0, []), True

    def save(self) -> int:
        """Blocks: write what the file lacks; how many entries it holds then, for :meth:`saved`."""
        saved, unsaved = self._content
        data, position = encode_aborted(unsaved), saved * ENTRY_BYTES
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
        """So many are in the file. Under the log's lock, as all that changes it is."""
        saved, unsaved = self._content
        self._content = (count, unsaved[count - saved :])

    def truncate_to(self, offset: int) -> None:
        """Blocks: what ended at or behind ``offset`` has not."""
        saved, unsaved = self._content
        kept = unsaved[: bisect_left(unsaved, offset, key=_last_offset)]
        if not kept and saved:
            with storage_errors(f"{self.path} cannot be cut"):
                descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    saved = _first_behind(descriptor, saved, offset)
                    os.ftruncate(descriptor, saved * ENTRY_BYTES)
                finally:
                    os.close(descriptor)
        self._content = (saved, kept)

    def between(self, start: int, end: int) -> tuple[list[AbortedTransaction], bool]:
        """Blocks: those that ended at or behind ``start`` and began below ``end``; whether those
        are all, as everything below ``end`` was stable by then."""
        found = []
        for each in self._ended_from(start):
            if each.first_offset < end:
                found.append(each)
            if each.last_stable_offset >= end:
                return found, True
        return found, False

    def _ended_from(self, offset: int) -> Iterator[AbortedTransaction]:
        saved, unsaved = self._content
        if saved:
            yield from self._saved_from(offset, saved)
        yield from unsaved[bisect_left(unsaved, offset, key=_last_offset) :]

    def _saved_from(self, offset: int, saved: int) -> Iterator[AbortedTransaction]:
        with storage_errors(f"{self.path} cannot be read"):
            try:
                descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return  # the segment was removed meanwhile, and so was what is asked for
            try:
                number = _first_behind(descriptor, saved, offset)
                while number < saved:
                    count = min(_READ_ENTRIES, saved - number)
                    yield from decode_aborted(_entries(descriptor, number, count))
                    number += count
            except TransactionIndexError as error:
                raise StorageError(
                    f"{self.path} is damaged: {error}; where another replica has these records, "
                    "stop this broker, remove this replica's directory and start it again"
                ) from error
            finally:
                os.close(descriptor)


def _last_offset(transaction: AbortedTransaction) -> int:
    return transaction.last_offset


def _first_behind(descriptor: int, count: int, offset: int) -> int:
    """Number of the first of ``count`` entries whose transaction ended at or behind ``offset``."""

    def ended(number: int) -> int:
        return next(decode_aborted(_entries(descriptor, number, 1))).last_offset

    return bisect_left(range(count), offset, key=ended)


def _entries(descriptor: int, number: int, count: int) -> bytes:
    """Fewer than there should be: the file is another one by now, or damaged."""
    return pread_exactly(descriptor, count * ENTRY_BYTES, number * ENTRY_BYTES)


def aborted_between(
    indexes: Iterable[TransactionIndex], start: int, end: int
) -> list[AbortedTransaction]:
    """Blocks: all aborted transactions with records in [start, end), by the indexes of the segments
    from the one that holds ``start`` on."""
    found = []
    for index in indexes:
        some, complete = index.between(start, end)
        found += some
        if complete:
            break
    return found
