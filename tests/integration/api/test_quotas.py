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

# Two windows of one second: quotas have short memories.
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
    # 10 kB over a window of two seconds at 5 kB/s: about one second too much.
    assert timedelta(seconds=1) < throttled < timedelta(seconds=1.2)
    assert time.monotonic() - began_s < 0.9  # the answer itself does not wait
    # The muted connection serves the next request once the throttle time is over.
    await broker.ask(kafka.metadata(9, None), kafka.answer_type(3, 9))
    assert time.monotonic() - began_s >= throttled.total_seconds()


async def test_other_clients_are_served_while_one_is_muted(broker: ApiBroker) -> None:
    limit(broker, quota(None, "test", produce=1_000))
    # The quota of client id "test" is exceeded by far.
    assert (await produce(broker, 50_000)).throttle_time > timedelta(seconds=10)
    other = await type(broker.client).connect("127.0.0.1", broker.port, client_id="other")
    try:
        answer = await other.request(kafka.metadata(9, None), kafka.answer_type(3, 9), 5)
        assert answer.throttle_time == NONE
    finally:
        await other.close()


async def test_throttled_fetch_has_an_empty_response(broker: ApiBroker) -> None:
    for _ in range(4):
        await produce(broker, 2_000)
    limit(broker, quota("", None, fetch=3_000))
    first = await fetch(broker)
    data = first.responses[0].partitions[0].records
    assert 0 < len(data) <= 3_000  # what the windows allow, though more is there
    # The windows are used up by the first client of the same quota.
    second_client = await broker.connect()
    try:
        while not (answer := await fetch(broker)).throttle_time:
            assert answer.responses[0].partitions[0].records
        request = kafka.fetch(12, "t", 0)
        refused = await second_client.request(request, kafka.answer_type(1, 12), 5)
    finally:
        await second_client.close()
    # A throttled fetch has an empty response and no session, as in Kafka.
    assert (refused.error_code, refused.responses) == (ErrorCode.none, ())
    assert refused.throttle_time > NONE


async def test_batch_larger_than_all_windows_is_served(broker: ApiBroker) -> None:
    await produce(broker, 20_000)
    limit(broker, quota("", None, fetch=5_000))
    answer = await fetch(broker)
    # Otherwise the consumer could never pass this batch.
    assert len(answer.responses[0].partitions[0].records) > 20_000
    assert answer.throttle_time > timedelta(seconds=2)


async def test_new_connections_do_not_bypass_a_quota(broker: ApiBroker) -> None:
    """Without a shared state each new connection brought one free request."""
    limit(broker, quota("ANONYMOUS", None, produce=5_000))
    began_s = time.monotonic()
    throttled = (await produce(broker, 10_000)).throttle_time.total_seconds()
    assert throttled > 1
    # Small and large requests: neither is served before the throttle time is over.
    for size in (100, 300_000):
        other = await broker.connect()
        try:
            request = kafka.produce(9, "t", kafka.batch(b"x" * size))
            await other.request(request, kafka.answer_type(0, 9), 10)
        finally:
            await other.close()
        # The new connection waited as well.
        assert time.monotonic() - began_s >= throttled - 0.01


async def test_append_time_counts_as_request_time(
    broker: ApiBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(broker, quota("ANONYMOUS", None, request=5))
    append = partition_produce.begin

    def slow(*args: Any, **kwargs: Any) -> Any:
        # The append blocks for 0.1 s, and counts as request time.
        time.sleep(0.1)
        return append(*args, **kwargs)

    monkeypatch.setattr(partition_produce, "begin", slow)
    request = kafka.produce(9, "t", kafka.batch(b"x"), acks=-1)
    answer = await broker.ask(request, kafka.answer_type(0, 9))
    assert answer.throttle_time > NONE


async def test_removed_quota_no_longer_applies(broker: ApiBroker) -> None:
    limit(broker, quota("ANONYMOUS", None, produce=5_000))
    limit(broker)
    assert (await produce(broker, 10_000)).throttle_time == NONE


async def test_request_time_is_limited_by_a_quota(broker: ApiBroker) -> None:
    limit(broker, quota("ANONYMOUS", None, request=1))
    throttled = NONE
    # One percent of a thread is used up by some of 200 requests.
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
    # match types: 0 exact, 1 default, 2 any (KIP-546).
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
async def test_describe_client_quotas_matches_kafkas_filters(
    broker: ApiBroker, components: list[tuple[str, int, str | None]], strict: bool, found: list[int]
) -> None:
    limit(broker, *QUOTAS)
    answer = await described(broker, *components, strict=strict)
    assert answer.error_code is ErrorCode.none
    expected = []
    for quota_ in (QUOTAS[number] for number in found):
        names = {"user": quota_.user, "client-id": quota_.client_id}
        # An empty name is the default entity, which the response shows as null.
        entity = {kind: name or None for kind, name in names.items() if name is not None}
        rates = {
            "producer_byte_rate": quota_.producer_byte_rate,
            "consumer_byte_rate": quota_.consumer_byte_rate,
            "request_percentage": quota_.request_percentage,
            "controller_mutation_rate": quota_.controller_mutation_rate,
        }
        # Only quotas that are set appear.
        expected.append((entity, {key: float(value) for key, value in rates.items() if value}))
    assert [
        (
            {part.entity_type: part.entity_name for part in entry.entity},
            {value.key: value.value for value in entry.values},
        )
        for entry in answer.entries
    ] == expected


async def test_unknown_quota_entity_is_unsupported(broker: ApiBroker) -> None:
    # Kafka's DescribeClientQuotas knows user, client-id and ip only.
    answer = await described(broker, ("group", 2, None), strict=False)
    assert (answer.error_code, answer.entries) == (ErrorCode.unsupported_version, None)
    assert "group" in answer.error_message
