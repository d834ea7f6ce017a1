"""Validation of producer batches, rule by rule as in Kafka's ProducerAppendInfo."""

import tracemalloc
from typing import Any

import pytest

from tidemark.configuration.values import INT32_MAX
from tidemark.logfiles.producer_snapshot import decode_snapshot, without_transactions
from tidemark.logfiles.transaction_index import AbortedTxn
from tidemark.records.control import EndMarker
from tidemark_broker.log import errors, producer_states
from tidemark_broker.log.producer_entry import AppendOrigin, ProducerBatch, ProducerStateEntry
from tidemark_broker.log.producer_states import ProducerLimit, ProducerStates, VerificationGuard

PID = 7


def data(
    sequence: int, offset: int, *, count: int = 1, epoch: int = 0, producer: int = PID,
    transactional: bool = False, at_ms: int = 0,
) -> ProducerBatch:  # fmt: skip
    return ProducerBatch(
        producer, epoch, sequence, offset, offset + count - 1, at_ms, transactional
    )


def end(
    offset: int, *, commit: bool = True, epoch: int = 0, coordinator: int = 0, producer: int = PID
) -> ProducerBatch:
    marker = EndMarker(commit, coordinator)
    return ProducerBatch(producer, epoch, -1, offset, offset, 0, True, marker)


def check(states: ProducerStates, batch: ProducerBatch) -> Any:
    return states.check(batch, AppendOrigin.CLIENT, None)


def states_after(*batches: ProducerBatch) -> ProducerStates:
    states = ProducerStates()
    for batch in batches:
        states.note(batch)
    return states


FIVE = [data(sequence, 10 * sequence) for sequence in range(5)]


@pytest.mark.parametrize(
    ("known", "sequence", "epoch", "error"),
    [
        pytest.param([], 0, 0, None, id="new"),
        pytest.param([], 40, 3, None, id="unknown: any number is taken"),
        pytest.param(FIVE, 5, 0, None, id="the next one"),
        pytest.param(FIVE, 6, 0, errors.OutOfOrderSequence, id="a gap"),
        pytest.param(FIVE, 4, 0, "duplicate", id="the last one again"),
        # Kafka caches the last five batches of a producer: a retry of one of them is answered, an
        # older one is rejected.
        pytest.param(FIVE, 0, 0, "duplicate", id="the fifth last again"),
        pytest.param([*FIVE, data(5, 50)], 0, 0, errors.OutOfOrderSequence, id="the sixth last"),
        pytest.param(FIVE, 0, 1, None, id="a new epoch begins with 0"),
        pytest.param(FIVE, 5, 1, errors.OutOfOrderSequence, id="a new epoch with another"),
        pytest.param([data(0, 0, epoch=2)], 1, 1, errors.InvalidProducerEpoch, id="an old epoch"),
        # Sequence numbers wrap from 2^31 - 1 to 0.
        pytest.param([data(INT32_MAX, 0)], 0, 0, None, id="numbers continue with 0"),
        pytest.param([data(INT32_MAX - 1, 0, count=3)], 1, 0, None, id="a batch over the end"),
        pytest.param([data(INT32_MAX, 0)], 1, 0, errors.OutOfOrderSequence, id="0 was left out"),
        # A marker with a new epoch (fencing) restarts the sequence.
        pytest.param([end(0, epoch=3)], 0, 3, None, id="after a marker that raised the epoch"),
        pytest.param([end(0, epoch=3)], 4, 3, errors.OutOfOrderSequence, id="then only 0"),
        pytest.param([data(0, 0), end(1)], 1, 0, None, id="a marker leaves the numbers"),
    ],
)
def test_a_batch_is_accepted_rejected_or_a_duplicate(
    known: list[ProducerBatch], sequence: int, epoch: int, error: type[Exception] | str | None
) -> None:
    states, batch = states_after(*known), data(sequence, 99, epoch=epoch)
    if isinstance(error, type):
        with pytest.raises(error):
            check(states, batch)
        return
    found = check(states, batch)
    assert (found is not None) == (error == "duplicate")


def test_a_duplicate_returns_the_offset_of_the_original() -> None:
    states = states_after(data(0, 10, count=3), data(3, 20, count=2))
    found = states.check(data(0, 99, count=3), AppendOrigin.CLIENT, None)
    assert found is not None
    assert (found.base_offset, found.last_offset) == (10, 12)
    with pytest.raises(errors.OutOfOrderSequence):
        check(states, data(0, 99, count=2))  # same sequence, other record count


