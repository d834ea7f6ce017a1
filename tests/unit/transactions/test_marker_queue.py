"""Order and destination of transaction markers."""

from collections.abc import Sequence

import pytest
from kio.schema.errors import ErrorCode

from tidemark_broker.replication.types import TopicPartition
from tidemark_broker.transactions.core import markers
from tidemark_broker.transactions.core.markers import (
    BATCH_MAX,
    DELETED,
    UNKNOWN,
    Marker,
    MarkerQueue,
    MarkerWrite,
)

A, B, C = (TopicPartition("t", number) for number in range(3))
X, Y = (0, "x"), (1, "y")


def marker(epoch: int = 5, commit: bool = True) -> Marker:
    return Marker(
        producer_id=1, producer_epoch=epoch, coordinator_epoch=3, commit=commit, version=2
    )


class QueueBench:
    """A queue, and where partitions are led."""

    def __init__(self) -> None:
        self.leaders = {A: 1, B: 1, C: 2}
        self.queue = MarkerQueue(lambda tp: self.leaders[tp])

    def batches(self, now_s: float = 0.0) -> dict[int, list[TopicPartition]]:
        """Return the batches to send now and answer all of them with ``none``."""
        made = self.queue.batches(now_s)
        for broker, batch in made.items():
            self.answer(broker, batch, ErrorCode.none, now_s)
        return {broker: [write.tp for write in batch] for broker, batch in made.items()}

    def answer(
        self, broker: int, batch: Sequence[MarkerWrite], error: ErrorCode, now_s: float = 0.0
    ) -> None:
        self.queue.answered(broker, batch, lambda write: error, now_s)


def test_a_transaction_is_finished_once_all_its_partitions_have_their_marker() -> None:
    world = QueueBench()
    world.queue.add(X, marker(), [A, B, C])
    made = world.queue.batches(0.0)
    assert {broker: [item.tp for item in batch] for broker, batch in made.items()} == {
        1: [A, B],
        2: [C],
    }
    world.answer(1, made[1], ErrorCode.none)
    assert world.queue.finished() == []
    world.answer(2, made[2], ErrorCode.none)
    assert world.queue.finished() == [(X, marker())]
    assert world.queue.finished() == []
    assert world.queue.unfinished == 0


def test_a_transaction_without_partitions_is_finished_at_once() -> None:
    world = QueueBench()
    world.queue.add(X, marker(), [])
    assert world.queue.finished() == [(X, marker())]


def test_one_request_is_under_way_to_each_broker() -> None:
    world = QueueBench()
    world.queue.add(X, marker(), [A])
    under_way = world.queue.batches(0.0)
    world.queue.add(Y, marker(), [B, C])
    # Broker 1 has a request under way, so that only broker 2 receives one.
    assert world.batches() == {2: [C]}
    world.answer(1, under_way[1], ErrorCode.none)
    assert world.batches() == {1: [B]}


def test_a_partition_without_a_leader_delays_its_own_transaction_only() -> None:
    world = QueueBench()
    world.leaders[A] = UNKNOWN
    world.queue.add(X, marker(), [A, B])
    world.queue.add(Y, marker(), [B, C])
    assert world.batches() == {1: [B, B], 2: [C]}
    assert [key for key, _ in world.queue.finished()] == [Y]
    world.leaders[A] = 2
    next_s = world.queue.next_s()
    assert next_s is not None
    assert world.batches(next_s) == {2: [A]}
    assert [key for key, _ in world.queue.finished()] == [X]


def test_failed_marker_is_retried_with_exponential_backoff() -> None:
    world = QueueBench()
    world.queue.add(X, marker(), [A])
    now_s, pauses = 0.0, []
    for error in (
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_enough_replicas,
        ErrorCode.request_timed_out,
        ErrorCode.transaction_coordinator_fenced,
        ErrorCode.cluster_authorization_failed,
        *[ErrorCode.unknown_server_error] * 20,
    ):
        made = world.queue.batches(now_s)
        world.answer(1, made[1], error, now_s)
        assert world.queue.batches(now_s) == {}
        next_s = world.queue.next_s()
        assert next_s is not None
        pauses.append(next_s - now_s)
        now_s = next_s
    assert pauses[:3] == pytest.approx([0.02, 0.04, 0.08])
    # The pause stops growing at 5 s.
    assert 4.9 < pauses[-1] < 5.1
    assert world.batches(now_s) == {1: [A]}
    assert len(world.queue.finished()) == 1


def test_a_partition_that_moved_is_sent_to_its_new_leader() -> None:
    world = QueueBench()
    world.queue.add(X, marker(), [A])
    under_way = world.queue.batches(0.0)
    world.queue.add(Y, marker(), [B])
    assert world.batches() == {}
    world.leaders[A] = world.leaders[B] = 2
    world.answer(1, under_way[1], ErrorCode.not_leader_or_follower)
    assert world.batches() == {}
    # Marker B is due at once, and marker A after its first pause of 20 ms.
    assert world.queue.next_s() == float("-inf")
    assert world.batches(0.02) == {2: [B, A]}


