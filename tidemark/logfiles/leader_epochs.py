"""Which leader epoch began where: the rules of Kafka's leader epoch cache.

Immutable: each change gives a new value, so that other threads may keep reading the old one.
Epochs and start offsets both rise strictly from entry to entry.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

UNKNOWN_EPOCH = -1
UNKNOWN_OFFSET = -1


@dataclass(frozen=True, slots=True)
class EpochEntry:
    """Leader epoch ``epoch`` begins at ``start_offset``."""

    epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """End of an epoch: ``end_offset`` is exclusive; (-1, -1) if unknown."""

    epoch: int
    end_offset: int


UNDEFINED_END = EpochEnd(UNKNOWN_EPOCH, UNKNOWN_OFFSET)


@dataclass(frozen=True, slots=True)
class LeaderEpochs:
    """The epochs of one log, oldest first."""

    entries: tuple[EpochEntry, ...] = ()

    @property
    def latest_epoch(self) -> int:
        """The newest epoch, or -1."""
        return self.entries[-1].epoch if self.entries else UNKNOWN_EPOCH

    def assign(self, epoch: int, start_offset: int) -> "LeaderEpochs":
        """Record that ``epoch`` begins at ``start_offset``.

        The same epoch at a later offset changes nothing; otherwise every entry of a higher or
        equal epoch, or at a higher or equal offset, contradicts the new one and goes.
        """
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"epoch {epoch} at offset {start_offset}: both must not be negative")
        last = self.entries[-1] if self.entries else None
        if last is not None and last.epoch == epoch and start_offset >= last.start_offset:
            return self
        kept = tuple(e for e in self.entries if e.epoch < epoch and e.start_offset < start_offset)
        return LeaderEpochs((*kept, EpochEntry(epoch, start_offset)))

    def truncate_from_start(self, start_offset: int) -> "LeaderEpochs":
        """Forget what lies below ``start_offset``; the epoch that holds it now begins there."""
        gone = bisect_right(self.entries, start_offset, key=_start_offset)
        if not gone or self.entries[0].start_offset == start_offset:
            return self
        first = EpochEntry(self.entries[gone - 1].epoch, start_offset)
        return LeaderEpochs((first, *self.entries[gone:]))

    def truncate_from_end(self, end_offset: int) -> "LeaderEpochs":
        """Forget the epochs that begin at or behind ``end_offset``."""
        kept = bisect_left(self.entries, end_offset, key=_start_offset)
        return self if kept == len(self.entries) else LeaderEpochs(self.entries[:kept])

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """The end of ``epoch``, or of the next lower epoch known, as OffsetForLeaderEpoch
        answers."""
        if epoch == UNKNOWN_EPOCH or epoch > self.latest_epoch:
            return UNDEFINED_END
        if epoch == self.latest_epoch:
            return EpochEnd(epoch, log_end_offset)
        above = bisect_right(self.entries, epoch, key=_epoch)
        end_offset = self.entries[above].start_offset
        if above == 0:
            return EpochEnd(epoch, end_offset)
        return EpochEnd(self.entries[above - 1].epoch, end_offset)

    def epoch_for_offset(self, offset: int) -> int:
        """The epoch in which ``offset`` lies, or -1."""
        found = bisect_right(self.entries, offset, key=_start_offset)
        return self.entries[found - 1].epoch if found else UNKNOWN_EPOCH

    def between(self, start_offset: int, end_offset: int) -> "LeaderEpochs":
        """The epochs of [start, end), the first one clamped up to ``start_offset``."""
        return self.truncate_from_end(end_offset).truncate_from_start(start_offset)


def _start_offset(entry: EpochEntry) -> int:
    return entry.start_offset


def _epoch(entry: EpochEntry) -> int:
    return entry.epoch
