"""Hosts on one tier's directory; all of them end with the test."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.remote_log.tiered_cluster import TieredCluster
from tests.integration.remote_log.tiered_host import TieredHost

MakeHost = Callable[..., TieredHost]


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
    yield made
    await made.close()
