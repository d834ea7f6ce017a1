"""Offsets that bound one replica's log, as one value, and the rules by which they move.

The offsets depend on each other and implement two promises. Nothing between the log start and the
high watermark is missing (invariant 4), and neither falls as clients see them (invariant 2).
Therefore they move together, only by the transitions of this module. The transitions are pure and
assert the rules. Callers reject invalid requests before, so a failed assertion is a bug and never
an answer to a client.

:class:`StartRecord` is the progress of a raised log start on its way to the disk. No crash may undo
a log start that clients have seen (invariant 2). So a DeleteRecords *announces* its log start. Once
everything below is durable, it is persisted (:mod:`tidemark_broker.log.log_checkpoints`), and only
then takes effect. Retention raises the log start at once, and persists it before a file is deleted.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple


class LogBounds(NamedTuple):
    """Offsets of one moment. A transition returns the next value, or itself if nothing moves.

    Invariants: log start <= local log start <= high watermark <= end, and recovery point <= end.
    """

    #: First offset that a client may see, in either tier.
    log_start: int
    #: First offset that is read locally; the range between the two starts is in the tier.
    local_start: int
    #: Everything below is durable on disk.
    recovery_point: int
    #: Exclusive end of the committed records, as this replica knows it.
    high_watermark: int
    #: The log end offset.
    end: int

    @classmethod
    def empty(cls, offset: int, *, log_start: int) -> "LogBounds":
        """Return the bounds of an empty log at ``offset``, below which everything is committed."""
        return cls(log_start, offset, offset, offset, offset)._checked()

    @classmethod
    def opened(
        cls, first: int, end: int, *, log_start: int, recovery_point: int, high_watermark: int
    ) -> "LogBounds":
        """Return the bounds of a log whose local records are [first, end).

        ``log_start``, ``recovery_point`` and ``high_watermark`` are from the checkpoints, which may
        be older or newer than the records, so they are limited to the records' range. Everything
        below ``first`` was committed before it was deleted.
        """
        # If the checkpointed log start is above the end, the caller restarts the log empty there.
        log_start = min(log_start, end)
        local_start = max(log_start, first)
        return cls(
            log_start,
            local_start,
            min(recovery_point, end),
            min(max(high_watermark, local_start), end),
            end,
        )._checked()

    def appended(self, end: int, *, commits: bool = False) -> "LogBounds":
        """Advance the end to ``end`` (exclusive) after an append.

        With ``commits`` the high watermark moves there too, because no other replica is waited for.
        """
        assert end > self.end, (end, self)
        high_watermark = end if commits else self.high_watermark
        # Called for each produce, here and below: _replace would take three times as long.
        return LogBounds(self.log_start, self.local_start, self.recovery_point, high_watermark, end)

    def committed(self, offset: int) -> "LogBounds":
        """Raise the high watermark to ``offset``, but not above the local end."""
        offset = min(offset, self.end)
        if offset <= self.high_watermark:
            return self
        return LogBounds(self.log_start, self.local_start, self.recovery_point, offset, self.end)

    def flushed(self, offset: int) -> "LogBounds":
        """Raise the recovery point to ``offset``."""
        assert offset <= self.end, (offset, self)
        return self._replace(recovery_point=max(self.recovery_point, offset))

    def with_log_start(self, offset: int) -> "LogBounds":
        """Raise the log start to ``offset``, never above the high watermark (invariant 13)."""
        assert offset <= self.high_watermark, (offset, self)
        return self._replace(
            log_start=max(self.log_start, offset), local_start=max(self.local_start, offset)
        )

    def with_local_start(self, offset: int) -> "LogBounds":
        """Raise the local start to ``offset``: records below are in the tier only.

        Uncommitted records never are (invariant 6).
        """
        assert offset <= self.high_watermark, (offset, self)
        return self._replace(local_start=max(self.local_start, offset))

    def without_remote_part(self) -> "LogBounds":
        """Drop the remote part from the log."""
        return self._replace(log_start=self.local_start)

    def begun_at(self, base_offset: int) -> "LogBounds":
        """Let an empty log take a batch that starts at ``base_offset``, below its own start."""
        assert base_offset < self.end, (base_offset, self)
        return self._replace(local_start=max(self.log_start, base_offset))

    def lowered(self, offset: int) -> "LogBounds":
        """Lower all bounds but the end to ``offset``, while a truncation is in progress."""
        return self.truncated(offset)._replace(end=self.end)

    def truncated(self, offset: int) -> "LogBounds":
        """Lower all bounds to ``offset`` after a truncation."""
        return LogBounds._make(min(bound, offset) for bound in self)._checked()

    def _checked(self) -> "LogBounds":
        assert self.log_start <= self.local_start <= self.high_watermark <= self.end, self
        assert self.recovery_point <= self.end, self
        return self


class Starts(NamedTuple):
    """Starts of one log. ``local_log_start_offset`` None: never persisted, in an old directory."""

    log_start_offset: int
    local_log_start_offset: int | None


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
