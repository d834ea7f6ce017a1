"""The local tail of a partition: records that only brokers have, fetched as raw batches.

The batches go through the same decoder as segments of the tier.
"""

from collections.abc import Iterator, Sequence

from tidemark.kafka_client.access import KafkaAccess
from tidemark.records.batch import CorruptBatch, iter_headers
from tidemark_pipeline.brokers import BrokerClient, BrokersUnavailable, FetchedBatches
from tidemark_pipeline.errors import CorruptData

#: Most consecutive responses without a batch; the broker delays each for two seconds.
_EMPTY_MAX = 10


def list_offsets(
    bootstrap: Sequence[str], topic: str, partitions: Sequence[int], timestamp: int
) -> dict[int, int]:
    """Return the offset of one timestamp (ms, or a special one) for each partition; -1: none.

    It uses ListOffsets without authentication. Raises :class:`BrokersUnavailable` and
    :class:`BrokerRefused`.
    """
    with BrokerClient(KafkaAccess(tuple(bootstrap))) as brokers:
        return brokers.list_offsets(topic, dict.fromkeys(partitions, timestamp))


def read(
    brokers: BrokerClient, topic: str, partition: int, start: int, end: int
) -> Iterator[FetchedBatches]:
    """Yield raw record batches from brokers for the offsets from ``start`` to ``end``.

    ``end`` is exclusive and at most the last stable offset. Raises :class:`OutOfRange` if ``start``
    is no longer in the log, and :class:`CorruptData` if the response is not record batches or
    leaves offsets out.
    """
    position, empty = start, 0
    while position < end:
        fetched = brokers.fetch(topic, partition, position)
        # After an election the new leader's high watermark may be below ``end`` until followers
        # fetch, so an empty response is retried.
        if not fetched.data and empty < _EMPTY_MAX:
            empty += 1
            continue
        position, empty = position_behind(fetched.data, f"{topic}-{partition}", position), 0
        yield fetched


def position_behind(data: bytes, name: str, position: int) -> int:
    """Return the next offset to fetch, after the batches returned for offset ``position``.

    ``name``: topic and partition for errors. Raises :class:`CorruptData` for a gap between batches,
    :class:`BrokersUnavailable` if the response does not advance.
    """
    behind = position
    try:
        for _, header in iter_headers(data):
            # The first batch may start before the requested offset, but not after it.
            if header.base_offset > max(behind, position):
                raise CorruptBatch(f"offset {header.base_offset} follows {behind}")  # noqa: TRY301
            behind = header.next_offset
    except CorruptBatch as error:
        raise CorruptData(f"{name}, fetched at offset {position} (local): {error}") from error
    if behind <= position:
        raise BrokersUnavailable(f"{name}: the leader returned nothing at offset {position}")
    return behind
