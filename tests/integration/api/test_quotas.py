"""Quotas on a real broker, over the socket: the throttle times that clients receive, and the muting
of their connection.

The quotas are so small that a few kilobytes cause a second of throttling.
"""

import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.integration.api.api_broker import ApiBroker, running
from tests.unit.api import api_requests as kafka
from tests.user_states import quota, user_states
from tidemark.wire.users import ClientQuota
from tidemark_broker.replication.partition import produce as partition_produce

WINDOWS = {"quota.window.num": "2", "quota.window.size.seconds": "1"}
NONE = timedelta(0)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[ApiBroker]:
    async with running(tmp_path, WINDOWS) as started:
        await started.create("t")
        yield started


def limit(broker: ApiBroker, *quotas: ClientQuota) -> None:
    broker.broker.users.apply(user_states(authorize=False, quotas=quotas))


async def produce(broker: ApiBroker, size: int) -> Any:
    request = kafka.produce(9, "t", kafka.batch(b"x" * size))
    return await broker.ask(request, kafka.answer_type(0, 9))


async def fetch(broker: ApiBroker, offset: int = 0) -> Any:
    return await broker.ask(kafka.fetch(12, "t", offset), kafka.answer_type(1, 12))


async def test_producer_above_its_quota_is_throttled_and_muted(broker: ApiBroker) -> None:
    limit(broker, quota("ANONYMOUS", None, produce=5_000))
    began_s = time.monotonic()
    answer = await produce(broker, 10_000)
    assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none
    throttled = answer.throttle_time
    assert timedelta(seconds=1) < throttled < timedelta(seconds=1.2)
    assert time.monotonic() - began_s < 0.9  # the answer itself does not wait
    await broker.ask(kafka.metadata(9, None), kafka.answer_type(3, 9))
    assert time.monotonic() - began_s >= throttled.total_seconds()


async def test_others_are_served_meanwhile(broker: ApiBroker) -> None:
    limit(broker, quota(None, "test", produce=1_000))
    assert (await produce(broker, 50_000)).throttle_time > timedelta(seconds=10)
    other = await type(broker.client).connect("127.0.0.1", broker.port, client_id="other")
    try:
        answer = await other.request(kafka.metadata(9, None), kafka.answer_type(3, 9), 5)
        assert answer.throttle_time == NONE
    finally:
        await other.close()


async def test_a_fetch_above_the_quota_is_answered_with_nothing(broker: ApiBroker) -> None:
    for _ in range(4):
        await produce(broker, 2_000)
    limit(broker, quota("", None, fetch=3_000))
    first = await fetch(broker)
    data = first.responses[0].partitions[0].records
    assert 0 < len(data) <= 3_000  # what the windows allow, though more is there
    second_client = await broker.connect()
    try:
        while not (answer := await fetch(broker)).throttle_time:
            assert answer.responses[0].partitions[0].records
        request = kafka.fetch(12, "t", 0)
        refused = await second_client.request(request, kafka.answer_type(1, 12), 5)
    finally:
        await second_client.close()
    assert (refused.error_code, refused.responses) == (ErrorCode.none, ())
    assert refused.throttle_time > NONE


async def test_a_batch_larger_than_all_windows_gets_through(broker: ApiBroker) -> None:
    await produce(broker, 20_000)
    limit(broker, quota("", None, fetch=5_000))
    answer = await fetch(broker)
    assert len(answer.responses[0].partitions[0].records) > 20_000
    assert answer.throttle_time > timedelta(seconds=2)


async def test_a_new_connection_is_no_way_around_a_quota(broker: ApiBroker) -> None:
    """Each one brought a request for nothing: 369 MB/s where 10 kB/s were allowed."""
    limit(broker, quota("ANONYMOUS", None, produce=5_000))
    began_s = time.monotonic()
    throttled = (await produce(broker, 10_000)).throttle_time.total_seconds()
    assert throttled > 1
    for size in (100, 300_000):
        other = await broker.connect()
        try:
            request = kafka.produce(9, "t", kafka.batch(b"x" * size))
            await other.request(request, kafka.answer_type(0, 9), 10)
        finally:
            await other.close()
        assert time.monotonic() - began_s >= throttled - 0.01


