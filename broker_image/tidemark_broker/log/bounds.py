"""The offsets that bound one replica's log, as one value, and the rules by which they move.

They depend on each other, and all of them have promises to keep: nothing between the log start and
the high watermark is missing (invariant 4), and neither of these goes back as clients see them
(invariant 2). So they move together, by the transitions of this module only. These are pure, and
assert what must hold: whoever moves a bound has refused before what others may not ask for, so an
assertion that fails is a bug here and never an answer to anybody.
"""

from typing import NamedTuple


class Bounds(NamedTuple):
    """Offsets of one moment. A transition gives those of the next one, itself where nothing moves.

    Always: log start <= local log start <= high watermark <= end, and recovery point <= end.
    """

    #: First offset that a client may see, in either tier.
    log_start: int
    #: First offset that is read from here; what lies between the two is in the tier.
    local_start: int
    #: Everything below is on the disk for good.
    recovery_point: int
    #: Exclusive end of what is committed, as this replica knows it.
    high_watermark: int
    #: The log end offset.
    end: int

    @classmethod
    def empty(cls, offset: int, *, log_start: int) -> "Bounds":
        """Of a log that goes on at ``offset`` and holds nothing itself: all below is committed."""
        return cls(log_start, offset, offset, offset, offset)._checked()

    @classmethod
    def opened(
        cls, first: int, end: int, *, log_start: int, recovery_point: int, high_watermark: int
    ) -> "Bounds":
        """Of a log whose local records are [first, end). The other offsets are from checkpoints and
        give way to these: what lay below ``first`` was committed before it went."""
        log_start = min(log_start, end)
        local_start = max(log_start, first)
        return cls(
            log_start,
            local_start,
            min(recovery_point, end),
            min(max(high_watermark, local_start), end),
            end,
        )._checked()

    def appended(self, end: int) -> "Bounds":
        """Records up to ``end`` (exclusive) were appended."""
        assert end > self.end, (end, self)
        # Not _replace, here and below: it takes three times as long, and this is each produce.
        return Bounds(
            self.log_start, self.local_start, self.recovery_point, self.high_watermark, end
        )

    def committed(self, offset: int) -> "Bounds":
        """All below ``offset`` is committed; what of that is not here yet does not count."""
        offset = min(offset, self.end)
        if offset <= self.high_watermark:
            return self
        return Bounds(self.log_start, self.local_start, self.recovery_point, offset, self.end)

    def flushed(self, offset: int) -> "Bounds":
        """All below ``offset`` is on the disk."""
        assert offset <= self.end, (offset, self)
        return self._replace(recovery_point=max(self.recovery_point, offset))

    def with_log_start(self, offset: int) -> "Bounds":
        """The log begins at ``offset``, if not behind it: never beyond what is committed
        (invariant 13)."""
        assert offset <= self.high_watermark, (offset, self)
        return self._replace(
            log_start=max(self.log_start, offset), local_start=max(self.local_start, offset)
        )

    def with_local_start(self, offset: int) -> "Bounds":
        """What lies below ``offset`` is in the tier only: never what is not committed
        (invariant 6)."""
        assert offset <= self.high_watermark, (offset, self)
        return self._replace(local_start=max(self.local_start, offset))

    def without_remote_part(self) -> "Bounds":
        """What is in the tier only is no part of the log any more."""
        return self._replace(log_start=self.local_start)

    def begun_at(self, base_offset: int) -> "Bounds":
        """An empty log takes in a batch that begins at ``base_offset``, below its own start."""
        assert base_offset < self.end, (base_offset, self)
        return self._replace(local_start=max(self.log_start, base_offset))

    def lowered(self, offset: int) -> "Bounds":
        """A truncation to ``offset`` is under way: nothing but the end stays above it."""
        return self.truncated(offset)._replace(end=self.end)

    def truncated(self, offset: int) -> "Bounds":
        """A truncation to ``offset`` is done."""
        return Bounds._make(min(bound, offset) for bound in self)._checked()

    def _checked(self) -> "Bounds":
        assert self.log_start <= self.local_start <= self.high_watermark <= self.end, self
        assert self.recovery_point <= self.end, self
        return self
