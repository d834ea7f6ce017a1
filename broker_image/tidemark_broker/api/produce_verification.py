"""Authorization and verification of transactional Produce requests (see
:mod:`transactions.verification`).

Up to Produce 11 a producer has added the partition itself, and the coordinator confirms it. From
version 12 the verification request adds the partition (KIP-890).
"""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from tidemark.records.batch import BatchHeader, CorruptBatch, read_header
from tidemark_broker.api.table import Call
from tidemark_broker.log import VerificationGuard, appending
from tidemark_broker.replication.partition import Partition
from tidemark_broker.replication.types import ProduceResult, TopicPartition
from tidemark_broker.security.acls import Operation, ResourceType
from tidemark_broker.transactions import verification
from tidemark_broker.transactions.core.metadata import Producer

#: From this version a Produce request adds its partitions to the transaction.
_ADDS_SINCE = 12
#: From this version clients understand TRANSACTION_ABORTABLE.
_ABORTABLE_SINCE = 11
_DENIED = ProduceResult(error=ErrorCode.transactional_id_authorization_failed)
_TWO_PRODUCERS = ProduceResult(
    error=ErrorCode.invalid_producer_id_mapping,
    message="a transactional request must have one producer id and epoch",
)


class TransactionalBatch(NamedTuple):
    tp: TopicPartition
    records: bytes


#: Proof for the log that the transaction includes the partition, or the error for the client.
Verdict = VerificationGuard | ProduceResult


async def verified(
    batches: Mapping[int, TransactionalBatch], transactional_id: str | None, call: Call
) -> Mapping[int, Verdict]:
    """Authorize and verify the transactional batches of a Produce request.

    ``batches`` are by number of the partition in the request. Return for each transactional batch
    the guard that the log requires, or the error. A batch that needs neither is left out.
    """
    headers = {
        number: header
        for number, batch in batches.items()
        if (header := _transactional_header(batch.records)) is not None
    }
    if not headers:
        return {}
    # A transactional batch without an id cannot be verified, so it counts as unauthorized.
    may = transactional_id and call.client.may(
        Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
    )
    if not may or transactional_id is None:
        return dict.fromkeys(batches, _DENIED)
    # The coordinator is queried for one producer, so mixed batches cannot be verified.
    producers = {Producer(header.producer_id, header.producer_epoch) for header in headers.values()}
    if len(producers) > 1:
        return dict.fromkeys(headers, _TWO_PRODUCERS)
    found = await verification.verified(
        call.services.transactions.inquiries,
        transactional_id,
        producers.pop(),
        # Only the guards of partitions with verification still open lead to a query.
        {batches[number].tp: partial(_guard, batches[number], call) for number in headers},
        adds=call.version >= _ADDS_SINCE,
    )
    return {
        number: _verdict(found[batches[number].tp], call)
        for number in headers
        if batches[number].tp in found
    }


def _transactional_header(records: bytes) -> BatchHeader | None:
    """Return the header, or None if the batch is not transactional or not readable.

    The append reports the latter.
    """
    try:
        header = read_header(records)
    except CorruptBatch:
        return None
    return header if header.is_transactional else None


def _guard(batch: TransactionalBatch, call: Call) -> VerificationGuard | None:
    """Start a verification in the log. None if it is not needed, or if the append will fail."""
    # A partition that this broker does not lead fails in the append, with the right error.
    partition: Partition | None = call.services.replicas.get(*batch.tp)
    if partition is None or partition.check_leader() is not ErrorCode.none:
        return None
    return appending.begin_verification(
        partition.log,
        batch.records,
        partition.context.wall_ms(),
        supports_epoch_bump=call.version >= _ADDS_SINCE,
    )


def _verdict(found: VerificationGuard | ErrorCode, call: Call) -> Verdict:
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
