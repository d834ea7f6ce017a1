"""Limits on the cost of unauthenticated clients and faulty brokers: memory stays bounded, and good
brokers keep their sessions.
"""

import asyncio
import contextlib
import os
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.certificates import leaf_of_operator
from tests.integration.operator.broker_peer import BrokerPeer
from tests.integration.operator.cluster_world import ClusterWorld
from tests.integration.operator.operator_process import OperatorProcess
from tidemark.tls.identity import TlsIdentity
from tidemark_operator.listener.connection import REQUEST_BYTES_MAX, UNPROVEN_BYTES_MAX

pytestmark = [pytest.mark.slow, pytest.mark.full]
#: Of an operator under any flood.
# The operator alone needs about 100 MiB.
MEMORY_MIB = 300
SECONDS = 4.0


class Attacked:
    """An operator with one good broker, and one whose certificate the attacker has."""

    def __init__(self, world: ClusterWorld, operator: OperatorProcess, good: BrokerPeer) -> None:
        self.world, self.operator, self.good = world, operator, good
        host, port = operator.control.rsplit(":", 1)
        self.address = (host, int(port))

    def memory_mib(self) -> float:
        # Resident memory of the operator's process as the kernel counts it.
        status = Path(f"/proc/{self.operator.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024

    async def holds(self) -> None:
        """Verify for some seconds that memory is bounded and the good broker keeps its session."""
        epoch, until = self.good.broker_epoch, asyncio.get_running_loop().time() + SECONDS
        most = 0.0
        while asyncio.get_running_loop().time() < until:
            most = max(most, self.memory_mib())
            assert not self.good.fenced
            await asyncio.sleep(0.05)
        print(f"{most:.0f} MiB")
        assert most <= MEMORY_MIB
        # The same epoch: the broker never had to register again.
        assert self.good.broker_epoch == epoch

    async def connect(self, *, tls: bool) -> asyncio.StreamWriter:
        """Connect without an identity, or as broker 2 (``tls``)."""
        if not tls:
            # The TCP connection alone; no TLS handshake follows.
            return (await asyncio.open_connection(*self.address))[1]
        who = TlsIdentity(await self.world.cluster_id(), 2)
        files = leaf_of_operator(self.world.certificates, who)
        context = files.contexts().client
        return (await asyncio.open_connection(*self.address, ssl=context, server_hostname=""))[1]


@pytest.fixture
async def attacked(world: ClusterWorld) -> Attacked:
    await world.create_cluster()
    # The good broker lives in this process, beside all attackers.
    operator = await world.start_operator(session_timeout_s=15)
    return Attacked(world, operator, await world.start_broker(1, operator))


@contextlib.asynccontextmanager
async def repeatedly(attack: Callable[[], Awaitable[None]], times: int) -> AsyncIterator[None]:
    """Run concurrent attacks that restart when they end."""

    async def attacker() -> None:
        while True:
            with contextlib.suppress(OSError):
                await attack()
            await asyncio.sleep(0.01)

    tasks = [asyncio.create_task(attacker()) for _ in range(times)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_unauthenticated_clients_that_send_noise_are_contained(attacked: Attacked) -> None:
    """Forty clients at a time, each of which sends a megabyte of random bytes."""

    async def stranger() -> None:
        writer = await attacked.connect(tls=False)
        try:
            writer.write(os.urandom(1 << 20))
            async with asyncio.timeout(2):
                await writer.drain()
        finally:
            writer.transport.abort()

    async with repeatedly(stranger, 40):
        await attacked.holds()


async def test_idle_unauthenticated_clients_are_contained(attacked: Attacked) -> None:
    """More idle connections than the listener has places for unauthenticated clients."""
    writers = []
    # 300 sockets that never begin a TLS handshake.
    for _ in range(300):
        with contextlib.suppress(OSError):
            writers.append(await attacked.connect(tls=False))
    try:
        await attacked.holds()
    finally:
        for writer in writers:
            writer.transport.abort()


@pytest.mark.parametrize("size", [UNPROVEN_BYTES_MAX, REQUEST_BYTES_MAX], ids=["small", "large"])
async def test_broker_that_never_completes_its_requests_is_contained(
    attacked: Attacked, size: int
) -> None:
    """A valid certificate, but no session: frames are limited until registration succeeded."""

    # A frame whose last byte never arrives, below and at the limits.
    unfinished = struct.pack(">i", size) + bytes(size - 1)

    async def broker() -> None:
        writer = await attacked.connect(tls=True)
        # Errors of the connection are expected: the operator closes it.
        try:
            writer.write(unfinished)
            async with asyncio.timeout(2):
                await writer.drain()
            await asyncio.sleep(0.5)
        finally:
            writer.transport.abort()

    async with repeatedly(broker, 16):
        await attacked.holds()
