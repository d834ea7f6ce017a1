"""Produce of a transaction: the coordinator is asked before the first records of it are appended in
a partition (KIP-890), else they could open, too late, a transaction that nobody ends.

Up to Produce 11 a producer has told the coordinator itself, which is asked to confirm it; from
version 12 on the question adds the partition.
"""

from collections.abc import Mapping
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from tidemark.records.batch import BatchHeader, CorruptBatch, read_header
from tidemark_broker.api.table import Call
from tidemark_broker.log import VerificationGuard
from tidemark_broker.replication.partition import Partition
from tidemark_broker.replication.types import ProduceResult, TopicPartition
from tidemark_broker.security.acls import Operation, ResourceType
from tidemark_broker.transactions.core.metadata import Producer

_ADDS_SINCE = 12
#: TRANSACTION_ABORTABLE is understood since.
_ABORTABLE_SINCE = 11
#: How often a coordinator that writes markers is asked anew: it waits a tenth of a second first.
_TRIES = 5
_DENIED = ProduceResult(error=ErrorCode.transactional_id_authorization_failed)
_TWO_PRODUCERS = ProduceResult(
    error=ErrorCode.invalid_producer_id_mapping,
    message="a request of a transaction has records of one producer id and epoch",
)
#: What passes by itself. Older clients do not try again after some of these; NOT_ENOUGH_REPLICAS
#: they all retry, without looking for another leader (as Kafka's ReplicaManager has it).
_PASSES = frozenset(
    {
        ErrorCode.concurrent_transactions,
        ErrorCode.network_exception,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    }
)


class Batch(NamedTuple):
    """One partition's records of a request."""

    tp: TopicPartition
    records: bytes


Verdict = VerificationGuard | ProduceResult


def transactional_header(records: bytes) -> BatchHeader | None:
    """Of a batch that is part of a transaction; None: it is not, or its header cannot be read."""
    try:
        header = read_header(records)
    except CorruptBatch:
        return None
    return header if header.is_transactional else None


async def verified(
    batches: Mapping[int, Batch], transactional_id: str | None, call: Call
) -> Mapping[int, Verdict]:
    """For those of ``batches`` that may not be appended as they are: the guard to show, or why
    not."""
    headers = {
        number: header
        for number, batch in batches.items()
        if (header := transactional_header(batch.records)) is not None
    }
    if not headers:
        return {}
    may = transactional_id and call.client.may(
        Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
    )
    if not may or transactional_id is None:
        return dict.fromkeys(batches, _DENIED)
    if len({(each.producer_id, each.producer_epoch) for each in headers.values()}) > 1:
        return dict.fromkeys(headers, _TWO_PRODUCERS)
    header = next(iter(headers.values()))
    producer = Producer(header.producer_id, header.producer_epoch)
    transactional = {number: batches[number] for number in headers}
    return await _asked(transactional, producer, transactional_id, call)


def _guard(batch: Batch, call: Call) -> VerificationGuard | None:
    """None: nobody has to be asked, or the append says what is wrong."""
    partition: Partition | None = call.services.replicas.get(*batch.tp)
    if partition is None or partition.check_leader() is not ErrorCode.none:
        return None
    return partition.log.begin_verification(
        batch.records,
        partition.context.wall_ms(),
        supports_epoch_bump=call.version >= _ADDS_SINCE,
    )


async def _asked(
    batches: Mapping[int, Batch], producer: Producer, transactional_id: str, call: Call
) -> Mapping[int, Verdict]:
    """While the markers of the transaction before are being written each partition begins anew: one
    of them makes its guard void (the coordinator answers once that is over)."""
    verdicts: dict[int, Verdict] = {}
    for is_last in (*[False] * _TRIES, True):
        guards = {
            number: guard
            for number, batch in batches.items()
            if (guard := _guard(batch, call)) is not None
        }
        if not guards:
            break
        errors = await call.services.transactions.inquiries.ask(
            transactional_id,
            producer,
            [batches[number].tp for number in guards],
            adds=call.version >= _ADDS_SINCE,
        )
        again = {}
        for number, guard in guards.items():
            batch = batches[number]
            error = errors[batch.tp]
            if error is ErrorCode.concurrent_transactions and not is_last:
                again[number] = batch
            else:
                verdicts[number] = _verdict(guard, error, call)
        batches = again
    return verdicts


def _verdict(guard: VerificationGuard, error: ErrorCode, call: Call) -> Verdict:
    if error is ErrorCode.none:
        return guard
    if error in _PASSES:
        return ProduceResult(
            error=ErrorCode.not_enough_replicas,
            message=f"the transaction's coordinator cannot be asked now: {error.name}",
        )
    if error is ErrorCode.producer_fenced:
        error = ErrorCode.invalid_producer_epoch
    if error is ErrorCode.transaction_abortable and call.version < _ABORTABLE_SINCE:
        error = ErrorCode.invalid_txn_state
    return ProduceResult(error=error, message="the partition is not in the producer's transaction")
