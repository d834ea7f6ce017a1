"""Forwarding of topic changes to the controller: connections, batches and missing answers."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.loop_turns import many_turns
from tests.unit.topic_changes.requests import create, settings
from tidemark.wire.connection import ConnectionClosed
from tidemark.wire.framing import encode
from tidemark.wire.topics import (
    CHANGES_MAX,
    ChangeTopicsRequest,
    ChangeTopicsResponse,
    TopicChangeResult,
)
from tidemark_broker.topic_changes.forwarder import (
    MESSAGE_BYTES_MAX,
    ControllerLink,
    Forwarder,
    Requester,
)

REQUESTER = Requester("User:alice", "10.0.0.7:1")


def _done(request: ChangeTopicsRequest) -> ChangeTopicsResponse:
    result = TopicChangeResult(error_code=0, error_message=None, topic_id=None)
    return ChangeTopicsResponse(error_code=0, results=(result,) * len(request.changes))


class ForwardingConnection:
    """Connection to a controller that answers at once; it records the requests."""

    def __init__(self, sent_requests: list[ChangeTopicsRequest]) -> None:
        self.sent_requests = sent_requests
        self.closed = False
        self.answer: Callable[[ChangeTopicsRequest], ChangeTopicsResponse] = _done

    async def request(self, request: Any, response_type: Any, timeout_s: float) -> Any:
        if self.closed:
            raise ConnectionClosed("ended")
        self.sent_requests.append(request)
        return self.answer(request)

    async def close(self) -> None:
        self.closed = True


class ForwarderWorld:
    """Broker with or without a session of a controller."""

    def __init__(self) -> None:
        self.sent_requests: list[ChangeTopicsRequest] = []
        self.connections: list[ForwardingConnection] = []
        self.fails: type[OSError] | None = None
        self.link: ControllerLink | None = None
        self.forwarder = Forwarder(lambda: self.link)

    def register(self, epoch: int) -> None:
        """Start a new session."""

        async def connect() -> Any:
            if self.fails is not None:
                raise self.fails("no listener")
            self.connections.append(ForwardingConnection(self.sent_requests))
            return self.connections[-1]

        self.link = ControllerLink(connect=connect, broker_id=1, broker_epoch=epoch, token=b"x")

    async def codes(self, count: int = 1) -> set[str]:
        changes = [create(f"t{number}") for number in range(count)]
        results = await self.forwarder.change(changes, REQUESTER, timeout_s=10)
        assert len(results) == count
        return {ErrorCode(result.error_code).name for result in results}


@pytest.fixture
async def world() -> ForwarderWorld:
    made = ForwarderWorld()
    made.register(7)
    return made


async def test_the_session_token_is_sent_before_any_large_request(world: ForwarderWorld) -> None:
    assert await world.codes() == {"none"}
    # An empty message with the token authenticates the connection.
    first, second = world.sent_requests
    assert (first.changes, first.session_token, first.broker_epoch) == ((), b"x", 7)
    assert (len(second.changes), second.principal, second.host) == (1, *_of(REQUESTER))


def _of(requester: Requester) -> tuple[str, str]:
    return requester.principal, requester.host


async def test_many_changes_are_several_messages_over_one_connection(world: ForwarderWorld) -> None:
    assert await world.codes(2 * CHANGES_MAX + 1) == {"none"}
    assert [len(item.changes) for item in world.sent_requests] == [0, CHANGES_MAX, CHANGES_MAX, 1]
    assert len(world.connections) == 1


async def test_new_session_gets_its_own_connection(world: ForwarderWorld) -> None:
    await world.codes()
    world.register(8)
    assert await world.codes() == {"none"}
    assert world.connections[0].closed
    assert world.sent_requests[-1].broker_epoch == 8


async def test_closed_connection_is_replaced(world: ForwarderWorld) -> None:
    await world.codes()
    world.connections[0].closed = True
    assert await world.codes() == {"none"}
    assert len(world.connections) == 2


async def test_without_a_controller_clients_get_a_retriable_error(world: ForwarderWorld) -> None:
    world.link = None
    assert await world.codes(3) == {"not_controller"}
    world.register(7)
    world.fails = ConnectionRefusedError
    assert await world.codes() == {"not_controller"}


async def test_a_former_controller_receives_no_requests(world: ForwarderWorld) -> None:
    await world.codes()
    world.connections[0].answer = lambda _: ChangeTopicsResponse(
        error_code=int(ErrorCode.not_controller), results=()
    )
    assert await world.codes() == {"not_controller"}
    assert world.connections[0].closed


async def test_missing_answer_is_a_timeout(world: ForwarderWorld) -> None:
    await world.codes()

    # The changes may have been applied, so the client must not assume a failure.
    def late(_: ChangeTopicsRequest) -> ChangeTopicsResponse:
        raise TimeoutError

    world.connections[0].answer = late
    assert await world.codes(2) == {"request_timed_out"}


async def test_concurrent_requests_share_the_connection(world: ForwarderWorld) -> None:
    assert await asyncio.gather(world.codes(), world.codes()) == [{"none"}, {"none"}]
    assert len(world.connections) == 1


async def test_large_changes_are_sent_a_few_at_a_time(world: ForwarderWorld) -> None:
    """The controller rejects a too large message, and with it the requests of other clients."""
    value = "v" * 0x7FFF
    # Two values of 32 KiB in each change.
    large = [create(f"t{number}", settings=settings(a=value, b=value)) for number in range(20)]
    results = await world.forwarder.change(large, REQUESTER, timeout_s=10)
    assert {result.error_code for result in results} == {0}
    sent = [request.changes for request in world.sent_requests if request.changes]
    assert [change for changes in sent for change in changes] == large
    assert max(len(encode(request)) for request in world.sent_requests) < MESSAGE_BYTES_MAX


async def test_oversized_change_is_refused_by_the_broker(world: ForwarderWorld) -> None:
    # Twenty values exceed the limit of a message on their own.
    too_large = create("large", settings=settings(**{f"a{n}": "v" * 0x7FFF for n in range(20)}))
    results = await world.forwarder.change(
        [create("a"), too_large, create("b")], REQUESTER, timeout_s=10
    )
    assert [ErrorCode(result.error_code).name for result in results] == [
        "none", "policy_violation", "none",
    ]  # fmt: skip
    assert [c.name for request in world.sent_requests for c in request.changes] == ["a", "b"]


async def test_a_large_request_leaves_room_for_others(world: ForwarderWorld) -> None:
    """One client has a hundred connections, and the controller is slow."""
    await world.codes()
    may_end, sent_requests = asyncio.Event(), world.sent_requests
    sent_requests.clear()

    async def slowly(request: Any, response_type: Any, timeout_s: float) -> Any:
        sent_requests.append(request)
        await may_end.wait()
        return _done(request)

    world.connections[0].request = slowly  # type: ignore[method-assign]

    def forward(principal: str, port: int) -> asyncio.Task[Any]:
        requester = Requester(principal, f"10.0.0.7:{port}")
        return asyncio.create_task(world.forwarder.change([create()], requester, timeout_s=60))

    tasks = [forward("User:ann", port) for port in range(100)]
    await many_turns()
    # One user occupies at most eight slots.
    assert [item.principal for item in sent_requests] == ["User:ann"] * 8
    tasks.append(forward("User:bob", 1))
    await many_turns()
    assert sent_requests[-1].principal == "User:bob"
    may_end.set()
    assert len(await asyncio.gather(*tasks)) == 101
