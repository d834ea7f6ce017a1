"""Effect of each request on a transactional id: the answer, and the change to commit before it.

Kafka's ``TransactionCoordinator`` (4.3) with KIP-98, KIP-360, KIP-588 and KIP-890. Every function
takes the id's metadata (None: unknown) while no change of it is in progress; earlier requests get
CONCURRENT_TRANSACTIONS (:mod:`transactional_ids`). If a change needs a new producer id and none is
given, the decision says so, and the function is called again with one.

Stricter than Kafka in two cases. A producer with an epoch that is no longer its own
(InitProducerId, KIP-360) is fenced at once, while Kafka first aborts the transaction of its
successor. And EndTxn with the previous epoch counts as repeated only if the last end raised the
epoch. Kafka compares only the numbers, and gives the current epoch to a producer that another
InitProducerId has fenced.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from kio.schema.errors import ErrorCode

from tidemark_broker.replication.types import TopicPartition
from tidemark_broker.transactions.core.metadata import (
    AT_REST,
    EPOCH_BUMP_LEVEL,
    LAST_EPOCH,
    NO_EPOCH,
    NO_PRODUCER_ID,
    PREPARED,
    Producer,
    TransactionMetadata,
    TransactionState,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Answer to a request: ``error``, and the producer's identity if the request returns one.

    A ``change`` must be committed before the answer is sent. With ``needs_producer_id`` nothing is
    decided yet.
    """

    error: ErrorCode = ErrorCode.none
    producer: Producer | None = None
    change: TransactionMetadata | None = None
    needs_producer_id: bool = False


_NEEDS_PRODUCER_ID = Decision(needs_producer_id=True)
_FENCED = Decision(error=ErrorCode.producer_fenced)
_CONCURRENT = Decision(error=ErrorCode.concurrent_transactions)
_UNKNOWN = Decision(error=ErrorCode.invalid_producer_id_mapping)
_INVALID_STATE = Decision(error=ErrorCode.invalid_txn_state)


def init_producer_id(
    known: TransactionMetadata | None,
    *,
    expected: Producer | None,
    timeout_ms: int,
    now_ms: int,
    fresh_producer_id: int | None = None,
) -> Decision:
    """Decide InitProducerId with a transactional id: new id, higher epoch, or an abort first.

    - ``known``: state of the transactional id, None if it is unknown
    - ``expected``: producer id and epoch in the request (KIP-360), None for a new producer
    - ``fresh_producer_id``: unused id, None in a first attempt; a decision that needs one says so

    An open transaction is aborted first. The producer then gets CONCURRENT_TRANSACTIONS and
    retries.
    """
    if known is None:
        if fresh_producer_id is None:
            return _NEEDS_PRODUCER_ID
        return _initialised(_new(fresh_producer_id, timeout_ms, now_ms))
    # Markers of the previous transaction must be written with the old epoch first.
    if known.state in PREPARED:
        return _CONCURRENT
    if expected is not None and not _may_go_on(known, expected):
        return _FENCED
    # The abort raises the epoch, so the previous producer is fenced even if this one gives up.
    if known.state is TransactionState.ONGOING:
        aborted = fence(known, now_ms=now_ms, fresh_producer_id=fresh_producer_id)
        return replace(aborted, error=ErrorCode.concurrent_transactions, producer=None)
    if expected is not None and not _is(known, expected):  # a repetition: return the same result
        return _initialised(replace(_emptied(known, timeout_ms, now_ms), version=known.version))
    # A raised epoch would exceed int16, so the producer gets a new id.
    if known.epoch_is_exhausted:
        return _rotated(known, expected, timeout_ms, now_ms, fresh_producer_id)
    # The usual case: a higher epoch fences the previous producer with this transactional id.
    raised = replace(
        _emptied(known, timeout_ms, now_ms),
        producer_epoch=known.producer_epoch + 1,
        previous_producer_id=known.producer_id,
        last_epoch=NO_EPOCH if expected is None else known.producer_epoch,
    )
    return _initialised(raised)


def _new(producer_id: int, timeout_ms: int, now_ms: int) -> TransactionMetadata:
    return TransactionMetadata(
        producer_id=producer_id,
        previous_producer_id=producer_id,
        producer_epoch=0,
        timeout_ms=timeout_ms,
        state=TransactionState.EMPTY,
        updated_ms=now_ms,
    )


