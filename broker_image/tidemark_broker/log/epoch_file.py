"""File ``leader-epoch-checkpoint`` of one log, corrected by the leader epochs of its batches.

The file is only replaced durably: a rename whose bytes are not on disk yet may leave an empty file
after a power failure, and the older epochs would be lost. So an append that starts an epoch does
not write the file. Until the next flush a recovery reads that epoch from the batches, and before
retention deletes such a batch the file has it. An epoch in which this replica leads is written
before it takes effect.

After a power failure the file may be empty, incomplete, or older than the log. Trusting it would
hide the offset where this log diverges from its leader's. Every batch carries its epoch, and epochs
never fall from batch to batch. So the first and the last batch of a segment, which opening reads
anyway, show whether the file matches it. Only a segment that does not match, and in which the epoch
changes, is walked header by header.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tidemark.logfiles import names
from tidemark.logfiles.checkpoints import CheckpointFormatError, read_epochs, write_epochs
from tidemark.logfiles.leader_epochs import LeaderEpochs
from tidemark_broker.log.batch_walk import BatchAt, walk_batches
from tidemark_broker.log.errors import StorageError
from tidemark_broker.log.files import prepared, replace_file
from tidemark_broker.log.segment import Segment

logger = logging.getLogger(__name__)


class EpochRun(NamedTuple):
    """Consecutive batches of one epoch, with the offsets of the first and the last record."""

    epoch: int
    first_offset: int
    last_offset: int


class SegmentEpochs:
    """Leader epochs of one segment.

    ``is_complete``: of every batch, otherwise only of those at the ends.
    """

    __slots__ = ("is_complete", "runs", "segment")

    def __init__(self, segment: Segment, *, is_complete: bool) -> None:
        self.segment = segment
        self.is_complete = is_complete
        self.runs: list[EpochRun] = []

    def note(self, batch: BatchAt) -> None:
        """Add one batch; offsets rise from call to call."""
        run = self.runs[-1] if self.runs else None
        if run is not None and run.epoch == batch.leader_epoch:
            self.runs[-1] = run._replace(last_offset=batch.last_offset)
        else:
            self.runs.append(EpochRun(batch.leader_epoch, batch.base_offset, batch.last_offset))

    def all_runs(self) -> list[EpochRun]:
        """Return the runs of the complete segment, after a walk (blocking) if the ends differ.

        Epochs do not fall, so ends of the same epoch leave no other epoch in between.
        """
        if self.is_complete or len(self.runs) < 2:
            return self.runs
        walked = SegmentEpochs(self.segment, is_complete=True)
        for batch in _batches(self.segment):
            walked.note(batch)
        return walked.runs


def correct(saved: LeaderEpochs, segments: Iterable[SegmentEpochs]) -> LeaderEpochs:
    """Return ``saved``, corrected wherever the batches of a segment (oldest first) contradict
    it.
    """
    epochs = saved
    for segment in segments:
        if all(_agrees(epochs, run) for run in segment.runs):
            continue
        for run in segment.all_runs():
            epochs = _with(epochs, run)
    return epochs


def _agrees(epochs: LeaderEpochs, run: EpochRun) -> bool:
    first, last = (
        epochs.epoch_for_offset(offset) for offset in (run.first_offset, run.last_offset)
    )
    return run.epoch < 0 or first == last == run.epoch


def _with(epochs: LeaderEpochs, run: EpochRun) -> LeaderEpochs:
    """Add a run. Entries after its start are dropped, because later batches add them again."""
    if _agrees(epochs, run):
        return epochs
    epochs = epochs.truncate_from_end(run.first_offset)
    if epochs.latest_epoch == run.epoch:
        return epochs
    return epochs.assign(run.epoch, run.first_offset)


def _batches(segment: Segment) -> Iterator[BatchAt]:
    is_open = segment.descriptor is not None
    segment.load()
    assert segment.descriptor is not None
    yield from walk_batches(segment.descriptor, 0, segment.size_bytes)
    if not is_open:
        segment.unload()


class EpochFile:
    """Leader epoch checkpoint in ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / names.LEADER_EPOCH_CHECKPOINT
        #: Content that is known to be durable.
        self._saved: LeaderEpochs | None = None

    def load(
        self, segments: Iterable[SegmentEpochs], end: int, log_start_offset: int
    ) -> LeaderEpochs:
        """Return the leader epochs of a log, from the file and from the batches. Blocks.

        ``segments``: epochs of the batches, by segment. ``end``: log end offset. Where they differ,
        the batches decide. Epochs below the first segment are in the file only. If no record is
        left, the file has the epoch of the last deleted ones, which decides how advanced this log
        is (KIP-966).
        """
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
        return correct(saved, segments).truncate_from_start(log_start_offset)

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
