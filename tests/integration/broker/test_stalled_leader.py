"""A leader that was stalled for longer than its session may have a successor.

It answers nothing as leader until the controller has sent it the current leader. A dead controller
alone stops no leader.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode

from tests.integration.broker.broker_process import BrokerProcess, StartBrokers
from tests.integration.broker.scripted_controller import ScriptedController
from tests.unit.api import api_requests as kafka
from tidemark.wire.connection import KafkaConnection

SESSION_MS = 1000
RECORD = kafka.batch(b"value")


@pytest.fixture
async def controller() -> AsyncIterator[ScriptedController]:
    scripted = await ScriptedController(session_timeout_ms=SESSION_MS).start()
    yield scripted
    await scripted.close()


async def answers(connection: KafkaConnection) -> list[ErrorCode]:
    """Return its answers to Produce with acks=1, Fetch and ListOffsets; each checks the role (a
    Fetch of later versions may be answered by a follower).
    """
    produced = await connection.request(
        kafka.produce(9, "t", RECORD, acks=1), kafka.answer_type(0, 9), 5
    )
    fetched = await connection.request(kafka.fetch(10, "t", 0), kafka.answer_type(1, 10), 5)
    listed = await connection.request(kafka.list_offsets(5, "t", -2), kafka.answer_type(2, 5), 5)
    return [
        produced.responses[0].partition_responses[0].error_code,
        fetched.responses[0].partitions[0].error_code,
        listed.topics[0].partitions[0].error_code,
    ]


async def until_it_serves(connection: KafkaConnection) -> None:
    """Wait until the broker serves.

    On a busy machine its loop may have stalled for that long by itself.
    """
    async with asyncio.timeout(10):
        while await answers(connection) != [ErrorCode.none] * 3:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.05)


async def stall(broker: BrokerProcess, seconds: float) -> None:
    os.kill(broker.pid, signal.SIGSTOP)
    await asyncio.sleep(seconds)
    os.kill(broker.pid, signal.SIGCONT)


async def test_stalled_leader_waits_for_the_controller(
    controller: ScriptedController, start_brokers: StartBrokers
) -> None:
    [broker] = await start_brokers(1)
    topic_id = await controller.create_topic("t", [(1, 2)])
    # The only replica in sync, so a stalled leader has no successor in this row.
    await controller.change(topic_id, 0, isr=(1,))
    host, port = broker.listener.rsplit(":", 1)
    connection = await KafkaConnection.connect(host, int(port), client_id="test")
    serves, not_leader = [ErrorCode.none] * 3, [ErrorCode.not_leader_or_follower] * 3
    await until_it_serves(connection)
    await controller.close()
    await asyncio.sleep(2 * SESSION_MS / 1000)
    assert await answers(connection) == serves, "a dead controller stops no leader"
    # SIGSTOP for longer than the session: another leader may exist.
    await stall(broker, 1.5 * SESSION_MS / 1000)
    assert await answers(connection) == not_leader
    await asyncio.sleep(SESSION_MS / 1000)
    # Time alone does not restore its confidence, only a controller.
    assert await answers(connection) == not_leader

    # The controller restarts with the same state and a higher epoch.
    again = ScriptedController(epoch=2, session_timeout_ms=SESSION_MS)
    again.topics, again.rows = controller.topics, controller.rows
    again._next_epoch = 200
    await again.start(controller.port)
    try:
        await again.unfenced(1)
        await until_it_serves(connection)
    finally:
        await connection.close()
        await broker.kill()
        await again.close()


async def test_stalled_leader_that_was_replaced_accepts_nothing(
    controller: ScriptedController, start_brokers: StartBrokers
) -> None:
    """Its old session is not accepted: it registers again and receives the new leader."""
    [broker] = await start_brokers(1)
    topic_id = await controller.create_topic("t", [(1, 2)])
    await controller.change(topic_id, 0, isr=(1,))
    host, port = broker.listener.rsplit(":", 1)
    connection = await KafkaConnection.connect(host, int(port), client_id="test")
    await until_it_serves(connection)
    registrations = len(controller.registrations)
    row = controller.rows[topic_id, 0]
    # The controller elects another leader, and the stalled one has not received it.
    controller.rows[topic_id, 0] = replace(row, leader=2, leader_epoch=7, isr=(2,))
    await stall(broker, 1.5 * SESSION_MS / 1000)
    not_leader = [ErrorCode.not_leader_or_follower] * 3
    assert await answers(connection) == not_leader
    await controller.until(lambda: len(controller.registrations) > registrations)
    await controller.unfenced(1)
    # Its new registration brings the new row, in which it does not lead.
    assert await answers(connection) == not_leader
    await connection.close()
