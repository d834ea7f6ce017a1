"""The coordinator's answers, state by state and request by request, as Kafka 4.3 gives them."""

from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.transactions.transaction_worlds import (
    AFTER,
    BEFORE,
    EPOCH,
    ME,
    NOW_MS,
    OTHER,
    PID,
    T0,
    T1,
    TIMEOUT_MS,
    transaction,
)
from tidemark_broker.transactions.core import decisions
from tidemark_broker.transactions.core.metadata import (
    LAST_EPOCH,
    Producer,
    TransactionMetadata,
    TransactionState,
)

EMPTY = TransactionState.EMPTY
ONGOING = TransactionState.ONGOING
PREPARE_COMMIT = TransactionState.PREPARE_COMMIT
PREPARE_ABORT = TransactionState.PREPARE_ABORT
COMPLETE_COMMIT = TransactionState.COMPLETE_COMMIT
COMPLETE_ABORT = TransactionState.COMPLETE_ABORT
STORED = (EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT)

OK = ErrorCode.none
CONCURRENT = ErrorCode.concurrent_transactions
FENCED = ErrorCode.producer_fenced
UNKNOWN = ErrorCode.invalid_producer_id_mapping
INVALID = ErrorCode.invalid_txn_state
ABORTABLE = ErrorCode.transaction_abortable


def label(value: object) -> str:
    if isinstance(value, TransactionState | ErrorCode):
        return value.name
    if isinstance(value, Producer):
        return f"{value.producer_id}-{value.epoch}"
    return str(value)


def init(known: TransactionMetadata | None, **changes: object) -> decisions.Decision:
    given: dict[str, object] = {
        "expected": None, "timeout_ms": TIMEOUT_MS, "now_ms": NOW_MS, "fresh_producer_id": 7
    }  # fmt: skip
    return decisions.init_producer_id(known, **(given | changes))  # type: ignore[arg-type]


def end(
    known: TransactionMetadata | None, producer: Producer, **changes: object
) -> decisions.Decision:
    given: dict[str, object] = {
        "commit": True, "version": 2, "now_ms": NOW_MS, "fresh_producer_id": 7
    }  # fmt: skip
    return decisions.end(known, producer=producer, **(given | changes))  # type: ignore[arg-type]


def add(known: TransactionMetadata | None, producer: Producer = ME) -> decisions.Decision:
    return decisions.add_partitions(
        known, producer=producer, partitions={T0, T1}, version=2, now_ms=NOW_MS
    )


# ---------------------------------------------------------------- InitProducerId


def test_a_new_id_gets_a_fresh_producer_in_epoch_0() -> None:
    # The decision requests a producer id first, and changes nothing without one.
    assert init(None, fresh_producer_id=None).needs_producer_id
    decision = init(None, fresh_producer_id=0)
    assert decision.producer == Producer(0, 0)
    assert decision.change is not None
    assert decision.change.state is EMPTY
    assert decision.change.timeout_ms == TIMEOUT_MS


def test_an_expired_id_continues_with_a_new_producer() -> None:
    assert init(None, expected=ME).producer == Producer(7, 0)


@pytest.mark.parametrize(
    ("state", "error", "producer", "becomes"),
    [
        (EMPTY, OK, AFTER, EMPTY),
        (COMPLETE_COMMIT, OK, AFTER, EMPTY),
        (COMPLETE_ABORT, OK, AFTER, EMPTY),
        # An open transaction is aborted first, and the client retries meanwhile.
        (ONGOING, CONCURRENT, None, PREPARE_ABORT),
        (PREPARE_COMMIT, CONCURRENT, None, None),
        (PREPARE_ABORT, CONCURRENT, None, None),
    ],
    ids=label,
)
def test_init_fences_the_former_producer(
    state: TransactionState,
    error: ErrorCode,
    producer: Producer | None,
    becomes: TransactionState | None,
) -> None:
    decision = init(transaction(state))
    assert (decision.error, decision.producer) == (error, producer)
    assert (None if decision.change is None else decision.change.state) == becomes
    if decision.change is not None:
        assert decision.change.producer_epoch == EPOCH + 1


