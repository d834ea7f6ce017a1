"""Fixture of the operator's benchmarks: a real control plane, a real operator, and three peers in
this process that answer as brokers do.

The peers answer at once, so that only the operator and the API server are measured.
"""

import asyncio
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from tests.benchmarks.pod_limits import Cgroup
from tests.benchmarks.processes import cpu_seconds, peak_resident_mb, resident_mb
from tests.benchmarks.topic_watch import Seen, TopicWatch, watching
from tests.benchmarks.topics import count_writes
from tests.integration.operator.broker_peer import BrokerPeer
from tests.integration.operator.cluster_world import ClusterWorld
from tests.integration.operator.conftest import install_crds
from tests.integration.operator.operator_process import OperatorProcess
from tidemark_devcluster.controlplane.launcher import ControlPlane
from tidemark_operator.kube.kinds import BROKER

BROKERS = (1, 2, 3)
PARTITIONS = 3
CONNECTIONS = 16
#: As of a broker whose session is the default one of nine seconds: a quarter of it.
HEARTBEAT_S = 2.25
TIMEOUT_S = 3600.0
PROGRESS_S = 10.0


class OperatorBench:
    """All processes of a benchmark."""

    def __init__(
        self,
        plane: ControlPlane,
        world: ClusterWorld,
        operator: OperatorProcess,
        watch: TopicWatch,
    ) -> None:
        self.plane, self.world, self.operator, self.watch = plane, world, operator, watch
        self.peers: list[BrokerPeer] = []

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name."""
        return {"operator": self.operator.pid, "API server": self.plane.pid}

    def cpu(self) -> dict[str, float]:
        """CPU-seconds of each process so far."""
        return {name: cpu_seconds(pid) for name, pid in self.pids.items()}

    def memory(self) -> dict[str, tuple[float, float]]:
        """Resident MB, now and at most."""
        return {name: (resident_mb(pid), peak_resident_mb(pid)) for name, pid in self.pids.items()}

    def writes(self) -> Counter[str]:
        """Number of writes that the API server counts."""
        command = ["kubectl", "--kubeconfig", str(self.plane.kubeconfig), "get", "--raw"]
        page = subprocess.run([*command, "/metrics"], check=True, stdout=subprocess.PIPE, text=True)
        return count_writes(page.stdout)

    async def each(self, what: Iterable[str], act: Callable[[str], Awaitable[object]]) -> float:
        """Do something to Topics over as many connections as are used; the seconds that it took."""
        began_s, names = time.monotonic(), iter(what)

        # All connections take names from one iterator, so a slow request delays no other.
        async def some() -> None:
            for name in names:
                await act(name)

        await asyncio.gather(*(some() for _ in range(CONNECTIONS)))
        return time.monotonic() - began_s

    async def create(self, names: Iterable[str], **spec: object) -> float:
        """Seconds until all are accepted."""
        return await self.each(
            names, lambda name: self.world.create_topic(name, PARTITIONS, len(BROKERS), **spec)
        )

    async def until(
        self, look: Callable[[Seen], bool], topics: int, what: str, *, fewer: bool = False
    ) -> float:
        """Return the seconds until ``topics`` Topics (``fewer``: at most that number) match
        ``look``.
        """
        began_s, told_s = time.monotonic(), 0.0

        def is_over(watch: TopicWatch) -> bool:
            nonlocal told_s
            seen, after_s = watch.count(look), time.monotonic() - began_s
            if after_s >= told_s + PROGRESS_S:
                told_s = after_s
                print(f"  {seen:,} of {topics:,} {what} after {after_s:.0f} s", flush=True)
            return seen <= topics if fewer else seen >= topics

        await self.watch.until(is_over, TIMEOUT_S)
        return time.monotonic() - began_s

    def heard(self, name: str, value: str) -> bool:
        """Whether a broker has a Topic's ``retention.ms`` as it was set last."""
        return any(
            entry.name == "retention.ms" and entry.value == value
            for entry in self.peers[0].topics[name].config
        )


@contextmanager
def plane_of(folder: Path) -> Iterator[ControlPlane]:
    """A control plane of the benchmark's own."""
    with ControlPlane.start(folder / "control-plane", fsync=False) as plane:
        asyncio.run(install_crds(plane.kubeconfig))
        yield plane


@asynccontextmanager
async def running(
    plane: ControlPlane, folder: Path, profile: Path | None = None, cgroup: Cgroup | None = None
) -> AsyncIterator[OperatorBench]:
    """The operator, in ``cgroup`` if there is one, and its brokers, until the block ends."""
    # A namespace, a Cluster, the operator as a process, and three peers in this process.
    world = await ClusterWorld.open(plane.kubeconfig, folder)
    try:
        await world.create_cluster()
        operator = OperatorProcess(
            plane.kubeconfig,
            world.namespace,
            folder / "operator.log",
            "127.0.0.1:0",
            session_timeout_s=60,
            certificates=world.certificates,
            lease_duration_s=30,
            log_level="WARNING",
            profile=profile,
        )
        operator.executed, operator.cgroup = True, cgroup
        world.operators.append(operator)
        await operator.start()
        # The watch starts before any Topic exists, so it sees every change.
        async with watching(world.api, world.namespace) as watch:
            bench = OperatorBench(plane, world, operator, watch)
            for node_id in BROKERS:
                await world.create(BROKER, f"broker-{node_id}", nodeId=node_id, workload="External")
                peer = await world.start_peer(await world.peer(node_id), operator)
                peer.heartbeat_s = HEARTBEAT_S
                bench.peers.append(peer)
            yield bench
        if profile is not None:
            await operator.stop()
    finally:
        await world.close()


def said(line: str) -> str:
    """Printed at once, and kept for the line at the end."""
    print(line, flush=True)
    return line
