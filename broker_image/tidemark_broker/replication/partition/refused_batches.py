"""Recently refused batches of producers unknown to the log, so that no later batch overtakes them.

A client has several batches of one partition in flight. The first may be refused because the
replica does not lead yet or its ISR is too small. If that changes before the next one is read, the
next one must be refused too. Otherwise the client would take its success for that of the first one
(librdkafka's ``rd_kafka_dr_implicit_ack``), which was never written. For a producer that the log
knows, the sequence number shows the gap (OUT_OF_ORDER_SEQUENCE_NUMBER). For an unknown one any
sequence number is accepted (KIP-360). So the lowest refused one is remembered until it is retried,
as KIP-890 does for batches that wait for a verification.
"""

import logging
from collections.abc import Container
from typing import NamedTuple

from tidemark.configuration.values import INT32_MAX
from tidemark.records.batch import NO_PRODUCER_ID, BatchHeader, Buffer, CorruptBatch, read_header
from tidemark_broker.replication.types import TopicPartition

logger = logging.getLogger(__name__)

#: Limit for all producers and partitions of a broker; beyond it the oldest are forgotten.
REFUSED_MAX = 4096
#: Clients retry within about a second. A client that gave the batch up and continues after it is
#: accepted after this time.
KEPT_S = 60.0


class _Key(NamedTuple):
    tp: TopicPartition
    producer_id: int
    producer_epoch: int


class _RefusedBatch(NamedTuple):
    sequence: int
    at_s: float


class RefusedBatches:
    """Refused batches of one broker. Times are monotonic, in seconds."""

    def __init__(self) -> None:
        self._lowest: dict[_Key, _RefusedBatch] = {}
        #: Batches that were refused because their new producer would exceed the limit.
        self.of_new_producers = 0
        self._warned_at_s = -KEPT_S

    def __len__(self) -> int:
        return len(self._lowest)

    def note(self, tp: TopicPartition, data: Buffer, now_s: float, known: Container[int]) -> None:
        """Remember a refused batch that may be retried, unless its producer is ``known``.

        ``known``: ids of the producers that the log has state of.
        """
        found = _produced(tp, data)
        if found is None or found[0].producer_id in known:
            return
        key, sequence = found
        # Reinserted at the end, so that the oldest entry is evicted first.
        lowest = self._lowest.pop(key, None)
        if lowest is not None and _is_behind(sequence, lowest.sequence):
            sequence = lowest.sequence
        self._lowest[key] = _RefusedBatch(sequence, now_s)
        if len(self._lowest) > REFUSED_MAX:
            del self._lowest[next(iter(self._lowest))]

    def note_new_producer(self, tp: TopicPartition, message: str, now_s: float) -> None:
        """Count a batch that was refused because its new producer would exceed the limit.

        Log it at most once a minute.
        """
        self.of_new_producers += 1
        if now_s - self._warned_at_s >= KEPT_S:
            self._warned_at_s = now_s
            logger.warning("%s-%s: %s", *tp, message)

    def before(
        self, tp: TopicPartition, data: Buffer, now_s: float, known: Container[int]
    ) -> int | None:
        """Return the sequence number that the producer must send before this batch, None for any.

        None also if this is the missing batch, if it was given up long ago, or if the producer is
        ``known`` to the log by now, which then checks its sequence numbers itself.
        """
        found = _produced(tp, data)
        if found is None:
            return None
        key, sequence = found
        missing = self._lowest.get(key)
        if missing is None:
            return None
        # A later batch stays refused until the missing one arrives or was given up.
        is_late = now_s - missing.at_s >= KEPT_S
        if _is_behind(sequence, missing.sequence) and not (is_late or key.producer_id in known):
            return missing.sequence
        del self._lowest[key]
        return None


def _produced(tp: TopicPartition, data: Buffer) -> tuple[_Key, int] | None:
    """Return the batch's producer and first sequence number, or None if it has none."""
    try:
        header: BatchHeader = read_header(data)
    except CorruptBatch:
        return None
    if header.producer_id <= NO_PRODUCER_ID or header.base_sequence < 0:
        return None
    return _Key(tp, header.producer_id, header.producer_epoch), header.base_sequence


def _is_behind(sequence: int, other: int) -> bool:
    """Return whether ``sequence`` is after ``other``; numbers wrap to 0 after 2^31 - 1."""
    return 0 < (sequence - other) & INT32_MAX <= INT32_MAX // 2