def _may_go_on(known: TransactionMetadata, expected: Producer) -> bool:
    """Return whether the request is of the current producer, or of one that missed its last raise.

    While a transaction is open only the current producer counts, since it must have seen the raise.
    """
    if _is(known, expected):
        return True
    if known.state not in AT_REST or expected.epoch != known.last_epoch:
        return False
    same_id = expected.producer_id == known.producer_id
    before = expected.producer_id == known.previous_producer_id and expected.epoch >= LAST_EPOCH
    return same_id or before


def _is(known: TransactionMetadata, producer: Producer) -> bool:
    return (known.producer_id, known.producer_epoch) == (producer.producer_id, producer.epoch)


def _emptied(known: TransactionMetadata, timeout_ms: int, now_ms: int) -> TransactionMetadata:
    return replace(
        known,
        state=TransactionState.EMPTY,
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        started_ms=-1,
        updated_ms=now_ms,
    )


def _rotated(
    known: TransactionMetadata,
    expected: Producer | None,
    timeout_ms: int,
    now_ms: int,
    fresh_producer_id: int | None,
) -> Decision:
    """Decide InitProducerId with a new producer id and epoch 0, as the epoch cannot be raised."""
    if fresh_producer_id is None:
        return _NEEDS_PRODUCER_ID
    rotated = replace(
        _emptied(known, timeout_ms, now_ms),
        producer_id=fresh_producer_id,
        producer_epoch=0,
        previous_producer_id=known.producer_id,
        # A producer that repeats the request with the old epoch is recognized (KIP-360).
        last_epoch=NO_EPOCH if expected is None else known.producer_epoch,
    )
    return _initialised(rotated)


def _initialised(change: TransactionMetadata) -> Decision:
    return Decision(producer=Producer(change.producer_id, change.producer_epoch), change=change)


def add_partitions(
    known: TransactionMetadata | None,
    *,
    producer: Producer,
    partitions: AbstractSet[TopicPartition],
    version: int,
    now_ms: int,
) -> Decision:
    """Decide AddPartitionsToTxn or AddOffsetsToTxn, or a leader's inquiry for Produce 12.

    The first partitions of a transaction open it (state Ongoing). ``known``: state of the
    transactional id, None if unknown. ``version``: transaction version of the client (KIP-890).
    """
    if known is None:
        return _UNKNOWN
    # The previous transaction still waits for its markers.
    if known.state in PREPARED:
        return _CONCURRENT
    if known.producer_id != producer.producer_id:
        return _UNKNOWN
    if known.producer_epoch != producer.epoch:
        return _FENCED
    is_open = known.state is TransactionState.ONGOING
    # Already included: answered without a record, which is the common case of retries.
    if is_open and partitions <= known.partitions:
        return Decision()
    change = replace(
        known,
        state=TransactionState.ONGOING,
        previous_producer_id=known.producer_id,
        partitions=known.partitions | partitions,
        # The transaction timeout counts from the first partitions.
        started_ms=known.started_ms if is_open else now_ms,
        updated_ms=now_ms,
        version=version,
    )
    return Decision(change=change)


def verify_partitions(
    known: TransactionMetadata | None,
    *,
    producer: Producer,
    partitions: AbstractSet[TopicPartition],
) -> Mapping[TopicPartition, ErrorCode]:
    """Verify that partitions are in the producer's open transaction (KIP-890).

    This is AddPartitionsToTxn in its mode that only verifies. Returns TRANSACTION_ABORTABLE for a
    partition that is not included. It uses the committed state. A change in progress does not
    matter, since its marker voids the verification.
    """
    # An error of the producer or the transaction applies to all partitions.
    error = _unverified(known, producer)
    if error is not ErrorCode.none or known is None:
        return dict.fromkeys(partitions, error)
    return {
        partition: ErrorCode.none
        if partition in known.partitions
        else ErrorCode.transaction_abortable
        for partition in partitions
    }


def _unverified(known: TransactionMetadata | None, producer: Producer) -> ErrorCode:
    if known is None or known.producer_id != producer.producer_id:
        return ErrorCode.invalid_producer_id_mapping
    if known.producer_epoch != producer.epoch:
        return ErrorCode.producer_fenced
    if known.state in PREPARED:
        return ErrorCode.concurrent_transactions
    return ErrorCode.none