@pytest.mark.parametrize(
    ("state", "expected", "last_epoch", "error", "epoch"),
    [
        (EMPTY, ME, -1, OK, EPOCH + 1),
        (COMPLETE_ABORT, ME, EPOCH - 1, OK, EPOCH + 1),
        # The epoch was raised by the same request, whose answer was lost.
        (EMPTY, BEFORE, EPOCH - 1, OK, EPOCH),
        # The epoch was raised by another producer.
        (EMPTY, BEFORE, -1, FENCED, None),
        (EMPTY, AFTER, EPOCH - 1, FENCED, None),
        (EMPTY, OTHER, EPOCH - 1, FENCED, None),
        (ONGOING, ME, -1, CONCURRENT, None),
        (ONGOING, BEFORE, EPOCH - 1, FENCED, None),
        (ONGOING, OTHER, -1, FENCED, None),
        (PREPARE_ABORT, BEFORE, EPOCH - 1, CONCURRENT, None),
    ],
    ids=label,
)
def test_a_recovering_producer_sends_its_id(
    state: TransactionState,
    expected: Producer,
    last_epoch: int,
    error: ErrorCode,
    epoch: int | None,
) -> None:
    """KIP-360: a producer whose answer was lost receives the same epoch again."""
    decision = init(transaction(state, last_epoch=last_epoch), expected=expected)
    assert decision.error is error
    assert (None if decision.producer is None else decision.producer.epoch) == epoch


def test_a_fenced_producer_does_not_abort_the_transaction_of_its_successor() -> None:
    assert init(transaction(ONGOING), expected=BEFORE).change is None


def test_recovery_is_retried_after_an_abort_by_fencing() -> None:
    """InitProducerId(5) aborts in epoch 6 and returns CONCURRENT_TRANSACTIONS; a retry returns
    epoch 6.
    """
    aborting = init(transaction(ONGOING), expected=ME).change
    assert aborting is not None
    retried = init(aborting.completed(NOW_MS), expected=ME)
    assert retried.producer == AFTER
    assert retried.change is not None
    assert retried.change.state is EMPTY


def test_exhausted_epoch_changes_the_producer_id() -> None:
    known = transaction(EMPTY, producer_epoch=LAST_EPOCH)
    assert init(known, fresh_producer_id=None).needs_producer_id
    decision = init(known)
    assert decision.producer == Producer(7, 0)
    recovering = init(known, expected=Producer(PID, LAST_EPOCH))
    assert recovering.producer == Producer(7, 0)
    assert recovering.change is not None
    # Retries still name the exhausted producer, and receive the same successor.
    retried = init(recovering.change, expected=Producer(PID, LAST_EPOCH))
    assert retried.producer == Producer(7, 0)
    twice = init(retried.change, expected=Producer(PID, LAST_EPOCH))
    assert twice.producer == Producer(7, 0)
    # Here the successor is another client's, so that the exhausted producer is fenced.
    assert init(decision.change, expected=Producer(PID, LAST_EPOCH)).error is FENCED


# ---------------------------------------------------------------- partitions


@pytest.mark.parametrize(
    ("state", "producer", "error", "changes"),
    [
        *((state, ME, OK, True) for state in (EMPTY, ONGOING, COMPLETE_COMMIT, COMPLETE_ABORT)),
        *((state, ME, CONCURRENT, False) for state in (PREPARE_COMMIT, PREPARE_ABORT)),
        (ONGOING, BEFORE, FENCED, False),
        (ONGOING, AFTER, FENCED, False),
        (ONGOING, OTHER, UNKNOWN, False),
        (PREPARE_COMMIT, OTHER, CONCURRENT, False),
    ],
    ids=label,
)
def test_partitions_are_added(
    state: TransactionState, producer: Producer, error: ErrorCode, changes: bool
) -> None:
    decision = add(transaction(state), producer)
    assert decision.error is error
    assert (decision.change is not None) == changes
    if decision.change is not None:
        assert decision.change.state is ONGOING
        assert decision.change.partitions == {T0, T1}
        assert decision.change.started_ms == (NOW_MS - 1000 if state is ONGOING else NOW_MS)


