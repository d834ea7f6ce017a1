"""Fetch (1): reads of consumers, with sessions, long polls through the purgatory, and tier reads.

Versions 4 to 18:

- 4: record batches of magic 2, read_committed and aborted transactions
- 5: log start offset
- 6: the client understands KAFKA_STORAGE_ERROR
- 7: fetch sessions (KIP-227)
- 9: current leader epoch (KIP-320)
- 10: zstd (KIP-110)
- 11: rack and preferred read replica (KIP-392)
- 12: flexible, last fetched epoch and diverging epoch (KIP-595)
- 13: topics by id (KIP-516)
- 14: a follower understands OFFSET_MOVED_TO_TIERED_STORAGE (KIP-405)
- 15: replica state instead of the replica id (KIP-903)
- 16: endpoints of current leaders (KIP-951)
- 17: directory id of a follower (KIP-853)
- 18: high watermark of a follower (KIP-1166)

Version 8 has the fields of version 7. What versions 14, 17 and 18 add is for followers only.

Behaviour:

- A request with a replica id gets INVALID_REQUEST. Followers use an Api and listener of their own.
- A redirection to another replica needs ``replica.selector.class``, as in Kafka. From version 11 a
  follower serves consumers even without one.
- An offset that only the tier has is read from the tier (:mod:`fetch_remote`). The leader may
  redirect the consumer to a follower for it (``tidemark.remote.fetch.replicas``).
- A follower that cannot serve an offset redirects the consumer to the leader.
- A broker without replicas (a Reader) serves the tier only (:mod:`fetch_reader`).
- A leader that could have been superseded returns NOT_LEADER_OR_FOLLOWER, also after a wait.
- A client over its quota gets an empty answer at once, with its throttle time.

The walk of a read: :func:`handle`, :func:`read_until_enough`, :func:`_read_all`, then
:func:`tidemark_broker.replication.partition.consumer_reads.fetch`, and
:func:`tidemark_broker.log.reading.read_cached`, which reads a segment from the page cache.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v18 import request as v18

from tidemark.logfiles.leader_epochs import UNKNOWN_EPOCH
from tidemark.wire.users import Operation
from tidemark_broker.admission.client_quotas import QuotaKind
from tidemark_broker.api.fetch_session import (
    FetchContext,
    FetchMetadata,
    Key,
    PartitionRequest,
)
from tidemark_broker.api.records.fetch_reader import read_from_tier
from tidemark_broker.api.records.fetch_remote import read_remote
from tidemark_broker.api.records.fetch_response import (
    READ_COMMITTED,
    FetchResponse,
    Read,
    answer,
    total_bytes,
)
from tidemark_broker.api.records.replica_selector import (
    RemoteReaders,
    rack_of,
    redirected,
    redirected_remote,
    remote_readers_of,
)
from tidemark_broker.api.schema import milliseconds
from tidemark_broker.api.services import HandlerServices
from tidemark_broker.api.table import Api, Call
from tidemark_broker.purgatory import PartitionChange, Watch
from tidemark_broker.replication.partition import Partition, consumer_reads
from tidemark_broker.replication.types import FetchResult

#: From this version a topic is identified by its id alone.
_BY_ID_SINCE = 13
#: From this version consumers may read from followers (KIP-392).
_FOLLOWERS_SINCE = 11
#: Result of a partition until it is read.
_UNREAD = FetchResult(error=ErrorCode.none)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTopic(v18.FetchTopic):
    """Topic with a name until version 12."""

    topic: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgottenTopic(v18.ForgottenTopic):
    """Topic with a name until version 12."""

    topic: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest(v18.FetchRequest):
    """Request of all versions. ``replica_id`` is part of ``replica_state`` from version 15."""

    topics: tuple[FetchTopic, ...]
    forgotten_topics_data: tuple[ForgottenTopic, ...] = ()
    replica_id: int = -1


@dataclass(slots=True, kw_only=True)
class FetchParams:
    """Parameters of a request for all its partitions (Kafka's name).

    ``leader_only``: followers do not serve reads. ``rack``: rack of a client that should be
    redirected to a replica there. ``remote_readers``: replicas that serve it what only the tier
    has, None for the leader alone. ``read_committed``: the isolation level. ``for_socket``: only
    the kernel reads the records, since the connection has no TLS.
    """

    max_bytes: int
    min_bytes: int
    max_wait_s: float
    leader_only: bool = True
    rack: str = ""
    remote_readers: RemoteReaders | None = None
    read_committed: bool = False
    for_socket: bool = False


async def handle(request: FetchRequest, call: Call) -> FetchResponse:
    """Read records for a consumer, waiting for ``min_bytes`` at most ``max_wait`` if necessary.

    Records in memory come first. Those that are only on disk or in remote storage are read
    afterwards, once for the whole request.
    """
    # Followers use the replication listener. A stock Kafka follower must not join the ISR here.
    if max(request.replica_id, request.replica_state.replica_id) >= 0:
        return FetchResponse(error_code=ErrorCode.invalid_request)
    context = await _context(request, call)
    if isinstance(context, ErrorCode):
        return FetchResponse(error_code=context)
    # Bytes that the client's quota permits now (KIP-219). None without a quota.
    room = None if call.quotas is None else call.quotas.remaining(QuotaKind.FETCH)
    if room is not None and room < 1:
        # Clients take an answer without any partition if it says that they are throttled.
        return FetchResponse(error_code=ErrorCode.none, session_id=context.session_id)
    # A large request has a shorter poll, because it occupies memory while it waits.
    max_wait_s = call.poll_s(milliseconds(request.max_wait) / 1000)
    deadline_s = time.monotonic() + max_wait_s
    max_bytes = min(request.max_bytes, call.services.settings.fetch_bytes_max)
    leader_only = call.version < _FOLLOWERS_SINCE
    params = FetchParams(
        max_bytes=max_bytes if room is None else min(max_bytes, int(room)),
        min_bytes=request.min_bytes,
        max_wait_s=max_wait_s,
        leader_only=leader_only,
        rack=rack_of(call, request.rack_id),
        remote_readers=None if leader_only else remote_readers_of(call, request.rack_id),
        read_committed=request.isolation_level == READ_COMMITTED,
        for_socket=call.client.is_plaintext,
    )
    checked = await _checked(context.requests, call)
    # A Reader has no replica. A client that cannot be redirected receives an error below.
    if call.services.replicas.is_reader and not leader_only:
        reads = await read_from_tier(checked, call, params.max_bytes, deadline_s)
        call.memory.set_reserved(total_bytes(reads))
    else:
        # Records in memory are collected first. Only then are the disk and the tier read, once.
        reads = await read_until_enough(checked, call, params)
    if any(read.result.from_disk or read.result.remote for read in reads):
        await _read_from_disk(reads)
        await read_remote(reads, call.services, deadline_s)
        # What was read before the wait may have been deleted during it.
        _discard_unservable(reads, call.services, params)
        call.memory.set_reserved(total_bytes(reads))
    # The quota counts what is sent. A throttled client was given less room above.
    if call.quotas is not None:
        call.quotas.use(QuotaKind.FETCH, total_bytes(reads))
    return await answer(request.isolation_level, call, context, reads)


# ---------------------------------------------------------------- partitions of a request


async def _context(request: FetchRequest, call: Call) -> FetchContext | ErrorCode:
    """Return the fetch session of a request (KIP-227), or the error for the client.

    The context knows which partitions to read: the named ones plus those of earlier requests. After
    an error the client starts a new session.
    """
    metadata = FetchMetadata(
        # The client is part of the session's identity, so that another client cannot use or end it.
        request.session_id,
        request.session_epoch,
        call.version >= _BY_ID_SINCE,
        call.client.identity,
    )
    named = await _named(request, call)
    forgotten = [
        (topic.topic_id or topic.topic, partition)
        for topic in request.forgotten_topics_data
        for partition in topic.partitions
    ]
    return call.services.fetch_sessions.context(metadata, named, forgotten, time.monotonic())


async def _named(request: FetchRequest, call: Call) -> Mapping[Key, PartitionRequest]:
    """Return the partitions that the request names, by session key.

    If one is named twice, the last entry counts, as in Kafka.
    """
    named: dict[Key, PartitionRequest] = {}
    for topic in request.topics:
        name = topic.topic
        if topic.topic_id is not None:
            view = call.services.cluster.by_id(topic.topic_id)
            name = "" if view is None else view.name
        for part in topic.partitions:
            made = PartitionRequest(
                topic=name,
                topic_id=topic.topic_id,
                partition=part.partition,
                offset=part.fetch_offset,
                max_bytes=part.partition_max_bytes,
                # Negative epochs mean none (Kafka's ``FetchRequest.optionalEpoch``).
                current_leader_epoch=max(part.current_leader_epoch, UNKNOWN_EPOCH),
                last_fetched_epoch=part.last_fetched_epoch,
            )
            named[made.key] = made
            # A request may name thousands of partitions: let other requests run.
            if call.time_slice.is_over:
                await call.time_slice.renew()
    return named


async def _checked(requests: Sequence[PartitionRequest], call: Call) -> Sequence[PartitionRequest]:
    """Return the partitions, with an error for those that may not be read."""
    # Only sessions by id can contain topics whose name is still unknown.
    if call.version >= _BY_ID_SINCE and not all(request.topic for request in requests):
        requests = await call.time_slice.collect(_resolved(request, call) for request in requests)
    denied = await call.denied(
        Operation.READ, (request.topic for request in requests if request.topic)
    )
    if not denied:
        return requests
    return await call.time_slice.collect(_unless_denied(request, denied) for request in requests)


def _resolved(request: PartitionRequest, call: Call) -> PartitionRequest:
    """Resolve a topic that was unknown when the session was created."""
    if request.topic:
        return request
    view = None if request.topic_id is None else call.services.cluster.by_id(request.topic_id)
    if view is None:
        return request._replace(error=ErrorCode.unknown_topic_id)
    return request._replace(topic=view.name)


def _unless_denied(request: PartitionRequest, denied: Set[str]) -> PartitionRequest:
    if request.topic not in denied:
        return request
    return request._replace(error=ErrorCode.topic_authorization_failed)


# ---------------------------------------------------------------- long poll


async def read_until_enough(
    requests: Sequence[PartitionRequest], call: Call, params: FetchParams
) -> list[Read]:
    """Read until there are ``min_bytes`` of records, or ``max_wait_s`` has passed.

    Returns earlier if a partition has an error, a redirection, or records on disk or in remote
    storage. The reads never exceed the memory granted for the response. No records are held during
    a wait.
    """
    wished = min(params.max_bytes, sum(max(0, one.max_bytes) for one in requests))
    now, memory = asyncio.get_running_loop().time, call.memory
    deadline, turns = now() + params.max_wait_s, call.services.read_turns
    while True:
        # Requests of others are served between the large reads of many consumers.
        await turns.take()
        # A negative limit is the client's error and is answered by the read, so it takes no memory.
        granted = memory.grant(wished) if wished >= 0 else wished
        reads = await _read_all(requests, call, params, granted)
        found_bytes = total_bytes(reads)
        turns.use(found_bytes)
        memory.set_reserved(sum(map(_found_bytes, reads)))
        # The answer may get less memory than min_bytes, and must not wait for more than fits.
        missing = min(params.min_bytes, granted) - found_bytes
        left_s = deadline - now()
        if missing <= 0 or left_s <= 0 or not reads or any(read.settled for read in reads):
            return reads
        # Records are released before the wait, or idle consumers would hold memory for their poll
        # time.
        watched = [
            _Snapshot(read.partition, params) for read in reads if read.partition is not None
        ]
        del reads
        memory.set_reserved(0)
        if not await _wait_for(watched, missing, call, left_s):
            deadline = now()


class _Snapshot:
    """State of a partition at the last pass."""

    __slots__ = "_check", "_end", "_epoch", "_partition", "_read_committed", "_size_bytes", "key"

    def __init__(self, partition: Partition, params: FetchParams) -> None:
        self._check = _may_read(partition, params)
        self._partition = partition
        #: Key under which the purgatory is notified of its records.
        self.key = PartitionChange.HIGH_WATERMARK, partition.tp
        self._epoch = partition.leader_epoch
        self._read_committed = params.read_committed
        self._end = self._readable_end
        self._size_bytes = partition.log.size_bytes

    @property
    def lost(self) -> bool:
        """True if the partition may no longer be read here, or its leader epoch has changed.

        The next pass finds the error.
        """
        is_same = self._partition.leader_epoch == self._epoch
        return not is_same or self._check(UNKNOWN_EPOCH) is not ErrorCode.none

    @property
    def advanced(self) -> bool:
        """True if more records are readable: committed, or stable with read_committed."""
        return self._readable_end > self._end

    @property
    def _readable_end(self) -> int:
        return consumer_reads.readable_end(self._partition.log, read_committed=self._read_committed)

    @property
    def grown_bytes(self) -> int:
        """Approximate number of bytes that have become readable."""
        # At least 1: an advanced partition always counts, even if retention shrank its log.
        return max(1, self._partition.log.size_bytes - self._size_bytes)


async def _wait_for(watched: Sequence[_Snapshot], missing: int, call: Call, left_s: float) -> bool:
    """Wait until about ``missing`` bytes have become readable, at most ``left_s`` seconds.

    Return True to read again, also if a partition can no longer be read here. False means that the
    time is up, or that the purgatory is full.
    """
    # A watch collects the changed partitions, so a wake-up does not evaluate all of them.
    watch, advanced = Watch[_Snapshot](), set[_Snapshot]()

    def enough() -> bool:
        """Return whether to stop waiting: enough bytes are readable, or a partition failed."""
        changed, watch.changed = watch.changed, {}
        for snapshot in changed:
            if snapshot.lost:
                return True
            if snapshot.advanced:
                advanced.add(snapshot)
        # Each advanced partition has at least one byte, which spares the sum.
        grown_bytes = (snapshot.grown_bytes for snapshot in advanced)
        return len(advanced) >= missing or sum(grown_bytes) >= missing

    purgatory, time_slice = call.services.purgatory, call.time_slice
    # Watches are removed even if the client disconnects during their registration.
    try:
        for snapshot in watched:
            purgatory.watch(watch, snapshot.key, snapshot)
            if time_slice.is_over:
                await time_slice.renew()
        return await purgatory.wait([watch], enough, left_s, who=call.client.identity)
    finally:
        for snapshot in watched:
            purgatory.unwatch(watch, snapshot.key)


# ---------------------------------------------------------------- one pass


async def _read_all(
    requests: Sequence[PartitionRequest], call: Call, params: FetchParams, max_bytes: int
) -> list[Read]:
    """Read the partitions in the order of the request, at most ``max_bytes`` of records in total.

    The first batch that is found is returned whole, however large (KIP-74). Records on disk or in
    remote storage are not read yet, but count with the size that may be read. A negative limit in
    the request is an error if there are records, as in Kafka.
    """
    reads: list[Read] = []
    left, at_hand, has_found = max_bytes, 0, False
    for one in requests:
        read = _located(one, call, params)
        # Without an error or a redirection the partition is read from memory. The result may say
        # what must be read from the disk or the tier.
        if read.result is _UNREAD and read.partition is not None:
            limit = min(one.max_bytes, left)
            read.result = result = consumer_reads.fetch(
                read.partition,
                one.offset,
                max_bytes=max(0, limit),
                # Exactly one batch may exceed the limit: the first of the whole response.
                min_one=not has_found,
                current_leader_epoch=one.current_leader_epoch,
                last_fetched_epoch=one.last_fetched_epoch,
                leader_only=params.leader_only,
                remote_on_follower=params.remote_readers is not None,
                read_committed=params.read_committed,
                for_socket=params.for_socket,
            )
            if limit < 0 and (result.data or result.from_disk or result.remote):
                # Kafka's LogSegment throws IllegalArgumentException if there is data to read.
                read.result = FetchResult(error=ErrorCode.unknown_server_error)
            elif result.remote is not None and params.remote_readers is not None:
                redirect = redirected_remote(read.partition, params.remote_readers, call)
                read.result = redirect or result
        if read.result.remote is not None and has_found and at_hand >= max_bytes:
            # The response is full: records of the tier would not fit, so they are not read.
            read.result = read.result._replace(remote=None)
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


def _located(request: PartitionRequest, call: Call, params: FetchParams) -> Read:
    """Return a partition that is still to be read, or one that is answered without records.

    The latter has an error, or redirects the consumer to a closer replica (KIP-392).
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
        return Read(request, None, FetchResult(error=ErrorCode.inconsistent_topic_id))
    if params.rack:
        redirect = redirected(
            partition, request.offset, params.rack, call, request.current_leader_epoch
        )
        if redirect is not None:
            return Read(request, partition, redirect)
    return Read(request, partition, _UNREAD)


def _with_leader(
    result: FetchResult, request: PartitionRequest, services: HandlerServices
) -> FetchResult:
    """Add the leader from this broker's metadata, for a partition that it does not lead."""
    view = services.cluster.topics.get(request.topic)
    row = None if view is None else view.partitions.get(request.partition)
    if row is None:
        return result
    return result._replace(leader_id=row.leader, leader_epoch=row.leader_epoch)


async def _read_from_disk(reads: Sequence[Read]) -> None:
    """Read from the disk what was not in memory."""
    needed = [read for read in reads if read.result.from_disk is not None]
    if needed:
        # Partitions are independent files, so they are read concurrently.
        await asyncio.gather(*map(_fill_from_disk, needed))


async def _fill_from_disk(read: Read) -> None:
    if read.partition is not None:
        read.result = await consumer_reads.read_from_disk(read.partition, read.result)


def _discard_unservable(
    reads: Sequence[Read], services: HandlerServices, params: FetchParams
) -> None:
    """Discard records that this broker may no longer serve.

    A wait for the disk or the tier may outlast the leadership, or the lease of a stalled leader.
    Meanwhile a deletion of records that were read before may have been acknowledged.
    """
    for read in reads:
        partition = read.partition
        if partition is None:
            continue
        error = _may_read(partition, params)(read.request.current_leader_epoch)
        if error is not ErrorCode.none:
            read.result = _with_leader(FetchResult(error=error), read.request, services)
        elif read.result.data and read.request.offset < partition.log_start_offset:
            read.result = consumer_reads.out_of_range(partition)


def _may_read(partition: Partition, params: FetchParams) -> Callable[[int], ErrorCode]:
    """Return the check that decides whether a partition may be read here."""
    return partition.check_leader if params.leader_only else partition.check_replica


API = Api(handle, versions=(4, 18))
