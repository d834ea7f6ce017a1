"""A broker under attack, and a client of good will beside it that watches how long it waits."""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.integration.broker.broker_process import BrokerProcess
from tests.integration.broker.kafka_clients import acknowledged
from tests.integration.broker.scripted_controller import ScriptedController
from tests.unit.api import api_requests as kafka
from tidemark.wire.connection import KafkaConnection
from tidemark.wire.framing import encode_request

FETCH_VERSION = 12
LARGE, SMALL = "large", "small"
MIB = 1024 * 1024


@dataclass(slots=True)
class Waits:
    """How long each request of the good client took, in seconds."""

    seconds: list[float] = field(default_factory=list)

    def share_within(self, limit_s: float) -> float:
        """Of them all."""
        return sum(each <= limit_s for each in self.seconds) / len(self.seconds)


class Target:
    """One broker with a topic of 64 MiB and a small one."""

    def __init__(self, controller: ScriptedController, broker: BrokerProcess) -> None:
        self.controller, self.broker = controller, broker
        host, port = broker.listener.split(":")
        self.address = (host, int(port))

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, folder: Path) -> AsyncIterator["Target"]:
        controller = await ScriptedController().start()
        broker = await BrokerProcess(1, folder, [controller.port]).start()
        try:
            await controller.unfenced(1)
            for topic in (LARGE, SMALL):
                await controller.create_topic(topic, [(1,)])
            made = cls(controller, broker)
            await made._produce(LARGE, [bytes(900_000)] * 70)
            await made._produce(SMALL, [b"one"])
            yield made
        finally:
            await broker.kill()
            await controller.close()

    async def _produce(self, topic: str, values: list[bytes]) -> None:
        await asyncio.to_thread(acknowledged, self.broker.listener, topic, values, batch_bytes=1)

    def memory_mib(self) -> float:
        """What the broker takes now, in MiB."""
        status = Path(f"/proc/{self.broker.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024

    @contextlib.asynccontextmanager
    async def attackers(self, count: int) -> AsyncIterator[list[asyncio.StreamWriter]]:
        """Connections that never read."""
        writers: list[asyncio.StreamWriter] = []
        try:
            for _ in range(count):
                _, writer = await asyncio.open_connection(*self.address)
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                writers.append(writer)
            yield writers
        finally:
            for writer in writers:
                writer.transport.abort()

    async def watched(self, seconds: float) -> tuple[Waits, float]:
        """How long a good client waits meanwhile, and the most memory that was seen."""
        waits, most = Waits(), 0.0
        connection = await KafkaConnection.connect(*self.address, client_id="good")
        until = time.monotonic() + seconds
        try:
            while time.monotonic() < until:
                began = time.monotonic()
                await self._fetch_small(connection)
                waits.seconds.append(time.monotonic() - began)
                most = max(most, self.memory_mib())
                await asyncio.sleep(0.02)
        finally:
            await connection.close()
        return waits, most

    async def _fetch_small(self, connection: KafkaConnection) -> None:
        request = kafka.fetch(FETCH_VERSION, SMALL, 0)
        answer: Any = await connection.request(
            request, kafka.answer_type(kafka.FETCH, FETCH_VERSION), 30
        )
        assert len(answer.responses[0].partitions[0].records) > 0


def many_entries(partitions: int) -> bytes:
    """A Fetch that names so many partitions, few of which there are."""
    request = kafka.fetch(FETCH_VERSION, LARGE, 0)
    (topic,) = request.topics
    (part,) = topic.partitions
    named = tuple(dataclasses.replace(part, partition=number) for number in range(partitions))
    topics = (dataclasses.replace(topic, partitions=named),)
    return encode_request(dataclasses.replace(request, topics=topics), 1, "many")


def greedy_fetch() -> bytes:
    """As much as a Fetch may ask for."""
    return encode_request(
        kafka.fetch(FETCH_VERSION, LARGE, 0, partition_max_bytes=50 * MIB, max_bytes=50 * MIB),
        1,
        "greedy",
    )