def test_partitions_already_in_the_transaction_need_no_record() -> None:
    decision = add(transaction(ONGOING, partitions=frozenset({T0, T1})))
    assert (decision.error, decision.change) == (OK, None)


def test_an_unknown_id_has_no_transaction() -> None:
    assert add(None).error is UNKNOWN
    assert end(None, ME).error is UNKNOWN


@pytest.mark.parametrize(
    ("state", "producer", "first", "second"),
    [
        # The open transaction contains T0, and not T1.
        (ONGOING, ME, OK, ABORTABLE),
        (EMPTY, ME, ABORTABLE, ABORTABLE),
        (COMPLETE_COMMIT, ME, ABORTABLE, ABORTABLE),
        (PREPARE_ABORT, ME, CONCURRENT, CONCURRENT),
        (ONGOING, BEFORE, FENCED, FENCED),
        (ONGOING, OTHER, UNKNOWN, UNKNOWN),
        (PREPARE_ABORT, BEFORE, FENCED, FENCED),
    ],
    ids=label,
)
def test_partitions_are_verified(
    state: TransactionState, producer: Producer, first: ErrorCode, second: ErrorCode
) -> None:
    errors = decisions.verify_partitions(transaction(state), producer=producer, partitions={T0, T1})
    assert errors == {T0: first, T1: second}


def test_nothing_of_an_unknown_id_is_verified() -> None:
    assert decisions.verify_partitions(None, producer=ME, partitions={T0}) == {T0: UNKNOWN}


# ---------------------------------------------------------------- EndTxn


@pytest.mark.parametrize(
    ("state", "producer", "commit", "error"),
    [
        (ONGOING, ME, True, OK),
        (ONGOING, ME, False, OK),
        (ONGOING, BEFORE, True, FENCED),
        (ONGOING, AFTER, True, FENCED),
        (ONGOING, OTHER, True, UNKNOWN),
        (EMPTY, ME, True, INVALID),
        (EMPTY, ME, False, OK),
        (EMPTY, BEFORE, True, FENCED),
        (EMPTY, BEFORE, False, FENCED),
        (COMPLETE_COMMIT, ME, True, INVALID),
        (COMPLETE_COMMIT, ME, False, OK),
        (COMPLETE_COMMIT, BEFORE, True, OK),
        (COMPLETE_COMMIT, BEFORE, False, INVALID),
        (COMPLETE_ABORT, ME, True, INVALID),
        (COMPLETE_ABORT, ME, False, OK),
        (COMPLETE_ABORT, BEFORE, True, INVALID),
        (COMPLETE_ABORT, BEFORE, False, OK),
        (COMPLETE_ABORT, AFTER, False, FENCED),
        (PREPARE_COMMIT, BEFORE, True, CONCURRENT),
        (PREPARE_ABORT, BEFORE, True, CONCURRENT),
        (PREPARE_COMMIT, ME, False, CONCURRENT),
    ],
    ids=label,
)
def test_end_of_version_2(
    state: TransactionState, producer: Producer, commit: bool, error: ErrorCode
) -> None:
    """EndTxn 5 (KIP-890): Kafka's table for the current epoch, and for retries in the former one.

    An end raises the epoch, and its retry does not.
    """
    decision = end(transaction(state), producer, commit=commit)
    assert decision.error is error
    if error is not OK:
        assert (decision.change, decision.producer) == (None, None)
    elif producer == BEFORE:
        assert (decision.change, decision.producer) == (None, ME)
    else:
        assert decision.change is not None
        assert decision.change.state is (PREPARE_COMMIT if commit else PREPARE_ABORT)
        assert decision.change.partitions == transaction(state).partitions
        assert decision.producer == AFTER


