"""Batches of a cleaned segment, without offset gaps between them.

Kafka leaves gaps where records were compacted. Here a log has no gaps (invariant 4): a hole means
that records were lost, and recovery, followers and the tier check every batch for it. So the
offsets of dropped records stay part of a batch. The last offset of the batch before is raised, or
an empty batch covers them. The former is not possible if that batch has a producer id (its last
offset determines its last sequence number), nor beyond the end of a leader epoch (batches determine
the start of each epoch). Both forms are Kafka's own, and are what clients see of a log that Kafka
compacted.
"""

from collections.abc import Iterator

from tidemark.configuration.values import INT32_MAX
from tidemark.records.batch import BatchHeader
from tidemark.records.rewriting import Gap, reaching_to


class RewrittenBatches:
    """Sequence of output batches: takes the fate of each input batch, and yields the batches to
    write.
    """

    def __init__(self) -> None:
        #: Pending output: a batch, the offset it is to cover, and then a gap after it.
        self._batch: bytes | None = None
        self._header: BatchHeader | None = None
        self._reaches = 0
        self._gap: Gap | None = None

    def kept(self, header: BatchHeader, batch: bytes) -> Iterator[bytes]:
        """Keep a batch.

        ``header`` is its original one, of which offsets, epoch and producer id still apply.
        """
        yield from self.rest()
        self._batch, self._header, self._reaches = batch, header, header.last_offset

    def gone(self, header: BatchHeader) -> Iterator[bytes]:
        """Drop a batch completely."""
        if self._gap is None and self._may_reach(header):
            self._reaches = header.last_offset
            return
        if self._gap is not None and _is_one(self._gap, header):
            self._gap = Gap(self._gap.base_offset, header.last_offset, self._gap.leader_epoch)
            return
        yield from self.rest()
        self._gap = Gap(header.base_offset, header.last_offset, header.partition_leader_epoch)

    def rest(self) -> Iterator[bytes]:
        """Yield the pending output at the end."""
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
    """Return whether a batch is an empty one of a former cleaning that only covers offsets."""
    return not header.count and header.producer_id < 0 and not header.is_control
