"""Consumers read from followers what only the tier has: which one serves, and what it never
serves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.integration.remote_log.fetch_client import TierClient, offsets_of
from tests.integration.remote_log.orphans import left_clean
from tests.integration.remote_log.test_disabling import DELETE, DISABLING, RETAIN, switch, tiered
from tests.integration.remote_log.test_transactions import abort, batch, send
from tests.integration.remote_log.tiered_cluster import TieredCluster
from tests.integration.remote_log.tiered_host import TieredHost
from tests.integration.remote_log.watched_store import BlockedCall, watch
from tidemark.configuration.broker_keys import REMOTE_READERS
from tidemark.metrics import tier_table
from tidemark.records.batch import iter_headers
from tidemark.wire.connection import KafkaConnection
from tidemark_broker.api.client import Client
from tidemark_broker.api.records.replica_selector import RETURN_S
from tidemark_broker.replication.partition import log_start
from tidemark_broker.replication.partition.leader import FOLLOWER_CONTACT_S, LEADER_CONTACT_S

Connect = Callable[[TieredHost], Awaitable[TierClient]]
LEADER, FOLLOWER = 1, 2


@pytest.fixture
async def spread(tmp_path: Path, tier_path: Path) -> AsyncIterator[TieredCluster]:
    """Leader 1 in rack a and follower 2 in rack b, which spread consumers of remote records."""
    made = TieredCluster(tmp_path, tier_path)
    await made.start(LEADER, FOLLOWER)
    for host, rack in zip(made.hosts.values(), "ab", strict=True):
        host.rack = rack
    choose(made, "any")
    await made.apply(leader=1, leader_epoch=1, replicas=(1, 2), isr=(1, 2))
    await tiered(made)
    await made.until_verified()
    yield made
    await left_clean(made.hosts.values())
    await made.close()


def choose(cluster: TieredCluster, readers: str) -> None:
    """Set ``tidemark.remote.fetch.replicas``; brokers receive it with the next states."""
    for host in cluster.hosts.values():
        host.cluster_config = {REMOTE_READERS: readers}


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Open a consumer's connection to a broker."""
    connections: list[KafkaConnection] = []

    async def open_one(host: TieredHost) -> TierClient:
        connections.append(
            await KafkaConnection.connect("127.0.0.1", host.clients.port, client_id="test")
        )
        return TierClient(host, connections[-1])

    yield open_one
    for connection in connections:
        await connection.close()


async def sent_to(client: TierClient, **values: Any) -> int:
    """Fetch the first record; return the replica that the response names."""
    (part,) = await client.fetch(0, **values)
    assert part.error_code is ErrorCode.none
    # A redirection has no records.
    assert bool(part.records) is (part.preferred_read_replica < 0)
    return int(part.preferred_read_replica)


async def read_all(client: TierClient, until: int) -> None:
    """Read every record from offset 0 in order, from this broker alone."""
    offset = 0
    while offset < until:
        (part,) = await client.fetch(offset, wait_ms=500)
        assert (part.error_code, part.preferred_read_replica) == (ErrorCode.none, -1)
        for _, header in iter_headers(bytes(part.records)):
            assert header.base_offset == offset
            offset = header.next_offset


async def test_consumers_are_spread_over_all_in_sync_replicas(
    spread: TieredCluster, connect: Connect
) -> None:
    leader, follower = spread.hosts[LEADER], spread.hosts[FOLLOWER]
    replicas = [await sent_to(await connect(leader)) for _ in range(6)]
    assert replicas == [-1, FOLLOWER] * 3
    # The follower serves the tier's part and its own local log.
    before = leader.gauge(tier_table.FETCH_BYTES)
    await read_all(await connect(follower), 400)
    assert leader.gauge(tier_table.FETCH_BYTES) == before
    assert follower.gauge(tier_table.FETCH_BYTES) > 100 * 300
    assert leader.broker.remote_read_rotation.redirects == 3


@pytest.mark.parametrize(
    ("readers", "rack", "replicas"),
    [
        ("any", "b", [FOLLOWER, FOLLOWER]),
        ("any", "a", [-1, -1]),
        ("any", "c", [-1, FOLLOWER]),
        ("rack", "b", [FOLLOWER, FOLLOWER]),
        ("rack", "c", [-1, -1]),
        ("rack", "", [-1, -1]),
        ("leader", "b", [-1, -1]),
    ],
)
async def test_rack_and_configuration_decide(
    spread: TieredCluster, connect: Connect, readers: str, rack: str, replicas: list[int]
) -> None:
    choose(spread, readers)
    await spread.push()
    leader = spread.hosts[LEADER]
    found = [await sent_to(await connect(leader), rack_id=rack) for _ in range(2)]
    assert found == replicas
    # A follower serves exactly the consumers that the leader may send to it.
    served = readers == "any" or (readers == "rack" and bool(rack))
    follower = await sent_to(await connect(spread.hosts[FOLLOWER]), rack_id=rack)
    assert follower == (-1 if served else LEADER)


