"""The local tail of a partition: records that only brokers have, fetched as raw batches.

The batches go through the same decoder as segments of the tier.
"""

from collections.abc import Iterator

from tidemark.kafka_client.blocking_client import BlockingKafkaClient, FetchedBatches
from tidemark.kafka_client.errors import Unreachable
from tidemark.records.batch import CorruptBatch, iter_headers
from tidemark_pipeline.errors import CorruptData

#: Most consecutive responses without a batch; the broker delays each for two seconds.
_EMPTY_MAX = 10


def read(
    brokers: BlockingKafkaClient, topic: str, partition: int, start: int, end: int
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
    :class:`Unreachable` if the response does not advance.
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
        raise Unreachable(f"{name}: the leader returned nothing at offset {position}")
    return behind
