"""The local tail of a partition: what is on brokers only, fetched as raw batches.

Executors are plain processes without an event loop, so this is a small blocking client: Metadata
names the leaders, ListOffsets the end, Fetch the bytes. A leader that moved or a broker that died
is looked up again, a bounded number of times. What comes back goes through the same decoder as
segments of the tier.
"""

import datetime
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12 import request as fetch_request
from kio.schema.fetch.v12.response import FetchResponse
from kio.schema.list_offsets.v9 import request as offsets_request
from kio.schema.list_offsets.v9.response import ListOffsetsResponse
from kio.schema.metadata.v8 import request as metadata_request
from kio.schema.metadata.v8.response import MetadataResponse
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i32Timedelta, i64

from tidemark.backoff import Backoff
from tidemark.records.batch import CorruptBatch, iter_headers
from tidemark.wire.blocking import BlockingConnection
from tidemark.wire.framing import FrameError
from tidemark_pipeline.errors import CorruptData

R = TypeVar("R")
P_co = TypeVar("P_co", covariant=True)
CLIENT_ID = "tidemark-pipeline"
#: Timestamps with a meaning of their own (KIP-405, KIP-1005); the last two need ListOffsets v8, v9.
LATEST, EARLIEST, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -4, -5
_TRIES_MAX = 20
_RETRY = Backoff(first_s=0.25, most_s=2.0)
_TIMEOUT_S = 30.0
_FETCH_BYTES_MAX = 8 * 1024 * 1024
_FRAME_BYTES_MAX = 256 * 1024 * 1024


class BrokersUnavailable(RuntimeError):
    """No broker gave what was asked; the message says what was tried last."""


class OutOfRange(ValueError):
    """The offset is no longer (or not yet) in the log."""


class _Topic(Protocol[P_co]):
    """A topic of an answer."""

    @property
    def partitions(self) -> Sequence[P_co]: ...


@dataclass(frozen=True, slots=True)
class PartitionLeader:
    """Who leads a partition, under which epoch, and where it listens."""

    host: str
    port: int
    leader_epoch: int


