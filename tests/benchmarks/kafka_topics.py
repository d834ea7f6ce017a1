"""Duration of creating, changing and deleting many Topics on Apache Kafka through the operator, in
batches.

    python -m tests.benchmarks.kafka_topics [--batches 10,100,500,1000]

Each batch is applied at once, and done when every Topic is Ready in its generation (or deleted).
Three brokers, topics of 12 partitions and 3 replicas, as in Strimzi's own figures
(docs/explanation/engines.md). The output also has processor seconds of the operator and of Kafka's
nodes. Kafka's own share is measured with the same requests without an operator, and with the same
number of idle topics.
"""

import argparse
import asyncio
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.apache_kafka import KafkaOptions, running
from tests.benchmarks.processes import cpu_seconds
from tests.integration.kafka_engine.kafka_world import KafkaWorld
from tests.integration.kafka_engine.waiting import until
from tests.integration.operator.cluster_world import condition_of
from tests.integration.operator.conftest import install_crds
from tidemark.kafka_client import configs
from tidemark.kafka_client.access import KafkaAccess
from tidemark.kafka_client.admin import Admin
from tidemark.kafka_client.client import KafkaClient
from tidemark.kafka_client.values import TOPIC as CONFIG_OF_TOPIC
from tidemark.kafka_client.values import ConfigChange, NewTopic, RequestFailure
from tidemark_devcluster.controlplane.launcher import ControlPlane
from tidemark_devcluster.kafka_nodes import KafkaNodes
from tidemark_operator.kube.kinds import TOPIC

PARTITIONS, REPLICAS = 12, 3
AT_ONCE = 16
AT_MOST_S = 1800.0
#: Topics of one request.
AT_A_TIME = 200
#: For as long Kafka is left alone with its new topics, and what that costs is counted.
AT_REST_S = 10.0


class KafkaTopicsBench:
    """One cluster, one operator."""

    def __init__(self, world: KafkaWorld, nodes: KafkaNodes, operator_pid: int) -> None:
        self._world = world
        self._nodes = nodes
        self._operator_pid = operator_pid

    async def batch(self, size: int) -> None:
        names = [f"many-{size}-{number}" for number in range(size)]
        await self._step(f"{size} made", names, self._make, self._all_ready)
        await self._step(f"{size} changed", names, self._change, self._all_ready)
        await self._step(f"{size} deleted", names, self._world_delete, self._all_gone)

    async def _step(
        self,
        what: str,
        names: list[str],
        do: Callable[[str], Awaitable[object]],
        done: Callable[[list[str]], Awaitable[bool]],
    ) -> None:
        began_s, operator_s, kafka_s = (
            time.monotonic(),
            self._operator_cpu(),
            kafka_cpu(self._nodes),
        )
        # As many requests at a time as a user's tools make.
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(name: str) -> None:
            async with gate:
                await do(name)

        await asyncio.gather(*(one(name) for name in names))
        # Time ends when the status says so, which includes Kafka's own work.
        await self._world.until(lambda: done(names), what, AT_MOST_S)
        took_s, kafka_s = time.monotonic() - began_s, kafka_cpu(self._nodes) - kafka_s
        operator_s = self._operator_cpu() - operator_s
        print(
            f"{what:>16}: {took_s:7.1f} s, processor seconds: operator {operator_s:.1f}, "
            f"Kafka {kafka_s:.1f}",
            flush=True,
        )

    async def _make(self, name: str) -> None:
        config = {"retention.ms": "3600000"}
        await self._world.create_topic(name, PARTITIONS, REPLICAS, config=config)

    async def _change(self, name: str) -> None:
        await self._world.patch(TOPIC, name, config={"retention.ms": "7200000"})

    async def _world_delete(self, name: str) -> None:
        await self._world.delete(TOPIC, name)

    async def _all_ready(self, names: list[str]) -> bool:
        wanted = set(names)
        for body in await self._world.api.list_all(TOPIC, self._world.namespace):
            ready, meta = condition_of(body.get("status") or {}, "Ready"), body["metadata"]
            # Ready of an older generation says nothing about this change.
            told = ready.get("status"), ready.get("observedGeneration")
            if told == ("True", meta["generation"]):
                wanted.discard(meta["name"])
        return not wanted

    async def _all_gone(self, _: list[str]) -> bool:
        return not await self._world.api.list_all(TOPIC, self._world.namespace)

    def _operator_cpu(self) -> float:
        return cpu_seconds(self._operator_pid)


