"""Produce (0): append record batches unchanged, with acks 0, 1 or all.

Versions 3 to 13:

- 3: transactional id, record batches of magic 2
- 4: the client understands KAFKA_STORAGE_ERROR
- 5: log start offset in the answer
- 7: zstd (KIP-110)
- 8: invalid records and a message in the answer (KIP-467)
- 9: flexible
- 10: current leader and its endpoint in the answer (KIP-951)
- 11: the client understands TRANSACTION_ABORTABLE (KIP-890)
- 12: the request adds its partitions to the transaction (KIP-890)
- 13: topics by id (KIP-516)

Versions 6 and 12 have the fields of the version before.

Behaviour:

- Versions 0 to 2 are advertised and not served: librdkafka before 2.11 does not compress otherwise.
- A partition that is named twice gets INVALID_REQUEST, as does an unknown value of acks.
- With acks 0 an error closes the connection, as in Kafka, because there is no answer to carry it.
- The records of most large batches are not read. The log reads the header of each batch, and the
  records of a sample (:mod:`tidemark_broker.log.validation`).
- A later batch of the same producer is refused if an earlier one was refused and not retried
  (:mod:`tidemark_broker.replication.partition.refused_batches`).

The path of a batch: :func:`begin` (or :func:`begin_repeat` if the connection has sent the same
request before with other records), then :func:`_append_one` with
:func:`tidemark_broker.replication.partition.produce.try_append` if the append waits for nothing,
otherwise :func:`_append_all` and :func:`_append_part` with
:func:`tidemark_broker.replication.partition.produce.begin`. Both end in
:func:`tidemark_broker.log.appending.append_as_leader`, which writes to the active segment.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.produce.v13 import request as v13
from kio.static.primitive import Records

from tidemark.logfiles.names import INTERNAL_TOPICS
from tidemark.records.batch import (
    BatchHeader,
    CorruptBatch,
    codec_of,
    is_transactional,
    read_header,
)
from tidemark.records.codecs import Codec
from tidemark.wire.framing import encode_response_pieces
from tidemark.wire.repeats import Repeat, response_template
from tidemark.wire.users import Operation, ResourceType
from tidemark_broker.admission.arrival_order import Place
from tidemark_broker.admission.client_quotas import QuotaKind
from tidemark_broker.admission.time_slice import in_parts
from tidemark_broker.api.endpoints import NO_LEADER, LeaderIdAndEpoch, NodeEndpoint, node_endpoints
from tidemark_broker.api.schema import ThrottledAnswer, milliseconds, timestamp
from tidemark_broker.api.table import Api, Call, RepeatHandler, duplicates
from tidemark_broker.log import FIRST_BATCHES, VerificationGuard, appending
from tidemark_broker.net.connection import CloseConnection
from tidemark_broker.replication.partition import Partition, produce
from tidemark_broker.replication.partition.produce import DelayedAppend
from tidemark_broker.replication.types import ProduceResult, TopicPartition
from tidemark_broker.tasks import Deferred
from tidemark_broker.transactions import verification
from tidemark_broker.transactions.core.metadata import Producer

ACKS_ALL = -1
_DENIED = ProduceResult(error=ErrorCode.topic_authorization_failed)
_TWICE = ProduceResult(
    error=ErrorCode.invalid_request, message="the request names the partition more than once"
)
_ID_DENIED = ProduceResult(error=ErrorCode.transactional_id_authorization_failed)
_TWO_PRODUCERS = ProduceResult(
    error=ErrorCode.invalid_producer_id_mapping,
    message="a transactional request must have one producer id and epoch",
)
_UNKNOWN_ID = ProduceResult(error=ErrorCode.unknown_topic_id)
_INTERNAL = ProduceResult(
    error=ErrorCode.invalid_topic_exception, message="Cannot append to an internal topic"
)
_NOTHING = ProduceResult(error=ErrorCode.invalid_record, message="no records at all")
#: From this version a topic is identified by its id alone.
_BY_ID_SINCE = 13
#: From this version a Produce request adds its partitions to the transaction.
_ADDS_SINCE = 12
#: From this version clients understand TRANSACTION_ABORTABLE.
_ABORTABLE_SINCE = 11
#: Consumers beside a producer of an older version may not be able to decompress it (KIP-110).
_ZSTD_SINCE = 7
_ZSTD_TOO_EARLY = ProduceResult(
    error=ErrorCode.unsupported_compression_type,
    message=f"zstd needs Produce {_ZSTD_SINCE} or newer: use a client of Kafka 2.1 or newer",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicProduceData(v13.TopicProduceData):
    """Topic with a name until version 12."""

    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequest(v13.ProduceRequest):
    """Request of all versions."""

    topic_data: tuple[TopicProduceData, ...]


@dataclass(slots=True, kw_only=True)
class BatchIndexAndErrorMessage:
    """An invalid record, counted from 0 (KIP-467)."""

    batch_index: int
    batch_index_error_message: str | None


@dataclass(slots=True, kw_only=True)
class PartitionProduceResponse:
    """One partition.

    Offsets are -1 with an error. ``log_append_time`` is None if records keep their own.
    """

    index: int
    error_code: ErrorCode
    base_offset: int
    log_append_time: datetime | None
    log_start_offset: int
    record_errors: tuple[BatchIndexAndErrorMessage, ...] = ()
    error_message: str | None
    current_leader: LeaderIdAndEpoch = NO_LEADER


@dataclass(slots=True, kw_only=True)
class TopicProduceResponse:
    """One topic, with the identification of the request."""

    name: str
    topic_id: uuid.UUID | None
    partition_responses: tuple[PartitionProduceResponse, ...]


@dataclass(slots=True, kw_only=True)
class ProduceResponse(ThrottledAnswer):
    """Results in the order of the request."""

    responses: tuple[TopicProduceResponse, ...]
    node_endpoints: tuple[NodeEndpoint, ...] = ()


@dataclass(slots=True)  # a frozen one takes four times as long to create
class _ProduceEntry:
    """One partition of a request.

    ``refused`` is the result of a rejected partition. ``guard`` proves to the log that the
    transaction was verified (KIP-890), None if that is not needed.
    """

    topic: str
    partition: int
    records: bytes | None
    refused: ProduceResult | None = None
    guard: VerificationGuard | None = None


class _PendingAppend(NamedTuple):
    """A partition with a started append."""

    partition: Partition
    append: ProduceResult | DelayedAppend


class SuccessResponse(NamedTuple):
    """Response to one request, if its batch is appended: ``frame`` takes correlation id and base
    offset.
    """

    log_start_offset: int
    frame: Callable[[int, int], bytes]


#: A request of a connection that was sent before with other records.
ProduceRepeat = Repeat[ProduceRequest, SuccessResponse]
#: Waits for the response of a request that was begun.
_Wait = Callable[[], Awaitable["ProduceResponse | None"]]


async def handle(request: ProduceRequest, call: Call) -> ProduceResponse | None:
    """Append the batches of all partitions, then wait for the acknowledgements that acks requires.

    Return None (no response) with acks 0.
    """
    begun = begin(request, call)
    if isinstance(begun, Deferred):
        # The connection's next request may start, since this batch has its place in the log.
        if call.place is not None:
            call.place.leave()
        return await begun
    return await begun() if callable(begun) else begun


def begin(
    request: ProduceRequest, call: Call
) -> ProduceResponse | Deferred[ProduceResponse] | _Wait:
    """Handle a request without a wait if possible; otherwise return what waits.

    A client without linger usually sends one batch per request. It is appended here.
    """
    records = _only_records(request)
    if records is not None and call.quotas is None and is_repeatable(request):
        result = _append_one(request, records, call)
        if isinstance(result, Deferred):
            return result.mapped(partial(_answer_one, request, call))
        if result is not None:
            return _answer_one(request, call, result)
    return _append_later(request, call)


def begin_repeat(
    repeat: ProduceRepeat, records: bytes, call: Call, correlation_id: int
) -> bytes | Deferred[bytes] | None:
    """Append the batch of a request that repeats an earlier one, as :func:`begin` does.

    Return the frame of the response, or what delivers it later. None if the batch was not
    appended, because it is not a simple one: :func:`begin` must handle the request.
    """
    result = _append_one(repeat.request, records, call)
    if result is None:
        return None
    if isinstance(result, Deferred):
        return result.mapped(lambda made: _response_frame(repeat, made, call, correlation_id))
    return _response_frame(repeat, result, call, correlation_id)


def _append_one(
    request: ProduceRequest, records: bytes, call: Call
) -> ProduceResult | Deferred[ProduceResult] | None:
    """Append the only batch of a request, and return its result, or what delivers it later.

    None if it is appended by :func:`_append_later`: it is part of a transaction, its records must
    be read in a thread, or an earlier batch waits for that.
    """
    if is_transactional(records):
        return None
    # Ids are resolved first, since authorization is by name.
    topic = request.topic_data[0]
    index = topic.partition_data[0].index
    name = _name_of(topic, call)
    refused = None
    if name is None:
        refused = _UNKNOWN_ID
    elif not call.client.may(Operation.WRITE, ResourceType.TOPIC, name):
        refused = _DENIED
    partition, result = _found(name or "", index, records, refused, call)
    if partition is None:
        return result
    client, acks = call.client, request.acks
    appended = produce.try_append(
        partition,
        records,
        acks=acks,
        peer=client.peer,
        is_early=client.batches_sent < FIRST_BATCHES,
    )
    if appended is None:
        return None
    client.batches_sent += 1
    committed = produce.committed_now(partition, appended, acks=acks)
    if committed is None:
        return produce.once_committed(
            partition,
            appended,
            timeout_ms=_timeout_ms(request, call),
            who=client.identity,
        )
    return committed


def _only_records(request: ProduceRequest) -> bytes | None:
    """Return the records of a request for one partition, None for more or without any."""
    if len(request.topic_data) == 1 and len(request.topic_data[0].partition_data) == 1:
        return request.topic_data[0].partition_data[0].records
    return None


def is_repeatable(request: ProduceRequest) -> bool:
    """Return whether :func:`begin_repeat` may handle a request that is the same but for records."""
    return (
        _only_records(request) is not None
        and request.acks in (ACKS_ALL, 1)
        and request.transactional_id is None
    )


def with_records(request: ProduceRequest, records: bytes) -> ProduceRequest:
    """Return a request for one partition with other records."""
    (topic,) = request.topic_data
    (data,) = topic.partition_data
    data = replace(data, records=Records(records))
    return replace(request, topic_data=(replace(topic, partition_data=(data,)),))


def _append_later(request: ProduceRequest, call: Call) -> _Wait:
    """Return the function that appends all batches.

    The connection's next Produce starts after these appends have started.
    """
    if call.place is None:
        call.place = call.client.order.take()
    return partial(_append_all, request, call)


async def _append_all(request: ProduceRequest, call: Call) -> ProduceResponse | None:
    """Append the batches of a request for any number of partitions; see :func:`handle`."""
    # Ids are resolved first, since authorization is by name.
    names = [_name_of(topic, call) for topic in request.topic_data]
    denied = await call.denied(Operation.WRITE, filter(None, names))
    entries: Sequence[_ProduceEntry] = await call.time_slice.collect(
        _entries(request, names, denied)
    )
    # Bytes count when they arrive, whatever becomes of them: they have used the network.
    if call.quotas is not None:
        call.quotas.use(QuotaKind.PRODUCE, sum(len(entry.records or b"") for entry in entries))
    # Only transactional batches need their coordinator, so other requests pay nothing. Later
    # requests of the connection wait meanwhile: their sequence numbers follow.
    if request.transactional_id is not None or any(map(_is_transactional, entries)):
        entries = await _verified(request, entries, call)
    results: list[ProduceResult] = []
    # Appends are tasks, so only a limited number of them exists at a time.
    for part in in_parts(entries):
        # The connection's next request may start after this one's last part has started.
        is_last = len(results) + len(part) == len(entries)
        results += await _append_part(request, part, call, call.place if is_last else None)
        # Let other requests run between the parts.
        if call.time_slice.is_over:
            await call.time_slice.renew()
    # With acks 0 an error can only be signalled by closing the connection.
    if request.acks == 0:
        _close_on_error(entries, results)
        return None
    return await _answer(request, call, results)


def _name_of(topic: TopicProduceData, call: Call) -> str | None:
    """Return the topic's name, None for an unknown id."""
    if call.version < _BY_ID_SINCE:
        return topic.name
    view = None if topic.topic_id is None else call.services.cluster.by_id(topic.topic_id)
    return None if view is None else view.name


