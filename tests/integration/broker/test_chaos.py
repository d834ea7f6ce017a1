"""Brokers are killed one after another while records flow: invariant 1, with a seed."""

import asyncio
import functools
import random
import threading
import uuid
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.integration.broker.broker_process import BrokerProcess, StartBrokers
from tests.integration.broker.kafka_clients import consume_async
from tests.integration.broker.scripted_controller import ScriptedController

pytestmark = pytest.mark.full

TOPIC = "flights"
KILLS = 6


class ChaosWriter:
    """Produces numbered records with acks=all until stopped; remembers what was acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: dict[int, int] = {}
        self._stop = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._progress = asyncio.Event()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "message.timeout.ms": 60000}
        )

    def run(self) -> None:
        # Numbered values: a lost or reordered record can be named.
        number = 0
        while not self._stop.wait(0.001):
            self._producer.produce(
                TOPIC,
                value=b"%08d" % number,
                partition=0,
                on_delivery=functools.partial(self._delivered, number),
            )
            self._producer.poll(0)
            number += 1
        self._producer.flush(60)

    def stop(self) -> None:
        self._stop.set()

    async def progress(self) -> None:
        """Wait for an acknowledgement from now on."""
        self._progress.clear()
        async with asyncio.timeout(40):
            await self._progress.wait()

    def _delivered(self, value: int, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged[message.offset()] = value
            # The callback runs in the producer's thread.
            self._loop.call_soon_threadsafe(self._progress.set)


async def depose(controller: ScriptedController, topic_id: uuid.UUID, node: int) -> None:
    """Remove a dead broker from the ISR and elect a leader from the rest, as a controller does."""
    await controller.fence(node)
    row = controller.rows[topic_id, 0]
    if row.leader == node:
        await controller.change(topic_id, 0, leader=row.isr[0])


@pytest.mark.slow
async def test_kills_lose_nothing_acknowledged(
    controller: ScriptedController, start_brokers: StartBrokers
) -> None:
    # Printed, so that a failure can be repeated with the same choices.
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    brokers: list[BrokerProcess] = await start_brokers(1, 2, 3, replica_lag_time_max_ms=2000)
    topic_id = await controller.create_topic(
        # Small segments: rolls happen between the kills.
        TOPIC,
        [(1, 2, 3)],
        {"min.insync.replicas": "2", "segment.bytes": "100000"},
    )
    writer = ChaosWriter(",".join(broker.listener for broker in brokers))
    running = asyncio.create_task(asyncio.to_thread(writer.run))
    try:
        for _ in range(KILLS):
            # Kill the leader in 70 % of the cases, since its loss is the harder one.
            leader = controller.rows[topic_id, 0].leader
            victim = brokers[(leader if chance.random() < 0.7 else chance.choice([1, 2, 3])) - 1]
            await asyncio.sleep(chance.random() * 0.5)
            await victim.kill()
            await depose(controller, topic_id, victim.node_id)
            await victim.start()
            # The next kill waits for a complete ISR: min.insync.replicas is 2, so one dead broker
            # is allowed.
            await controller.until(lambda: controller.rows[topic_id, 0].isr == (1, 2, 3), 30)
            await writer.progress()
    finally:
        writer.stop()
        await running
    end = max(writer.acknowledged) + 1
    leader = controller.rows[topic_id, 0].leader
    got = dict(await consume_async(brokers[leader - 1].listener, TOPIC, end))
    # Compare by offset: each acknowledged value must be where it was acknowledged.
    lost = {o: v for o, v in writer.acknowledged.items() if got.get(o) != b"%08d" % v}
    assert not lost, f"{len(lost)} of {len(writer.acknowledged)} lost, first {min(lost)}"
    for broker in brokers:
        assert await broker.stop() == 0
    # Equal logs on all replicas, byte by byte.
    logs = [
        b"".join(f.read_bytes() for f in sorted((b.log_dir / f"{TOPIC}-0").glob("*.log")))
        for b in brokers
    ]
    assert logs[0] == logs[1] == logs[2]