def test_a_higher_epoch_in_the_log_means_that_the_transaction_has_ended_there() -> None:
    world = QueueBench()
    world.queue.add(X, marker(), [A])
    world.answer(1, world.queue.batches(0.0)[1], ErrorCode.invalid_producer_epoch)
    assert [key for key, _ in world.queue.finished()] == [X]


def test_a_partition_that_is_unknown_for_hours_keeps_its_marker() -> None:
    """After a restored backup a partition is unknown until its broker returns."""
    world = QueueBench()
    world.leaders[A] = UNKNOWN
    world.queue.add(X, marker(), [A])
    now_s = 0.0
    while now_s < 24 * 3600.0:
        assert world.queue.batches(now_s) == {}
        assert world.queue.finished() == []
        next_s = world.queue.next_s()
        assert next_s is not None
        now_s = next_s
    world.leaders[A] = 1
    assert world.batches(now_s) == {1: [A]}
    assert [key for key, _ in world.queue.finished()] == [X]


def test_a_partition_with_a_recorded_deletion_needs_no_marker() -> None:
    world = QueueBench()
    world.leaders[A] = UNKNOWN
    world.queue.add(X, marker(), [A, B])
    assert world.batches(0.0) == {1: [B]}
    # The controller has recorded the deletion, so that the partition never returns.
    world.leaders[A] = DELETED
    next_s = world.queue.next_s()
    assert next_s is not None
    assert world.batches(next_s) == {}
    assert [key for key, _ in world.queue.finished()] == [X]


def test_a_resigned_coordinator_sends_nothing() -> None:
    world = QueueBench()
    world.queue.add(X, marker(), [A, C])
    world.queue.add(Y, marker(), [B])
    under_way = world.queue.batches(0.0)
    # Partition 0 of the coordinators' topic has moved. Partition 1 stays with this broker.
    world.queue.drop(0)
    for broker, batch in under_way.items():
        world.answer(broker, batch, ErrorCode.request_timed_out)
    assert world.batches(1.0) == {1: [B]}
    assert [key for key, _ in world.queue.finished()] == [Y]


def test_a_late_answer_does_not_finish_the_next_transaction_of_the_id() -> None:
    world = QueueBench()
    world.queue.add(X, marker(5), [A])
    late = world.queue.batches(0.0)
    world.queue.add(X, marker(6), [A])
    # The answer is for epoch 5, whose marker has been replaced.
    world.answer(1, late[1], ErrorCode.none)
    assert world.queue.finished() == []
    assert world.batches() == {1: [A]}
    assert world.queue.finished() == [(X, marker(6))]


def test_size_of_a_request_is_limited() -> None:
    partitions = [TopicPartition("t", number) for number in range(2 * BATCH_MAX + 1)]
    queue = markers.MarkerQueue(lambda tp: 1)
    queue.add(X, marker(), partitions)
    sizes = []
    while batches := queue.batches(0.0):
        queue.answered(1, batches[1], lambda write: ErrorCode.none, 0.0)
        sizes.append(len(batches[1]))
    assert sizes == [BATCH_MAX, BATCH_MAX, 1]
    assert [key for key, _ in queue.finished()] == [X]


def test_no_step_iterates_over_all_pending_work() -> None:
    """Sending 100,000 markers looks up each leader twice: for its place, and to send it."""
    lookups = 0

    def leader_of(_: TopicPartition) -> int:
        nonlocal lookups
        lookups += 1
        return 1

    queue = MarkerQueue(leader_of)
    count, most, sent = 100_000, 0, 0
    queue.add(X, marker(), [TopicPartition("t", number) for number in range(count)])
    while sent < count:
        before = lookups
        for broker, batch in queue.batches(0.0).items():
            sent += len(batch)
            queue.answered(broker, batch, lambda _: ErrorCode.none, 0.0)
        most = max(most, lookups - before)
    assert lookups == 2 * count
    # No single step does more than a twenty-fifth of the work.
    assert most <= 2 * count // 25
    assert queue.next_s() is None


def test_obsolete_markers_block_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "BATCH_MAX", 2)
    world = QueueBench()
    world.queue.add(Y, marker(), [A])
    under_way = world.queue.batches(0.0)
    world.queue.add(X, marker(), [A, B])
    world.queue.batches(0.0)  # Both get a place: broker 1 has a request under way.
    # The markers that were placed last become obsolete, one of them in front of the next marker.
    world.queue.drop(0)
    world.queue.add((1, "z"), marker(), [B])
    for broker, batch in under_way.items():
        world.answer(broker, batch, ErrorCode.none)
    sent = [world.batches() for _ in range(3)]
    assert {1: [B]} in sent
    assert world.queue.unfinished == 0
    assert world.queue.next_s() is None
