"""Which leader epochs the batches of a log tell, and how that corrects the checkpoint beside them.

After a power cut ``leader-epoch-checkpoint`` may be empty, torn, or older than the log; taken for
the truth it would hide where this log parts from its leader's. Every batch carries its epoch, and
epochs never fall from batch to batch: the first and the last batch of a segment, which opening
reads anyway, tell whether the checkpoint is right about it, and only a segment in which it is not
and in which the epoch changes is walked, header by header.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tidemark.logfiles.leader_epochs import LeaderEpochs
from tidemark_broker.log.batch_walk import BatchAt, walk_batches
from tidemark_broker.log.segment import Segment


class Run(NamedTuple):
    """Batches of one epoch, one after another: the offsets of its first and its last batch."""

    epoch: int
    first_offset: int
    last_offset: int


class SegmentEpochs:
    """What was seen of one segment. ``whole``: every batch was looked at, else only those at the
    ends."""

    __slots__ = ("runs", "segment", "whole")

    def __init__(self, segment: Segment, *, whole: bool) -> None:
        self.segment = segment
        self.whole = whole
        self.runs: list[Run] = []

    def note(self, batch: BatchAt) -> None:
        """Count one batch in; offsets rise from call to call."""
        run = self.runs[-1] if self.runs else None
        if run is not None and run.epoch == batch.leader_epoch:
            self.runs[-1] = run._replace(last_offset=batch.last_offset)
        else:
            self.runs.append(Run(batch.leader_epoch, batch.base_offset, batch.last_offset))

    def all_runs(self) -> list[Run]:
        """The runs of the whole segment; walks it where that was not done and may tell more
        (blocks). Epochs do not fall, so ends of the same epoch leave nothing in between."""
        if self.whole or len(self.runs) < 2:
            return self.runs
        walked = SegmentEpochs(self.segment, whole=True)
        for batch in _batches(self.segment):
            walked.note(batch)
        return walked.runs


def correct(saved: LeaderEpochs, segments: Iterable[SegmentEpochs]) -> LeaderEpochs:
    """``saved``, put right wherever the batches of a segment (oldest first) contradict it."""
    epochs = saved
    for segment in segments:
        if all(_agrees(epochs, run) for run in segment.runs):
            continue
        for run in segment.all_runs():
            epochs = _with(epochs, run)
    return epochs


def _agrees(epochs: LeaderEpochs, run: Run) -> bool:
    first, last = (
        epochs.epoch_for_offset(offset) for offset in (run.first_offset, run.last_offset)
    )
    return run.epoch < 0 or first == last == run.epoch


def _with(epochs: LeaderEpochs, run: Run) -> LeaderEpochs:
    """What was said of offsets behind the run's start goes: later batches tell it again."""
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
