"""Before the first records of a transaction are appended to a partition, its coordinator is asked
(KIP-890), else they could open, too late, a transaction that nobody ends.

A guard is taken from the log, the coordinator is asked, and the guard is shown with the records: a
marker that came in between has made it void. While the markers of the transaction before are being
written that is bound to happen; the coordinator answers CONCURRENT_TRANSACTIONS once they are, and
it begins anew. So it does where the marker came before the coordinator was heard: what it says then
is of the next transaction, and an append with the void guard would be INVALID_TXN_STATE, which ends
a producer that has done nothing wrong.
"""

from collections.abc import Callable, Mapping

from kio.schema.errors import ErrorCode

from tidemark_broker.log import VerificationGuard
from tidemark_broker.replication.types import TopicPartition
from tidemark_broker.transactions.core.metadata import Producer
from tidemark_broker.transactions.inquiries import Inquiries

#: How often it begins anew: a coordinator that writes markers waits a tenth of a second first.
_TRIES = 5
#: What passes by itself, once the transaction's coordinator has been found or is done.
PASSES = frozenset(
    {
        ErrorCode.concurrent_transactions,
        ErrorCode.network_exception,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    }
)

#: Takes one from a log; None: nobody has to be asked.
TakeGuard = Callable[[], VerificationGuard | None]


async def verified(
    inquiries: Inquiries,
    transactional_id: str,
    producer: Producer,
    partitions: Mapping[TopicPartition, TakeGuard],
    *,
    adds: bool,
) -> Mapping[TopicPartition, VerificationGuard | ErrorCode]:
    """The guard to show, or the coordinator's error code; neither where nobody had to be asked.
    ``adds``: those that are not in the transaction are added to it."""
    found: dict[TopicPartition, VerificationGuard | ErrorCode] = {}
    for is_last in (*[False] * _TRIES, True):
        guards = {tp: guard for tp, take in partitions.items() if (guard := take()) is not None}
        if not guards:
            break
        errors = await inquiries.ask(transactional_id, producer, [*guards], adds=adds)
        again = {}
        for tp, guard in guards.items():
            error = errors[tp]
            if error is ErrorCode.none and guard.is_void:
                error = ErrorCode.concurrent_transactions
            if error is ErrorCode.concurrent_transactions and not is_last:
                again[tp] = partitions[tp]
            else:
                found[tp] = guard if error is ErrorCode.none else error
        partitions = again
    return found


def as_client_knows(error: ErrorCode, *, knows_abortable: bool) -> ErrorCode:
    """Of what does not pass: as a client is told it that has not asked the coordinator itself."""
    if error is ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch
    if error is ErrorCode.transaction_abortable and not knows_abortable:
        return ErrorCode.invalid_txn_state
    return error