@pytest.mark.parametrize(
    ("state", "producer", "commit", "error"),
    [
        (ONGOING, ME, True, OK),
        (ONGOING, BEFORE, True, FENCED),
        (ONGOING, OTHER, True, UNKNOWN),
        (EMPTY, ME, True, INVALID),
        (EMPTY, ME, False, INVALID),
        (COMPLETE_COMMIT, ME, True, OK),
        (COMPLETE_COMMIT, ME, False, INVALID),
        (COMPLETE_ABORT, ME, False, OK),
        (COMPLETE_ABORT, ME, True, INVALID),
        (COMPLETE_COMMIT, BEFORE, True, FENCED),
        (PREPARE_COMMIT, ME, True, CONCURRENT),
    ],
    ids=label,
)
def test_end_of_the_old_protocol(
    state: TransactionState, producer: Producer, commit: bool, error: ErrorCode
) -> None:
    """EndTxn 0 to 4: the epoch stays, and the same request again is a retry."""
    decision = end(transaction(state, version=0), producer, commit=commit, version=0)
    assert decision.error is error
    assert (decision.change is not None) == (error is OK and state is ONGOING)
    if decision.change is not None:
        assert decision.change.producer_epoch == EPOCH
        assert decision.change.version == 0


@pytest.mark.parametrize("state", [COMPLETE_COMMIT, COMPLETE_ABORT], ids=label)
def test_fenced_producer_is_not_taken_for_a_retry(state: TransactionState) -> None:
    """The last end left the epoch as it was, so that InitProducerId has raised it since.

    A request in the former epoch comes from the fenced producer. It must not receive the new epoch.
    """
    known = transaction(state, version=0)
    assert end(known, BEFORE, commit=state is COMPLETE_COMMIT).error is FENCED


def test_the_end_in_the_last_epoch_changes_the_producer_id() -> None:
    last = Producer(PID, LAST_EPOCH)
    known = transaction(ONGOING, producer_epoch=LAST_EPOCH)
    assert end(known, last, fresh_producer_id=None).needs_producer_id
    decision = end(known, last)
    assert decision.producer == Producer(7, 0)
    change = decision.change
    assert change is not None
    marker = (change.producer_id, change.producer_epoch, change.next_producer_id)
    assert marker == (PID, LAST_EPOCH + 1, 7)  # This epoch fences every late request.
    completed = change.completed(NOW_MS)
    assert (completed.producer_id, completed.producer_epoch) == (7, 0)
    # A retry receives the new producer, unless it requests the other outcome.
    assert end(completed, last).producer == Producer(7, 0)
    assert end(completed, last).change is None
    assert end(completed, last, commit=False).error is INVALID


def test_an_end_in_the_last_epoch_can_take_producer_id_0() -> None:
    known = transaction(ONGOING, producer_epoch=LAST_EPOCH)
    decision = end(known, Producer(PID, LAST_EPOCH), fresh_producer_id=0)
    assert decision.producer == Producer(0, 0)


def test_a_completed_transaction_is_empty() -> None:
    for state, outcome in ((PREPARE_COMMIT, COMPLETE_COMMIT), (PREPARE_ABORT, COMPLETE_ABORT)):
        completed = transaction(state).completed(NOW_MS)
        assert (completed.state, completed.partitions) == (outcome, frozenset())
        assert (completed.producer_id, completed.producer_epoch) == (PID, EPOCH)


# ---------------------------------------------------------------- time


def test_an_abort_by_the_coordinator_raises_the_epoch_once() -> None:
    decision = decisions.fence(transaction(ONGOING, version=0), now_ms=NOW_MS)
    change = decision.change
    assert change is not None
    assert (change.state, change.producer_epoch) == (PREPARE_ABORT, EPOCH + 1)
    # The epoch cannot be raised any further, so that another producer id is needed.
    exhausted = transaction(ONGOING, producer_epoch=LAST_EPOCH)
    assert decisions.fence(exhausted, now_ms=NOW_MS).needs_producer_id


@pytest.mark.parametrize("state", STORED, ids=label)
def test_open_transactions_time_out_and_finished_ones_expire(state: TransactionState) -> None:
    known = transaction(state, started_ms=NOW_MS - TIMEOUT_MS)
    assert not known.has_timed_out(NOW_MS)
    assert known.has_timed_out(NOW_MS + 1) == (state is ONGOING)
    is_finished = state in (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT)
    assert not replace(known, updated_ms=NOW_MS - 99).has_expired(NOW_MS, 100)
    assert replace(known, updated_ms=NOW_MS - 100).has_expired(NOW_MS, 100) == is_finished
