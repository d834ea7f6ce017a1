"""Verification of transactions before their first records are appended (KIP-890).

Without it late records could open a transaction that never ends. A guard is taken from the log, the
coordinator is queried, and the guard is passed with the records. A marker in between voids the
guard. While markers of the previous transaction are being written this is bound to happen: the
coordinator answers CONCURRENT_TRANSACTIONS once they are written, and the verification restarts. It
also restarts if a marker arrived before the answer. The answer is then about the next transaction,
and an append with the void guard would fail with INVALID_TXN_STATE, which is fatal for a correct
producer.
"""

from collections.abc import Callable, Mapping

from kio.schema.errors import ErrorCode

from tidemark_broker.log import VerificationGuard
from tidemark_broker.replication.types import TopicPartition
from tidemark_broker.transactions.core.metadata import Producer
from tidemark_broker.transactions.inquiries import Inquiries

#: Number of restarts. A coordinator that writes markers first waits a tenth of a second.
_TRIES = 5
#: Transient errors, which end when the coordinator is found or has finished.
PASSES = frozenset(
    {
        ErrorCode.concurrent_transactions,
        ErrorCode.network_exception,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    }
)

#: Takes a guard from a log; None if no query is needed.
TakeGuard = Callable[[], VerificationGuard | None]


async def verified(
    inquiries: Inquiries,
    transactional_id: str,
    producer: Producer,
    partitions: Mapping[TopicPartition, TakeGuard],
    *,
    adds: bool,
) -> Mapping[TopicPartition, VerificationGuard | ErrorCode]:
    """Return a guard, or the coordinator's error code, for each partition that needs a query.

    A guard is a token of the partition's log. It permits the append, unless a marker is written
    after the guard was taken. ``partitions``: how to take it, by partition. ``adds``: partitions
    that are not in the transaction are added to it.
    """
    found: dict[TopicPartition, VerificationGuard | ErrorCode] = {}
    # Repeat for partitions that are concurrently changed; the last attempt returns the error.
    for is_last in (*[False] * _TRIES, True):
        # Guards are taken before the query, so that a marker during the query voids them.
        guards = {tp: guard for tp, take in partitions.items() if (guard := take()) is not None}
        if not guards:
            break
        errors = await inquiries.query(transactional_id, producer, [*guards], adds=adds)
        again = {}
        for tp, guard in guards.items():
            error = errors[tp]
            # A marker arrived in between, so the answer is about the next transaction.
            if error is ErrorCode.none and guard.is_void:
                error = ErrorCode.concurrent_transactions
            if error is ErrorCode.concurrent_transactions and not is_last:
                again[tp] = partitions[tp]
            else:
                found[tp] = guard if error is ErrorCode.none else error
        partitions = again
    return found


def as_client_knows(error: ErrorCode, *, knows_abortable: bool) -> ErrorCode:
    """Convert a permanent error for a client that has not queried the coordinator itself."""
    # As in Kafka's AddPartitionsToTxnManager: producers expect this code in a Produce answer.
    if error is ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch
    if error is ErrorCode.transaction_abortable and not knows_abortable:
        return ErrorCode.invalid_txn_state
    return error
