"""Requests that name tens of thousands of partitions, on a real broker.

What is measured is the processor time of the loop's own thread between two turns of another task:
other processes of the machine do not count, nor do threads.
"""

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.integration.api.api_broker import ApiBroker
from tests.longest_turn import TURN_MS, longest_turn
from tests.unit.api import api_requests as kafka
from tests.user_states import user, user_states
from tidemark.wire.connection import ConnectionClosed
from tidemark.wire.framing import decode_response, encode_request
from tidemark_broker.control.commands import CommandServer

# Just below the limit of 20,000 entries in one request.
MANY = 19_000

#: The Api's key and version; the request; where it names partitions, and the answer tells of them.
BULK_REQUESTS: dict[str, tuple[int, int, Callable[[], Any], tuple[str, str], tuple[str, str]]] = {
    "Produce, acks=1": (
        0,
        9,
        lambda: kafka.produce(9, "t", kafka.batch(b"x"), acks=1),
        ("topic_data", "partition_data"),
        ("responses", "partition_responses"),
    ),
    "Produce, acks=all": (
        0,
        9,
        lambda: kafka.produce(9, "t", kafka.batch(b"x"), acks=-1),
        ("topic_data", "partition_data"),
        ("responses", "partition_responses"),
    ),
    "Fetch": (
        1,
        12,
        lambda: kafka.fetch(12, "t", 0),
        ("topics", "partitions"),
        ("responses", "partitions"),
    ),
    "ListOffsets": (
        2,
        7,
        lambda: kafka.list_offsets(7, "t", -1, current_leader_epoch=-1),
        ("topics", "partitions"),
        ("topics", "partitions"),
    ),
    "DeleteRecords": (
        21,
        2,
        lambda: kafka.delete_records(2, "t", 0),
        ("topics", "partitions"),
        ("topics", "partitions"),
    ),
    "OffsetForLeaderEpoch": (
        23,
        4,
        lambda: kafka.offset_for_leader_epoch(4, "t", -1, 0),
        ("topics", "partitions"),
        ("topics", "partitions"),
    ),
}


def naming(request: Any, names: tuple[str, str], partitions: range | list[int]) -> Any:
    """The request with its one partition named by these numbers."""
    topics, parts = names
    (topic,) = getattr(request, topics)
    (part,) = getattr(topic, parts)
    # The field that numbers partitions has different names in different Apis.
    number = next(name for name in ("index", "partition", "partition_index") if hasattr(part, name))
    copies = tuple(dataclasses.replace(part, **{number: partition}) for partition in partitions)
    return dataclasses.replace(
        request, **{topics: (dataclasses.replace(topic, **{parts: copies}),)}
    )


async def ask(broker: ApiBroker, api: str, partitions: range | list[int]) -> list[Any]:
    key, version, request, named, result_fields = BULK_REQUESTS[api]
    answer = await broker.client.request(
        naming(request(), named, partitions), kafka.answer_type(key, version), 60
    )
    return [
        item
        for topic in getattr(answer, result_fields[0])
        for item in getattr(topic, result_fields[1])
    ]


@pytest.mark.parametrize("api", BULK_REQUESTS)
async def test_large_request_does_not_block_the_loop(broker: ApiBroker, api: str) -> None:
    await broker.create("t")
    key, version, request, named, _ = BULK_REQUESTS[api]
    large = naming(request(), named, range(MANY))
    # Encode and decode in threads: only the broker's own work is on the loop.
    frame = await asyncio.to_thread(encode_request, large, 1, "c")
    async with longest_turn() as longest:
        answer = await served(broker, frame)
    _, answered = await asyncio.to_thread(decode_response, kafka.answer_type(key, version), answer)
    result_fields = BULK_REQUESTS[api][4]
    results = [
        item
        for topic in getattr(answered, result_fields[0])
        for item in getattr(topic, result_fields[1])
    ]
    assert len(results) == MANY
    # Partition 0 exists, the others do not, so every entry has a result.
    assert results[0].error_code is ErrorCode.none
    assert results[-1].error_code is ErrorCode.unknown_topic_or_partition
    # No turn of the loop took longer than the limit.
    assert longest[0] < TURN_MS


async def served(broker: ApiBroker, frame: bytes) -> bytes:
    """Return the response frame; decoding it is not measured."""
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port, limit=1 << 26)
    try:
        writer.write(frame)
        size = int.from_bytes(await asyncio.wait_for(reader.readexactly(4), 60))
        return await asyncio.wait_for(reader.readexactly(size), 60)
    finally:
        writer.close()


