"""Snapshot files (``.snapshot``) of one log: the producers' state at the offset in the file name.

One is created at each roll and when the log is closed. A roll creates it in memory, and a thread
writes it at the next flush. After a crash the batches after the last intact one are replayed. A
snapshot is deleted with the segment that starts at its offset.
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
    """Snapshots of one directory. One thread at a time may call the blocking methods."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._unsaved: dict[int, bytes] = {}

    def take(self, offset: int, data: bytes) -> None:
        """Hold the state at ``offset`` until :meth:`save`."""
        self._unsaved[offset] = data

    def save(self, offset: int) -> None:
        """Write the snapshot of ``offset``, if it was taken and is not written yet. Blocks."""
        data = self._unsaved.get(offset)
        if data is not None:
            path = self.path(offset)
            with storage_errors(f"{path} cannot be written"):
                path.write_bytes(data)
            self._unsaved.pop(offset, None)

    def put(self, offset: int, data: bytes) -> None:
        """Write a snapshot of ``offset`` durably. Blocks."""
        path = self.path(offset)
        with storage_errors(f"{path} cannot be written"):
            put(path, data)

    def at(self, offset: int) -> bytes:
        """Return the snapshot of ``offset``, or an empty one if there is no intact one. Blocks.

        Without state a producer is not checked.
        """
        # A snapshot in memory replaces a file of the same offset.
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
        """Return offset and content of the latest intact snapshot not above ``at_most``. Blocks.

        Snapshots at the offsets in ``passed`` are skipped, damaged ones removed. None if there is
        none.
        """
        # The newest first: a later snapshot leaves less of the log to replay.
        for offset in sorted({*self._unsaved, *self._saved()}, reverse=True):
            if offset > at_most or offset in passed:
                continue
            data = self._unsaved.get(offset)
            try:
                content = decode_snapshot(self.path(offset).read_bytes() if data is None else data)
            except (OSError, SnapshotFormatError) as error:
                logger.warning("%s: %s; an earlier one is used", self.path(offset), error)
                self._remove((offset,))
            else:
                return offset, content
        return None

    def remove_above(self, offset: int) -> None:
        """Remove the snapshots above ``offset``. Blocks."""
        for item in [item for item in self._unsaved if item > offset]:
            del self._unsaved[item]
        self._remove(item for item in self._saved() if item > offset)

    def remove_all_but(self, offset: int | None) -> None:
        """Remove all other snapshots, unwritten ones included. Blocks."""
        self._unsaved.clear()
        self._remove(item for item in self._saved() if item != offset)

    def keep_only(self, offsets: Iterable[int]) -> None:
        """Remove the snapshots of other offsets. Blocks."""
        kept = frozenset(offsets)
        self._remove(item for item in self._saved() if item not in kept)

    def path(self, offset: int) -> Path:
        """Return the path of the snapshot of that offset."""
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