def leaders(bootstrap: Sequence[str], topic: str) -> dict[int, PartitionLeader]:
    """The leader of every partition of ``topic`` that has one.

    Raises :class:`BrokersUnavailable` when none of the bootstrap addresses answers.
    """
    request = metadata_request.MetadataRequest(
        topics=(metadata_request.MetadataRequestTopic(name=TopicName(topic)),),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    reason = "no bootstrap address was given"
    for address in bootstrap:
        host, _, port = address.rpartition(":")
        try:
            with _open(host, int(port)) as connection:
                return _leaders_of(connection.request(request, MetadataResponse, _TIMEOUT_S))
        except (OSError, FrameError) as error:
            reason = f"{address}: {error}"
    raise BrokersUnavailable(f"no broker answered; the last one said: {reason}")


def list_offsets(
    bootstrap: Sequence[str], topic: str, partitions: Sequence[int], timestamp: int
) -> dict[int, int]:
    """ListOffsets for one timestamp (ms, or a special one above) for each partition; -1: none."""
    return {
        partition: _retry(lambda: _list_offset(bootstrap, topic, partition, timestamp))  # noqa: B023
        for partition in partitions
    }


class Fetched(NamedTuple):
    """Raw batches, and the aborted transactions with records in them: producer id, first offset."""

    data: bytes
    aborted: tuple[tuple[int, int], ...]


def read(
    bootstrap: Sequence[str], topic: str, partition: int, start: int, end: int
) -> Iterator[Fetched]:
    """Raw batches that cover the offsets from ``start`` to ``end`` (exclusive).

    Raises :class:`OutOfRange` when ``start`` has left the log meanwhile, :class:`CorruptData` for
    what is no batch.
    """
    position = start
    while position < end:
        fetched = _retry(lambda: _fetch(bootstrap, topic, partition, position))  # noqa: B023
        position = position_behind(fetched.data, f"{topic}-{partition}", position)
        yield fetched


def position_behind(data: bytes, name: str, position: int) -> int:
    """The offset behind what a leader sent for ``position``, which must be a step forward."""
    behind = position
    try:
        for _, header in iter_headers(data):
            behind = header.next_offset
    except CorruptBatch as error:
        raise CorruptData(f"{name}, fetched at offset {position} (local): {error}") from error
    if behind <= position:
        raise BrokersUnavailable(f"{name}: the leader returned nothing at offset {position}")
    return behind


def _retry(call: Callable[[], R]) -> R:
    reason = ""
    for failures in range(1, _TRIES_MAX + 1):
        try:
            return call()
        except (OSError, FrameError, BrokersUnavailable) as error:
            reason = str(error)
            time.sleep(_RETRY.pause_s(failures))
    raise BrokersUnavailable(f"gave up after {_TRIES_MAX} tries: {reason}")


def _leaders_of(answer: MetadataResponse) -> dict[int, PartitionLeader]:
    addresses = {int(b.node_id): (b.host, int(b.port)) for b in answer.brokers}
    found: dict[int, PartitionLeader] = {}
    for topic in answer.topics:
        for partition in topic.partitions:
            address = addresses.get(int(partition.leader_id))
            if address is not None:
                found[int(partition.partition_index)] = PartitionLeader(
                    *address, int(partition.leader_epoch)
                )
    return found


def _open(host: str, port: int) -> BlockingConnection:
    return BlockingConnection(
        host,
        port,
        client_id=CLIENT_ID,
        timeout_s=_TIMEOUT_S,
        frame_bytes_max=_FRAME_BYTES_MAX,
    )


def _connect(
    bootstrap: Sequence[str], topic: str, partition: int
) -> tuple[BlockingConnection, PartitionLeader]:
    leader = leaders(bootstrap, topic).get(partition)
    if leader is None:
        raise BrokersUnavailable(f"{topic}-{partition} has no leader")
    return _open(leader.host, leader.port), leader


def _list_offset(bootstrap: Sequence[str], topic: str, partition: int, timestamp: int) -> int:
    connection, leader = _connect(bootstrap, topic, partition)
    request = offsets_request.ListOffsetsRequest(
        replica_id=BrokerId(-1),
        isolation_level=i8(1),
        topics=(
            offsets_request.ListOffsetsTopic(
                name=TopicName(topic),
                partitions=(
                    offsets_request.ListOffsetsPartition(
                        partition_index=i32(partition),
                        current_leader_epoch=i32(leader.leader_epoch),
                        timestamp=i64(timestamp),
                    ),
                ),
            ),
        ),
    )
    with connection:
        answer = connection.request(request, ListOffsetsResponse, _TIMEOUT_S)
    result = only_partition(answer.topics, f"{topic}-{partition}")
    _check(result.error_code, topic, partition)
    return int(result.offset)


def _fetch(bootstrap: Sequence[str], topic: str, partition: int, offset: int) -> Fetched:
    connection, leader = _connect(bootstrap, topic, partition)
    request = fetch_request.FetchRequest(
        max_wait=i32Timedelta.parse(datetime.timedelta(seconds=2)),
        min_bytes=i32(1),
        max_bytes=i32(_FETCH_BYTES_MAX),
        isolation_level=i8(1),
        topics=(
            fetch_request.FetchTopic(
                topic=TopicName(topic),
                partitions=(
                    fetch_request.FetchPartition(
                        partition=i32(partition),
                        current_leader_epoch=i32(leader.leader_epoch),
                        fetch_offset=i64(offset),
                        partition_max_bytes=i32(_FETCH_BYTES_MAX),
                    ),
                ),
            ),
        ),
        forgotten_topics_data=(),
    )
    with connection:
        answer = connection.request(request, FetchResponse, _TIMEOUT_S)
    result = only_partition(answer.responses, f"{topic}-{partition}")
    if result.error_code == ErrorCode.offset_out_of_range:
        raise OutOfRange(f"{topic}-{partition}: offset {offset} is no longer in the log")
    _check(result.error_code, topic, partition)
    aborted = tuple(
        (int(each.producer_id), int(each.first_offset))
        for each in result.aborted_transactions or ()
    )
    return Fetched(bytes(result.records or b""), aborted)


def only_partition(topics: Sequence[_Topic[R]], name: str) -> R:
    """The partition that was asked for: an answer without it is the broker's mistake."""
    for topic in topics:
        for partition in topic.partitions:
            return partition
    raise BrokersUnavailable(f"{name}: the leader's answer is empty")


def _check(error: ErrorCode, topic: str, partition: int) -> None:
    if error != ErrorCode.none:
        raise BrokersUnavailable(f"{topic}-{partition}: the leader answered {error.name}")
