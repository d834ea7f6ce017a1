"""Hosts on one tier's directory; all of them end with the test, and leave no orphans in the tier
(invariant 10)."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.remote_log.fetch_client import TierClient
from tests.integration.remote_log.orphans import left_clean
from tests.integration.remote_log.tiered_cluster import TieredCluster
from tests.integration.remote_log.tiered_host import NOW_MS, TieredHost
from tests.s3 import fresh_bucket
from tidemark.wire.connection import KafkaConnection

MakeHost = Callable[..., TieredHost]
MakeClient = Callable[..., Awaitable[TierClient]]


@pytest.fixture
def tier_path(tmp_path: Path) -> Path:
    path = tmp_path / "tier"
    path.mkdir()
    return path


@pytest.fixture
async def make_host(tmp_path: Path, tier_path: Path) -> AsyncIterator[MakeHost]:
    made: list[TieredHost] = []

    def make(**config: Any) -> TieredHost:
        host = TieredHost(tmp_path, tier_path, **config)
        made.append(host)
        return host

    yield make
    # Orphans are checked while brokers still run: a live broker has to remove its own leftovers,
    # without a sweep.
    await left_clean(made)
    for host in made:
        await host.close()


@pytest.fixture
async def host(make_host: MakeHost) -> TieredHost:
    return make_host()


@pytest.fixture
async def cluster(tmp_path: Path, tier_path: Path) -> AsyncIterator[TieredCluster]:
    """Brokers 1 and 2, both replicas of the one partition, broker 1 leads."""
    made = TieredCluster(tmp_path, tier_path)
    await made.start(1, 2)
    await made.apply(leader=1, leader_epoch=1, replicas=(1, 2), isr=(1, 2))
    await made.until_verified()
    yield made
    await left_clean(made.hosts.values())
    await made.close()


@pytest.fixture
async def make_client(make_host: MakeHost) -> AsyncIterator[MakeClient]:
    """Return a client of a host with two partitions whose closed segments are only in the tier."""
    connections: list[KafkaConnection] = []

    async def make(**config: Any) -> TierClient:
        host = make_host(**config)
        await host.listen()
        # A second partition in the same tier, so that one fetch request can span several tiered
        # partitions.
        host.rows[1] = host.new_row(1)
        await host.apply()
        for number in (0, 1):
            # Distinct timestamps per partition: segments differ in their content but not in their
            # offsets.
            await host.produce(400, number=number, timestamp_ms=NOW_MS + 1000 * number)
            await host.copied(number=number)
        # local.retention.bytes is 1, so everything that is in the tier is now deleted locally.
        await host.upkeep.apply_retention()
        port = host.clients.port
        connections.append(await KafkaConnection.connect("127.0.0.1", port, client_id="test"))
        return TierClient(host, connections[-1])

    yield make
    for connection in connections:
        await connection.close()


@pytest.fixture
async def client(make_client: MakeClient) -> TierClient:
    return await make_client(remote_fetch_max_wait_ms=2000)


@pytest.fixture
def s3(minio: Any) -> dict[str, Any]:
    """The configuration of a fresh bucket."""
    return fresh_bucket(minio)
