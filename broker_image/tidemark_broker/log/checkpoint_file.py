"""One of the files in which all logs of a directory keep an offset each.

Written whole, so that a crash leaves the old one or the new one; what stands in it of a log that
could not be opened is kept as it is.
"""

from collections.abc import Collection
from pathlib import Path

from tidemark.logfiles.checkpoints import (
    CheckpointFormatError,
    TopicPartition,
    read_offsets,
    write_offsets,
)
from tidemark_broker.log.errors import StorageError, storage_errors
from tidemark_broker.log.files import write_whole


class OffsetCheckpoint:
    """One offset checkpoint file and what stands in it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.offsets: dict[TopicPartition, int] = {}

    def load(self) -> None:
        """T: read the file; a torn one is an error: it was written whole, so the disk is not as we
        left it."""
        with storage_errors(f"{self._path} cannot be read"):
            text = self._path.read_text() if self._path.exists() else ""
        try:
            self.offsets = read_offsets(text)
        except CheckpointFormatError as error:
            raise StorageError(f"{self._path} cannot be read: {error}") from error

    @property
    def exists(self) -> bool:
        """Whether the file is there (blocks, shortly)."""
        return self._path.exists()

    def save(
        self, offsets: dict[TopicPartition, int], kept: Collection[TopicPartition] = ()
    ) -> None:
        """T: replace the file, unless it says the same already. What it said of ``kept`` stays."""
        merged = {key: self.offsets[key] for key in kept if key in self.offsets} | offsets
        if merged == self.offsets and self._path.exists():
            return
        write_whole(self._path, write_offsets(merged).encode())
        self.offsets = merged