def _entries(
    request: ProduceRequest, names: Sequence[str | None], denied: Set[str]
) -> Iterator[_ProduceEntry]:
    named = list(zip(names, request.topic_data, strict=True))
    twice = duplicates(
        [(name, data.index) for name, topic in named for data in topic.partition_data]
    )
    whole = None
    if request.acks not in (ACKS_ALL, 0, 1):
        message = f"acks={request.acks}: use 0, 1 or all"
        whole = ProduceResult(error=ErrorCode.invalid_required_acks, message=message)
    for name, topic in named:
        refused = whole or (_UNKNOWN_ID if name is None else _DENIED if name in denied else None)
        for data in topic.partition_data:
            repeated = twice and (name, data.index) in twice
            yield _ProduceEntry(
                name or "", data.index, data.records, refused or (_TWICE if repeated else None)
            )


async def _append_part(
    request: ProduceRequest, entries: Sequence[_ProduceEntry], call: Call, place: Place | None
) -> Sequence[ProduceResult]:
    """Start the appends of some partitions in order, then wait until all are acknowledged.

    With acks 0 and 1 the only wait is for batches whose records must be inspected. ``place`` is
    left once all have started, so that the connection's next request may start. None if more
    partitions of this request follow.
    """
    client, who, acks = call.client, call.client.identity, request.acks
    timeout_ms = _timeout_ms(request, call)
    begun: list[_PendingAppend | ProduceResult] = []
    # If one append raises or the request is cancelled, the others stop waiting in the purgatory.
    try:
        # Every append starts before the first one is waited for.
        for entry in entries:
            partition, refused = _found(
                entry.topic, entry.partition, entry.records or b"", entry.refused, call
            )
            if partition is None or entry.records is None:
                begun.append(refused)
                continue
            append = produce.begin(
                partition,
                entry.records,
                acks=acks,
                peer=client.peer,
                guard=entry.guard,
                # The first batches of a connection are always inspected.
                is_early=client.batches_sent < FIRST_BATCHES,
            )
            client.batches_sent += 1
            begun.append(_PendingAppend(partition, append))
        if place is not None:
            place.leave()
        # At most one append waits, so no tasks are needed.
        if acks != ACKS_ALL or len(begun) == 1:
            return [await _acknowledged(item, acks, timeout_ms, who) for item in begun]
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(_acknowledged(item, acks, timeout_ms, who)) for item in begun
            ]
        return [task.result() for task in tasks]
    finally:
        for item in begun:
            if isinstance(item, _PendingAppend) and isinstance(item.append, DelayedAppend):
                item.append.give_up()


