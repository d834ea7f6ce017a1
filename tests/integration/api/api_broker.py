"""A broker without a controller: the real storage, replicas, handlers and listener in this process.

The states that a controller would push are applied by the test.
"""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from tests.control_messages import partition_states
from tidemark.wire import control
from tidemark.wire.connection import KafkaConnection
from tidemark_broker.broker import BrokerServer
from tidemark_broker.config import parse
from tidemark_broker.listeners import CLIENTS
from tidemark_broker.net.server import KafkaServer
from tidemark_broker.replication.hosting.log_directory import LogDirectory

R = TypeVar("R")

NODE = 1
CLUSTER_ID = "test-cluster-0000000000"


class ApiBroker:
    """One broker, node 1, and a client connected to it."""

    def __init__(self, broker: BrokerServer) -> None:
        self.broker = broker
        self.manager = broker.manager
        self.purgatory = broker.purgatory
        self.client: KafkaConnection
        self._epoch = 0
        self._fenced = {3}

    @property
    def port(self) -> int:
        """Port of its listener."""
        return self.server.port

    @property
    def server(self) -> KafkaServer:
        """The listener for clients."""
        return self.broker.listeners.servers[CLIENTS]

    async def create(
        self,
        name: str,
        *,
        partitions: int = 1,
        replicas: tuple[int, ...] = (NODE,),
        leader: int = NODE,
        config: Mapping[str, str] = MappingProxyType({}),
        topic_id: uuid.UUID | None = None,
        leader_epoch: int = 0,
        **topic: int,
    ) -> uuid.UUID:
        """Make or change a topic, as a controller would."""
        topic_id = topic_id or uuid.uuid4()
        # Each change has a higher partition epoch, as a controller's.
        self._epoch += 1
        # Placeholders have negative ids and are never in sync.
        isr = tuple(node for node in replicas if node > 0)
        rows = tuple(
            control.PartitionState(
                partition=number,
                leader=leader,
                leader_epoch=leader_epoch,
                partition_epoch=self._epoch,
                replicas=replicas,
                isr=isr,
                manifest=False,
            )
            for number in range(partitions)
        )
        state = control.TopicState(
            topic_id=topic_id,
            name=name,
            config=tuple(
                control.ConfigEntry(name=key, value=value) for key, value in config.items()
            ),
            tiering_state=topic.get("tiering_state", 0),
            tiered_epoch=topic.get("tiered_epoch", 0),
            disable_policy=0,
            partitions=rows,
        )
        errors = await self.manager.apply(self._states(state))
        assert errors == []
        return topic_id

    async def delete(self, topic_id: uuid.UUID) -> None:
        """Apply a topic's removal, as a controller would send it."""
        removal = control.Removal(topic_id=topic_id, partition=-1, partition_epoch=0)
        # Partition -1 removes the whole topic.
        assert await self.manager.apply(replace(self._states(), removals=(removal,))) == []

    async def fence(self, *nodes: int) -> None:
        """Fence these brokers, as a controller would."""
        self._fenced.update(nodes)
        assert await self.manager.apply(self._states()) == []

    def _states(self, *topics: control.TopicState) -> control.PartitionStatesRequest:
        # Three brokers: this one, one that is reachable in metadata only, and one that is fenced.
        brokers = (
            self._row(NODE, self.port),
            self._row(2, 9),
            self._row(3, 9),
        )
        return partition_states(*topics, cluster_id=CLUSTER_ID, brokers=brokers)

    def _row(self, node: int, port: int) -> control.BrokerState:
        listener = control.Endpoint(name="PLAINTEXT", host="127.0.0.1", port=port)
        return control.BrokerState(
            broker_id=node,
            broker_epoch=1,
            rack=f"r{node}",
            fenced=node in self._fenced,
            listeners=(listener,),
        )

    async def ask(self, request: Any, response_type: type[R]) -> R:
        """Send one request over the socket."""
        return await self.client.request(request, response_type, 10)

    async def connect(self) -> KafkaConnection:
        """One more client; the caller closes it."""
        return await KafkaConnection.connect("127.0.0.1", self.port, client_id="test")


@contextlib.asynccontextmanager
async def running(folder: Path, entries: Mapping[str, str]) -> AsyncIterator[ApiBroker]:
    """Start all of a broker except its session with a controller."""
    config = parse(
        {
            "node.id": str(NODE),
            "cluster.id": CLUSTER_ID,
            "log.dir": str(folder),
            "tidemark.tls.directory": str(folder / "tls"),
            "listeners": "127.0.0.1:0",
            # Port 1 has no listener: there is no controller.
            "controller.addresses": "127.0.0.1:1",
            **entries,
        }
    )
    storage = await asyncio.to_thread(LogDirectory.open, config)
    broker = BrokerServer(config, storage)
    broker.manager.load(storage.found())
    await broker.listeners.bind()
    await broker.listeners.listen()
    checkpoints = asyncio.create_task(storage.run_log_start_checkpoints())
    made = ApiBroker(broker)
    made.client = await made.connect()
    try:
        yield made
    finally:
        await made.client.close()
        await broker.listeners.stop()
        await broker.manager.close()
        checkpoints.cancel()
        await asyncio.gather(checkpoints, return_exceptions=True)
        await storage.close(1)
