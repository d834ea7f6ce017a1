"""End of one micro-batch when it is limited.

This module does no I/O. As in Spark's Kafka source, each partition gets a share of the limit in
proportion to its backlog, and at least one offset, so that no partition starves. Bytes come from
the manifest's segments. Offsets that only brokers have count with the average bytes of the last
segment.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tidemark_pipeline.read.options import BatchLimits

P = TypeVar("P", bound=Hashable)
#: Bytes of a record in a partition of which the tier has no segment.
_BYTES_ASSUMED = 1024.0


@dataclass(frozen=True, slots=True)
class Weight:
    """Approximate bytes of each offset up to ``end``.

    ``end`` is exclusive. The range starts at the end of the previous weight.
    """

    end: int
    bytes_each: float


@dataclass(frozen=True, slots=True)
class PendingPartition:
    """Offsets that a partition has to read; ``weights`` are in order of their ends."""

    start: int
    end: int
    weights: Sequence[Weight] = ()

    @property
    def offsets(self) -> int:
        """Return the number of offsets."""
        return max(0, self.end - self.start)

    @property
    def bytes(self) -> float:
        """Return the approximate number of bytes."""
        return sum(size for _, size in self._steps())

    def end_of_bytes(self, limit: float) -> int:
        """Return the offset up to which the bytes are within the limit."""
        position = self.start
        for end, size in self._steps():
            # Bytes are assumed to be spread evenly over the offsets of one step.
            if size > limit:
                return position + int((end - position) * limit / size)
            position, limit = end, limit - size
        return self.end

    def _steps(self) -> list[tuple[int, float]]:
        """Return the pending offsets as ranges: (exclusive end, approximate bytes of the range)."""
        position, bytes_each = self.start, _BYTES_ASSUMED
        steps: list[tuple[int, float]] = []
        for weight in self.weights:
            bytes_each = weight.bytes_each
            end = min(weight.end, self.end)
            # A segment may end below the start of the batch.
            if end > position:
                steps.append((end, (end - position) * bytes_each))
                position = end
        # The remaining offsets are on brokers only. They count with the last segment's average.
        if position < self.end:
            steps.append((self.end, (self.end - position) * bytes_each))
        return steps


def limited(pending: Mapping[P, PendingPartition], limits: BatchLimits) -> dict[P, int]:
    """Return the end offset of the next micro-batch for each partition.

    ``pending``: offsets that each partition has to read. The end is never below the start.
    """
    ends = {part: max(backlog.start, backlog.end) for part, backlog in pending.items()}
    offsets = sum(backlog.offsets for backlog in pending.values())
    # Below the limit, every partition is read to its end.
    if limits.offsets is not None and offsets > limits.offsets:
        for part, backlog in pending.items():
            share = limits.offsets * backlog.offsets // offsets
            # At least one offset, or a small backlog would never be read.
            ends[part] = min(ends[part], backlog.start + max(share, 1))
    size = sum(backlog.bytes for backlog in pending.values()) if limits.bytes is not None else 0
    # With both limits, each partition ends at the smaller of the two ends.
    if limits.bytes is not None and size > limits.bytes:
        for part, backlog in pending.items():
            share_end = backlog.end_of_bytes(limits.bytes * backlog.bytes / size)
            ends[part] = min(ends[part], max(share_end, backlog.start + 1))
    return ends
