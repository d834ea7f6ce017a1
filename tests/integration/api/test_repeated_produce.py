"""A Produce that repeats an earlier one of its connection is answered as any other, byte for byte.

Two brokers go through the same story. One client sends all requests on one connection, so most of
them are repeated. The other one opens a connection for each, so that none is.
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.counted_calls import counted_calls
from tests.integration.api.api_broker import NODE, ApiBroker, running
from tests.unit.api import api_requests as kafka
from tests.user_states import quota, user, user_states
from tidemark.records.builder import Record, build_batch
from tidemark.wire.framing import decode_response, encode_request
from tidemark.wire.users import UserState

VERSIONS = range(3, 14)
TOPIC_ID, SECOND_ID = uuid.UUID(int=1), uuid.UUID(int=2)
#: Change of a broker, or the frame of a request.
Step = bytes | Callable[[ApiBroker], Awaitable[object]]


def _batch(value: bytes, **values: Any) -> bytes:
    return build_batch([Record(None, value, (), int(time.time() * 1000))], **values)


def _frame(version: int, correlation_id: int, *records: bytes, acks: int = -1, **ids: Any) -> bytes:
    request = kafka.produce(version, "t", *records, acks=acks, **{"topic_id": TOPIC_ID} | ids)
    return encode_request(request, correlation_id, "client")


class _Connection:
    """A client that sends and receives whole frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def exchange(self, frame: bytes) -> bytes:
        """Send a request and return its response, empty if the broker closes the connection."""
        self._writer.write(frame)
        try:
            head = await asyncio.wait_for(self._reader.readexactly(4), 10)
            return head + await self._reader.readexactly(int.from_bytes(head))
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""


