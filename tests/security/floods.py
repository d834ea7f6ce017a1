"""A broker under attack, and a client of good will beside it that watches how long it waits."""

import asyncio
import contextlib
import dataclasses
import struct
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kio.schema.errors import ErrorCode

from tests.integration.broker.broker_process import BrokerProcess
from tests.integration.broker.kafka_clients import acknowledged
from tests.integration.broker.scripted_controller import ScriptedController
from tests.unit.api import api_requests as kafka
from tidemark.wire.connection import KafkaConnection
from tidemark.wire.framing import encode_request

FETCH_VERSION = 12
LARGE, SMALL = "large", "small"
MIB = 1024 * 1024
CHUNK_BYTES = 64 * 1024


@dataclass(slots=True)
class Waits:
    """Duration of each request of the good client, in seconds."""

    seconds: list[float] = field(default_factory=list)

    def share_within(self, limit_s: float) -> float:
        """Return the share of requests that took at most ``limit_s``."""
        return sum(second <= limit_s for second in self.seconds) / len(self.seconds)


class FloodTarget:
    """One broker with a topic of 64 MiB and a small one."""

    def __init__(self, controller: ScriptedController, broker: BrokerProcess) -> None:
        self.controller, self.broker = controller, broker
        host, port = broker.listener.split(":")
        self.address = (host, int(port))

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, folder: Path) -> AsyncIterator["FloodTarget"]:
        controller = await ScriptedController().start()
        broker = await BrokerProcess(1, folder, [controller.port]).start()
        # The attack starts from a broker that is unfenced and has its topics.
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
        """Memory of the broker in MiB."""
        status = Path(f"/proc/{self.broker.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024

    @contextlib.asynccontextmanager
    async def attackers(
        self, count: int, host: str = "127.0.0.1"
    ) -> AsyncIterator[list[asyncio.StreamWriter]]:
        """Connections that never read, from an address of the loopback."""
        writers: list[asyncio.StreamWriter] = []
        try:
            for _ in range(count):
                _, writer = await asyncio.open_connection(*self.address, local_addr=(host, 0))
                # Answers pile up in the kernel and then in the broker, as with a client that stops
                # reading.
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                writers.append(writer)
            yield writers
        finally:
            for writer in writers:
                writer.transport.abort()

    @contextlib.asynccontextmanager
    async def begun(self, count: int, before: bytes, size: int) -> AsyncIterator[None]:
        """Open ``count`` connections that send ``before`` and then a Produce of ``size`` bytes
        without its end, as far as the broker reads.
        """
        async with self.attackers(count, "127.0.0.2") as writers, asyncio.TaskGroup() as group:
            # A Produce (API 0, version 9) whose announced size is never reached.
            head = before + struct.pack(">ihhi", size, 0, 9, 1)
            pumps = [group.create_task(_pump(writer, head, size - MIB)) for writer in writers]
            yield
            for pump in pumps:
                pump.cancel()

    async def watched(self, seconds: float, *, produced_bytes: int = 0) -> tuple[Waits, float]:
        """Return waits of a good client that fetches and produces, and the highest memory use."""
        waits, most = Waits(), 0.0
        connection = await KafkaConnection.connect(*self.address, client_id="good")
        until = time.monotonic() + seconds
        try:
            # The good client's requests are small and quick: whatever delays them is the attack.
            while time.monotonic() < until:
                began = time.monotonic()
                await self._fetch_small(connection)
                if produced_bytes:
                    await self._produce_to(LARGE, produced_bytes, connection)
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

    async def _produce_to(self, topic: str, size: int, connection: KafkaConnection) -> None:
        request = kafka.produce(9, topic, kafka.batch(bytes(size)), acks=1)
        answer: Any = await connection.request(request, kafka.answer_type(kafka.PRODUCE, 9), 30)
        assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none


async def _pump(writer: asyncio.StreamWriter, head: bytes, size: int) -> None:
    with contextlib.suppress(ConnectionError):
        writer.write(head)
        for _ in range(size // CHUNK_BYTES):
            writer.write(bytes(CHUNK_BYTES))
            await writer.drain()


def many_entries(partitions: int) -> bytes:
    """Return a Fetch that names ``partitions`` partitions, most of which do not exist."""
    request = kafka.fetch(FETCH_VERSION, LARGE, 0)
    (topic,) = request.topics
    (part,) = topic.partitions
    named = tuple(dataclasses.replace(part, partition=number) for number in range(partitions))
    topics = (dataclasses.replace(topic, partitions=named),)
    return encode_request(dataclasses.replace(request, topics=topics), 1, "many")


def patient_fetch() -> bytes:
    """One that waits for more than will ever come, for days."""
    request = kafka.fetch(FETCH_VERSION, SMALL, 1, wait_ms=10**9, min_bytes=2**30)
    return encode_request(request, 1, "patient")


def greedy_fetch() -> bytes:
    """As much as a Fetch may ask for."""
    return encode_request(
        kafka.fetch(FETCH_VERSION, LARGE, 0, partition_max_bytes=50 * MIB, max_bytes=50 * MIB),
        1,
        "greedy",
    )