def _timeout_ms(request: ProduceRequest, call: Call) -> int:
    return int(call.wait_s(milliseconds(request.timeout) / 1000) * 1000)


def _found(
    topic: str, index: int, records: bytes, refused: ProduceResult | None, call: Call
) -> tuple[Partition | None, ProduceResult]:
    """Return the partition to append to, or None with the result that rejects the request.

    ``refused``: the result, if it is rejected already. With a partition the result is
    INVALID_RECORD, for an entry without records.
    """
    if refused is not None:
        return None, refused
    # Coordinators write internal topics themselves. A client could corrupt their state.
    if topic in INTERNAL_TOPICS:
        return None, _INTERNAL
    replicas = call.services.replicas
    partition = replicas.get(topic, index)
    if partition is None:
        return None, ProduceResult(error=replicas.error_of(topic, index))
    # The codec is in the batch header, so no record is decompressed for this check.
    if call.version < _ZSTD_SINCE and codec_of(records) == Codec.ZSTD:
        return None, _ZSTD_TOO_EARLY
    return partition, _NOTHING


async def _acknowledged(
    begun: _PendingAppend | ProduceResult, acks: int, timeout_ms: int, who: Hashable
) -> ProduceResult:
    if isinstance(begun, ProduceResult):
        return begun
    return await produce.acknowledged(
        begun.partition, begun.append, acks=acks, timeout_ms=timeout_ms, who=who
    )


