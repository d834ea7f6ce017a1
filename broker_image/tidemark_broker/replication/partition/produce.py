"""Appends on the leader, with acks 0, 1 and all.

acks=all is rejected before the append while the committed ISR is too small. Otherwise the
result waits until the high watermark has passed the batch. If the ISR became too small meanwhile,
the data stays and the answer says so.
"""

import asyncio
from collections.abc import Callable, Hashable
from functools import partial

from kio.schema.errors import ErrorCode

from tidemark.records.control import EndMarker
from tidemark_broker.admission.arrival_order import Place
from tidemark_broker.log import (
    AppendInfo,
    AppendOrigin,
    BatchContents,
    BatchTooLarge,
    CorruptRecords,
    LogError,
    NoBatch,
    RecordsInDoubt,
    RecordTooLarge,
    StorageError,
    TooManyProducers,
    VerificationGuard,
    appending,
    batch_contents,
    is_quickly_read,
    is_sampled,
)
from tidemark_broker.purgatory import PartitionChange
from tidemark_broker.replication.partition import isr_and_high_watermark
from tidemark_broker.replication.partition.partition import Partition
from tidemark_broker.replication.threads import ThreadsBusy, in_record_thread
from tidemark_broker.replication.types import NO_ERROR, ProduceResult
from tidemark_broker.tasks import Deferred

ACKS_ALL = -1


async def append(
    partition: Partition,
    data: bytes,
    *,
    acks: int,
    timeout_ms: int,
    peer: str = "",
    origin: AppendOrigin = AppendOrigin.CLIENT,
    guard: VerificationGuard | None = None,
) -> ProduceResult:
    """Append a batch as leader; with acks -1 wait until it is committed.

    Concurrent calls of one ``peer`` (a connection) append in the order of the calls. ``timeout_ms``
    limits the wait. ``guard``: see :func:`appending.append_as_leader`.
    """
    # No await before this call: it takes the batch's place in the order.
    begun = begin(partition, data, acks=acks, peer=peer, origin=origin, guard=guard)
    return await acknowledged(partition, begun, acks=acks, timeout_ms=timeout_ms)


def begin(
    partition: Partition,
    data: bytes,
    *,
    acks: int,
    peer: str,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    guard: VerificationGuard | None = None,
    is_early: bool | None = None,
) -> "ProduceResult | DelayedAppend":
    """Append a batch as leader now, or queue it if its records must be read first.

    A batch is also queued if an earlier one of the same ``peer`` (a connection) is. Return the
    result of the append, or the queued batch for :func:`acknowledged`.

    ``guard``: see :func:`appending.append_as_leader`. ``is_early``: see :func:`is_sampled`; None
    for batches of the broker itself, which are not read.
    """
    reads = is_early is not None and _must_read(partition, data, is_early=is_early)
    append = partial(_append, partition, data, acks, reads=reads, origin=origin, guard=guard)
    # A batch of a peer with earlier waiting batches must queue after them.
    if peer in partition.append_order:
        return DelayedAppend(partition, data, append, partition.append_order.take(peer))
    # The records of a large batch must be read first, in a thread.
    try:
        return append()
    except RecordsInDoubt:
        return DelayedAppend(partition, data, append, partition.append_order.take(peer))


def try_append(
    partition: Partition, data: bytes, *, acks: int, peer: str, is_early: bool
) -> ProduceResult | None:
    """Append a client's batch as :func:`begin` does. Return None, without appending, if it has to
    wait.

    :func:`committed_now` then returns the final result if the batch is committed already.
    """
    is_quick = is_quickly_read(data)
    needs_thread = not is_quick and _must_read(partition, data, is_early=is_early)
    if needs_thread or peer in partition.append_order:
        return None
    # The header of a larger batch may show that its records must be read.
    try:
        return _append(partition, data, acks, reads=is_quick)
    except RecordsInDoubt:
        return None


def _must_read(partition: Partition, data: bytes, *, is_early: bool) -> bool:
    """Return whether the records are read to check them.

    Those of compacted topics and of small batches always are. Of the other batches a sample is
    read. It is skipped while many batches wait for the threads, since a client with slow batches
    would otherwise delay the first batches of all others.
    """
    return (
        partition.log.config.compacts
        or is_quickly_read(data)
        or (not in_record_thread.is_busy and is_sampled(data, is_early=is_early))
    )


