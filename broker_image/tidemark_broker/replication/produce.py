"""Appending as leader: acks 0, 1 and all.

acks=all is refused before the append while the committed ISR is too small, and waits in the
purgatory until the high watermark has passed what was appended. If the ISR became too small
meanwhile the data stays and the answer says so.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from tidemark_broker.log import (
    LogError,
    RecordTimes,
    StorageError,
    TimestampsInDoubt,
    record_times,
)
from tidemark_broker.replication.threads import ThreadsBusy, in_lookup_thread
from tidemark_broker.replication.types import ProduceResult

if TYPE_CHECKING:
    from tidemark_broker.replication.partition import Partition

ACKS_ALL = -1


async def append(
    partition: "Partition", data: bytes, *, acks: int, timeout_ms: int
) -> ProduceResult:
    """Append batches as leader; with acks -1 wait until they are committed.

    Nothing is awaited before the append, so calls made in order append in order; where a batch has
    to be looked into first, those behind it wait for their turn.
    """
    if partition.appends_in_turn:
        appended = await _append_in_turn(partition, data, acks)
    else:
        try:
            appended = _append(partition, data, acks)
        except TimestampsInDoubt:
            appended = await _append_in_turn(partition, data, acks)
    if acks != ACKS_ALL or appended.error is not ErrorCode.none:
        return appended
    return await _committed(partition, appended, partition.log.next_offset, timeout_ms)


async def _append_in_turn(partition: "Partition", data: bytes, acks: int) -> ProduceResult:
    """Append a batch whose records must be looked at first, in a thread, or one that came behind
    such a batch: they keep their order."""
    partition.appends_in_turn += 1
    try:
        async with partition.append_turn:
            try:
                return _append(partition, data, acks)
            except TimestampsInDoubt:
                return _append(partition, data, acks, await in_lookup_thread(record_times, data))
    except ThreadsBusy as error:
        return ProduceResult(error=ErrorCode.request_timed_out, message=str(error))
    except LogError as error:
        return ProduceResult(error=error.error_code, message=str(error))
    finally:
        partition.appends_in_turn -= 1


def _refusal(partition: "Partition", acks: int) -> ProduceResult | None:
    error = partition.check_leader()
    if error is not ErrorCode.none:
        return ProduceResult(error=error)
    if acks == ACKS_ALL and partition.under_min_isr:
        return ProduceResult(
            error=ErrorCode.not_enough_replicas,
            message=f"the ISR {list(partition.isr)} is smaller than {partition.min_isr}",
        )
    return None


def _append(
    partition: "Partition", data: bytes, acks: int, times: RecordTimes | None = None
) -> ProduceResult:
    refusal = _refusal(partition, acks)
    if refusal is not None:
        return refusal
    context = partition.context
    if not context.failures.may_try(partition.tp, context.monotonic()):
        return ProduceResult(error=ErrorCode.kafka_storage_error)
    try:
        info = partition.log.append_as_leader(
            data, leader_epoch=partition.leader_epoch, now_ms=context.wall_ms(), times=times
        )
    except StorageError as error:
        context.failures.failed(partition.tp, error, context.monotonic())
        return ProduceResult(error=error.error_code, message=str(error))
    except LogError as error:
        return ProduceResult(error=error.error_code, message=str(error))
    context.failures.succeeded(partition.tp)
    context.purgatory.notify(("leo", partition.tp))
    if info.rolled:
        context.purgatory.notify(("roll", partition.tp))
    partition.advance_high_watermark()
    return ProduceResult(
        error=ErrorCode.none,
        base_offset=info.base_offset,
        log_append_time_ms=info.log_append_time_ms,
        log_start_offset=partition.log.log_start_offset,
    )


async def _committed(
    partition: "Partition", appended: ProduceResult, end_offset: int, timeout_ms: int
) -> ProduceResult:
    epoch = partition.leader_epoch

    def led() -> bool:
        return partition.is_leader and partition.leader_epoch == epoch

    def satisfied() -> bool:
        return not led() or partition.log.high_watermark >= end_offset

    in_time = await partition.context.purgatory.wait(
        [("hw", partition.tp)], satisfied, timeout_ms / 1000
    )
    if not led():
        return replace(appended, error=ErrorCode.not_leader_or_follower, base_offset=-1)
    if not in_time:
        return replace(appended, error=ErrorCode.request_timed_out, base_offset=-1)
    if partition.leader is not None and len(partition.leader.maximal_isr) < partition.min_isr:
        return replace(appended, error=ErrorCode.not_enough_replicas_after_append, base_offset=-1)
    return appended
