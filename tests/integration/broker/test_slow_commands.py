"""Slow commands must not delay urgent ones: elections, and the shutdown of a broker."""

import asyncio
import json
import sys
import time
import uuid
from pathlib import Path

from tests.integration.broker.broker_process import BrokerProcess, StartBrokers
from tests.integration.broker.kafka_clients import produce_async
from tests.integration.broker.scripted_controller import ScriptedController
from tests.orphans import found, look
from tidemark.tier.open import open_tier
from tidemark.tier.stores.config import parse
from tidemark.tiering import TieringState
from tidemark.wire.connection import ConnectionClosed
from tidemark.wire.deletions import (
    DeleteTopicRecordsRequest,
    DeleteTopicRecordsResponse,
    PartitionDeletion,
)


def deletion(topic_id: uuid.UUID, offset: int, timeout_s: int) -> DeleteTopicRecordsRequest:
    below = PartitionDeletion(partition=0, leader_epoch=0, offset=offset, last_epoch=0)
    return DeleteTopicRecordsRequest(
        controller_epoch=1,
        topic_id=topic_id,
        timeout_ms=1000 * timeout_s,
        partitions=(below,),
    )


async def test_elections_do_not_wait_for_deletions(
    controller: ScriptedController, start_brokers: StartBrokers
) -> None:
    one, two = await start_brokers(1, 2)
    topic_id = await controller.create_topic("flights", [(1, 2)], {"min.insync.replicas": "1"})
    await produce_async(one.listener, "flights", [b"x"] * 10)
    await two.kill()  # it still counts as alive: deletions wait for it
    commands = controller.brokers[1].commands
    assert commands is not None

    async def delete(offset: int) -> int:
        try:
            answer = await commands.request(
                deletion(topic_id, offset, 15), DeleteTopicRecordsResponse, 30
            )
        except ConnectionClosed:
            return -1
        return answer.error_code or answer.results[0].error_code

    # Each deletion waits up to 15 s for the dead follower.
    deletions = [asyncio.create_task(delete(1 + n % 9)) for n in range(100)]
    await asyncio.sleep(0)  # all are written before the state
    controller.brokers[2].fenced = True
    # The election is answered in less than that.
    async with asyncio.timeout(5):
        await controller.change(topic_id, 0, isr=(1,))
    # No broker is pending any more, and the queued ones have had their turn.
    async with asyncio.timeout(10):
        assert await asyncio.gather(*deletions) == [0] * 100
    assert await one.stop() == 0


async def test_broker_shuts_down_while_its_store_hangs(
    controller: ScriptedController, start_brokers: StartBrokers, tmp_path: Path
) -> None:
    faults = tmp_path / "faults"
    faults.mkdir()
    (tmp_path / "tier").mkdir()

    class Hanging(BrokerProcess):
        def command(self) -> list[str]:
            program = Path(__file__).with_name("hanging_store_broker.py")
            return [sys.executable, str(program), str(faults), *super().command()[3:]]

    storage = {"filesystem": {"path": str(tmp_path / "tier")}}
    controller.remote_storage = json.dumps(storage)
    (faults / "hang").touch()
    [broker] = await start_brokers(1, kind=Hanging)
    await controller.create_topic("flights", [(1,)] * 3, tiering=TieringState.ENABLED)
    await produce_async(broker.listener, "flights", [b"x"])
    async with asyncio.timeout(10):
        # The store hangs in a write of the first claim.
        while not (faults / "hung").exists():  # noqa: ASYNC110  another process makes it
            await asyncio.sleep(0.02)
    began_s = time.monotonic()
    assert await broker.stop() == 0
    # The broker gives the store a limited time.
    assert time.monotonic() - began_s < 15
    assert "did not return" in broker.log_text()
    assert "has shut down cleanly" in broker.log_text()
    (faults / "hang").unlink()
    await broker.start()
    # The shutdown counts as clean: the log itself is complete.
    assert controller.registrations[-1].previous_broker_epoch > 0
    assert await broker.stop() == 0
    # The interrupted write left nothing behind in the tier.
    assert not found(look(open_tier(parse(storage))))