def _append(
    partition: Partition,
    data: bytes,
    acks: int,
    *,
    reads: bool,
    contents: BatchContents | None = None,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    guard: VerificationGuard | None = None,
) -> ProduceResult:
    """Append a batch if the replica may accept it; return the result for the producer.

    ``contents`` are its records if they were read. Raises :class:`RecordsInDoubt` if they must be
    read first. Refused batches are remembered, so that no later one of the producer overtakes them.
    """
    # Retryable refusals come first: the batch itself is not examined for them.
    refusal = _refusal(partition, acks)
    if refusal is not None:
        return _note_refused(partition, data, refusal)
    # Checked only if any batch was refused lately, which is rare.
    if len(partition.context.refused):
        refusal = _overtaking(partition, data)
        if refusal is not None:
            return refusal
    # The log checks the batch, stamps it with its offset and writes it.
    try:
        info = appending.append_as_leader(
            partition.log,
            data,
            leader_epoch=partition.leader_epoch,
            now_ms=partition.context.wall_ms(),
            contents=contents,
            origin=origin,
            guard=guard,
            reads=reads,
            commits=isr_and_high_watermark.commits_alone(partition),
        )
    except LogError as error:
        return _failed(partition, data, error)
    return _appended(partition, info)


def begin_marker(
    partition: Partition,
    marker: EndMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    transaction_version: int,
) -> ProduceResult:
    """Append the commit or abort marker that ends a producer's transaction (KIP-98), as leader.

    It is appended at once; :func:`acknowledged` waits until it is committed.
    ``transaction_version``: version of the transaction protocol (KIP-890).
    """
    # Coordinators never wait for fewer replicas: a lost marker would leave the transaction open.
    refusal = _refusal(partition, ACKS_ALL)
    if refusal is not None:
        return refusal
    try:
        info = appending.append_marker(
            partition.log,
            marker,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transaction_version=transaction_version,
            leader_epoch=partition.leader_epoch,
            now_ms=partition.context.wall_ms(),
        )
    except LogError as error:
        return _failed(partition, b"", error)
    return _appended(partition, info)


async def acknowledged(
    partition: Partition,
    begun: "ProduceResult | DelayedAppend",
    *,
    acks: int,
    timeout_ms: int,
    who: Hashable = None,
) -> ProduceResult:
    """Wait for the acknowledgement that ``acks`` requires, and return the final result.

    ``begun``: the result of :func:`begin`. With acks -1 this waits until the batch is committed.
    ``who``: the client, for the purgatory's limits; None for a broker.
    """
    # Refused batches and acks 0 or 1 need no wait.
    appended = await begun.finish() if isinstance(begun, DelayedAppend) else begun
    if acks != ACKS_ALL or appended.error is not NO_ERROR:
        return appended
    return await once_committed(partition, appended, timeout_ms=timeout_ms, who=who)


def committed_now(
    partition: Partition, appended: ProduceResult, *, acks: int
) -> ProduceResult | None:
    """Return the final result of a batch that needs no further wait, None if it must wait."""
    # The ISR is large enough for acks=all, because it was before the append in this turn.
    if (
        acks != ACKS_ALL
        or appended.error is not NO_ERROR
        or partition.log.bounds.high_watermark >= appended.end_offset
    ):
        return appended
    return None


class DelayedAppend:
    """Batch whose records must be read first, in a thread, or one that waits for such a batch.

    :meth:`finish` or :meth:`give_up` it.
    """

    def __init__(
        self, partition: Partition, data: bytes, append: Callable[..., ProduceResult], place: Place
    ) -> None:
        """Create it for the batch ``data``. ``append`` is :func:`_append` of that batch."""
        self._partition = partition
        self._data = data
        self._append = append
        self._place = place

    def give_up(self) -> None:
        """Drop the batch, unless it was appended."""
        self._place.leave()

    async def finish(self) -> ProduceResult:
        """Wait until the peer's earlier batches are appended, then append this one.

        Its records are read in a thread if the append needs them.
        """
        partition, data = self._partition, self._data
        try:
            await self._place.wait()
            try:
                # The first attempt shows whether the records are needed, now that predecessors are
                # appended.
                return self._append()
            except RecordsInDoubt:
                contents = await in_record_thread(batch_contents, data)
                return self._append(contents=contents)
        except ThreadsBusy as error:
            # Clients retry REQUEST_TIMED_OUT; the batch was not appended.
            busy = ProduceResult(error=ErrorCode.request_timed_out, message=str(error))
            return _note_refused(partition, data, busy)
        except LogError as error:
            return _refused(partition, error)
        finally:
            self._place.leave()


def _refusal(partition: Partition, acks: int) -> ProduceResult | None:
    """Return the result for a batch that the replica cannot accept now, None if it can."""
    error = partition.check_leader()
    if error is not NO_ERROR:
        return ProduceResult(error=error)
    if acks == ACKS_ALL and partition.under_min_isr:
        return ProduceResult(
            error=ErrorCode.not_enough_replicas,
            message=(
                f"the ISR {list(partition.isr)} is smaller than the effective min.insync.replicas, "
                f"{partition.min_isr}"
            ),
        )
    # A partition whose disk fails is retried after a pause, not with every batch.
    if not partition.context.failures.may_try(partition.tp, partition.context.monotonic()):
        return ProduceResult(error=ErrorCode.kafka_storage_error)
    return None


