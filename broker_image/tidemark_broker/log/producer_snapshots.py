"""The ``.snapshot`` files of one log: what it knew of its producers at the offset in their names.

One is made at each roll and when the log is closed. A roll makes it in memory, a thread writes it
with the next flush; after a crash the batches behind the last one that is whole tell the rest. They
go with the segment that begins at their offset.
"""

import logging
from collections.abc import Container, Iterable
from pathlib import Path

from tidemark.logfiles import names
from tidemark.logfiles.producer_snapshot import (
    ProducerEntry,
    SnapshotFormatError,
    decode_snapshot,
    encode_snapshot,
)
from tidemark_broker.log.errors import storage_errors
from tidemark_broker.log.files import put

logger = logging.getLogger(__name__)


class ProducerSnapshots:
    """Of one directory. T marks what blocks; one thread at a time."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._unsaved: dict[int, bytes] = {}

    def take(self, offset: int, data: bytes) -> None:
        """Keep what is known at ``offset``, for :meth:`save`."""
        self._unsaved[offset] = data

    def save(self, offset: int) -> None:
        """T: write the one of ``offset``, if it was taken and not written yet."""
        data = self._unsaved.get(offset)
        if data is not None:
            path = self.path(offset)
            with storage_errors(f"{path} cannot be written"):
                path.write_bytes(data)
            self._unsaved.pop(offset, None)

    def put(self, offset: int, data: bytes) -> None:
        """T: the one of ``offset`` is on the disk."""
        path = self.path(offset)
        with storage_errors(f"{path} cannot be written"):
            put(path, data)

    def at(self, offset: int) -> bytes:
        """T: the one of ``offset``; an empty one where there is none that is whole (what is not
        known of a producer is not asked of it)."""
        data = self._unsaved.get(offset)
        if data is None:
            try:
                data = self.path(offset).read_bytes()
                decode_snapshot(data)
            except (OSError, SnapshotFormatError):
                return encode_snapshot()
        return data

    def latest(
        self, at_most: int, passed: Container[int] = ()
    ) -> tuple[int, tuple[ProducerEntry, ...]] | None:
        """T: the offset and the content of the last one that is whole and not to be ``passed``;
        those that are not whole go."""
        for offset in sorted({*self._unsaved, *self._saved()}, reverse=True):
            if offset > at_most or offset in passed:
                continue
            data = self._unsaved.get(offset)
            try:
                content = decode_snapshot(self.path(offset).read_bytes() if data is None else data)
            except (OSError, SnapshotFormatError) as error:
                logger.warning("%s: %s; an earlier one is taken", self.path(offset), error)
                self._remove((offset,))
            else:
                return offset, content
        return None

    def remove_above(self, offset: int) -> None:
        """T: those of offsets behind ``offset``."""
        for each in [each for each in self._unsaved if each > offset]:
            del self._unsaved[each]
        self._remove(each for each in self._saved() if each > offset)

    def remove_all_but(self, offset: int | None) -> None:
        """T: all others go, those that were not written yet too."""
        self._unsaved.clear()
        self._remove(each for each in self._saved() if each != offset)

    def keep_only(self, offsets: Iterable[int]) -> None:
        """T: those of other offsets go."""
        kept = frozenset(offsets)
        self._remove(each for each in self._saved() if each not in kept)

    def path(self, offset: int) -> Path:
        """The file of that offset."""
        return self.directory / names.segment_file_name(offset, names.PRODUCER_SNAPSHOT_SUFFIX)

    def _saved(self) -> list[int]:
        with storage_errors(f"{self.directory} cannot be read"):
            found = [
                names.parse_segment_file_name(path.name)
                for path in self.directory.glob(f"*{names.PRODUCER_SNAPSHOT_SUFFIX}")
            ]
        return [parsed[0] for parsed in found if parsed is not None]

    def _remove(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            self._unsaved.pop(offset, None)
            with storage_errors(f"snapshots in {self.directory} cannot be removed"):
                self.path(offset).unlink(missing_ok=True)
