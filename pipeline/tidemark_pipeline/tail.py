"""The local tail of a partition: what is on brokers only, fetched as raw batches.

What comes back goes through the same decoder as segments of the tier.
"""

from collections.abc import Iterator, Sequence

from tidemark.kafka_client.access import KafkaAccess
from tidemark.records.batch import CorruptBatch, iter_headers
from tidemark_pipeline.brokers import BrokerClient, BrokersUnavailable, Fetched
from tidemark_pipeline.errors import CorruptData

#: Of answers without a batch one behind the other, each after two seconds.
_EMPTY_MAX = 10


def list_offsets(
    bootstrap: Sequence[str], topic: str, partitions: Sequence[int], timestamp: int
) -> dict[int, int]:
    """ListOffsets for one timestamp (ms, or a special one) for each partition, of brokers that ask
    for no user; -1: none. Raises :class:`BrokersUnavailable`, :class:`Refused`."""
    with BrokerClient(KafkaAccess(tuple(bootstrap))) as brokers:
        return brokers.list_offsets(topic, dict.fromkeys(partitions, timestamp))


def read(
    brokers: BrokerClient, topic: str, partition: int, start: int, end: int
) -> Iterator[Fetched]:
    """Raw batches that cover the offsets from ``start`` to ``end`` (exclusive), which were the last
    stable ones or below them. A new leader may not know for a moment that they are.

    Raises :class:`OutOfRange` when ``start`` has left the log meanwhile, :class:`CorruptData` for
    what is no batch, or leaves offsets out.
    """
    position, empty = start, 0
    while position < end:
        fetched = brokers.fetch(topic, partition, position)
        if not fetched.data and empty < _EMPTY_MAX:
            empty += 1
            continue
        position, empty = position_behind(fetched.data, f"{topic}-{partition}", position), 0
        yield fetched


def position_behind(data: bytes, name: str, position: int) -> int:
    """The offset behind what a leader sent for ``position``, which must be a step forward."""
    behind = position
    try:
        for _, header in iter_headers(data):
            if header.base_offset > max(behind, position):
                raise CorruptBatch(f"offset {header.base_offset} follows {behind}")  # noqa: TRY301
            behind = header.next_offset
    except CorruptBatch as error:
        raise CorruptData(f"{name}, fetched at offset {position} (local): {error}") from error
    if behind <= position:
        raise BrokersUnavailable(f"{name}: the leader returned nothing at offset {position}")
    return behind