def end(
    known: TransactionMetadata | None,
    *,
    producer: Producer,
    commit: bool,
    version: int,
    now_ms: int,
    fresh_producer_id: int | None = None,
) -> Decision:
    """Decide EndTxn of a client: record the outcome, after which markers are written.

    ``version`` is 2 from EndTxn 5 on (KIP-890): each end raises the producer's epoch, and the
    answer contains the identity that the producer uses next. ``fresh_producer_id``: unused id in
    case the epoch is exhausted, None in a first attempt.
    """
    if known is None:
        return _UNKNOWN
    if known.state in PREPARED:
        return _CONCURRENT
    # Older clients keep their epoch, and a retry is recognized by the state.
    if version < EPOCH_BUMP_LEVEL:
        return _end_without_raise(known, producer, commit=commit, now_ms=now_ms)
    # A retry is recognized first, because its epoch is by definition not the current one.
    is_repeated = _is_repeated_end(known, producer)
    # Another producer id is unknown here. Another epoch is of a fenced producer.
    if known.producer_id != producer.producer_id and not is_repeated:
        return _UNKNOWN
    if known.producer_epoch != producer.epoch and not is_repeated:
        return _FENCED
    if is_repeated:
        return _repeated_end(known, commit=commit)
    # Committing nothing is an error, while aborting nothing raises the epoch (KIP-890).
    if commit and known.state is not TransactionState.ONGOING:
        return _INVALID_STATE
    return _prepared(known, commit=commit, now_ms=now_ms, fresh_producer_id=fresh_producer_id)


def _end_without_raise(
    known: TransactionMetadata, producer: Producer, *, commit: bool, now_ms: int
) -> Decision:
    """Decide EndTxn of a client before KIP-890, whose epoch stays the same."""
    if known.producer_id != producer.producer_id:
        return _UNKNOWN
    if known.producer_epoch != producer.epoch:
        return _FENCED
    # Ended already: a retry gets the same result, the opposite outcome an error.
    if known.state is not TransactionState.ONGOING:
        return _repeated_end(known, commit=commit)
    change = replace(
        known,
        state=_prepare_state(commit),
        previous_producer_id=known.producer_id,
        updated_ms=now_ms,
        # Transaction version 0: markers have the producer's present epoch, which stays valid.
        version=0,
    )
    return Decision(producer=producer, change=change)


def _is_repeated_end(known: TransactionMetadata, producer: Producer) -> bool:
    if known.state not in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT):
        return False
    if not known.last_end_raised_epoch:
        return False
    if known.producer_id == producer.producer_id:
        return known.producer_epoch == producer.epoch + 1
    is_first = known.producer_epoch == 0 and producer.epoch == LAST_EPOCH
    return is_first and known.previous_producer_id == producer.producer_id


def _repeated_end(known: TransactionMetadata, *, commit: bool) -> Decision:
    outcome = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
    if known.state is not outcome:
        return _INVALID_STATE
    return Decision(producer=Producer(known.producer_id, known.producer_epoch))


def fence(
    known: TransactionMetadata, *, now_ms: int, fresh_producer_id: int | None = None
) -> Decision:
    """Abort an open transaction without its producer, after a timeout or for a new producer.

    The raised epoch fences the previous producer.
    """
    return _prepared(known, commit=False, now_ms=now_ms, fresh_producer_id=fresh_producer_id)


def _prepared(
    known: TransactionMetadata, *, commit: bool, now_ms: int, fresh_producer_id: int | None
) -> Decision:
    """Return the decision to commit or abort, which raises the producer's epoch (KIP-890).

    Without an open transaction an abort raises the epoch, too. With an exhausted epoch the producer
    continues under a new id after the markers are written.
    """
    if known.epoch_is_exhausted and fresh_producer_id is None:
        return _NEEDS_PRODUCER_ID
    change = replace(
        known,
        # Epoch of the markers: higher than the producer's, so late records of it are refused.
        state=_prepare_state(commit),
        producer_epoch=known.producer_epoch + 1,
        last_epoch=known.producer_epoch,
        previous_producer_id=known.producer_id,
        next_producer_id=_next_id(known, fresh_producer_id),
        started_ms=known.started_ms if known.state is TransactionState.ONGOING else now_ms,
        updated_ms=now_ms,
        version=EPOCH_BUMP_LEVEL,
    )
    # The answer contains the identity after completion, which the producer uses next.
    after = change.completed(now_ms)
    return Decision(producer=Producer(after.producer_id, after.producer_epoch), change=change)


def _next_id(known: TransactionMetadata, fresh_producer_id: int | None) -> int:
    if fresh_producer_id is None or not known.epoch_is_exhausted:
        return NO_PRODUCER_ID
    return fresh_producer_id


def _prepare_state(commit: bool) -> TransactionState:
    return TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
