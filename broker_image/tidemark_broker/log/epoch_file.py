"""File ``leader-epoch-checkpoint`` of one log.

It is only replaced durably: a rename whose bytes are not on disk yet may leave an empty file after
a power failure, and the older epochs would be lost. So an append that starts an epoch does not
write the file. Until the next flush a recovery reads that epoch from the batches, and before
retention deletes such a batch the file has it. An epoch in which this replica leads is written
before it takes effect.
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
from tidemark_broker.log.files import prepared, replace_file
from tidemark_broker.log.recovery import LoadedSegments

logger = logging.getLogger(__name__)


class EpochFile:
    """Leader epoch checkpoint in ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / names.LEADER_EPOCH_CHECKPOINT
        #: Content that is known to be durable.
        self._saved: LeaderEpochs | None = None

    def load(self, loaded: LoadedSegments, log_start_offset: int) -> LeaderEpochs:
        """Return the leader epochs of a log, from the file and from the batches. Blocks.

        Where they differ, the batches decide. Epochs below the first segment are in the file only.
        If no record is left, the file has the epoch of the last deleted ones, which decides how
        advanced this log is (KIP-966).
        """
        end = loaded.segments[-1].next_offset
        try:
            self._saved = read_epochs(self._path.read_text())
        except FileNotFoundError:  # no flush since the first epoch: its batches tell it
            self._saved = None
        except (CheckpointFormatError, UnicodeDecodeError, OSError) as error:
            logger.warning("%s: the epochs are read from the log: %s", self._path, error)
            self._saved = None
        # An empty log behind its start retains the epoch of its last deleted record.
        if 0 < log_start_offset >= end:
            end = log_start_offset + 1
        saved = (self._saved or LeaderEpochs()).truncate_from_end(end)
        return correct(saved, loaded.epochs).truncate_from_start(log_start_offset)

    def save(self, epochs: LeaderEpochs) -> None:
        """Save durably, unless the file has the same content or there is nothing to save.
        Blocks."""
        if epochs == self._saved or not (epochs.entries or self._saved or self._path.exists()):
            return
        replace_file(self._path, write_epochs(epochs).encode())
        self._saved = epochs

    @contextmanager
    def replaced_by(self, epochs: LeaderEpochs) -> Iterator[None]:
        """Save the epochs after the block, which changes the log. Blocks.

        Everything that needs disk space is written before the block: a full disk leaves log and
        epochs unchanged.
        """
        data = write_epochs(epochs).encode()
        with prepared(self._path, data) as put_in_place:
            yield
            put_in_place()
            self._saved = epochs

    def has_epochs_of(self, epochs: LeaderEpochs, start_offset: int, end_offset: int) -> bool:
        """Return whether the file already has the epochs of [start, end)."""
        saved = self._saved or LeaderEpochs()
        return start_offset >= end_offset or (
            saved.between(start_offset, end_offset) == epochs.between(start_offset, end_offset)
        )

    def try_to_save(self, epochs: LeaderEpochs) -> None:
        """Call :meth:`save` after opening, where a full disk must not prevent that a log opens."""
        try:
            self.save(epochs)
        except StorageError as error:
            logger.warning("%s (retried at the next flush)", error)
