"""Progress of a raised log start on its way to the disk.

No crash may undo a log start that clients have seen (invariant 2). So a DeleteRecords *announces*
its log start. Once everything below is durable, it is persisted
(:mod:`tidemark_broker.log.log_starts`), and only then takes effect. Retention raises the log start
at once, and persists it before a file is deleted.
"""

from dataclasses import dataclass, replace

from tidemark_broker.log.bounds import LogBounds


@dataclass(frozen=True, slots=True)
class StartRecord:
    """Immutable offsets of one moment; each change returns a new value."""

    #: Announced log start; it counts where it is above that of the bounds.
    announced: int
    #: Log start that is persisted, announced ones included.
    checkpointed: int
    #: Log start in effect that a crash cannot undo.
    durable: int
    #: Records below are durable, though no recovery point may say so yet.
    synced_to: int = 0

    @classmethod
    def of(cls, log_start: int) -> "StartRecord":
        """Return the value for a log that was opened or created."""
        return cls(log_start, log_start, log_start)

    def target(self, bounds: LogBounds) -> int:
        """Return the log start that is to be persisted soon."""
        return max(bounds.log_start, self.announced)

    def recordable(self, bounds: LogBounds) -> int:
        """Return the highest log start that may be persisted, never above the end that a crash
        leaves.

        A log that restarted below its log start would have lost its epochs, and other replicas
        would serve the deleted records again.
        """
        durable_end = max(bounds.recovery_point, self.synced_to)
        return max(bounds.log_start, min(self.announced, durable_end))

    def adoptable(self, bounds: LogBounds) -> int:
        """Return the log start that may take effect: announced and persisted."""
        return min(self.checkpointed, self.target(bounds))

    def synced(self, offset: int) -> "StartRecord":
        """Note that everything below ``offset`` is durable."""
        return replace(self, synced_to=max(self.synced_to, offset))

    def recorded(self, log_start: int, bounds: LogBounds) -> "StartRecord":
        """Note that ``log_start``, or a later one, is persisted.

        Records are written in order, but their writer threads may report out of order.
        """
        checkpointed = max(self.checkpointed, log_start)
        return replace(self, checkpointed=checkpointed, durable=min(checkpointed, bounds.log_start))

    def adopted(self, log_start: int, bounds: LogBounds) -> "StartRecord":
        """Note that the persisted ``log_start`` took effect."""
        assert log_start <= min(self.checkpointed, bounds.log_start), (log_start, self, bounds)
        return replace(self, durable=max(self.durable, log_start))

    def lowered(self, offset: int) -> "StartRecord":
        """Lower all starts to ``offset`` for a truncation."""
        return StartRecord(
            min(self.announced, offset),
            min(self.checkpointed, offset),
            min(self.durable, offset),
            min(self.synced_to, offset),
        )

    def not_durable_above(self, log_start: int) -> "StartRecord":
        """Limit the durable log start to ``log_start``."""
        return replace(self, durable=min(self.durable, log_start))