@pytest.mark.parametrize(
    # With transaction version 2 (KIP-890) the coordinator raises the epoch for each marker, so
    # the same epoch is stale.
    ("epoch", "version", "refused"),
    [(2, 1, True), (3, 1, False), (4, 1, False), (2, 2, True), (3, 2, True), (4, 2, False)],
)
def test_a_marker_of_a_former_epoch_is_rejected(epoch: int, version: int, refused: bool) -> None:
    states = states_after(data(0, 0, epoch=3, transactional=True))
    if refused:
        with pytest.raises(errors.InvalidProducerEpoch):
            states.check_marker(end(1, epoch=epoch), version)
    else:
        states.check_marker(end(1, epoch=epoch), version)


def test_a_repeated_marker_changes_nothing() -> None:
    states = states_after(data(0, 0, transactional=True), end(1, epoch=1))
    states.check_marker(end(2, epoch=1), 2)
    assert states.note(end(2, epoch=1, commit=False)) is None


def test_a_former_coordinator_is_fenced() -> None:
    states = states_after(end(0, coordinator=5))
    states.check_marker(end(1, coordinator=5), 1)
    with pytest.raises(errors.TransactionCoordinatorFenced):
        states.check_marker(end(1, coordinator=4), 1)


def test_a_transaction_is_unstable_until_its_marker_is_committed() -> None:
    states = states_after(data(0, 10, transactional=True))
    assert states.first_unstable_offset == 10
    states.note(data(0, 11, producer=8, transactional=True))
    states.note(end(12, commit=True))
    # The marker is at 12: it is committed once the high watermark is above it.
    states.on_high_watermark(12)
    assert states.first_unstable_offset == 10
    states.on_high_watermark(13)
    assert states.first_unstable_offset == 11
    aborted = states.note(end(13, commit=False, producer=8))
    # Producer, first and last offset, and the last stable offset after the marker.
    assert aborted == AbortedTxn(8, 11, 13, 14)
    states.on_high_watermark(14)
    assert states.first_unstable_offset is None


def test_an_aborted_transaction_has_the_last_stable_offset_at_its_end() -> None:
    states = states_after(
        data(0, 10, transactional=True), data(0, 11, producer=8, transactional=True)
    )
    assert states.note(end(12, commit=False, producer=8)) == AbortedTxn(8, 11, 12, 10)


def test_a_marker_without_records_aborts_no_transaction() -> None:
    states = ProducerStates()
    assert states.note(end(5, commit=False)) is None
    assert states.first_unstable_offset is None


def test_non_transactional_records_are_rejected_during_a_transaction() -> None:
    states = states_after(data(0, 0, transactional=True))
    with pytest.raises(errors.InvalidTransactionState, match="open transaction"):
        check(states, data(1, 1))
    assert check(states, data(1, 1, transactional=True)) is None


def test_a_transaction_begins_only_after_verification_with_the_coordinator() -> None:
    states, first = ProducerStates(), data(0, 0, transactional=True)
    with pytest.raises(errors.InvalidTransactionState):
        check(states, first)
    # KIP-890: only the guard of this verification admits the first batch.
    guard = states.begin_verification(first, 0, supports_epoch_bump=False)
    assert guard is not None
    with pytest.raises(errors.InvalidTransactionState):
        states.check(first, AppendOrigin.CLIENT, VerificationGuard())
    assert states.check(first, AppendOrigin.CLIENT, guard) is None
    states.note(first)
    # An ongoing transaction needs no further verification.
    assert states.begin_verification(
        data(1, 1, transactional=True), 0, supports_epoch_bump=False
    ) is None  # fmt: skip


def test_a_marker_voids_a_pending_verification() -> None:
    states, first = ProducerStates(), data(0, 0, transactional=True)
    guard = states.begin_verification(first, 0, supports_epoch_bump=False)
    states.note(end(0, commit=False))
    with pytest.raises(errors.InvalidTransactionState):
        states.check(first, AppendOrigin.CLIENT, guard)


def test_a_batch_is_rejected_while_an_earlier_one_is_being_verified() -> None:
    states = ProducerStates()
    states.begin_verification(data(0, 0, transactional=True), 0, supports_epoch_bump=False)
    second = data(1, 0, transactional=True)
    guard = states.begin_verification(second, 0, supports_epoch_bump=False)
    with pytest.raises(errors.OutOfOrderSequence, match="still being verified"):
        states.check(second, AppendOrigin.CLIENT, guard)


def test_a_transaction_of_version_2_begins_with_sequence_0() -> None:
    states, late = ProducerStates(), data(3, 0, transactional=True)
    guard = states.begin_verification(late, 0, supports_epoch_bump=True)
    with pytest.raises(errors.OutOfOrderSequence, match="version 2"):
        states.check(late, AppendOrigin.CLIENT, guard)


def test_the_sequence_numbers_of_a_coordinator_are_not_checked() -> None:
    states = states_after(data(0, 0))
    assert states.check(data(-1, 1), AppendOrigin.COORDINATOR, None) is None


