"""Fetch over the socket below the local log start: one response joins tier and local log."""

import asyncio
import math
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.integration.remote_log.blocking_storage import blocking
from tests.integration.remote_log.conftest import MakeClient
from tests.integration.remote_log.fetch_client import TierClient, offsets_of
from tests.integration.remote_log.tiered_host import TOPIC
from tests.unit.api import api_requests as kafka
from tidemark.records.batch import iter_headers
from tidemark.wire.connection import KafkaConnection
from tidemark_broker.replication.partition import log_start


async def test_consumer_reads_the_whole_log_across_tier_and_local_log(client: TierClient) -> None:
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
    # One response ends exactly where the local log starts: tier and local log do not overlap.
    assert local_start in answers
    assert answers[-1] == end


async def test_partition_limit_applies_and_the_first_batch_is_whole(client: TierClient) -> None:
    # Limit of one byte: the first batch is returned whole (KIP-74).
    (one,) = await client.fetch(7, partition_max_bytes=1)
    assert offsets_of(one) == [5]
    size = len(bytes(one.records))
    # Room for two and a half batches: the incomplete one is left out.
    (two,) = await client.fetch(7, partition_max_bytes=2 * size + size // 2)
    assert offsets_of(two) == [5, 10]
    (three,) = await client.fetch(7, max_bytes=3 * size)
    assert offsets_of(three) == [5, 10, 15]


async def test_tier_read_does_not_wait_for_min_bytes(client: TierClient) -> None:
    clock = client.host.context.monotonic
    began_s = clock()
    # 1 MiB would take longer than 8 s to be written, so only the tier's rule can end the wait.
    (part,) = await client.fetch(0, min_bytes=1 << 20, wait_ms=8000, partition_max_bytes=1000)
    assert offsets_of(part)
    assert clock() - began_s < 4


async def test_local_reads_do_not_wait_for_the_turns_of_cold_reads(client: TierClient) -> None:
    host = client.host
    async with host.remote._fetcher._turn:
        cold = asyncio.create_task(host.remote.read(host.partition, 0, 1000, math.inf))
        (local,) = await client.fetch(395)
        assert offsets_of(local) == [395]
        assert not cold.done()
    assert (await cold).data


# Kafka reads one remote partition for each request; here all of them are read.
async def test_every_remote_partition_of_a_request_is_read(client: TierClient) -> None:
    first, second = await client.fetch(10, 25)
    assert offsets_of(first)[0] == 10
    assert offsets_of(second)[0] == 25
    local, remote = await client.fetch(395, 25)
    assert offsets_of(local) == [395]
    assert offsets_of(remote)[0] == 25


async def test_response_limit_applies_across_partitions(client: TierClient) -> None:
    (one,) = await client.fetch(0, partition_max_bytes=1)
    size = len(bytes(one.records))
    # Room for the first batch and a half: the second partition's does not fit in what is left.
    first, second = await client.fetch(0, 0, max_bytes=size + size // 2, partition_max_bytes=size)
    assert offsets_of(first) == [0]
    assert (offsets_of(second), second.error_code) == ([], ErrorCode.none)
    first, second = await client.fetch(0, 0, max_bytes=1)
    assert (offsets_of(first), offsets_of(second)) == ([0], [])
    # A partition without records leaves the guaranteed first batch to the next one.
    first, second = await client.fetch(400, 0, max_bytes=1)
    assert (offsets_of(first), offsets_of(second)) == ([], [0])


async def test_tiered_partitions_behind_a_batch_larger_than_the_answer_are_empty(
    client: TierClient,
) -> None:
    """The first partition's batch exceeds fetch.max.bytes, be it of the local log or the tier."""
    for first_offset in (395, 0):
        first, other = await client.fetch(first_offset, 25, max_bytes=50)
        assert offsets_of(first) == [first_offset]
        assert (other.error_code, offsets_of(other)) == (ErrorCode.none, [])
        assert other.high_watermark == 400
    # A full response must not cause a read of the store.
    with blocking(client.host, "reads") as storage:
        first, other = await client.fetch(395, 0, max_bytes=50)
        assert (offsets_of(first), offsets_of(other)) == ([395], [])
        assert not storage.begun, "the tier is not read for an answer that is full"


async def test_below_the_log_start_is_out_of_range(client: TierClient) -> None:
    log_start.delete_records(client.host.partition, 50)
    await client.host.until(lambda: client.host.partition.log_start_offset == 50)
    below, other = await client.fetch(49, 0)
    # The response to an offset error has no log start (-1), as in Kafka's ReplicaManager.
    assert (below.error_code, below.log_start_offset) == (ErrorCode.offset_out_of_range, -1)
    assert offsets_of(other)[0] == 0
    (at,) = await client.fetch(50)
    assert offsets_of(at)[0] == 50
    (beyond,) = await client.fetch(401)
    assert beyond.error_code is ErrorCode.offset_out_of_range


async def test_records_deleted_while_another_partition_is_read_are_not_sent(
    client: TierClient,
) -> None:
    host = client.host
    other = await KafkaConnection.connect("127.0.0.1", host.clients.port, client_id="other")
    with blocking(host, "reads") as storage:
        # Partition 0 is read from memory at once, and then waits for the tier's partition 1.
        response = asyncio.create_task(client.fetch(395, 0))
        await host.until(lambda: bool(storage.begun))
        answer_type = kafka.answer_type(kafka.DELETE_RECORDS, 2)
        answer: Any = await other.request(kafka.delete_records(2, TOPIC, 400), answer_type, 20)
        assert answer.topics[0].partitions[0].low_watermark == 400
        storage.release.set()
        deleted, cold = await response
    await other.close()
    assert (deleted.error_code, offsets_of(deleted)) == (ErrorCode.offset_out_of_range, [])
    assert offsets_of(cold)[0] == 0


async def test_without_the_store_the_error_is_one_that_consumers_retry(client: TierClient) -> None:
    host = client.host
    away = host.tier_path.rename(host.tier_path.with_name("away"))
    failed, local = await client.fetch(0, 395)
    assert failed.error_code is ErrorCode.kafka_storage_error
    # Kafka's error responses have -1 as well.
    assert (failed.high_watermark, failed.log_start_offset) == (-1, -1), "as Kafka's errors"
    assert offsets_of(local) == [395]
    # The store is now known to be unavailable, so no read is attempted.
    await host.until(lambda: bool(host.remote.status().error))
    (failed,) = await client.fetch(0)
    assert failed.error_code is ErrorCode.kafka_storage_error
    # ListOffsets answers REQUEST_TIMED_OUT, which consumers retry.
    assert (await client.list_offset(1_700_000_000_005)).error_code is ErrorCode.request_timed_out
    away.rename(host.tier_path)
    await host.until(lambda: not host.remote.status().error)
    (healed,) = await client.fetch(0)
    assert offsets_of(healed)[0] == 0
    assert (await client.list_offset(1_700_000_000_005)).offset == 5


async def test_read_of_a_late_store_is_answered_empty_and_retried(client: TierClient) -> None:
    """The read continues meanwhile: a repeated request gets its result, and nothing is read
    twice.
    """
    host = client.host
    # remote.fetch.max.wait.ms is 2 s; both requests end before the read does.
    with blocking(host, "reads") as storage:
        for _ in range(2):
            (late,) = await client.fetch(0)
            assert (late.error_code, offsets_of(late)) == (ErrorCode.none, [])
        storage.release.set()
        # The third request finds the result of the first one's read.
        (part,) = await client.fetch(0)
    assert offsets_of(part)[0] == 0
    assert [entry.start_offset for entry in storage.begun if entry.start_offset == 0] == [0]


@pytest.fixture
async def impatient(make_client: MakeClient) -> TierClient:
    """A client of a broker with ``remote.fetch.max.wait.ms`` of 1 ms, less than any read takes."""
    return await make_client(remote_fetch_max_wait_ms=1)


async def test_fetch_of_the_tier_alone_waits_for_its_own_max_wait(
    impatient: TierClient,
) -> None:
    with blocking(impatient.host, "reads") as storage:
        response = asyncio.create_task(impatient.fetch(0, wait_ms=15_000))
        await impatient.host.until(lambda: bool(storage.begun))
        # well beyond the broker's own limit of 1 ms
        await asyncio.sleep(0.05)
        storage.release.set()
        (part,) = await response
    assert offsets_of(part)[0] == 0


async def test_local_records_do_not_wait_for_the_tier(impatient: TierClient) -> None:
    with blocking(impatient.host, "reads"):
        # A response that has records is not delayed by a partition whose read takes long.
        local, remote = await impatient.fetch(395, 0, wait_ms=15_000)
        assert (offsets_of(local), offsets_of(remote)) == ([395], [])
        # Neither is a response with an error.
        error, remote = await impatient.fetch(401, 0, wait_ms=15_000)
        assert (error.error_code, offsets_of(remote)) == (ErrorCode.offset_out_of_range, [])
