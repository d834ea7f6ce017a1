"""Fetch over the socket, below the local log start: what the tier holds is a part of the answer."""

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from tests.integration.remote_log.conftest import MakeClient
from tests.integration.remote_log.fetch_client import Client, offsets_of
from tests.integration.remote_log.held_storage import held
from tidemark.records.batch import iter_headers
from tidemark_broker.replication.partition import log_start


async def test_the_whole_log_is_read_through_both_tiers(client: Client) -> None:
    local_start, end = client.host.partition.log.local_log_start_offset, 400
    offset, answers = 0, []
    while offset < end:
        (part,) = await client.fetch(offset, wait_ms=500)
        assert part.error_code is ErrorCode.none
        assert (part.high_watermark, part.log_start_offset) == (400, 0)
        headers = [header for _, header in iter_headers(bytes(part.records))]
        assert headers[0].base_offset == offset
        offset = headers[-1].next_offset
        answers.append(offset)
    assert local_start in answers
    assert answers[-1] == end


async def test_the_partitions_limit_holds_and_one_batch_comes_whole(client: Client) -> None:
    (one,) = await client.fetch(7, partition_max_bytes=1)
    assert offsets_of(one) == [5]
    size = len(bytes(one.records))
    (two,) = await client.fetch(7, partition_max_bytes=2 * size + size // 2)
    assert offsets_of(two) == [5, 10]
    (three,) = await client.fetch(7, max_bytes=3 * size)
    assert offsets_of(three) == [5, 10, 15]


async def test_an_answer_from_the_tier_does_not_wait_for_min_bytes(client: Client) -> None:
    clock = client.host.context.monotonic
    began_s = clock()
    (part,) = await client.fetch(0, min_bytes=1 << 20, wait_ms=8000, partition_max_bytes=1000)
    assert offsets_of(part)
    assert clock() - began_s < 4


async def test_every_remote_partition_of_a_request_is_read(client: Client) -> None:
    first, second = await client.fetch(10, 25)
    assert offsets_of(first)[0] == 10
    assert offsets_of(second)[0] == 25
    local, remote = await client.fetch(395, 25)
    assert offsets_of(local) == [395]
    assert offsets_of(remote)[0] == 25


async def test_the_limit_of_the_whole_answer_holds_over_the_partitions(client: Client) -> None:
    (one,) = await client.fetch(0, partition_max_bytes=1)
    size = len(bytes(one.records))
    # Room for the first batch and a half: the second partition's does not fit in what is left.
    first, second = await client.fetch(0, 0, max_bytes=size + size // 2, partition_max_bytes=size)
    assert offsets_of(first) == [0]
    assert (offsets_of(second), second.error_code) == ([], ErrorCode.none)
    first, second = await client.fetch(0, 0, max_bytes=1)
    assert (offsets_of(first), offsets_of(second)) == ([0], [])
    # What found nothing leaves its right to the next one.
    first, second = await client.fetch(400, 0, max_bytes=1)
    assert (offsets_of(first), offsets_of(second)) == ([], [0])


async def test_tiered_partitions_behind_a_batch_larger_than_the_answer_are_empty(
    client: Client,
) -> None:
    """The first partition's batch exceeds fetch.max.bytes, be it of the local log or the tier."""
    for first_offset in (395, 0):
        first, other = await client.fetch(first_offset, 25, max_bytes=50)
        assert offsets_of(first) == [first_offset]
        assert (other.error_code, offsets_of(other)) == (ErrorCode.none, [])
        assert other.high_watermark == 400
    with held(client.host, "reads") as storage:
        first, other = await client.fetch(395, 0, max_bytes=50)
        assert (offsets_of(first), offsets_of(other)) == ([395], [])
        assert not storage.begun, "the tier is not read for an answer that is full"


async def test_below_the_log_start_is_out_of_range(client: Client) -> None:
    log_start.delete_records(client.host.partition, 50)
    await client.host.until(lambda: client.host.partition.log_start_offset == 50)
    below, other = await client.fetch(49, 0)
    assert (below.error_code, below.log_start_offset) == (ErrorCode.offset_out_of_range, -1)
    assert offsets_of(other)[0] == 0
    (at,) = await client.fetch(50)
    assert offsets_of(at)[0] == 50
    (beyond,) = await client.fetch(401)
    assert beyond.error_code is ErrorCode.offset_out_of_range


async def test_without_the_store_the_error_is_one_that_consumers_retry(client: Client) -> None:
    host = client.host
    away = host.tier_path.rename(host.tier_path.with_name("away"))
    failed, local = await client.fetch(0, 395)
    assert failed.error_code is ErrorCode.kafka_storage_error
    assert (failed.high_watermark, failed.log_start_offset) == (-1, -1), "as Kafka's errors"
    assert offsets_of(local) == [395]
    await host.until(lambda: bool(host.remote.status().error))
    (failed,) = await client.fetch(0)
    assert failed.error_code is ErrorCode.kafka_storage_error
    assert (await client.list_offset(1_700_000_000_005)).error_code is ErrorCode.request_timed_out
    away.rename(host.tier_path)
    await host.until(lambda: not host.remote.status().error)
    (healed,) = await client.fetch(0)
    assert offsets_of(healed)[0] == 0
    assert (await client.list_offset(1_700_000_000_005)).offset == 5


async def test_read_of_a_late_store_is_answered_empty_and_retried(client: Client) -> None:
    """The read continues meanwhile: a repeated request gets its result, and nothing is read
    twice.
    """
    host = client.host
    with held(host, "reads") as storage:
        for _ in range(2):
            (late,) = await client.fetch(0)
            assert (late.error_code, offsets_of(late)) == (ErrorCode.none, [])
        storage.release.set()
        (part,) = await client.fetch(0)
    assert offsets_of(part)[0] == 0
    assert [entry.start_offset for entry in storage.begun if entry.start_offset == 0] == [0]


@pytest.fixture
async def impatient(make_client: MakeClient) -> Client:
    """``remote.fetch.max.wait.ms`` is over before any store can answer."""
    return await make_client(remote_fetch_max_wait_ms=1)


async def test_who_waits_for_the_tier_alone_waits_as_long_as_it_wants_to(
    impatient: Client,
) -> None:
    with held(impatient.host, "reads") as storage:
        asked = asyncio.create_task(impatient.fetch(0, wait_ms=15_000))
        await impatient.host.until(lambda: bool(storage.begun))
        await asyncio.sleep(0.05)  # well beyond the broker's own limit
        storage.release.set()
        (part,) = await asked
    assert offsets_of(part)[0] == 0


async def test_records_at_hand_do_not_wait_for_the_tier(impatient: Client) -> None:
    with held(impatient.host, "reads"):
        local, remote = await impatient.fetch(395, 0, wait_ms=15_000)
        assert (offsets_of(local), offsets_of(remote)) == ([395], [])
        error, remote = await impatient.fetch(401, 0, wait_ms=15_000)
        assert (error.error_code, offsets_of(remote)) == (ErrorCode.offset_out_of_range, [])