def test_idle_producers_expire_and_those_within_a_transaction_stay() -> None:
    states = states_after(
        data(0, 0, producer=1, at_ms=100),
        data(0, 1, producer=2, at_ms=50),
        data(0, 2, producer=3, at_ms=50, transactional=True),
    )
    # The first check after a write only marks the producer. The second one may expire it.
    states.expire(150, 100)
    states.expire(150, 100)
    assert sorted(item.producer_id for item in states.active()) == [1, 3]


def test_a_producer_of_old_records_is_not_idle() -> None:
    """A mirroring producer copies timestamps. If it were forgotten, its retries would be appended
    again."""
    states, copied = ProducerStates(), [data(n, n, producer=1, at_ms=0) for n in range(4)]
    states.note(copied[0])
    for batch in copied[1:]:
        # Each check sees a write since the one before.
        states.expire(1_000_000, 100)
        assert [item.producer_id for item in states.active()] == [1]
        states.note(batch)
    states.expire(1_000_000, 100)
    states.expire(1_000_000, 100)
    assert len(states) == 0


def test_duplicates_are_detected_for_any_number_of_producers() -> None:
    """A fleet of devices may retry any of the last five batches of each device."""
    states, producers = ProducerStates(), range(12_000)
    for sequence in range(6):
        for number in producers:
            states.note(data(sequence, 12_000 * sequence + number, producer=number))
    assert len(states) == len(producers)
    for number in (0, 1, 5_000, 11_999):
        for sequence in range(1, 6):
            found = check(states, data(sequence, 10**6, producer=number))
            assert found is not None
            assert found.base_offset == 12_000 * sequence + number
        with pytest.raises(errors.OutOfOrderSequence):
            # Sequence 0 is the sixth last batch.
            check(states, data(0, 10**6, producer=number))
        assert check(states, data(6, 10**6, producer=number)) is None


def test_an_idle_producer_takes_less_than_400_bytes() -> None:
    states, count = ProducerStates(), 5_000
    tracemalloc.start()
    try:
        for sequence in range(5):
            for number in range(count):
                offset = 10**7 + count * sequence + number
                states.note(data(sequence, offset, producer=10**9 + number, at_ms=10**12 + offset))
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert used / count < 400


def test_a_packed_producer_keeps_its_open_transaction() -> None:
    states = states_after(data(0, 0, transactional=True, epoch=3))
    # More than 128 live producers: the first one is packed.
    for number in range(1000, 1400):
        states.note(data(0, number, producer=number))
    assert states.has_ongoing_transaction(PID, 3)
    assert states.first_unstable_offset == 0
    states.note(end(2000, epoch=3, coordinator=5))
    assert not states.has_ongoing_transaction(PID, 3)
    with pytest.raises(errors.TransactionCoordinatorFenced):
        states.check_marker(end(2001, epoch=3, coordinator=4), 1)


def test_live_and_packed_producers_expire_alike() -> None:
    states, producers = ProducerStates(), range(1000)
    for number in producers:
        states.note(data(0, number, producer=number, at_ms=number))
    for _ in range(2):
        states.expire(100 + 500, 100)
    assert {item.producer_id for item in states.active()} == set(range(501, 1000))


@pytest.mark.parametrize("is_packed", [False, True], ids=["live", "packed"])
def test_a_clock_that_jumps_back_expires_no_producers(is_packed: bool) -> None:
    """Its last batch was written a moment before and may be retried."""
    states, day_ms, wrote_ms = states_after(data(0, 0, at_ms=10**12)), 86_400_000, 10**12
    if is_packed:
        for producer in range(100, 100 + producer_states.LIVE_MAX):
            states.note(data(0, producer, producer=producer, at_ms=wrote_ms))
    # Two days back, and forth again.
    for now_ms in (wrote_ms + 1, wrote_ms - 2 * day_ms, wrote_ms + 2, wrote_ms + 3):
        states.expire(now_ms, day_ms)
    assert PID in states
    for _ in range(2):
        states.expire(wrote_ms + day_ms, day_ms)
    assert PID not in states


def test_a_future_timestamp_does_not_keep_a_producer_forever() -> None:
    states = ProducerStates()
    for number in range(300):
        states.note(data(0, number, producer=number, at_ms=2**62))
    for now_ms in (100, 150, 250, 300):
        states.expire(now_ms, 100)
    assert len(states) == 0


def test_new_producers_beyond_the_limit_are_rejected_and_known_ones_continue() -> None:
    limit = ProducerLimit(300)
    states, other = ProducerStates(limit), ProducerStates(limit)
    for number in range(300):
        states.note(data(0, number, producer=number))
    new_batch = data(0, 999, producer=1000)
    # The limit protects the broker's memory. Known producers can still write and retry.
    with pytest.raises(errors.TooManyProducers, match=r"producer 1000 .*limit is 300.*ids\.max"):
        check(states, new_batch)
    assert check(states, data(1, 999, producer=0)) is None
    assert check(states, data(0, 999, producer=0)) is not None
    assert check(other, new_batch) is None  # a partition with few producers still takes new ones
    states.note(new_batch)  # as a follower does: the leader has appended it
    assert check(states, data(0, 1999, producer=1000)) is not None
    for _ in range(2):
        states.expire(10**9, 100)
    assert limit.count == 0
    assert check(states, new_batch) is None


