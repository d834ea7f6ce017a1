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


class StubCoordinator:
    """Coordinator that confirms every partition.

    ``meanwhile`` are actions in the partition, one before each of the first answers.
    """

    def __init__(self, *meanwhile: Callable[[], object]) -> None:
        self.queries = 0
        self._meanwhile = meanwhile

    async def query(
        self, _: str, __: Producer, partitions: Sequence[TopicPartition], *, adds: bool
    ) -> Mapping[TopicPartition, ErrorCode]:
        self.queries += 1
        if self.queries <= len(self._meanwhile):
            self._meanwhile[self.queries - 1]()
        return dict.fromkeys(partitions, ErrorCode.none)


@pytest.fixture
def states() -> ProducerStates:
    """Return the state before the former transaction's marker arrives."""
    states = ProducerStates()
    states.note(BEFORE)
    return states


async def verified(
    states: ProducerStates, coordinator: StubCoordinator
) -> VerificationGuard | ErrorCode | None:
    def take() -> VerificationGuard | None:
        return states.begin_verification(FIRST, 0, supports_epoch_bump=True)

    found = await verification.verified(coordinator, "id", ME, {TP: take}, adds=True)  # type: ignore[arg-type]
    return found.get(TP)


async def test_marker_that_overtakes_the_answer_repeats_the_query(states: ProducerStates) -> None:
    coordinator = StubCoordinator(lambda: states.note(MARKER))
    guard = await verified(states, coordinator)
    assert isinstance(guard, VerificationGuard)
    assert states.check(FIRST, AppendOrigin.CLIENT, guard) is None
    # The marker has voided the guard of the first query.
    assert coordinator.queries == 2


async def test_repeatedly_void_guards_are_answered_with_concurrent_transactions(
    states: ProducerStates,
) -> None:
    coordinator = StubCoordinator(*[lambda: states.note(MARKER)] * 10)
    assert await verified(states, coordinator) is ErrorCode.concurrent_transactions
    # The first query is repeated five times.
    assert coordinator.queries == 6


async def test_the_coordinator_is_not_queried_for_a_transaction_in_progress_here(
    states: ProducerStates,
) -> None:
    states.note(MARKER)
    states.note(FIRST)
    coordinator = StubCoordinator()
    assert await verified(states, coordinator) is None
    assert coordinator.queries == 0
