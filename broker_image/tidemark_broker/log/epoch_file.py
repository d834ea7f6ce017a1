"""``leader-epoch-checkpoint`` of one log: what it tells at start, and when it is written.

It is only ever replaced durably: a rename whose bytes are not on the disk yet may leave an empty
file after a power cut, and the older epochs would be gone with it. So an append that begins an
epoch leaves the file as it is; until the next flush the batches themselves tell that epoch to a
start, and before retention lets go of any the file has it. An epoch in which a replica leads is
written before it is in use.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemark.logfiles import names
from tidemark.logfiles.checkpoints import CheckpointFormatError, read_epochs, write_epochs
from tidemark.logfiles.leader_epochs import LeaderEpochs
from tidemark_broker.log.batch_epochs import correct
from tidemark_broker.log.errors import StorageError
from tidemark_broker.log.files import prepared, write_whole
from tidemark_broker.log.recovery import LoadedSegments

logger = logging.getLogger(__name__)


class EpochFile:
    """The checkpoint in ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / names.LEADER_EPOCH_CHECKPOINT
        #: What the file is known to hold durably.
        self._saved: LeaderEpochs | None = None

    def load(self, loaded: LoadedSegments, log_start_offset: int) -> LeaderEpochs:
        """T: the epochs as file and batches tell them together; where they differ the batches are
        right. What lies below the first segment only the file can tell: where no record is left it
        tells the epoch of those that were deleted last, which is how far that log counts as having
        come (KIP-966)."""
        end = loaded.segments[-1].next_offset
        try:
            self._saved = read_epochs(self._path.read_text())
        except FileNotFoundError:  # no flush since the first epoch: its batches tell it
            self._saved = None
        except (CheckpointFormatError, UnicodeDecodeError, OSError) as error:
            logger.warning("%s: the epochs are read from the log: %s", self._path, error)
            self._saved = None
        if 0 < log_start_offset >= end:
            end = log_start_offset + 1
        saved = (self._saved or LeaderEpochs()).truncate_from_end(end)
        return correct(saved, loaded.epochs).truncate_from_start(log_start_offset)

    def save(self, epochs: LeaderEpochs) -> None:
        """T: durably, unless it stands there already, or there is nothing to tell."""
        if epochs == self._saved or not (epochs.entries or self._saved or self._path.exists()):
            return
        write_whole(self._path, write_epochs(epochs).encode())
        self._saved = epochs

    @contextmanager
    def replaced_by(self, epochs: LeaderEpochs) -> Iterator[None]:
        """T: save the epochs after the block, which changes the log. Everything that needs disk
        space is written before the block: a full disk leaves log and epochs unchanged."""
        data = write_epochs(epochs).encode()
        with prepared(self._path, data) as put_in_place:
            yield
            put_in_place()
            self._saved = epochs

    def tells(self, epochs: LeaderEpochs, start_offset: int, end_offset: int) -> bool:
        """Does the file say the same of [start, end) already?"""
        saved = self._saved or LeaderEpochs()
        return start_offset >= end_offset or (
            saved.between(start_offset, end_offset) == epochs.between(start_offset, end_offset)
        )

    def try_to_save(self, epochs: LeaderEpochs) -> None:
        """:meth:`save` for what was read at a start: a full disk must not keep a log from
        opening."""
        try:
            self.save(epochs)
        except StorageError as error:
            logger.warning("%s (tried again at the next flush)", error)