async def test_a_consumer_that_returns_is_served_by_the_leader(
    spread: TieredCluster, connect: Connect
) -> None:
    """A follower that cannot serve must not cause a loop. Other consumers are still redirected."""
    leader = spread.hosts[LEADER]
    client = await connect(leader)
    assert await sent_to(client, rack_id="b") == FOLLOWER
    for _ in range(3):
        assert await sent_to(client, rack_id="b") == -1
    assert await sent_to(await connect(leader), rack_id="b") == FOLLOWER


def test_no_partition_of_a_connection_is_redirected_twice_however_many_it_reads() -> None:
    """Partitions beyond the remembered ones are served here, until older redirections end."""
    client, redirected = Client("127.0.0.1:1", "PLAINTEXT"), list[int]()
    for now_s in range(3):
        for partition in range(1_500):
            if not client.is_assigned_here(partition, now_s):
                redirected.append(partition)
                client.assign_here(partition, now_s + RETURN_S)
    assert redirected == list(range(1_000))
    assert not client.is_assigned_here(1_400, RETURN_S)


async def test_records_of_the_local_log_are_not_redirected(
    spread: TieredCluster, connect: Connect
) -> None:
    (part,) = await (await connect(spread.hosts[LEADER])).fetch(399, rack_id="b")
    assert (part.preferred_read_replica, offsets_of(part)) == (-1, [395])


async def test_a_follower_reads_a_fresh_manifest_for_a_recent_offset(
    spread: TieredCluster, connect: Connect
) -> None:
    """Its manifest may be a second old, and local retention may be faster."""
    client = await connect(spread.hosts[FOLLOWER])
    await read_all(client, 400)
    await tiered(spread, 200)
    await read_all(client, 600)


@pytest.mark.parametrize("obstacle", ["out of the ISR", "fenced"])
async def test_no_consumer_is_sent_to_a_replica_that_is_not_in_sync(
    spread: TieredCluster, connect: Connect, obstacle: str
) -> None:
    leader = spread.hosts[LEADER]
    if obstacle == "fenced":
        metadata = leader.context.metadata
        fenced = replace(metadata.brokers[FOLLOWER], fenced=True)
        metadata.brokers = {**metadata.brokers, FOLLOWER: fenced}
    else:
        await spread.stop(FOLLOWER)
        await spread.apply(isr=(LEADER,))
    assert [await sent_to(await connect(leader)) for _ in range(3)] == [-1, -1, -1]


async def test_a_follower_without_its_leader_serves_nothing_from_the_tier(
    spread: TieredCluster, connect: Connect
) -> None:
    leader, follower = spread.hosts[LEADER], spread.hosts[FOLLOWER]
    client = await connect(follower)
    assert await sent_to(client) == -1
    await leader.broker.replication_server.stop()
    began_s = follower.context.monotonic()
    # Its log start could be outdated from now on.
    await follower.until(lambda: not follower.partition.has_leader_contact)
    assert follower.context.monotonic() - began_s < FOLLOWER_CONTACT_S + 1
    assert await sent_to(client) == LEADER
    # The leader does not choose it either, once it has seen no fetch for as long.
    await asyncio.sleep(0.5)
    assert [await sent_to(await connect(leader)) for _ in range(2)] == [-1, -1]


async def test_no_deleted_record_is_served_after_the_acknowledgement(
    spread: TieredCluster, connect: Connect
) -> None:
    leader, follower = spread.hosts[LEADER], spread.hosts[FOLLOWER]
    client = await connect(follower)
    await read_all(client, 400)
    # A consumer reads the follower all the time.
    acknowledged = asyncio.Event()

    async def read_on() -> list[int]:
        replicas = []
        while not replicas or replicas[-1] < 0:
            was_acknowledged = acknowledged.is_set()
            replicas.append(await sent_to(client))
            assert not (was_acknowledged and replicas[-1] < 0), "a deleted record was served"
        return replicas

    reading = asyncio.create_task(read_on())
    log_start.delete_records(leader.partition, 52)
    await leader.until(lambda: log_start.low_watermark(leader.partition) >= 52)
    acknowledged.set()
    assert (await reading)[-1] == LEADER
    # The leader is the one that rejects the offset, and the rest is still served.
    (part,) = await (await connect(leader)).fetch(51)
    assert part.error_code is ErrorCode.offset_out_of_range
    (part,) = await client.fetch(52)
    assert (part.log_start_offset, offsets_of(part)[0]) == (52, 50)