#: Errors whose answers have no log start, as in Kafka's ``ReplicaManager`` and ``KafkaApis``.
_WITHOUT_LOG_START = (BatchTooLarge, CorruptRecords, NoBatch, RecordTooLarge, StorageError)


def _refused(partition: Partition, error: LogError) -> ProduceResult:
    has_log_start = not isinstance(error, _WITHOUT_LOG_START)
    return ProduceResult(
        error=error.error_code,
        message=str(error),
        records=error.records,
        log_start_offset=partition.log_start_offset if has_log_start else -1,
    )


def _failed(partition: Partition, data: bytes, error: LogError) -> ProduceResult:
    """Return the result of a batch that the log has refused; ``data`` is b"" for a marker."""
    context = partition.context
    if isinstance(error, StorageError):
        partition.storage_failed(error)
        refusal = ProduceResult(error=error.error_code, message=str(error))
        return _note_refused(partition, data, refusal)
    refusal = _refused(partition, error)
    # The producer's next batch must not be taken for its first once there is room again.
    if isinstance(error, TooManyProducers):
        context.refused.note_new_producer(partition.tp, str(error), context.monotonic())
        return _note_refused(partition, data, refusal)
    return refusal


def _appended(partition: Partition, info: AppendInfo) -> ProduceResult:
    """Notify the operations that wait for an append, and return its result."""
    context, bounds = partition.context, partition.log.bounds
    # Wake fetches before the high watermark is recomputed: followers may proceed.
    context.failures.succeeded(partition.tp)
    context.purgatory.notify(partition.log_end_key)
    if info.rolled:
        context.purgatory.notify((PartitionChange.SEGMENT_ROLLED, partition.tp))
    isr_and_high_watermark.after_append(partition)
    return ProduceResult(
        error=NO_ERROR,
        base_offset=info.base_offset,
        log_append_time_ms=info.log_append_time_ms,
        log_start_offset=bounds.log_start,
        leader_epoch=partition.leader_epoch,
        end_offset=info.next_offset,
    )


def _note_refused(partition: Partition, data: bytes, refusal: ProduceResult) -> ProduceResult:
    """Note a refused batch that was not examined.

    If the log knows the producer, a gap in its sequence numbers shows that the batch is missing.
    """
    refused, context = partition.context.refused, partition.context
    refused.note(partition.tp, data, context.monotonic(), partition.log.producers)
    return refusal


def _overtaking(partition: Partition, data: bytes) -> ProduceResult | None:
    """Return the error for a batch whose predecessor was refused and not retried, else None."""
    context = partition.context
    # Otherwise the client would take this batch's success for that of the missing one.
    missing = context.refused.before(
        partition.tp, data, context.monotonic(), partition.log.producers
    )
    if missing is None:
        return None
    return ProduceResult(
        error=ErrorCode.out_of_order_sequence_number,
        message=f"sequence number {missing} of this producer was refused before: send it first",
        log_start_offset=partition.log_start_offset,
    )


def once_committed(
    partition: Partition, appended: ProduceResult, *, timeout_ms: int, who: Hashable = None
) -> Deferred[ProduceResult]:
    """Wait until an appended batch is committed, and deliver the result for acks=all.

    It is delivered in the turn of the loop that wakes the waiting operations. ``timeout_ms``: the
    request's timeout. ``who``: the client, for the purgatory's limits. After an error the batch
    stays in the log, as in Kafka.
    """
    later: Deferred[ProduceResult] = Deferred()

    def is_led() -> bool:
        return partition.is_leader and partition.leader_epoch == appended.leader_epoch

    # A lost leadership also ends the wait: the new leader may have truncated the batch.
    def satisfied() -> bool:
        return not is_led() or partition.log.high_watermark >= appended.end_offset

    def ended(in_time: bool) -> None:
        if not is_led():
            result = appended._replace(error=ErrorCode.not_leader_or_follower, base_offset=-1)
        elif not in_time:
            result = appended._replace(error=ErrorCode.request_timed_out, base_offset=-1)
        else:
            result = _result_once_committed(partition, appended)
        later.deliver(result)

    purgatory, is_over = partition.context.purgatory, satisfied()
    operation = None
    if not is_over:
        keys = (partition.high_watermark_key,)
        timeout_s = max(timeout_ms, 0) / 1000
        operation = purgatory.when(keys, satisfied, timeout_s, ended, later.fail, who=who)
    # It is committed already, or the purgatory is full.
    if operation is None:
        later.given_up_by(asyncio.get_running_loop().call_soon(ended, is_over).cancel)
    else:
        later.given_up_by(partial(purgatory.give_up, operation))
    return later


def _result_once_committed(partition: Partition, appended: ProduceResult) -> ProduceResult:
    """Return the result of a committed batch: an error if the ISR has become too small for it."""
    leader = partition.leader
    if leader is not None and partition.is_below_min_isr(len(leader.maximal_isr)):
        return appended._replace(error=ErrorCode.not_enough_replicas_after_append, base_offset=-1)
    return appended
