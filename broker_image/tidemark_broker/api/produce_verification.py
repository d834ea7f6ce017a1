"""Produce of a transaction: who may, and what its coordinator says (see
:mod:`transactions.verification`).

Up to Produce 11 a producer has told the coordinator itself, which is asked to confirm it; from
version 12 on the question adds the partition.
"""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from tidemark.records.batch import BatchHeader, CorruptBatch, read_header
from tidemark_broker.api.table import Call
from tidemark_broker.log import VerificationGuard
from tidemark_broker.replication.partition import Partition
from tidemark_broker.replication.types import ProduceResult, TopicPartition
from tidemark_broker.security.acls import Operation, ResourceType
from tidemark_broker.transactions import verification
from tidemark_broker.transactions.core.metadata import Producer

_ADDS_SINCE = 12
#: TRANSACTION_ABORTABLE is understood since.
_ABORTABLE_SINCE = 11
_DENIED = ProduceResult(error=ErrorCode.transactional_id_authorization_failed)
_TWO_PRODUCERS = ProduceResult(
    error=ErrorCode.invalid_producer_id_mapping,
    message="a request of a transaction has records of one producer id and epoch",
)


class Batch(NamedTuple):
    """One partition's records of a request."""

    tp: TopicPartition
    records: bytes


Verdict = VerificationGuard | ProduceResult


async def verified(
    batches: Mapping[int, Batch], transactional_id: str | None, call: Call
) -> Mapping[int, Verdict]:
    """For those of ``batches`` that may not be appended as they are: the guard to show, or why
    not."""
    headers = {
        number: header
        for number, batch in batches.items()
        if (header := _transactional_header(batch.records)) is not None
    }
    if not headers:
        return {}
    may = transactional_id and call.client.may(
        Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
    )
    if not may or transactional_id is None:
        return dict.fromkeys(batches, _DENIED)
    producers = {Producer(each.producer_id, each.producer_epoch) for each in headers.values()}
    if len(producers) > 1:
        return dict.fromkeys(headers, _TWO_PRODUCERS)
    found = await verification.verified(
        call.services.transactions.inquiries,
        transactional_id,
        producers.pop(),
        {batches[number].tp: partial(_guard, batches[number], call) for number in headers},
        adds=call.version >= _ADDS_SINCE,
    )
    return {
        number: _verdict(found[batches[number].tp], call)
        for number in headers
        if batches[number].tp in found
    }


def _transactional_header(records: bytes) -> BatchHeader | None:
    """None: it is in no transaction, or its header cannot be read, as the append says."""
    try:
        header = read_header(records)
    except CorruptBatch:
        return None
    return header if header.is_transactional else None


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


def _verdict(found: VerificationGuard | ErrorCode, call: Call) -> Verdict:
    """Older clients do not try again after some of what passes by itself; NOT_ENOUGH_REPLICAS they
    all retry, without looking for another leader (as Kafka's ReplicaManager has it)."""
    if isinstance(found, VerificationGuard):
        return found
    if found in verification.PASSES:
        return ProduceResult(
            error=ErrorCode.not_enough_replicas,
            message=f"the transaction's coordinator cannot be asked now: {found.name}",
        )
    return ProduceResult(
        error=verification.as_client_knows(found, knows_abortable=call.version >= _ABORTABLE_SINCE),
        message="the partition is not in the producer's transaction",
    )
