"""``leader-epoch-checkpoint`` of one log: what it tells at start, and when it is written.

A new epoch is written as soon as its first batch is appended, but made durable only with the next
flush: until then the batches themselves tell it to a recovery.
"""

import logging
from pathlib import Path

from tidemark.logfiles import names
from tidemark.logfiles.checkpoints import CheckpointFormatError, read_epochs, write_epochs
from tidemark.logfiles.leader_epochs import LeaderEpochs
from tidemark_broker.log.errors import StorageError
from tidemark_broker.log.files import write_whole
from tidemark_broker.log.recovery import LoadedSegments, epochs_of_batches

logger = logging.getLogger(__name__)


class EpochFile:
    """The checkpoint in ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / names.LEADER_EPOCH_CHECKPOINT
        #: What the file is known to hold durably.
        self._saved: LeaderEpochs | None = None

    def load(self, loaded: LoadedSegments) -> LeaderEpochs:
        """The epochs as file and log tell them together; from the log alone if the file is lost."""
        end = loaded.segments[-1].next_offset
        try:
            saved = read_epochs(self._path.read_text())
        except FileNotFoundError:  # no flush since the first epoch: its batches tell it
            return epochs_of_batches(loaded.segments)
        except (CheckpointFormatError, UnicodeDecodeError, OSError) as error:
            logger.warning("%s: the epochs are read from the log: %s", self._path, error)
            return epochs_of_batches(loaded.segments)
        self._saved = saved
        epochs = saved.truncate_from_end(end)
        for epoch, offset in loaded.batch_epochs:
            if epochs.epoch_for_offset(offset) != epoch:
                epochs = epochs.assign(epoch, offset)
        return epochs

    def save(self, epochs: LeaderEpochs) -> None:
        """Durably, unless it stands there already, or there is nothing to tell (blocks)."""
        if epochs == self._saved or not (epochs.entries or self._saved or self._path.exists()):
            return
        write_whole(self._path, write_epochs(epochs).encode())
        self._saved = epochs

    def try_to_save(self, epochs: LeaderEpochs) -> None:
        """:meth:`save` for what was read at a start: a full disk must not keep a log from opening."""
        try:
            self.save(epochs)
        except StorageError as error:
            self._saved = None
            logger.warning("%s (tried again at the next flush)", error)

    def save_soon(self, epochs: LeaderEpochs) -> None:
        """Without fsync, for the append path; a failure is made good by the next :meth:`save`."""
        self._saved = None
        try:
            write_whole(self._path, write_epochs(epochs).encode(), durable=False)
        except StorageError as error:
            logger.warning("%s (tried again at the next flush)", error)