async def test_the_time_of_appends_that_wait_for_others_is_counted(
    broker: ApiBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(broker, quota("ANONYMOUS", None, request=5))
    append = partition_produce.begin

    def slow(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.1)
        return append(*args, **kwargs)

    monkeypatch.setattr(partition_produce, "begin", slow)
    request = kafka.produce(9, "t", kafka.batch(b"x"), acks=-1)
    answer = await broker.ask(request, kafka.answer_type(0, 9))
    assert answer.throttle_time > NONE


async def test_a_quota_that_is_taken_away_holds_no_longer(broker: ApiBroker) -> None:
    limit(broker, quota("ANONYMOUS", None, produce=5_000))
    limit(broker)
    assert (await produce(broker, 10_000)).throttle_time == NONE


async def test_request_time_has_a_quota(broker: ApiBroker) -> None:
    limit(broker, quota("ANONYMOUS", None, request=1))
    throttled = NONE
    for _ in range(200):
        answer = await broker.ask(kafka.metadata(9, None), kafka.answer_type(3, 9))
        throttled = max(throttled, answer.throttle_time)
        if throttled:
            break
    assert NONE < throttled <= timedelta(seconds=1)


QUOTAS = (
    quota("ann", None, produce=1, fetch=2),
    quota("", None, request=3),
    quota("ann", "etl", produce=4),
    quota(None, "etl", produce=5),
)


async def described(
    broker: ApiBroker, *components: tuple[str, int, str | None], strict: bool
) -> Any:
    parts = tuple(
        kafka.nested(48, 1, "ComponentData", entity_type=kind, match_type=how, match=name)
        for kind, how, name in components
    )
    request = kafka.request(48, 1, components=parts, strict=strict)
    return await broker.ask(request, kafka.answer_type(48, 1))


@pytest.mark.parametrize(
    ("components", "strict", "found"),
    [
        ([], False, [0, 1, 2, 3]),
        ([("user", 2, None)], False, [0, 1, 2]),
        ([("user", 2, None)], True, [0, 1]),
        ([("user", 0, "ann")], True, [0]),
        ([("user", 1, None)], True, [1]),
        ([("client-id", 0, "etl")], False, [2, 3]),
        ([("user", 0, "ann"), ("client-id", 2, None)], True, [2]),
        ([("ip", 2, None)], False, []),
    ],
)
async def test_quotas_are_described_as_kafkas_tools_ask_for_them(
    broker: ApiBroker, components: list[tuple[str, int, str | None]], strict: bool, found: list[int]
) -> None:
    limit(broker, *QUOTAS)
    answer = await described(broker, *components, strict=strict)
    assert answer.error_code is ErrorCode.none
    expected = []
    for quota_ in (QUOTAS[number] for number in found):
        names = {"user": quota_.user, "client-id": quota_.client_id}
        entity = {kind: name or None for kind, name in names.items() if name is not None}
        rates = {
            "producer_byte_rate": quota_.producer_byte_rate,
            "consumer_byte_rate": quota_.consumer_byte_rate,
            "request_percentage": quota_.request_percentage,
            "controller_mutation_rate": quota_.controller_mutation_rate,
        }
        expected.append((entity, {key: float(value) for key, value in rates.items() if value}))
    assert [
        (
            {part.entity_type: part.entity_name for part in entry.entity},
            {value.key: value.value for value in entry.values},
        )
        for entry in answer.entries
    ] == expected


async def test_an_entity_that_there_is_not_is_not_supported(broker: ApiBroker) -> None:
    answer = await described(broker, ("group", 2, None), strict=False)
    assert (answer.error_code, answer.entries) == (ErrorCode.unsupported_version, None)
    assert "group" in answer.error_message
