"""Leader epochs in the batches of a log, used to correct the checkpoint beside them.

After a power failure ``leader-epoch-checkpoint`` may be empty, torn, or older than the log.
Trusting it would hide the offset where this log diverges from its leader's. Every batch carries its
epoch, and epochs never fall from batch to batch. So the first and the last batch of a segment,
which opening reads anyway, show whether the checkpoint matches it. Only a segment that does not
match, and in which the epoch changes, is walked header by header.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tidemark.logfiles.leader_epochs import LeaderEpochs
from tidemark_broker.log.batch_walk import BatchAt, walk_batches
from tidemark_broker.log.segment import Segment


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
