"""One pass of a Fetch over its partitions, and the amount that it found."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kio.schema.errors import ErrorCode

from tidemark_broker.api.fetch_session import PartitionRequest
from tidemark_broker.api.replica_selector import redirected
from tidemark_broker.api.services import HandlerServices
from tidemark_broker.api.table import Call
from tidemark_broker.replication.partition import Partition
from tidemark_broker.replication.partition import consumer_reads as partition_reads
from tidemark_broker.replication.types import FetchResult


@dataclass(slots=True, kw_only=True)
class FetchParams:
    """Parameters of a request for all its partitions (Kafka's name).

    ``leader_only``: followers do not serve reads. ``rack``: rack of a client that should be
    redirected to a replica there. ``read_committed``: the isolation level.
    """

    max_bytes: int
    min_bytes: int
    max_wait_s: float
    leader_only: bool = True
    rack: str = ""
    read_committed: bool = False


@dataclass(slots=True)
class Read:
    """Result of one partition; ``result`` is replaced after the disk or the tier is read."""

    request: PartitionRequest
    partition: Partition | None
    result: FetchResult

    @property
    def settled(self) -> bool:
        """True if the partition's answer must not wait for more records."""
        result = self.result
        return (
            result.error is not ErrorCode.none
            or result.diverging is not None
            or result.preferred_read_replica >= 0
            or result.remote is not None
            or result.from_disk is not None
        )


async def read_all(
    requests: Sequence[PartitionRequest], call: Call, params: FetchParams, max_bytes: int
) -> list[Read]:
    """Read the partitions in the order of the request, at most ``max_bytes`` of records in total.

    The first batch that is found is returned whole, however large (KIP-74). Records on disk or in
    remote storage are not read yet, but count with the size that may be read. For a negative limit
    see :func:`_read`.
    """
    reads: list[Read] = []
    left, at_hand, has_found = max_bytes, 0, False
    for one in requests:
        # min_one lets exactly one batch exceed the limit: the first of the whole response.
        read = _read(one, call, params, left, min_one=not has_found)
        if read.result.remote is not None and has_found and at_hand >= max_bytes:
            # The response is full: records of the tier would not fit, so they are not read.
            read.result = replace(read.result, remote=None)
        found_bytes = _found_bytes(read)
        if read.result.remote is None:
            at_hand += found_bytes
        has_found = has_found or found_bytes > 0
        if max_bytes >= 0:
            # A first batch larger than the whole response leaves 0 bytes, not a negative number: a
            # negative limit is an error of the client.
            left = max(0, left - found_bytes)
        reads.append(read)
        # Let other requests run between partitions.
        if call.time_slice.is_over:
            await call.time_slice.renew()
    return reads


def _found_bytes(read: Read) -> int:
    need = read.result.remote or read.result.from_disk
    return len(read.result.data) if need is None else need.max_bytes


def found_bytes(reads: Sequence[Read]) -> int:
    """Number of record bytes at hand and still to be read."""
    return sum(map(_found_bytes, reads))


def must_wait(reads: Sequence[Read]) -> bool:
    """True if any partition must be read from the disk or the tier."""
    return any(read.result.from_disk or read.result.remote for read in reads)


async def read_from_disk(reads: Sequence[Read]) -> None:
    """Read from the disk what was not in memory."""
    needed = [read for read in reads if read.result.from_disk is not None]
    if needed:
        # Partitions are independent files, so they are read concurrently.
        await asyncio.gather(*map(_fill_from_disk, needed))


async def _fill_from_disk(read: Read) -> None:
    if read.partition is not None:
        read.result = await partition_reads.read_from_disk(read.partition, read.result)


def check_replicas(reads: Sequence[Read], services: HandlerServices, params: FetchParams) -> None:
    """Discard the records of partitions that this broker may no longer serve.

    A wait for the disk or the tier may outlast the leadership, or the lease of a stalled leader.
    """
    for read in reads:
        if read.partition is None:
            continue
        error = may_read(read.partition, params)(read.request.current_leader_epoch)
        if error is not ErrorCode.none:
            read.result = _with_leader(FetchResult(error=error), read.request, services)


def may_read(partition: Partition, params: FetchParams) -> Callable[[int], ErrorCode]:
    """Return the check that decides whether a partition may be read here."""
    return partition.check_leader if params.leader_only else partition.check_replica


def _read(
    request: PartitionRequest, call: Call, params: FetchParams, left: int, *, min_one: bool
) -> Read:
    """Read one partition from memory, at most ``left`` bytes.

    With ``min_one`` the first batch is returned even if it is larger. The result may redirect the
    consumer to a closer replica (KIP-392), or say what must be read from disk or remote storage. A
    negative limit in the request is an error if there are records, as in Kafka.
    """
    services = call.services
    if request.error is not ErrorCode.none:
        return Read(request, None, FetchResult(error=request.error))
    # Checks in Kafka's order: existence, topic id, preferred replica, then the read itself.
    partition = services.replicas.get(request.topic, request.partition)
    if partition is None:
        error = services.replicas.error_of(request.topic, request.partition)
        return Read(request, None, _with_leader(FetchResult(error=error), request, services))
    # A topic of the same name was deleted and created again. The client must refresh its metadata.
    if request.topic_id not in (None, partition.topic_id):
        error = ErrorCode.inconsistent_topic_id
        return Read(request, None, FetchResult(error=error))
    if params.rack:
        redirect = redirected(
            partition, request.offset, params.rack, call, request.current_leader_epoch
        )
        if redirect is not None:
            return Read(request, partition, redirect)
    max_bytes = min(request.max_bytes, left)
    result = partition_reads.fetch(
        partition,
        request.offset,
        max_bytes=max(0, max_bytes),
        min_one=min_one,
        current_leader_epoch=request.current_leader_epoch,
        last_fetched_epoch=request.last_fetched_epoch,
        leader_only=params.leader_only,
        read_committed=params.read_committed,
    )
    if max_bytes < 0 and (result.data or result.from_disk or result.remote):
        # As in Kafka, whose LogSegment throws IllegalArgumentException if there is data to read.
        result = FetchResult(error=ErrorCode.unknown_server_error)
    return Read(request, partition, result)


def _with_leader(
    result: FetchResult, request: PartitionRequest, services: HandlerServices
) -> FetchResult:
    """Add the leader from this broker's metadata, for a partition that it does not lead."""
    view = services.cluster.topics.get(request.topic)
    row = None if view is None else view.partitions.get(request.partition)
    if row is None:
        return result
    return replace(result, leader_id=row.leader, leader_epoch=row.leader_epoch)


def total_bytes(reads: Sequence[Read]) -> int:
    """Number of record bytes at hand."""
    return sum(len(read.result.data) for read in reads)
