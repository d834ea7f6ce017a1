"""Takeover from an operator that hangs or was killed, with real brokers, one of which dies at the
same time.

Everything recovers soon after the Lease expires, and no client needs a new address. `make
bench-install` measures how long that takes in pods.
"""

import asyncio
import re
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.broker.broker_process import BrokerProcess
from tests.integration.operator.cluster_world import ClusterWorld
from tidemark_devcluster.ports import free_ports
from tidemark_operator.controller.state.rows import decode_row
from tidemark_operator.kube.kinds import BROKER, CLUSTER, TOPIC

LEASE_S = 8.0
SEARCHED = re.compile(r"brokers \[1\b.*\] have searched for a controller here")
SESSION_S = 8.0
#: On a machine with other work: expiry of the Lease and up to two sessions.
SOON_S = LEASE_S + 2 * SESSION_S


class OwnBroker(BrokerProcess):
    """A broker whose certificate is issued by the operator."""

    def certify(self) -> None:
        return


class Fleet:
    """Two operators, of which the first leads, and brokers that know both and, first, an
    address that never answers.
    """

    def __init__(self, world: ClusterWorld, folder: Path) -> None:
        self.world = world
        self._folder = folder
        # It accepts connections in the kernel's backlog and never responds.
        self._silent = socket.create_server(("127.0.0.1", 0))
        self._ports = free_ports(2)
        self.first, self.second = (
            world.operator(
                f"127.0.0.1:{port}", lease_duration_s=LEASE_S, session_timeout_s=SESSION_S
            )
            for port in self._ports
        )
        self.brokers: dict[int, OwnBroker] = {}

    async def start(self) -> None:
        await self.world.create_cluster(**{"enable.under.replicated.topic.creation": "true"})
        await self.first.start()
        await self.second.launch()
        for node_id in (1, 2):
            await self._start_broker(node_id)
        await self.world.create_topic("before", partitions=4, replicas=2)
        await self.world.condition(TOPIC, "before", "Ready", "True")

    async def _start_broker(self, node_id: int) -> None:
        world, name = self.world, f"broker-{node_id}"
        await world.create(BROKER, name, nodeId=node_id, workload="External")
        folder = world.certificates / f"{name}-tls"
        await world.until((folder / "tls.crt").exists, f"the certificate of {name}")
        silent: int = self._silent.getsockname()[1]
        broker = self.brokers[node_id] = OwnBroker(
            node_id,
            self._folder,
            # The silent address is first, so every search has to time out on it.
            [silent, *self._ports],
            cluster_id=await world.cluster_id(),
            tidemark_tls_directory=str(folder),
        )
        await broker.start()

    async def serves(self, name: str) -> None:
        """Verify that a topic created now becomes Ready."""
        name = name.replace(" ", "-")
        await self.world.create_topic(name, replicas=2)
        await self.world.condition(TOPIC, name, "Ready", "True")

    async def epoch(self) -> int:
        return int((await self.world.get(CLUSTER, "demo"))["status"]["controller"]["epoch"])

    async def close(self) -> None:
        self._silent.close()
        for broker in self.brokers.values():
            assert broker.process is not None
            if broker.process.returncode is None:
                await broker.kill()


@pytest.fixture
async def fleet(world: ClusterWorld, tmp_path: Path) -> AsyncIterator[Fleet]:
    made = Fleet(world, tmp_path)
    yield made
    await made.close()


async def test_successor_leads_soon_and_fences_a_broker_that_died(fleet: Fleet) -> None:
    await fleet.start()
    world = fleet.world
    began_s = time.monotonic()
    # The leader hangs and a broker dies at the same time.
    fleet.first.pause()
    await fleet.brokers[2].kill()
    await fleet.serves("after a hang")
    # The successor knows that broker 2 is dead, although it never had its session.
    await world.condition(BROKER, "broker-2", "Ready", "False", "Fenced")
    elapsed_s = time.monotonic() - began_s
    assert {decode_row(text).leader for text in await world.rows()} == {1}
    assert elapsed_s < SOON_S, f"{elapsed_s:.1f} s"
    # Brokers search among all addresses when their controller is silent. Broker 2 may have reached
    # this one when it started.
    assert SEARCHED.search(fleet.second.log)
    epoch = await fleet.epoch()
    fleet.first.resume()
    await world.until(lambda: "no longer the leader" in fleet.first.log, "it notices")
    # One second for a late write of the operator that resumes.
    await asyncio.sleep(1)
    assert await fleet.epoch() == epoch, "a resumed operator takes nothing back"

    # Now the other way round: the successor is killed, the first one takes over again.
    began_s = time.monotonic()
    await fleet.second.kill()
    await fleet.serves("after a death")
    elapsed_s = time.monotonic() - began_s
    assert elapsed_s < SOON_S, f"{elapsed_s:.1f} s"
    assert SEARCHED.search(fleet.first.log)
    # The broker process has never restarted or changed its epoch.
    assert fleet.brokers[1].log_text().count("registered with") == 1, "one process, one epoch"