@pytest.mark.parametrize("api", [api for api in BULK_REQUESTS if api != "Fetch"])
async def test_duplicate_partition_is_refused(broker: ApiBroker, api: str) -> None:
    """As Kafka's ListOffsets does; nothing is appended twice, nothing deleted."""
    await broker.create("t", partitions=2)
    results = await ask(broker, api, [0, 1, 0])
    assert [result.error_code for result in results] == [
        ErrorCode.invalid_request,
        ErrorCode.none,
        ErrorCode.invalid_request,
    ]


async def test_last_entry_of_a_duplicate_fetch_partition_counts(broker: ApiBroker) -> None:
    """As in Kafka, which keeps them in a map."""
    await broker.create("t", partitions=2)
    # As Kafka: the last entry for a partition counts.
    results = await ask(broker, "Fetch", [0, 1, 0])
    assert [(result.partition_index, result.error_code) for result in results] == [
        (0, ErrorCode.none),
        (1, ErrorCode.none),
    ]


async def test_request_with_too_many_entries_is_refused(broker: ApiBroker) -> None:
    await broker.create("t")
    with pytest.raises(ConnectionClosed):
        await ask(broker, "OffsetForLeaderEpoch", range(20_001))


async def test_large_request_is_not_overtaken(broker: ApiBroker) -> None:
    """Records of one connection are appended in the order of its requests."""
    await broker.create("t", partitions=1)
    _, version, request, named, _ = BULK_REQUESTS["Produce, acks=1"]
    # The large request names partition 0 last, so it takes long before its append.
    large = naming(request(), named, [*range(1, 15_000), 0])
    first, second = await asyncio.gather(
        broker.client.request(large, kafka.answer_type(0, version), 60),
        broker.client.request(request(), kafka.answer_type(0, version), 60),
    )
    # The first request appended first, although the second is smaller.
    assert first.responses[0].partition_responses[-1].base_offset == 0
    assert second.responses[0].partition_responses[0].base_offset == 1


async def test_acl_checks_do_not_block_the_loop(broker: ApiBroker) -> None:
    """Thousands of topics, of which the client may describe some by one of many prefixes."""
    rules = [f"ALLOW DESCRIBE TOPIC team-{number}-..." for number in range(100)]
    broker.broker.users.apply(user_states(user("ANONYMOUS", *rules)))
    request = kafka.list_offsets(7, "t", -1, current_leader_epoch=-1)
    (topic,) = request.topics
    names = [f"team-{number % 200}-{number}" for number in range(9_000)]
    topics = tuple(dataclasses.replace(topic, name=name) for name in names)
    frame = await asyncio.to_thread(
        encode_request, dataclasses.replace(request, topics=topics), 1, "c"
    )
    async with longest_turn() as longest:
        answer = await served(broker, frame)
    _, answered = await asyncio.to_thread(decode_response, kafka.answer_type(2, 7), answer)
    errors = [item.partitions[0].error_code for item in answered.topics]
    # Half of the names match one of the 100 prefixes.
    assert errors.count(ErrorCode.topic_authorization_failed) == 4_500
    assert errors.count(ErrorCode.unknown_topic_or_partition) == 4_500
    assert longest[0] < TURN_MS


async def test_user_updates_do_not_block_the_loop(broker: ApiBroker) -> None:
    """All of them come with each change: thirty megabytes of ACLs took two seconds."""
    rules = [f"ALLOW READ TOPIC topic-{number}" for number in range(100)]
    one, running = user("ann", *rules), broker.broker
    users = tuple(dataclasses.replace(one, name=f"user{number}") for number in range(300))
    frame = await asyncio.to_thread(encode_request, user_states(*users), 1, "controller")
    commands = CommandServer(
        running.manager,
        # The path that the controller's command takes.
        running.epoch,
        running.disablements,
        serve_kafka=running._serve_controller,
        snapshot_applied=running._snapshot_applied,
        users=running.users,
    )
    async with longest_turn() as longest:
        answer = await commands._user_states(frame[4:], 7)
    assert (answer.error_code, answer.broker_epoch) == (0, 7)
    assert len(running.users.users) == 300
    assert longest[0] < TURN_MS


async def test_requests_with_other_acks_do_not_overtake(broker: ApiBroker) -> None:
    await broker.create("t")
    # acks=-1 and acks=1 take different paths, and must not overtake each other.
    answer_type = kafka.answer_type(0, 9)
    requests = [
        kafka.produce(9, "t", kafka.batch(b"x"), acks=-1 if number % 5 < 2 else 1)
        for number in range(40)
    ]
    answers = await asyncio.gather(
        *(broker.client.request(request, answer_type, 10) for request in requests)
    )
    offsets = [answer.responses[0].partition_responses[0].base_offset for answer in answers]
    assert offsets == list(range(40))
