"""Discovery of the leading operator: a silent address delays no other."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.loop_turns import many_turns
from tidemark.backoff import Backoff
from tidemark.wire import control
from tidemark_broker.control import controller_discovery
from tidemark_broker.control.controller_discovery import Address, ControllerFinder, FoundController

A, B, C = ("a", 1), ("b", 1), ("c", 1)


class DiscoveredOperator:
    """Operator at an address, with its open connections."""

    def __init__(
        self, *, leads: bool = False, silent: bool = False, unreachable: bool = False
    ) -> None:
        self.leads = leads
        self.silent = silent
        self.unreachable = unreachable
        self.requests = 0
        self.open: list[Any] = []


class DiscoveryConnection:
    """Connection to a simulated operator."""

    def __init__(self, operator: DiscoveredOperator) -> None:
        self._operator = operator
        operator.open.append(self)

    async def request(self, entity: Any, *_: object) -> control.BrokerHeartbeatResponse:
        # The heartbeat of an unregistered broker only tests whether the operator leads.
        assert (entity.broker_id, entity.broker_epoch) == (7, -1), "of no registration"
        self._operator.requests += 1
        code = ErrorCode.stale_broker_epoch if self._operator.leads else ErrorCode.not_controller
        return control.BrokerHeartbeatResponse(
            error_code=int(code), is_fenced=True, should_shut_down=False, controller_epoch=1
        )

    def abort(self) -> None:
        self._operator.open.remove(self)


async def dial(operator: DiscoveredOperator) -> Any:
    if operator.silent:
        await asyncio.Event().wait()
    if operator.unreachable:
        raise ConnectionRefusedError("no listener")
    return DiscoveryConnection(operator)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_discovery, "ASK_AGAIN_S", 0)
    monkeypatch.setattr(controller_discovery, "_PAUSES", Backoff(first_s=0, most_s=0))


def finder(operators: dict[Address, DiscoveredOperator]) -> ControllerFinder:
    return ControllerFinder(7, tuple(operators), lambda address: dial(operators[address]))


@contextlib.asynccontextmanager
async def looking(find: Callable[[], Any]) -> AsyncIterator["asyncio.Task[FoundController]"]:
    task: asyncio.Task[FoundController] = asyncio.create_task(find())
    try:
        async with asyncio.timeout(10):
            yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_two_silent_addresses_cost_no_time() -> None:
    """Addresses are dialled concurrently, so the third one is found without any pause."""
    at = {
        A: DiscoveredOperator(silent=True),
        B: DiscoveredOperator(silent=True),
        C: DiscoveredOperator(leads=True),
    }
    async with looking(finder(at).find) as found:
        await many_turns()
        assert found.result().address == C
    assert at[C].open == [found.result().connection]


async def test_a_standby_is_queried_over_the_same_connection_until_it_leads(
    hurried: None,
) -> None:
    at = {A: DiscoveredOperator(), B: DiscoveredOperator(silent=True)}
    async with looking(finder(at).find) as found:
        await many_turns()
        assert not found.done()
        assert at[A].requests > 1
        assert len(at[A].open) == 1
        # The standby takes over while the broker is connected to it.
        at[A].leads = True
        assert (await found).address == A


async def test_connections_to_others_are_ended(hurried: None) -> None:
    at = {A: DiscoveredOperator(), B: DiscoveredOperator(), C: DiscoveredOperator()}
    async with looking(finder(at).find) as found:
        await many_turns()
        # Connections to A and C are closed once B leads.
        at[B].leads = True
        await found
    assert [len(operator.open) for operator in at.values()] == [0, 1, 0]


async def test_two_leaders_leave_one_connection() -> None:
    at = {A: DiscoveredOperator(leads=True), B: DiscoveredOperator(leads=True)}
    async with looking(finder(at).find) as found:
        address, connection = await found
    assert {item: at[item].open for item in at} == {
        item: [connection] if item == address else [] for item in at
    }


async def test_a_cancelled_discovery_leaves_no_connection(hurried: None) -> None:
    at = {A: DiscoveredOperator(), B: DiscoveredOperator()}
    async with looking(finder(at).find):
        await many_turns()
        assert at[A].open
    assert [operator.open for operator in at.values()] == [[], []]


async def test_a_returning_controller_is_found_and_each_problem_is_logged_once(
    hurried: None, caplog: pytest.LogCaptureFixture
) -> None:
    at = {A: DiscoveredOperator(unreachable=True), B: DiscoveredOperator()}
    async with looking(finder(at).find) as found:
        await many_turns()
        # The controller starts again at its former address.
        at[A].unreachable, at[A].leads = False, True
        assert (await found).address == A
    assert caplog.text.count("controller at a:1: no listener") == 1


async def test_an_error_at_one_address_does_not_block_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    at = {A: DiscoveredOperator(), B: DiscoveredOperator(leads=True)}

    async def fails(address: Address) -> Any:
        if address == A:
            raise ValueError("an unreadable certificate")
        return await dial(at[address])

    async with looking(ControllerFinder(7, (A, B), fails).find) as found:
        assert (await found).address == B
    assert "an unreadable certificate" in caplog.text


async def test_the_last_controller_is_queried_after_the_others(hurried: None) -> None:
    """A hung process may still claim that it leads."""
    at = {A: DiscoveredOperator(leads=True), B: DiscoveredOperator()}
    async with looking(lambda: finder(at).find(last=A)) as found:
        await many_turns()
        # While another address may answer, the last controller is not queried.
        assert at[A].requests == 0
        at[B].leads = True
        assert (await found).address == B


async def test_the_last_controller_is_queried_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch, hurried: None
) -> None:
    monkeypatch.setattr(controller_discovery, "LATER_S", 0)
    at = {A: DiscoveredOperator(leads=True), B: DiscoveredOperator()}
    async with looking(lambda: finder(at).find(last=A)) as found:
        assert (await found).address == A