@pytest.mark.parametrize("replicas", [(LEADER, FOLLOWER), (LEADER,)])
async def test_deletion_waits_for_a_follower_that_has_just_left(
    spread: TieredCluster, connect: Connect, replicas: tuple[int, ...]
) -> None:
    """Only the controller cannot reach the follower. It is fenced and out of the ISR, or removed.

    It serves the tier for a while after its last fetch, even if that did not name the idle
    partition."""
    leader, follower = spread.hosts[LEADER], spread.hosts[FOLLOWER]
    role = leader.partition.leader
    assert role is not None
    # From here on a fetch names the partition only if the follower's log changes.
    await leader.until(lambda: role.followers[FOLLOWER].local_log_start_offset > 0)
    await asyncio.sleep(LEADER_CONTACT_S + 0.5)
    fenced = replace(follower.state_of_broker(), fenced=True)
    follower.state_of_broker = lambda: fenced  # type: ignore[method-assign]
    client = await connect(follower)
    # The follower does not apply the leader's response with the new log start.
    async with follower.partition.lock:
        assert await sent_to(client) == -1
        log_start.delete_records(leader.partition, 52)
        await leader.until(lambda: leader.partition.durable_log_start_offset == 52)
        await spread.apply(LEADER, isr=(LEADER,), replicas=replicas)
        assert follower.partition.has_leader_contact
        assert log_start.low_watermark(leader.partition) < 52
    await leader.until(lambda: log_start.low_watermark(leader.partition) == 52)
    assert await sent_to(client) == LEADER


async def test_a_slow_read_ends_with_a_redirection_if_the_leader_is_lost_meanwhile(
    spread: TieredCluster, connect: Connect
) -> None:
    leader, follower = spread.hosts[LEADER], spread.hosts[FOLLOWER]
    client, read = await connect(follower), BlockedCall("get", "data/")
    watch(follower, read)
    reading = asyncio.create_task(sent_to(client, wait_ms=15_000))
    await follower.until(read.begun.is_set)
    await leader.broker.replication_server.stop()
    await follower.until(lambda: not follower.partition.has_leader_contact)
    await read.release()
    assert await reading == LEADER


async def test_a_follower_serves_nothing_that_a_disablement_has_deleted(
    spread: TieredCluster, connect: Connect
) -> None:
    leader, follower = spread.hosts[LEADER], spread.hosts[FOLLOWER]
    client = await connect(follower)
    await spread.apply(tiering_state=DISABLING, tiered_epoch=1, disable_policy=int(DELETE))
    # Readable until the commit that moves the log start.
    await spread.disable(1, DELETE)
    # Each replica has acknowledged: the follower must not read from an older manifest.
    assert await sent_to(client) == LEADER
    start = leader.partition.log_start_offset
    (part,) = await (await connect(leader)).fetch(start - 1)
    assert part.error_code is ErrorCode.offset_out_of_range
    (part,) = await client.fetch(start)
    assert offsets_of(part)[0] == start
    assert follower.partition.log_start_offset == start


async def test_a_follower_serves_the_tier_of_a_disabled_topic_that_is_retained(
    spread: TieredCluster, connect: Connect
) -> None:
    await switch(spread, 1, RETAIN)
    await read_all(await connect(spread.hosts[FOLLOWER]), 400)
    leader = spread.hosts[LEADER]
    # A follower that has just answered late is left out once.
    assert {await sent_to(await connect(leader)) for _ in range(8)} == {-1, FOLLOWER}


async def test_a_follower_sends_consumers_to_the_leader_if_the_tier_fails(
    spread: TieredCluster, connect: Connect
) -> None:
    leader, follower = spread.hosts[LEADER], spread.hosts[FOLLOWER]
    away = leader.tier_path.rename(leader.tier_path.with_name("away"))
    # The failure may be the follower's own, so the leader decides. Here both have it.
    assert await sent_to(await connect(follower)) == LEADER
    (failed,) = await (await connect(leader)).fetch(0, rack_id="a")
    assert failed.error_code is ErrorCode.kafka_storage_error
    # The check of the store runs after the read, and again after the repair.
    await follower.until(lambda: bool(follower.remote.status().error))
    away.rename(leader.tier_path)
    await follower.until(lambda: not follower.remote.status().error)
    assert await sent_to(await connect(follower)) == -1


async def test_a_follower_names_aborted_transactions(
    spread: TieredCluster, connect: Connect
) -> None:
    leader, follower = spread.hosts[LEADER], spread.hosts[FOLLOWER]
    begun = await send(leader, batch(1, 0, transactional=True))
    await leader.produce(100)
    await abort(leader, 1)
    await tiered(spread, 200)
    assert begun < follower.partition.log.local_log_start_offset
    found = []
    for host in (leader, follower):
        (part,) = await (await connect(host)).fetch(begun, isolation_level=1, rack_id="a")
        assert offsets_of(part)[0] == begun
        found.append([(item.producer_id, item.first_offset) for item in part.aborted_transactions])
    assert found == [[(1, begun)]] * 2


async def test_a_new_leader_redirects_to_the_former_one(
    spread: TieredCluster, connect: Connect
) -> None:
    await spread.apply(leader=FOLLOWER, leader_epoch=2)
    leader, follower = spread.hosts[FOLLOWER], spread.hosts[LEADER]
    await follower.until(lambda: follower.partition.has_leader_contact)
    assert await sent_to(await connect(leader), rack_id="a") == LEADER
    await read_all(await connect(follower), 400)
