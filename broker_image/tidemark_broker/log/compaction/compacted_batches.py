"""The batches of a cleaned segment, without a gap between them.

Kafka leaves offsets that are gone to nobody. Here a log has no gaps (invariant 4), and a hole in it
means that records were lost: recovery, followers and the tier hold every batch to it. So offsets
that no record has any more stay part of a batch: of the one in front, whose last offset is raised,
or, where that is not possible, of an empty one. It is not possible where the batch in front has a
producer id (its last sequence number is told by its last offset), and never beyond the end of a
leader epoch, since batches tell a log which epoch began where. Both forms are Kafka's own, and what
clients see of a log that Kafka compacted.
"""

from collections.abc import Iterator

from tidemark.configuration.values import INT32_MAX
from tidemark.records.batch import BatchHeader
from tidemark.records.rewriting import Gap, reaching_to


class RewrittenBatches:
    """Told what becomes of each batch, in order; gives out what is to be written, in order."""

    def __init__(self) -> None:
        #: What is not given out yet: a batch with how far it is to reach, then a gap behind it.
        self._batch: bytes | None = None
        self._header: BatchHeader | None = None
        self._reaches = 0
        self._gap: Gap | None = None

    def kept(self, header: BatchHeader, batch: bytes) -> Iterator[bytes]:
        """The batch stays. ``header`` is the one that it came with: offsets, epoch and producer id
        are still its."""
        yield from self.rest()
        self._batch, self._header, self._reaches = batch, header, header.last_offset

    def gone(self, header: BatchHeader) -> Iterator[bytes]:
        """Nothing of it stays."""
        if self._gap is None and self._may_reach(header):
            self._reaches = header.last_offset
            return
        if self._gap is not None and _is_one(self._gap, header):
            self._gap = Gap(self._gap.base_offset, header.last_offset, self._gap.leader_epoch)
            return
        yield from self.rest()
        self._gap = Gap(header.base_offset, header.last_offset, header.partition_leader_epoch)

    def rest(self) -> Iterator[bytes]:
        """What is left at the end."""
        if self._batch is not None and self._header is not None:
            reaches_further = self._reaches > self._header.last_offset
            yield reaching_to(self._batch, self._reaches) if reaches_further else self._batch
        if self._gap is not None:
            yield self._gap.batch()
        self._batch = self._header = self._gap = None

    def _may_reach(self, header: BatchHeader) -> bool:
        front = self._header
        return (
            front is not None
            and front.producer_id < 0
            and not front.is_control
            and front.partition_leader_epoch == header.partition_leader_epoch
            and header.last_offset - front.base_offset <= INT32_MAX
        )


def _is_one(gap: Gap, header: BatchHeader) -> bool:
    return (
        gap.leader_epoch == header.partition_leader_epoch
        and header.last_offset - gap.base_offset <= INT32_MAX
    )


def is_filler(header: BatchHeader) -> bool:
    """Is it an empty batch that only stands for offsets, of a former cleaning?"""
    return not header.count and header.producer_id < 0 and not header.is_control
