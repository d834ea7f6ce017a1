"""A Reader has no replica, and serves what only the tier has once the leader has confirmed it."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from tests.integration.remote_log.fetch_client import TierClient, offsets_of
from tests.integration.remote_log.orphans import left_clean
from tests.integration.remote_log.test_disabling import DELETE, DISABLING, RETAIN, switch, tiered
from tests.integration.remote_log.test_follower_reads import (
    FOLLOWER,
    LEADER,
    Connect,
    choose,
    connect,
    read_all,
    sent_to,
)
from tests.integration.remote_log.test_transactions import abort, batch, send
from tests.integration.remote_log.tiered_cluster import TieredCluster
from tests.integration.remote_log.watched_store import BlockedCall, ready, watch
from tidemark.metrics import tier_table
from tidemark_broker.api.read_confirmations import (
    NOT_COLD,
    VALID_S,
    ColdRead,
    ColdReadAnswer,
    ConfirmColdReadsRequest,
    ConfirmColdReadsResponse,
    ReadConfirmations,
)
from tidemark_broker.listeners import CLIENTS
from tidemark_broker.replication.partition import log_start

__all__ = ["connect"]

READER = 3
READ_ID = uuid.UUID(int=7)


@asynccontextmanager
async def with_reader(
    tmp_path: Path, tier_path: Path, **config: str
) -> AsyncIterator[TieredCluster]:
    """Start leader 1 in rack a, follower 2 in rack b, and Reader 3 in rack c."""
    made = TieredCluster(tmp_path, tier_path, **config)
    await made.start(LEADER, FOLLOWER, READER)
    for host, rack in zip(made.hosts.values(), "abc", strict=True):
        host.rack = rack
    made.hosts[READER].is_reader = True
    await made.apply(leader=1, leader_epoch=1, replicas=(1, 2), isr=(1, 2))
    await tiered(made)
    await ready(made.hosts[READER])
    try:
        yield made
        await left_clean([made.hosts[LEADER], made.hosts[FOLLOWER]])
    finally:
        await made.close()


@pytest.fixture
async def spread(tmp_path: Path, tier_path: Path) -> AsyncIterator[TieredCluster]:
    """Return a cluster whose listener lists Readers among the replicas."""
    async with with_reader(tmp_path, tier_path, tidemark_readers_listeners=CLIENTS) as made:
        yield made


@pytest.mark.parametrize(
    ("readers", "rack", "chosen"),
    [
        ("rack", "", [READER, READER]),
        ("rack", "a", [-1, -1]),
        ("rack", "b", [FOLLOWER, FOLLOWER]),
        ("rack", "c", [READER, READER]),
        ("rack", "d", [READER, READER]),
        ("any", "", [-1, FOLLOWER, READER]),
        ("any", "c", [READER, READER]),
        ("leader", "c", [-1, -1]),
    ],
)
async def test_leader_redirects_consumers_to_the_reader(
    spread: TieredCluster, connect: Connect, readers: str, rack: str, chosen: list[int]
) -> None:
    choose(spread, readers)
    await spread.push()
    leader = spread.hosts[LEADER]
    assert [await sent_to(await connect(leader), rack_id=rack) for _ in chosen] == chosen


@pytest.mark.parametrize(
    ("software", "chosen"),
    [
        ("librdkafka", READER),
        ("confluent-kafka-python", READER),
        ("apache-kafka-java", -1),
        ("kgo", -1),
        ("", -1),
    ],
)
async def test_only_librdkafka_follows_to_a_broker_that_its_metadata_does_not_list_as_replica(
    tmp_path: Path, tier_path: Path, connect: Connect, software: str, chosen: int
) -> None:
    async with with_reader(tmp_path, tier_path) as made:
        client = await connect(made.hosts[LEADER])
        if software:
            await client.introduce(software)
        assert await client.replicas() == [LEADER, FOLLOWER]
        assert await sent_to(client) == chosen


async def test_metadata_lists_readers_among_the_replicas(
    spread: TieredCluster, connect: Connect
) -> None:
    client = await connect(spread.hosts[LEADER])
    assert await client.replicas() == [LEADER, FOLLOWER, READER]
    await spread.stop(READER)
    await spread.push()
    assert await client.replicas() == [LEADER, FOLLOWER]


async def test_leader_does_not_redirect_to_a_fenced_reader(
    spread: TieredCluster, connect: Connect
) -> None:
    await spread.stop(READER)
    await spread.push()
    assert await sent_to(await connect(spread.hosts[LEADER])) == -1


async def test_reader_serves_the_tier_and_sends_consumers_of_the_local_log_to_the_leader(
    spread: TieredCluster, connect: Connect
) -> None:
    leader, reader = spread.hosts[LEADER], spread.hosts[READER]
    assert not reader.broker.manager.partitions
    start = leader.partition.log.local_log_start_offset
    before = leader.gauge(tier_table.FETCH_BYTES)
    client = await connect(reader)
    await read_all(client, start)
    assert leader.gauge(tier_table.FETCH_BYTES) == before
    assert reader.gauge(tier_table.FETCH_BYTES) > 100 * start
    # The leader answers for its local log and beyond its end.
    for offset in (start, 399, 10_000):
        (part,) = await client.fetch(offset)
        assert (part.error_code, part.preferred_read_replica) == (ErrorCode.none, LEADER)
    # More of the log is only in the tier after a while.
    await tiered(spread, 200)
    await read_all(client, 400)


async def test_reader_serves_no_deleted_record_after_the_acknowledgement(
    spread: TieredCluster, connect: Connect
) -> None:
    leader, reader = spread.hosts[LEADER], spread.hosts[READER]
    client = await connect(reader)
    assert await sent_to(client) == -1
    log_start.delete_records(leader.partition, 52)
    await leader.until(lambda: log_start.low_watermark(leader.partition) >= 52)
    assert await sent_to(client) == LEADER
    (part,) = await client.fetch(52)
    assert (part.log_start_offset, offsets_of(part)[0]) == (52, 50)


async def test_records_that_are_deleted_during_the_read_are_not_sent(
    spread: TieredCluster, connect: Connect
) -> None:
    """The deletion does not wait for the Reader, which may be paused for any time."""
    leader, reader = spread.hosts[LEADER], spread.hosts[READER]
    client, read = await connect(reader), BlockedCall("get", "data/")
    watch(reader, read)
    reading = asyncio.create_task(sent_to(client, wait_ms=15_000))
    await reader.until(read.begun.is_set)
    log_start.delete_records(leader.partition, 52)
    await leader.until(lambda: log_start.low_watermark(leader.partition) >= 52)
    await read.release()
    assert await reading == LEADER


async def test_reader_serves_nothing_that_a_disablement_has_deleted(
    spread: TieredCluster, connect: Connect
) -> None:
    client = await connect(spread.hosts[READER])
    assert await sent_to(client) == -1
    # The Reader does not receive the new state of the topic.
    await spread.apply(
        LEADER, FOLLOWER, tiering_state=DISABLING, tiered_epoch=1, disable_policy=int(DELETE)
    )
    await spread.disable(1, DELETE)
    assert await sent_to(client) == LEADER


async def test_reader_serves_the_tier_of_a_disabled_topic_that_is_retained(
    spread: TieredCluster, connect: Connect
) -> None:
    await switch(spread, 1, RETAIN)
    start = spread.hosts[LEADER].partition.log.local_log_start_offset
    await read_all(await connect(spread.hosts[READER]), start)


async def test_reader_serves_nothing_that_its_leader_does_not_confirm(
    spread: TieredCluster, connect: Connect
) -> None:
    client = await connect(spread.hosts[READER])
    assert await sent_to(client) == -1
    # It knows an outdated leader epoch, and then cannot reach the leader.
    leader = spread.hosts[FOLLOWER]
    await spread.apply(LEADER, FOLLOWER, leader=FOLLOWER, leader_epoch=2)
    assert await sent_to(client) == LEADER
    # It reads the end of the tier before it leads, and confirms nothing until then.
    await leader.until(lambda: leader.partition.is_leader)
    await spread.push(READER)
    assert await sent_to(client) == -1
    await leader.broker.replication_server.stop()
    assert await sent_to(client) == FOLLOWER


async def test_reader_checks_the_epoch_of_the_consumer(
    spread: TieredCluster, connect: Connect
) -> None:
    client = await connect(spread.hosts[READER])
    assert await sent_to(client, part={"current_leader_epoch": 1}) == -1
    assert await sent_to(client, part={"current_leader_epoch": 0}) == LEADER


async def test_reader_sends_consumers_to_the_leader_if_the_tier_fails(
    spread: TieredCluster, connect: Connect
) -> None:
    reader = spread.hosts[READER]
    client = await connect(reader)
    away = reader.tier_path.rename(reader.tier_path.with_name("away"))
    assert await sent_to(client) == LEADER
    # The check of the store runs after the read, and again after the repair.
    await reader.until(lambda: bool(reader.remote.status().error))
    away.rename(reader.tier_path)
    await reader.until(lambda: not reader.remote.status().error)
    assert await sent_to(client) == -1


async def test_reader_names_aborted_transactions(spread: TieredCluster, connect: Connect) -> None:
    leader = spread.hosts[LEADER]
    begun = await send(leader, batch(1, 0, transactional=True))
    await leader.produce(100)
    await abort(leader, 1)
    await tiered(spread, 200)
    (part,) = await (await connect(spread.hosts[READER])).fetch(begun, isolation_level=1)
    assert offsets_of(part)[0] == begun
    aborted = [(item.producer_id, item.first_offset) for item in part.aborted_transactions]
    assert aborted == [(1, begun)]


async def test_limits_of_a_fetch_are_kept(spread: TieredCluster, connect: Connect) -> None:
    client: TierClient = await connect(spread.hosts[READER])
    (part,) = await client.fetch(0, max_bytes=1)
    # The first batch is returned whole (KIP-74).
    assert offsets_of(part) == [0]
    (part,) = await client.fetch(0, max_bytes=2_000)
    assert 1 < len(offsets_of(part)) < 10


class LateLinks:
    """A leader that confirms everything, a given number of seconds late."""

    def __init__(self, *delays_s: float) -> None:
        self.delays_s, self.now_s = list(delays_s), 0.0

    async def request(
        self, broker: int, entity: ConfirmColdReadsRequest, answer: object, timeout_s: float
    ) -> ConfirmColdReadsResponse:
        self.now_s += self.delays_s.pop(0)
        return ConfirmColdReadsResponse(
            answers=tuple(ColdReadAnswer(is_cold=True) for _ in entity.reads)
        )


@pytest.mark.parametrize(
    ("delays_s", "is_cold"),
    [((0.1,), True), ((VALID_S, 0.1), True), ((VALID_S, VALID_S), False)],
)
async def test_a_confirmation_expires(delays_s: tuple[float, ...], is_cold: bool) -> None:
    """The Reader was paused when it arrived."""
    links = LateLinks(*delays_s)
    confirmations = ReadConfirmations(links, lambda: links.now_s)  # type: ignore[arg-type]
    read = ColdRead(
        topic_id=READ_ID, partition=0, current_leader_epoch=-1, offset=0, last_fetched_epoch=-1
    )
    (answer,) = await confirmations.confirm([(LEADER, read)])
    assert answer.is_cold is is_cold
    assert confirmations.last((READ_ID, 0)) == (answer if is_cold else NOT_COLD)
    assert not links.delays_s
