"""How far one micro-batch goes, where it is limited.

Pure. As in Spark's Kafka source each partition gets a share of the limit in proportion to what it
has waiting, and at least one offset, so that none starves. Bytes are told by the manifest's
segments; offsets that only brokers have count as many bytes as the last segment's do on average.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tidemark_pipeline.options import BatchLimits

P = TypeVar("P", bound=Hashable)
#: Of a record, where the tier knows none of the partition.
_BYTES_ASSUMED = 1024.0


@dataclass(frozen=True, slots=True)
class Weight:
    """Offsets up to ``end`` (exclusive, from the end of the one before it) have so many bytes
    each, about."""

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
            if size > limit:
                return position + int((end - position) * limit / size)
            position, limit = end, limit - size
        return self.end

    def _steps(self) -> list[tuple[int, float]]:
        """(end, bytes from the end before it)."""
        position, each = self.start, _BYTES_ASSUMED
        steps: list[tuple[int, float]] = []
        for weight in self.weights:
            each = weight.bytes_each
            end = min(weight.end, self.end)
            if end > position:
                steps.append((end, (end - position) * each))
                position = end
        if position < self.end:
            steps.append((self.end, (self.end - position) * each))
        return steps


def limited(waiting: Mapping[P, PendingPartition], limits: BatchLimits) -> dict[P, int]:
    """The end of the next micro-batch for each partition: never before its start."""
    ends = {part: max(backlog.start, backlog.end) for part, backlog in waiting.items()}
    offsets = sum(backlog.offsets for backlog in waiting.values())
    if limits.offsets is not None and offsets > limits.offsets:
        for part, backlog in waiting.items():
            share = limits.offsets * backlog.offsets // offsets
            ends[part] = min(ends[part], backlog.start + max(share, 1))
    size = sum(backlog.bytes for backlog in waiting.values()) if limits.bytes is not None else 0
    if limits.bytes is not None and size > limits.bytes:
        for part, backlog in waiting.items():
            share_end = backlog.end_of_bytes(limits.bytes * backlog.bytes / size)
            ends[part] = min(ends[part], max(share_end, backlog.start + 1))
    return ends