# ---------------------------------------------------------------- transactions


def _is_transactional(entry: _ProduceEntry) -> bool:
    return entry.records is not None and is_transactional(entry.records)


async def _verified(
    request: ProduceRequest, entries: Sequence[_ProduceEntry], call: Call
) -> Sequence[_ProduceEntry]:
    """Authorize and verify the request's transaction at its coordinator (KIP-890).

    Return the entries, the transactional ones with a guard for the log or with an error. Up to
    version 11 a producer has added the partitions before, and the coordinator confirms it.
    """
    # Rejected partitions, and those without records, need no verification.
    batches = {
        number: (TopicPartition(entry.topic, entry.partition), entry.records)
        for number, entry in enumerate(entries)
        if entry.records is not None and entry.refused is None
    }
    headers = {
        number: header
        for number, (_, records) in batches.items()
        if (header := _transactional_header(records)) is not None
    }
    if not headers:
        return entries
    transactional_id = request.transactional_id
    producers = {Producer(header.producer_id, header.producer_epoch) for header in headers.values()}
    verdicts: dict[int, VerificationGuard | ProduceResult]
    # A transactional batch without an id cannot be verified, so it counts as unauthorized.
    if not transactional_id or not call.client.may(
        Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
    ):
        verdicts = dict.fromkeys(batches, _ID_DENIED)
    # The coordinator is queried for one producer, so mixed batches cannot be verified.
    elif len(producers) > 1:
        verdicts = dict.fromkeys(headers, _TWO_PRODUCERS)
    else:
        found = await verification.verified(
            call.services.transactions.inquiries,
            transactional_id,
            producers.pop(),
            # Only the guards of partitions with verification still open lead to a query.
            {batches[number][0]: partial(_guard, *batches[number], call) for number in headers},
            adds=call.version >= _ADDS_SINCE,
        )
        verdicts = {
            number: _verdict(found[tp], call)
            for number in headers
            if (tp := batches[number][0]) in found
        }
    return [
        entry
        if (verdict := verdicts.get(number)) is None
        else replace(entry, refused=verdict)
        if isinstance(verdict, ProduceResult)
        else replace(entry, guard=verdict)
        for number, entry in enumerate(entries)
    ]


