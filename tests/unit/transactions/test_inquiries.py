"""Requests of leaders to coordinators on other brokers: pending ones are sent together."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from tests.answers import room
from tidemark.tls.identity import TlsIdentity
from tidemark.wire.connection import ConnectionClosed
from tidemark.wire.framing import decode_response, encode_request
from tidemark_broker.api.serving.dispatcher import PrivateDispatcher
from tidemark_broker.api.table import PrivateApi
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.replication.types import TopicPartition
from tidemark_broker.transactions.core.metadata import Producer
from tidemark_broker.transactions.inquiries import Inquiries
from tidemark_broker.transactions.wire import (
    QueryCoordinatorRequest,
    QueryCoordinatorResponse,
    WireInquiry,
    WireMarker,
    WireVerdict,
    WriteMarkersRequest,
    WriteMarkersResponse,
)

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
ME = Producer(7, 0)
OK = ErrorCode.none


class PendingLinks:
    """Connections to other brokers, whose requests wait to be answered."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, QueryCoordinatorRequest, asyncio.Future[Any]]] = []

    async def request(self, broker: int, entity: Any, answer: Any, timeout_s: float) -> Any:
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.requests.append((broker, entity, waiting))
        return await waiting

    def answer(self, *errors: Sequence[int]) -> None:
        _, _, waiting = self.requests[-1]
        verdicts = tuple(WireVerdict(errors=tuple(error)) for error in errors)
        waiting.set_result(QueryCoordinatorResponse(verdicts=verdicts))


def made(wire: Any, leader: int = 2) -> Inquiries:
    async def here(inquiries: Sequence[WireInquiry]) -> list[list[ErrorCode]]:
        return [[OK] * len(inquiry.partitions) for inquiry in inquiries]

    def leader_of(transactional_id: str) -> int:
        if transactional_id == "unknown":
            raise CoordinatorError(ErrorCode.coordinator_not_available)
        return leader

    return Inquiries(node_id=1, links=wire, leader_of=leader_of, answer_here=here)


async def soon(inquiries: Inquiries, name: str, *tps: TopicPartition) -> "asyncio.Task[Any]":
    task = asyncio.create_task(inquiries.query(name, ME, tps, adds=True))
    await asyncio.sleep(0.001)
    return task


async def test_waiting_inquiries_are_sent_together() -> None:
    wire = PendingLinks()
    inquiries = made(wire)
    first = await soon(inquiries, "a", A, B)
    # The first request is under way. The two others wait until it is answered.
    second, third = await soon(inquiries, "b", A), await soon(inquiries, "c", B)
    assert [
        [inquiry.transactional_id for inquiry in request.inquiries]
        for _, request, _ in wire.requests
    ] == [["a"]]
    wire.answer([0, int(ErrorCode.concurrent_transactions)])
    assert await first == {A: OK, B: ErrorCode.concurrent_transactions}
    await asyncio.sleep(0.001)
    assert [inquiry.transactional_id for inquiry in wire.requests[1][1].inquiries] == ["b", "c"]
    wire.answer([0], [int(ErrorCode.producer_fenced)])
    assert (await second, await third) == ({A: OK}, {B: ErrorCode.producer_fenced})
    last = await soon(inquiries, "d", A)
    wire.answer([0])
    assert await last == {A: OK}


async def test_a_client_retries_when_the_coordinator_does_not_answer() -> None:
    wire = PendingLinks()
    inquiries = made(wire)
    inquiry = await soon(inquiries, "a", A)
    wire.requests[-1][2].set_exception(ConnectionClosed("gone"))
    assert await inquiry == {A: ErrorCode.network_exception}
    inquiry = await soon(inquiries, "a", A)
    wire.answer([0, 0])  # Two errors for one partition: the answer is for another request.
    assert await inquiry == {A: ErrorCode.network_exception}


async def test_size_of_a_request_is_limited() -> None:
    wire = PendingLinks()
    inquiries = made(wire)
    # Two such inquiries do not fit into one request, so that each is sent alone.
    many = [TopicPartition("t", number) for number in range(15_000)]
    first = await soon(inquiries, "a", A)
    waiting = [await soon(inquiries, name, *many) for name in ("b", "c")]
    wire.answer([0])
    await first
    for number, task in enumerate(waiting, start=1):
        await asyncio.sleep(0.001)
        assert len(wire.requests) == number + 1
        wire.answer([0] * len(many))
        assert set((await task).values()) == {OK}


async def test_messages_between_brokers() -> None:
    """Send each private request through its codec, to the handler and back."""
    received: list[Any] = []

    async def ask(
        request: QueryCoordinatorRequest, peer: TlsIdentity, memory: Any
    ) -> QueryCoordinatorResponse:
        received.append(request)
        return QueryCoordinatorResponse(verdicts=(WireVerdict(errors=(0, 48)),))

    async def write(
        request: WriteMarkersRequest, peer: TlsIdentity, memory: Any
    ) -> WriteMarkersResponse:
        received.append(request)
        return WriteMarkersResponse(errors=(0,))

    apis = (PrivateApi("Ask", ask), PrivateApi("Write", write))
    inquiry = QueryCoordinatorRequest(
        inquiries=(
            WireInquiry(
                transactional_id="a", producer_id=7, producer_epoch=3, adds=True,
                topics=("t", "u"), partitions=(0, 9),
            ),
        )
    )  # fmt: skip
    marker = WriteMarkersRequest(
        markers=(
            WireMarker(
                topic="t", partition=1, producer_id=7, producer_epoch=3, coordinator_epoch=5,
                commit=True, version=2,
            ),
        )
    )  # fmt: skip
    answers = []
    for request, answer in ((inquiry, QueryCoordinatorResponse), (marker, WriteMarkersResponse)):
        frame = encode_request(request, 1, "broker 1")[4:]
        served = PrivateDispatcher(apis).begin(frame, room(), TlsIdentity("c", 1))
        assert isinstance(served, Coroutine)
        pieces = await served
        answers.append(decode_response(answer, b"".join(pieces)[4:])[1])
    assert received == [inquiry, marker]
    assert answers == [
        QueryCoordinatorResponse(verdicts=(WireVerdict(errors=(0, 48)),)),
        WriteMarkersResponse(errors=(0,)),
    ]


async def test_missing_coordinator_is_reported() -> None:
    # The leader is -1: no broker coordinates the id at the moment.
    unavailable = await made(PendingLinks(), leader=-1).query("a", ME, [A], adds=False)
    assert unavailable == {A: ErrorCode.coordinator_not_available}
    unknown = await made(PendingLinks()).query("unknown", ME, [A], adds=False)
    assert unknown == {A: ErrorCode.coordinator_not_available}
    # This broker coordinates the id itself, so that no request is sent.
    assert await made(PendingLinks(), leader=1).query("a", ME, [A], adds=False) == {A: OK}


async def test_waiting_requests_are_answered_when_the_broker_stops() -> None:
    inquiries = made(PendingLinks())
    waiting = [await soon(inquiries, name, A) for name in ("a", "b")]
    await inquiries.close()
    assert [await item for item in waiting] == [{A: ErrorCode.network_exception}] * 2
