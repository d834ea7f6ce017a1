"""Blocks of producer ids: requested on demand, retried on failure, and bound to a session."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.loop_turns import many_turns
from tidemark.wire import control
from tidemark_broker.control import producer_id_blocks
from tidemark_broker.control.producer_id_blocks import AllocationPace, allocate_blocks
from tidemark_broker.control.session import ControllerSession, NotController, SessionEnded
from tidemark_broker.producer_ids import ProducerIds

SESSION = ControllerSession(3, 17, b"secret")


def block(start: int, error: ErrorCode = ErrorCode.none) -> control.AllocateProducerIdsResponse:
    return control.AllocateProducerIdsResponse(
        error_code=int(error), producer_id_start=start, producer_id_len=1000
    )


class BlockController:
    """Controller that returns these answers in order and fails on any further request."""

    def __init__(self, answers: Sequence[control.AllocateProducerIdsResponse]) -> None:
        self.requests: list[control.AllocateProducerIdsRequest] = []
        self._answers = list(answers)

    async def request(self, request: Any, _: object, __: float) -> Any:
        self.requests.append(request)
        return self._answers.pop(0)


async def ids_from(
    *answers: control.AllocateProducerIdsResponse,
) -> tuple[int | None, BlockController]:
    ids, controller = ProducerIds(), BlockController(answers)
    allocating = asyncio.create_task(allocate_blocks(ids, controller, SESSION))  # type: ignore[arg-type]
    try:
        return await ids.next_id(5.0), controller
    finally:
        allocating.cancel()


async def test_waiting_requests_share_one_request_to_the_controller() -> None:
    ids, controller = ProducerIds(), BlockController([block(4000)])
    allocating = asyncio.create_task(allocate_blocks(ids, controller, SESSION))  # type: ignore[arg-type]
    found = await asyncio.gather(*(ids.next_id(5.0) for _ in range(20)))
    allocating.cancel()
    # Twenty waiters are served from one block.
    assert sorted(map(int, filter(None, found))) == list(range(4000, 4020))
    [request] = controller.requests
    assert (request.broker_id, request.broker_epoch) == (3, 17)
    assert request.session_token == b"secret"


async def test_a_new_client_is_served_without_a_controller() -> None:
    ids, controller = ProducerIds(), BlockController([block(4000)])
    allocating = asyncio.create_task(allocate_blocks(ids, controller, SESSION))  # type: ignore[arg-type]
    await many_turns()
    # The block was requested in advance, so it serves clients during an outage.
    allocating.cancel()
    assert await ids.next_id(0.0) == 4000


async def test_without_available_ids_the_request_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_id_blocks, "_PAUSE_S", 0.0)
    refusal = block(-1, ErrorCode.unknown_server_error)
    found, controller = await ids_from(refusal, refusal, block(0))
    assert (found, len(controller.requests)) == (0, 3)


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (ErrorCode.not_controller, NotController),
        (ErrorCode.stale_broker_epoch, SessionEnded),
    ],
    ids=["not the controller", "stale"],
)
async def test_refusal_ends_the_session_and_the_next_one_serves_waiters(
    error: ErrorCode, ends: type[Exception]
) -> None:
    ids = ProducerIds()
    # The client waits across the end of the session.
    waiting = asyncio.create_task(ids.next_id(5.0))
    with pytest.raises(ends):
        await allocate_blocks(ids, BlockController([block(-1, error)]), SESSION)  # type: ignore[arg-type]
    next_session = BlockController([block(2000)])
    allocating = asyncio.create_task(allocate_blocks(ids, next_session, SESSION))  # type: ignore[arg-type]
    assert await waiting == 2000
    allocating.cancel()


def test_endless_allocations_are_limited_to_four_per_second() -> None:
    pace, now_s, requests = AllocationPace(), 0.0, []
    while len(requests) < 100:
        now_s += pace.wait_s(now_s)
        pace.count(now_s)
        requests.append(now_s)
    # A burst of twenty is free, and then four per second: 80 in 20 s.
    assert requests[:20] == [0.0] * 20, "many that begin at once do not wait"
    assert requests[-1] == 20.0