def test_a_snapshot_contains_live_and_packed_producers() -> None:
    before, count = ProducerStates(), 1000
    for sequence in range(2):
        for number in range(count):
            before.note(data(sequence, count * sequence + number, producer=number, at_ms=number))
    states = ProducerStates()
    states.load(decode_snapshot(before.snapshot()))
    assert list(states.active()) == list(before.active())
    assert states.snapshot() == before.snapshot()
    assert [item.producer_id for item in states.active(3)] == [997, 998, 999]


def test_only_the_requested_producers_are_unpacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log is locked during DescribeProducers and expiry, and a client can create 500,000
    producers."""
    states = ProducerStates()
    for number in range(1000):
        states.note(data(0, number, producer=number, at_ms=number))
    unpacked: list[bytes] = []
    unpack = ProducerStateEntry.unpacked

    def record_unpack(packed: bytes) -> ProducerStateEntry:
        unpacked.append(packed)
        return unpack(packed)

    monkeypatch.setattr(ProducerStateEntry, "unpacked", record_unpack)
    for limit in (0, 3, 500, 1000, 2000):
        # DescribeProducers is bounded: it unpacks no more entries than it returns.
        unpacked.clear()
        listed_ids = [item.producer_id for item in states.active(limit)]
        assert listed_ids == [*range(1000)][max(0, 1000 - limit) :]
        assert len(unpacked) <= limit
    unpacked.clear()
    states.expire(10**9, 100)  # each has written since the last check
    assert (len(states) > 800, unpacked) == (True, [])
    states.expire(10**9, 100)
    assert len(states) == 0


def test_the_logs_of_a_broker_share_the_producer_limit() -> None:
    limit = ProducerLimit(10)
    first, second = ProducerStates(limit), ProducerStates(limit)
    for number in range(8):
        first.note(data(0, number, producer=number))
        second.note(data(0, number, producer=number, at_ms=number))
    assert (len(first), len(second), limit.count) == (8, 8, 16)
    first.clear()
    assert limit.count == 8


def test_the_logs_of_a_broker_share_the_verification_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client can request verifications at no cost, in every partition."""
    monkeypatch.setattr(producer_states, "VERIFICATIONS_MAX", 50)
    limit = ProducerLimit()
    logs = [ProducerStates(limit) for _ in range(3)]
    guards = {}
    for number in range(200):
        for states in logs:
            batch = data(0, number, producer=number, transactional=True)
            guards[states, number] = states.begin_verification(batch, 0, supports_epoch_bump=True)
    # 50 in total are exceeded, so each log keeps only its latest ones.
    assert limit.verifications == 3 * 20
    for states in logs:
        last = data(0, 0, producer=199, transactional=True)
        assert states.check(last, AppendOrigin.CLIENT, guards[states, 199]) is None
        states.note(last)
        # The oldest verification was dropped: its client is rejected and retries.
        lost = data(0, 0, producer=0, transactional=True)
        with pytest.raises(errors.InvalidTransactionState):
            states.check(lost, AppendOrigin.CLIENT, guards[states, 0])
        states.note(end(1, producer=198))
    assert limit.verifications == 3 * 18
    # Each way to end a verification returns it to the shared limit.
    logs[0].expire(10, 10)
    logs[1].clear()
    logs[2].forget()
    assert limit.verifications == 0


def test_a_snapshot_has_kafkas_fields() -> None:
    states = states_after(
        data(0, 0, count=2, at_ms=5), data(2, 2, count=3, at_ms=6), end(5, coordinator=4),
        data(5, 6, transactional=True, at_ms=8), end(9, producer=8, epoch=2),
    )  # fmt: skip
    [first, second] = decode_snapshot(states.snapshot())
    assert first == (PID, 0, 5, 6, 0, 8, 4, 6)
    assert second == (8, 2, -1, -1, 0, 0, 0, -1)
    restored = ProducerStates()
    restored.load([first, second])
    assert list(restored.active()) == list(states.active())
    assert restored.first_unstable_offset == 6


def test_a_snapshot_without_transactions_has_the_same_producers() -> None:
    states = states_after(data(0, 3, transactional=True), data(0, 4, producer=8))
    restored = ProducerStates()
    restored.load(decode_snapshot(without_transactions(states.snapshot())))
    assert [item.producer_id for item in restored.active()] == [PID, 8]
    assert restored.first_unstable_offset is None
    assert states.first_unstable_offset == 3