def _transactional_header(records: bytes) -> BatchHeader | None:
    """Return the header, or None if the batch is not transactional or not readable.

    The append reports the latter.
    """
    try:
        header = read_header(records)
    except CorruptBatch:
        return None
    return header if header.is_transactional else None


def _guard(tp: TopicPartition, records: bytes, call: Call) -> VerificationGuard | None:
    """Start a verification in the log. None if it is not needed, or if the append will fail."""
    # A partition that this broker does not lead fails in the append, with the right error.
    partition: Partition | None = call.services.replicas.get(*tp)
    if partition is None or partition.check_leader() is not ErrorCode.none:
        return None
    return appending.begin_verification(
        partition.log,
        records,
        partition.context.wall_ms(),
        supports_epoch_bump=call.version >= _ADDS_SINCE,
    )


def _verdict(found: VerificationGuard | ErrorCode, call: Call) -> VerificationGuard | ProduceResult:
    """Convert the coordinator's result into one for the client: the guard, or an error.

    Older clients do not retry some transient errors. All of them retry NOT_ENOUGH_REPLICAS without
    looking for another leader, as Kafka's ReplicaManager does.
    """
    if isinstance(found, VerificationGuard):
        return found
    if found in verification.PASSES:
        return ProduceResult(
            error=ErrorCode.not_enough_replicas,
            message=f"the transaction's coordinator is not available now: {found.name}",
        )
    return ProduceResult(
        error=verification.as_client_knows(found, knows_abortable=call.version >= _ABORTABLE_SINCE),
        message="the partition is not in the producer's transaction",
    )


# ---------------------------------------------------------------- response


def _close_on_error(entries: Sequence[_ProduceEntry], results: Sequence[ProduceResult]) -> None:
    """Close the connection on an error with acks 0.

    There is no answer to carry the error. As in Kafka, closing makes the client refresh its
    metadata.
    """
    for entry, result in zip(entries, results, strict=True):
        if result.error is not ErrorCode.none:
            raise CloseConnection(
                f"produce with acks=0 to {entry.topic}-{entry.partition}: {result.error.name}"
            )