async def alone(nodes: KafkaNodes, size: int) -> None:
    """Kafka's own share: as few requests as there can be, until each topic has all its leaders."""
    # Leaders spread over the three brokers, as the operator places them.
    assignment = tuple((1 + part % 3, 1 + (part + 1) % 3, 1 + (part + 2) % 3) for part in range(12))
    async with KafkaClient(KafkaAccess(tuple(nodes.bootstrap.split(",")))) as client:
        admin, names = Admin(client), [f"alone-{size}-{number}" for number in range(size)]
        began_s, cpu_s, ids = time.monotonic(), kafka_cpu(nodes), []
        for first in range(0, size, AT_A_TIME):
            new = [NewTopic(name, assignment) for name in names[first : first + AT_A_TIME]]
            ids += list((await admin.create_topics(new)).values())

        async def led() -> int:
            views = (await admin.topics(names)).values()
            return sum(all(part.isr for part in view.partitions) for view in views)

        await until(led, lambda found: found == size, AT_MOST_S)
        made = f"made {time.monotonic() - began_s:.1f} s ({kafka_cpu(nodes) - cpu_s:.1f})"
        # What idle topics cost Kafka, to be subtracted from what the operator seems to cost.
        cpu_s = kafka_cpu(nodes)
        await asyncio.sleep(AT_REST_S)
        at_rest = f"at rest {(kafka_cpu(nodes) - cpu_s) / AT_REST_S:.2f} processor seconds a second"
        began_s, cpu_s = time.monotonic(), kafka_cpu(nodes)
        changes = [ConfigChange(CONFIG_OF_TOPIC, name, {"retention.ms": "7"}) for name in names]
        await configs.alter_configs(client, changes)
        changed = f"changed {time.monotonic() - began_s:.1f} s ({kafka_cpu(nodes) - cpu_s:.1f})"
        began_s, cpu_s = time.monotonic(), kafka_cpu(nodes)
        for first in range(0, size, AT_A_TIME):
            await admin.delete_topics(_made(ids[first : first + AT_A_TIME]))
        await until(led, lambda found: found == 0, AT_MOST_S)
        deleted = f"deleted {time.monotonic() - began_s:.1f} s ({kafka_cpu(nodes) - cpu_s:.1f})"
    print(f"  Kafka alone, {size}: {made}, {at_rest}, {changed}, {deleted}", flush=True)


def _made(ids: list[uuid.UUID | RequestFailure]) -> list[uuid.UUID]:
    failed = [id_ for id_ in ids if isinstance(id_, RequestFailure)]
    if failed:
        raise SystemExit(f"Kafka has not made {len(failed)} topics: {failed[0]}")
    return [id_ for id_ in ids if not isinstance(id_, RequestFailure)]


def kafka_cpu(nodes: KafkaNodes) -> float:
    """Processor seconds of all nodes so far."""
    ids = [*nodes.broker_ids(), *nodes.controller_ids()]
    return sum(cpu_seconds(each.pid) for node in ids if (each := nodes.find(node)))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", default="10,100,500,1000")
    sizes = [int(text) for text in parser.parse_args().batches.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        wanted = KafkaOptions(brokers=3, controllers=1, racks=("a", "b", "c"))
        # Without fsync: the disk of this machine is not what is measured.
        with (
            running(root / "kafka", wanted) as nodes,
            ControlPlane.start(root / "control-plane", fsync=False) as control,
        ):
            await install_crds(control.kubeconfig)
            world = await KafkaWorld.open(control.kubeconfig, root)
            try:
                await world.create_kafka_cluster(nodes.bootstrap)
                operator = await world.start_operator()
                bench = KafkaTopicsBench(world, nodes, operator.pid)
                # Kafka alone first, then the same number through the operator.
                for size in sizes:
                    await alone(nodes, size)
                    await bench.batch(size)
            finally:
                await world.close()


if __name__ == "__main__":
    asyncio.run(main())
