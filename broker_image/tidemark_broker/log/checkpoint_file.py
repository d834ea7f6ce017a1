"""Offset checkpoint file, which stores one offset for each log of a directory.

It is written as a whole, so that a crash leaves the old or the new one. The offset of a log that
could not be opened is preserved.
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
from tidemark_broker.log.files import replace_file


class OffsetCheckpoint:
    """One offset checkpoint file and its content."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.offsets: dict[TopicPartition, int] = {}

    def load(self) -> None:
        """Read the file. Blocks.

        A torn file raises :class:`StorageError`: it was written as a whole, so the disk was changed
        by something else.
        """
        with storage_errors(f"{self._path} cannot be read"):
            text = self._path.read_text() if self._path.exists() else ""
        try:
            self.offsets = read_offsets(text)
        except CheckpointFormatError as error:
            raise StorageError(f"{self._path} cannot be read: {error}") from error

    @property
    def exists(self) -> bool:
        """Whether the file exists (a short blocking call)."""
        return self._path.exists()

    def save(
        self, offsets: dict[TopicPartition, int], kept: Collection[TopicPartition] = ()
    ) -> None:
        """Replace the file, unless it is unchanged. Blocks. The offsets of ``kept`` are
        preserved."""
        merged = {key: self.offsets[key] for key in kept if key in self.offsets} | offsets
        if merged == self.offsets and self._path.exists():
            return
        replace_file(self._path, write_offsets(merged).encode())
        self.offsets = merged