def _response_frame(
    repeat: ProduceRepeat, result: ProduceResult, call: Call, correlation_id: int
) -> bytes:
    """Return the response to a request that repeats an earlier one.

    Successes differ in the base offset alone, as long as the log start is the same and records keep
    their own times. So the codec writes the first one only.
    """
    # A remembered response needs two other numbers.
    remembered = repeat.response
    is_plain = result.error is ErrorCode.none and result.log_append_time_ms < 0
    if (
        remembered is not None
        and is_plain
        and remembered.log_start_offset == result.log_start_offset
    ):
        return remembered.frame(correlation_id, result.base_offset)

    # Everything else is written by the codec.
    def encoded(result: ProduceResult) -> bytes:
        answer = _answer_one(repeat.request, call, result)
        answer_type = API.answer_type(call.version)
        return b"".join(encode_response_pieces(answer, correlation_id, answer_type))

    # Remember the first success. A second one shows where the base offset is in its bytes.
    frame = encoded(result)
    if is_plain:
        flipped = encoded(result._replace(base_offset=~result.base_offset))
        template = response_template(frame, flipped)
        repeat.response = SuccessResponse(result.log_start_offset, template)
    return frame


def _answer_one(request: ProduceRequest, call: Call, result: ProduceResult) -> ProduceResponse:
    """Return the response to a request for one partition. See :func:`_answer`."""
    (topic,) = request.topic_data
    leaders: set[int] = set()
    name, index = _name_of(topic, call) or "", topic.partition_data[0].index
    answer = TopicProduceResponse(
        name=topic.name,
        topic_id=topic.topic_id,
        partition_responses=(_partition(name, index, result, call, leaders),),
    )
    return ProduceResponse(responses=(answer,), node_endpoints=node_endpoints(call, leaders))


async def _answer(
    request: ProduceRequest, call: Call, results: Sequence[ProduceResult]
) -> ProduceResponse:
    """Return the response, with one result for each partition in the order of the request.

    From version 10 it contains the endpoints of the new leaders (KIP-951).
    """
    remaining = iter(results)
    leaders: set[int] = set()
    topics = []
    for topic in request.topic_data:
        name = _name_of(topic, call) or ""
        # ``_partition`` also collects the brokers whose endpoints the client needs.
        answers = await call.time_slice.collect(
            _partition(name, data.index, next(remaining), call, leaders)
            for data in topic.partition_data
        )
        topics.append(
            TopicProduceResponse(
                name=topic.name, topic_id=topic.topic_id, partition_responses=tuple(answers)
            )
        )
    return ProduceResponse(responses=tuple(topics), node_endpoints=node_endpoints(call, leaders))


def _partition(
    topic: str, index: int, result: ProduceResult, call: Call, leaders: set[int]
) -> PartitionProduceResponse:
    """Return the response of one partition, and add its new leader, if any, to ``leaders``."""
    leader = NO_LEADER
    # The answer contains the new leader, which saves a metadata request (KIP-951).
    if result.error is ErrorCode.not_leader_or_follower:
        leader = _leader(topic, index, call)
        leaders.add(leader.leader_id)
    return PartitionProduceResponse(
        index=index,
        error_code=result.error,
        base_offset=result.base_offset,
        # -1 unless the topic has ``message.timestamp.type=LogAppendTime``.
        log_append_time=timestamp(result.log_append_time_ms),
        log_start_offset=result.log_start_offset,
        # The invalid records of the batch, which the producer reports to the application (KIP-467).
        record_errors=tuple(
            BatchIndexAndErrorMessage(
                batch_index=record.batch_index, batch_index_error_message=record.message
            )
            for record in result.records
        ),
        error_message=result.message,
        current_leader=leader,
    )


def _leader(topic: str, index: int, call: Call) -> LeaderIdAndEpoch:
    view = call.services.cluster.topics.get(topic)
    row = None if view is None else view.partitions.get(index)
    if row is None:
        return NO_LEADER
    return LeaderIdAndEpoch(leader_id=row.leader, leader_epoch=row.leader_epoch)


API = Api(
    handle,
    versions=(3, 13),
    advertised_min=0,
    begin=begin,
    repeats=RepeatHandler(is_repeatable, with_records, begin_repeat),
    in_order=True,
)
