"""How far a raised log start has come on its way to the disk.

What clients were shown no crash may take back (invariant 2). So a DeleteRecords *announces* its log
start; once all below is on the disk it goes on record (:mod:`tidemark_broker.log.log_starts`); from
there it comes into force. Retention raises the log start at once, and puts it on record before a
file goes.
"""

from dataclasses import dataclass, replace

from tidemark_broker.log.bounds import Bounds


@dataclass(frozen=True, slots=True)
class StartRecord:
    """Offsets of one moment; what changes them gives the next value."""

    #: Log start that is to come into force; it counts where it is beyond that of the bounds.
    announced: int
    #: Log start that is on record, announced ones included.
    checkpointed: int
    #: Log start in force that a crash cannot take back.
    durable: int
    #: Records below are on the disk for good, though no recovery point may say so yet.
    synced_to: int = 0

    @classmethod
    def of(cls, log_start: int) -> "StartRecord":
        """Of a log that was opened, or made."""
        return cls(log_start, log_start, log_start)

    def target(self, bounds: Bounds) -> int:
        """The log start that is to be on record soon."""
        return max(bounds.log_start, self.announced)

    def recordable(self, bounds: Bounds) -> int:
        """A log start on record never lies behind the end that a crash leaves: such a log would have
        forgotten its epochs, and other replicas would give out again what was deleted here."""
        durable_end = max(bounds.recovery_point, self.synced_to)
        return max(bounds.log_start, min(self.announced, durable_end))

    def adoptable(self, bounds: Bounds) -> int:
        """The log start that may come into force: announced, and on record."""
        return min(self.checkpointed, self.target(bounds))

    def synced(self, offset: int) -> "StartRecord":
        """All below ``offset`` is on the disk."""
        return replace(self, synced_to=max(self.synced_to, offset))

    def recorded(self, log_start: int, bounds: Bounds) -> "StartRecord":
        """``log_start`` is on record, or was and a later one is: records are written in their order,
        but the threads that wrote them may come in another one."""
        held = max(self.checkpointed, log_start)
        return replace(self, checkpointed=held, durable=min(held, bounds.log_start))

    def adopted(self, log_start: int, bounds: Bounds) -> "StartRecord":
        """``log_start``, which is on record, came into force."""
        assert log_start <= min(self.checkpointed, bounds.log_start), (log_start, self, bounds)
        return replace(self, durable=max(self.durable, log_start))

    def lowered(self, offset: int) -> "StartRecord":
        """A truncation to ``offset``: no start stays above it."""
        return StartRecord(
            min(self.announced, offset),
            min(self.checkpointed, offset),
            min(self.durable, offset),
            min(self.synced_to, offset),
        )

    def not_durable_above(self, log_start: int) -> "StartRecord":
        """The log begins at ``log_start`` after all."""
        return replace(self, durable=min(self.durable, log_start))
