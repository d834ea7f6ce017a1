"""Start offsets of leader epochs, with the rules of Kafka's leader epoch cache.

Values are immutable: each change returns a new one, so that other threads can continue to read the
old one. Epochs and start offsets both rise strictly from entry to entry.
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
        """Newest epoch, or -1."""
        return self.entries[-1].epoch if self.entries else UNKNOWN_EPOCH

    def assign(self, epoch: int, start_offset: int) -> "LeaderEpochs":
        """Record that ``epoch`` begins at ``start_offset``.

        The current epoch at a later offset changes nothing. Otherwise entries with the same or a
        later epoch, or the same or a higher offset, contradict the new entry and are removed.
        """
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"epoch {epoch} at offset {start_offset}: both must not be negative")
        # The usual case: another batch of the current leader.
        last = self.entries[-1] if self.entries else None
        if last is not None and last.epoch == epoch and start_offset >= last.start_offset:
            return self
        kept = tuple(e for e in self.entries if e.epoch < epoch and e.start_offset < start_offset)
        return LeaderEpochs((*kept, EpochEntry(epoch, start_offset)))

    def truncate_from_start(self, start_offset: int) -> "LeaderEpochs":
        """Drop epochs that end at or below ``start_offset``.

        The epoch that contains ``start_offset`` then begins there.
        """
        count = bisect_right(self.entries, start_offset, key=_start_offset)
        if not count or self.entries[0].start_offset == start_offset:
            return self
        # The last of the entries at or below the offset is the epoch that contains it.
        first = EpochEntry(self.entries[count - 1].epoch, start_offset)
        return LeaderEpochs((first, *self.entries[count:]))

    def truncate_from_end(self, end_offset: int) -> "LeaderEpochs":
        """Drop epochs that begin at or after ``end_offset``."""
        kept = bisect_left(self.entries, end_offset, key=_start_offset)
        return self if kept == len(self.entries) else LeaderEpochs(self.entries[:kept])

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """Return the end offset of ``epoch``, or of the largest known epoch below it.

        These are the rules of OffsetForLeaderEpoch (KIP-101, KIP-279), by which a follower finds
        where its log diverges. Returns ``UNDEFINED_END`` for an unknown or future epoch.
        """
        if epoch == UNKNOWN_EPOCH or epoch > self.latest_epoch:
            return UNDEFINED_END
        # The current epoch extends to the end of the log.
        if epoch == self.latest_epoch:
            return EpochEnd(epoch, log_end_offset)
        # Any other epoch ends where the next known one begins.
        above = bisect_right(self.entries, epoch, key=_epoch)
        end_offset = self.entries[above].start_offset
        # The epoch is older than all known ones, so its records are below all of them.
        if above == 0:
            return EpochEnd(epoch, end_offset)
        return EpochEnd(self.entries[above - 1].epoch, end_offset)

    def epoch_for_offset(self, offset: int) -> int:
        """Return the epoch that contains ``offset``, or -1."""
        count = bisect_right(self.entries, offset, key=_start_offset)
        return self.entries[count - 1].epoch if count else UNKNOWN_EPOCH

    def between(self, start_offset: int, end_offset: int) -> "LeaderEpochs":
        """Return the epochs of [start, end). The first one begins at ``start_offset``."""
        return self.truncate_from_end(end_offset).truncate_from_start(start_offset)


def _start_offset(entry: EpochEntry) -> int:
    return entry.start_offset


def _epoch(entry: EpochEntry) -> int:
    return entry.epoch