@contextlib.asynccontextmanager
async def _connected(broker: ApiBroker) -> AsyncIterator[_Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    try:
        yield _Connection(reader, writer)
    finally:
        writer.close()


async def _story(folder: Path, steps: Sequence[Step]) -> list[bytes]:
    """Go through the steps on two brokers; return the responses, which are the same."""
    answers: list[bytes] = []
    async with running(folder / "1", {}) as repeated, running(folder / "2", {}) as general:
        # Each story starts with a led topic.
        for broker in (repeated, general):
            await broker.create("t", topic_id=TOPIC_ID, partitions=2)
        async with _connected(repeated) as connection:
            for step in steps:
                if callable(step):
                    await step(repeated)
                    await step(general)
                    continue
                async with _connected(general) as another:
                    answers.append(await connection.exchange(step))
                    assert await another.exchange(step) == answers[-1]
    return answers


def _errors(version: int, answers: Sequence[bytes]) -> list[tuple[ErrorCode, int]]:
    """Error and base offset of each response's first partition."""
    found = []
    for answer in answers:
        _, response = decode_response(kafka.answer_type(0, version), answer[4:])
        result = response.responses[0].partition_responses[0]
        found.append((result.error_code, result.base_offset))
    return found


@pytest.mark.parametrize("acks", [-1, 1])
@pytest.mark.parametrize("version", VERSIONS)
async def test_repeated_requests_have_the_same_responses(
    tmp_path: Path, version: int, acks: int
) -> None:
    plain = [_frame(version, n, _batch(b"x" * n), acks=acks) for n in (0, 1, 2, 200, 20_000)]
    damaged = _batch(b"y")[:-1] + b"!"
    others = [
        # Batches that are not plain, and those that the log refuses.
        _frame(version, 7, _batch(b"x", codec=1), acks=acks),
        _frame(version, 8, damaged, acks=acks),
        _frame(version, 9, _batch(b"x", base_offset=5), acks=acks),
        _frame(version, 10, b"", acks=acks),
        _frame(version, 11, _batch(b"x") * 2, acks=acks),
        _frame(version, 12, _batch(b"x", producer_id=5, producer_epoch=0, base_sequence=0)),
        # Sent again: a duplicate has the offset of the first append.
        _frame(version, 13, _batch(b"x", producer_id=5, producer_epoch=0, base_sequence=0)),
        _frame(version, 14, _batch(b"x", producer_id=5, producer_epoch=0, base_sequence=9)),
        # Several partitions, and a request that starts in the same way.
        _frame(version, 15, _batch(b"a"), _batch(b"b"), acks=acks),
        _frame(version, -(2**31), _batch(b"z"), acks=acks),
    ]
    with counted_calls("tidemark_broker/api/records/produce") as calls:
        answers = await _story(tmp_path, [*plain, *others, *plain])
    assert calls["begin_repeat"] > len(plain) + len(others)
    results = _errors(version, answers)
    assert results[:5] == [(ErrorCode.none, n) for n in range(5)]
    assert results[6][0] is ErrorCode.corrupt_message


async def test_changes_between_two_requests_are_honoured(tmp_path: Path) -> None:
    numbers = iter(range(100))

    def send() -> bytes:
        return _frame(9, next(numbers), _batch(b"x"))

    def users(*states: UserState, authorize: bool) -> Step:
        async def change(broker: ApiBroker) -> None:
            broker.broker.users.apply(user_states(*states, authorize=authorize))

        return change

    def topic(**values: Any) -> Step:
        changed: dict[str, Any] = {"topic_id": TOPIC_ID, "partitions": 2} | values
        return lambda broker: broker.create("t", **changed)

    may_write = user("ANONYMOUS", "ALLOW WRITE TOPIC t")
    story: list[tuple[Step | None, ErrorCode, int]] = [
        (None, ErrorCode.none, 0),
        (None, ErrorCode.none, 1),
        # ACLs
        (users(authorize=True), ErrorCode.topic_authorization_failed, -1),
        (users(may_write, authorize=True), ErrorCode.none, 2),
        (users(authorize=False), ErrorCode.none, 3),
        # leadership
        (topic(replicas=(NODE, 2), leader=2, leader_epoch=1), ErrorCode.not_leader_or_follower, -1),
        (topic(leader_epoch=2), ErrorCode.none, 4),
        # configuration
        (
            topic(leader_epoch=2, config={"max.message.bytes": "10"}),
            ErrorCode.message_too_large,
            -1,
        ),
        (topic(leader_epoch=2, config={"cleanup.policy": "compact"}), ErrorCode.invalid_record, -1),
        (
            topic(leader_epoch=3, replicas=(NODE, -1), config={"min.insync.replicas": "2"}),
            ErrorCode.not_enough_replicas,
            -1,
        ),
        (topic(leader_epoch=4), ErrorCode.none, 5),
        # deletion, and another topic of the same name
        (lambda broker: broker.delete(TOPIC_ID), ErrorCode.unknown_topic_or_partition, -1),
        (topic(topic_id=SECOND_ID), ErrorCode.none, 0),
        (None, ErrorCode.none, 1),
    ]
    steps = [step for change, *_ in story for step in (change, send()) if step is not None]
    assert _errors(9, await _story(tmp_path, steps)) == [tuple(rest) for _, *rest in story]


async def test_topic_id_of_a_deleted_topic_is_unknown(tmp_path: Path) -> None:
    frames = [_frame(13, number, _batch(b"x")) for number in range(5)]
    steps: list[Step] = [
        *frames[:3],
        lambda broker: broker.delete(TOPIC_ID),
        lambda broker: broker.create("t", topic_id=SECOND_ID),
        *frames[3:],
    ]
    results = _errors(13, await _story(tmp_path, steps))
    assert (
        results == [(ErrorCode.none, n) for n in range(3)] + [(ErrorCode.unknown_topic_id, -1)] * 2
    )


async def test_log_start_and_append_time_of_repeated_requests(broker: ApiBroker) -> None:
    topic_id = await broker.create("t")

    async def sent(correlation_id: int) -> Any:
        frame = await connection.exchange(_frame(9, correlation_id, _batch(b"x")))
        received, response = decode_response(kafka.answer_type(0, 9), frame[4:])
        assert received == correlation_id
        return response.responses[0].partition_responses[0]

    async with _connected(broker) as connection:
        starts = [(await sent(number)).log_start_offset for number in range(3)]
        await broker.ask(kafka.delete_records(2, "t", 2), kafka.answer_type(21, 2))
        starts += [(await sent(number)).log_start_offset for number in range(2)]
        assert starts == [0, 0, 0, 2, 2]
        config = {"message.timestamp.type": "LogAppendTime"}
        await broker.create("t", topic_id=topic_id, config=config)
        assert (await sent(3)).log_append_time is not None
        await broker.create("t", topic_id=topic_id)
        assert (await sent(4)).log_append_time is None


async def test_quota_that_is_set_between_two_requests_throttles(broker: ApiBroker) -> None:
    await broker.create("t")
    async with _connected(broker) as connection:
        for number in range(3):
            await connection.exchange(_frame(9, number, _batch(b"x")))
        limit = quota("ANONYMOUS", None, produce=1_000)
        broker.broker.users.apply(user_states(authorize=False, quotas=(limit,)))
        frame = await connection.exchange(_frame(9, 4, _batch(b"x" * 50_000)))
        _, response = decode_response(kafka.answer_type(0, 9), frame[4:])
        assert response.throttle_time.total_seconds() > 1


async def test_repeated_request_that_ends_early_closes_the_connection(broker: ApiBroker) -> None:
    await broker.create("t")
    frame = _frame(9, 1, _batch(b"x"))
    async with _connected(broker) as connection:
        for _ in range(3):
            assert await connection.exchange(frame)
        # The length of the frame is correct, that of the records is not.
        cut = frame[4:-5]
        assert await connection.exchange(len(cut).to_bytes(4) + cut) == b""
