"""A client's fetch session (KIP-227) on a real broker: named partitions, changed partitions,
deleted topics.
"""

import uuid
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.integration.api.api_broker import ApiBroker
from tests.unit.api import api_requests as kafka

WITH_SESSIONS = range(7, 19)


async def fetch(
    broker: ApiBroker,
    version: int,
    *offsets: int,
    session: tuple[int, int],
    topic_id: uuid.UUID | None = None,
    topic: str = "t",
) -> Any:
    """``session``: its id and the request's epoch."""
    request = kafka.fetch(
        version,
        topic,
        *offsets,
        topic_id=topic_id if version >= 13 else None,
        session_id=session[0],
        session_epoch=session[1],
    )
    # An incremental request without changes names no partition.
    if not offsets:
        request = kafka.request(
            kafka.FETCH,
            version,
            max_wait=kafka.duration(0),
            min_bytes=1,
            max_bytes=1 << 20,
            session_id=session[0],
            session_epoch=session[1],
            topics=(),
            forgotten_topics_data=(),
        )
    return await broker.ask(request, kafka.answer_type(1, version))


def partition_states(answer: Any) -> dict[int, tuple[ErrorCode, int]]:
    """Error and high watermark of each partition."""
    return {
        part.partition_index: (part.error_code, part.high_watermark)
        for topic in answer.responses
        for part in topic.partitions
    }


async def produce(broker: ApiBroker, *records: bytes | None) -> None:
    await broker.ask(kafka.produce(9, "t", *records), kafka.answer_type(0, 9))


@pytest.mark.parametrize("version", WITH_SESSIONS)
async def test_fetch_session_in_every_version(broker: ApiBroker, version: int) -> None:
    topic_id = await broker.create("t", partitions=2)
    # Session 0 and epoch 0 request a new session with all partitions.
    first = await fetch(broker, version, 0, 0, session=(0, 0), topic_id=topic_id)
    assert first.session_id > 0
    assert partition_states(first) == {0: (ErrorCode.none, 0), 1: (ErrorCode.none, 0)}
    nothing = await fetch(broker, version, session=(first.session_id, 1))
    # Nothing changed, so the response is empty.
    assert (nothing.error_code, nothing.session_id, nothing.responses) == (
        ErrorCode.none,
        first.session_id,
        (),
    )
    await produce(broker, kafka.batch(b"a"))
    news = await fetch(broker, version, session=(first.session_id, 2))
    # Only the changed partition is in the response.
    assert partition_states(news) == {0: (ErrorCode.none, 1)}
    assert news.responses[0].partitions[0].records
    # Epoch 7 instead of 3: a request was lost, so the client has to start a new session.
    lost = await fetch(broker, version, session=(first.session_id, 7))
    assert lost.error_code is ErrorCode.invalid_fetch_session_epoch


async def test_recreated_topic_is_another_one(broker: ApiBroker) -> None:
    """INCONSISTENT_TOPIC_ID makes clients request metadata (KIP-516)."""
    former = await broker.create("t")
    first = await fetch(broker, 18, 0, session=(0, 0), topic_id=former)
    await broker.delete(former)
    await broker.create("t")
    again = await fetch(broker, 18, session=(first.session_id, 1))
    assert partition_states(again) == {0: (ErrorCode.inconsistent_topic_id, -1)}


async def test_session_includes_a_topic_that_is_created_later(broker: ApiBroker) -> None:
    topic_id = uuid.uuid4()
    first = await fetch(broker, 18, 0, session=(0, 0), topic_id=topic_id)
    assert partition_states(first) == {0: (ErrorCode.unknown_topic_id, -1)}
    await broker.create("t", topic_id=topic_id)
    again = await fetch(broker, 18, session=(first.session_id, 1))
    assert partition_states(again) == {0: (ErrorCode.none, 0)}
