"""A leader queries the coordinator before it accepts a transaction; markers arrive in between."""

from collections.abc import Callable, Mapping, Sequence

import pytest
from kio.schema.errors import ErrorCode

from tidemark_broker.log.producer_entry import (
    NO_SEQUENCE,
    AppendOrigin,
    EndMarker,
    ProducerBatch,
)
from tidemark_broker.log.producer_states import ProducerStates, VerificationGuard
from tidemark_broker.replication.types import TopicPartition
from tidemark_broker.transactions import verification
from tidemark_broker.transactions.core.metadata import Producer

TP = TopicPartition("t", 0)
ME = Producer(7, 1)
BEFORE = ProducerBatch(7, 0, 0, 0, 0, 0, is_transactional=True)
MARKER = ProducerBatch(
    7, 1, NO_SEQUENCE, 1, 1, 0, is_transactional=True, marker=EndMarker(True, 0)
)  # fmt: skip
FIRST = ProducerBatch(7, 1, 0, 2, 2, 0, is_transactional=True)


class Coordinator:
    """Says that the partition is in the transaction; ``meanwhile``: what happens in the partition
    before each of its answers."""

    def __init__(self, *meanwhile: Callable[[], object]) -> None:
        self.asked = 0
        self._meanwhile = meanwhile

    async def query(
        self, _: str, __: Producer, partitions: Sequence[TopicPartition], *, adds: bool
    ) -> Mapping[TopicPartition, ErrorCode]:
        self.asked += 1
        if self.asked <= len(self._meanwhile):
            self._meanwhile[self.asked - 1]()
        return dict.fromkeys(partitions, ErrorCode.none)


@pytest.fixture
def states() -> ProducerStates:
    """The transaction before has ended, its marker is not here yet."""
    states = ProducerStates()
    states.note(BEFORE)
    return states


async def verified(
    states: ProducerStates, coordinator: Coordinator
) -> VerificationGuard | ErrorCode | None:
    def take() -> VerificationGuard | None:
        return states.begin_verification(FIRST, 0, supports_epoch_bump=True)

    found = await verification.verified(coordinator, "id", ME, {TP: take}, adds=True)  # type: ignore[arg-type]
    return found.get(TP)


async def test_a_marker_that_overtakes_the_answer_is_no_error(states: ProducerStates) -> None:
    coordinator = Coordinator(lambda: states.note(MARKER))
    guard = await verified(states, coordinator)
    assert isinstance(guard, VerificationGuard)
    assert states.check(FIRST, AppendOrigin.CLIENT, guard) is None
    assert coordinator.asked == 2


async def test_repeatedly_void_guards_are_answered_with_concurrent_transactions(
    states: ProducerStates,
) -> None:
    coordinator = Coordinator(*[lambda: states.note(MARKER)] * 10)
    assert await verified(states, coordinator) is ErrorCode.concurrent_transactions
    assert coordinator.asked == 6


async def test_the_coordinator_is_not_queried_for_a_transaction_in_progress_here(
    states: ProducerStates,
) -> None:
    states.note(MARKER)
    states.note(FIRST)
    coordinator = Coordinator()
    assert await verified(states, coordinator) is None
    assert coordinator.asked == 0
