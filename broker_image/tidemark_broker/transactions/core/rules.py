"""What each request does to a transactional id: the answer, and the change that has to be committed
before it is given.

Kafka's ``TransactionCoordinator`` (4.3) with KIP-98, KIP-360, KIP-588 and KIP-890. Every function
takes the id's metadata as it is (None: unknown), and is asked only while no change of it is under
way: whoever asks earlier gets CONCURRENT_TRANSACTIONS (:mod:`transactions`). Where a change needs a
fresh producer id and none is given, the decision says so, and the same question is asked again.

Stricter than Kafka in two places. A producer that names an epoch which is no longer its own
(InitProducerId, KIP-360) is fenced at once; Kafka first aborts the transaction of whoever fenced
it. And an EndTxn with the epoch before the current one counts as repeated only if the last end did
raise the epoch; Kafka looks at the numbers alone, and hands the current epoch to a producer that
another's InitProducerId fenced.
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
    """The answer: ``error``, and the producer's id and epoch where the request asks for them. Where
    there is a ``change`` it is given once that is committed. With ``needs_producer_id`` nothing is
    decided yet."""

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
    """InitProducerId with a transactional id. ``expected``: who the producer thinks it is
    (KIP-360), None for one that begins. A transaction that is open is aborted first, and the
    producer told to ask again."""
    if known is None:
        if fresh_producer_id is None:
            return _NEEDS_PRODUCER_ID
        return _initialised(_new(fresh_producer_id, timeout_ms, now_ms))
    if known.state in PREPARED:
        return _CONCURRENT
    if expected is not None and not _may_go_on(known, expected):
        return _FENCED
    if known.state is TransactionState.ONGOING:
        aborted = fence(known, now_ms=now_ms, fresh_producer_id=fresh_producer_id)
        return replace(aborted, error=ErrorCode.concurrent_transactions, producer=None)
    if expected is not None and not _is(known, expected):  # it asks for what it has got already
        return _initialised(replace(_emptied(known, timeout_ms, now_ms), version=known.version))
    if known.epoch_is_exhausted:
        return _rotated(known, expected, timeout_ms, now_ms, fresh_producer_id)
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
    """Is it the present producer, or one that never heard of its last raise? Of the second kind
    there is none while a transaction is open: that one's producer has heard."""
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
    if fresh_producer_id is None:
        return _NEEDS_PRODUCER_ID
    rotated = replace(
        _emptied(known, timeout_ms, now_ms),
        producer_id=fresh_producer_id,
        producer_epoch=0,
        previous_producer_id=known.producer_id,
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
    """AddPartitionsToTxn and AddOffsetsToTxn, and what a leader asks for a Produce of version 12:
    the first ones of a transaction open it."""
    if known is None:
        return _UNKNOWN
    if known.state in PREPARED:
        return _CONCURRENT
    if known.producer_id != producer.producer_id:
        return _UNKNOWN
    if known.producer_epoch != producer.epoch:
        return _FENCED
    is_open = known.state is TransactionState.ONGOING
    if is_open and partitions <= known.partitions:
        return Decision()
    change = replace(
        known,
        state=TransactionState.ONGOING,
        previous_producer_id=known.producer_id,
        partitions=known.partitions | partitions,
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
    """AddPartitionsToTxn that only asks (KIP-890): is each of them in the open transaction of that
    producer? Asked with what is committed; a change under way does not matter, since a marker ends
    what was verified."""
    error = _unverified(known, producer)
    if error is not ErrorCode.none or known is None:
        return dict.fromkeys(partitions, error)
    return {
        each: ErrorCode.none if each in known.partitions else ErrorCode.transaction_abortable
        for each in partitions
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
    """EndTxn of a client, ``version`` 2 from EndTxn 5 on. The producer of the answer is who it is
    in its next transaction."""
    if known is None:
        return _UNKNOWN
    if known.state in PREPARED:
        return _CONCURRENT
    if version < EPOCH_BUMP_LEVEL:
        return _end_without_raise(known, producer, commit=commit, now_ms=now_ms)
    is_repeated = _is_repeated_end(known, producer)
    if known.producer_id != producer.producer_id and not is_repeated:
        return _UNKNOWN
    if known.producer_epoch != producer.epoch and not is_repeated:
        return _FENCED
    if is_repeated:
        return _repeated_end(known, commit=commit)
    if commit and known.state is not TransactionState.ONGOING:
        return _INVALID_STATE
    return _prepared(known, commit=commit, now_ms=now_ms, fresh_producer_id=fresh_producer_id)


def _end_without_raise(
    known: TransactionMetadata, producer: Producer, *, commit: bool, now_ms: int
) -> Decision:
    if known.producer_id != producer.producer_id:
        return _UNKNOWN
    if known.producer_epoch != producer.epoch:
        return _FENCED
    if known.state is not TransactionState.ONGOING:
        return _repeated_end(known, commit=commit)
    change = replace(
        known,
        state=_prepare_state(commit),
        previous_producer_id=known.producer_id,
        updated_ms=now_ms,
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
    """Abort an open transaction though its producer did not ask: it took too long, or another one
    begins under its id. Whoever had it is fenced by the raised epoch."""
    return _prepared(known, commit=False, now_ms=now_ms, fresh_producer_id=fresh_producer_id)


def _prepared(
    known: TransactionMetadata, *, commit: bool, now_ms: int, fresh_producer_id: int | None
) -> Decision:
    """The decision, which raises the epoch; an abort of nothing is one too (KIP-890)."""
    if known.epoch_is_exhausted and fresh_producer_id is None:
        return _NEEDS_PRODUCER_ID
    change = replace(
        known,
        state=_prepare_state(commit),
        producer_epoch=known.producer_epoch + 1,
        last_epoch=known.producer_epoch,
        previous_producer_id=known.producer_id,
        next_producer_id=_next_id(known, fresh_producer_id),
        started_ms=known.started_ms if known.state is TransactionState.ONGOING else now_ms,
        updated_ms=now_ms,
        version=EPOCH_BUMP_LEVEL,
    )
    after = change.completed(now_ms)
    return Decision(producer=Producer(after.producer_id, after.producer_epoch), change=change)


def _next_id(known: TransactionMetadata, fresh_producer_id: int | None) -> int:
    if fresh_producer_id is None or not known.epoch_is_exhausted:
        return NO_PRODUCER_ID
    return fresh_producer_id


def _prepare_state(commit: bool) -> TransactionState:
    return TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
