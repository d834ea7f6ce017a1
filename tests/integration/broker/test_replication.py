"""Two and three brokers: acknowledged records survive, logs converge, low watermarks are right."""

import asyncio
import uuid
from pathlib import Path

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.integration.broker.broker_process import BrokerProcess, StartBrokers
from tests.integration.broker.kafka_clients import consume_async, produce_async
from tests.integration.broker.scripted_controller import ScriptedController
from tidemark_broker.log.log_checkpoints import LogStarts

TOPIC = "flights"
MIN_ISR_2 = {"min.insync.replicas": "2"}


def segment_bytes(broker: BrokerProcess, partition: int = 0) -> bytes:
    """Return the local log of a stopped broker, all segments joined."""
    files = sorted((broker.log_dir / f"{TOPIC}-{partition}").glob("*.log"))
    return b"".join(Path(file).read_bytes() for file in files)


def bootstrap(brokers: list[BrokerProcess]) -> str:
    return ",".join(broker.listener for broker in brokers)


async def in_sync(controller: ScriptedController, topic_id: uuid.UUID, *nodes: int) -> None:
    await controller.until(lambda: controller.rows[topic_id, 0].isr == tuple(sorted(nodes)))


async def test_followers_have_all_acknowledged_records(
    controller: ScriptedController, start_brokers: StartBrokers
) -> None:
    brokers = await start_brokers(1, 2, 3)
    await controller.create_topic(TOPIC, [(1, 2, 3)], MIN_ISR_2)
    values = [b"%06d" % n * 20 for n in range(2000)]
    assert await produce_async(bootstrap(brokers), TOPIC, values) == list(range(2000))
    assert await consume_async(bootstrap(brokers), TOPIC, 2000) == list(enumerate(values))
    for broker in brokers:
        assert await broker.stop() == 0
    # Replicas copy batches byte by byte.
    assert segment_bytes(brokers[0]) == segment_bytes(brokers[1]) == segment_bytes(brokers[2])


async def test_killed_leader_loses_no_acknowledged_record(
    controller: ScriptedController, start_brokers: StartBrokers
) -> None:
    brokers = await start_brokers(1, 2)
    topic_id = await controller.create_topic(TOPIC, [(1, 2)], {"min.insync.replicas": "1"})
    values = [b"%06d" % n * 10 for n in range(6000)]
    running = asyncio.create_task(produce_async(bootstrap(brokers), TOPIC, values))
    # Wait until the leader has accepted a part of the records.
    await controller.until(
        lambda: any(
            status.high_watermark > 200 for status in controller.brokers[1].statuses.values()
        )
    )
    await brokers[0].kill()
    await controller.fence(1)
    # The producer retries against the new leader.
    await controller.change(topic_id, 0, leader=2)
    acknowledged = await running
    got = await consume_async(brokers[1].listener, TOPIC, 6000)
    assert len(acknowledged) == 6000
    # Duplicates are possible without idempotence, losses are not.
    assert {value for _, value in got} == set(values)

    # The old leader returns without proof: out of the ISR, it truncates, catches up, joins.
    await brokers[0].start()
    await in_sync(controller, topic_id, 1, 2)
    for broker in brokers:
        assert await broker.stop() == 0
    assert segment_bytes(brokers[0]) == segment_bytes(brokers[1])


async def test_diverging_tail_is_truncated(
    controller: ScriptedController, start_brokers: StartBrokers
) -> None:
    brokers = await start_brokers(1, 2)
    topic_id = await controller.create_topic(TOPIC, [(1, 2)])
    # Common prefix, then a part that only broker 1 has.
    await produce_async(brokers[0].listener, TOPIC, [b"common"] * 50)
    await brokers[1].kill()
    await controller.fence(2)
    await produce_async(brokers[0].listener, TOPIC, [b"only on one"] * 30)
    await brokers[0].kill()
    # An unclean choice: 2 leads with the shorter log and goes another way.
    controller.brokers[1].fenced = True
    await controller.change(topic_id, 0, leader=2, isr=(2,))
    await brokers[1].start()
    assert await produce_async(brokers[1].listener, TOPIC, [b"another way"] * 10) == list(
        range(50, 60)
    )
    await brokers[0].start()
    await in_sync(controller, topic_id, 1, 2)
    # Broker 1 has truncated its own part and follows.
    assert await produce_async(brokers[1].listener, TOPIC, [b"together"] * 5) == list(range(60, 65))
    assert "the log diverges from the leader's" in brokers[0].log_text()
    for broker in brokers:
        assert await broker.stop() == 0
    assert segment_bytes(brokers[0]) == segment_bytes(brokers[1])


async def test_isr_shrinks_and_acks_all_waits_for_its_minimum(
    controller: ScriptedController, start_brokers: StartBrokers
) -> None:
    brokers = await start_brokers(1, 2, replica_lag_time_max_ms=1000)
    topic_id = await controller.create_topic(TOPIC, [(1, 2)], MIN_ISR_2)
    await produce_async(brokers[0].listener, TOPIC, [b"x"] * 10)
    await brokers[1].kill()
    # acks=all records that the dead follower lacks make it fall behind.
    # A follower without new records to fetch does not fall behind.
    late = asyncio.create_task(produce_async(brokers[0].listener, TOPIC, [b"y"] * 5))
    await in_sync(controller, topic_id, 1)
    await brokers[1].start()
    await in_sync(controller, topic_id, 1, 2)
    assert len(await late) == 5


async def test_delete_records_waits_for_a_durable_log_start_on_both(
    controller: ScriptedController, start_brokers: StartBrokers
) -> None:
    brokers = await start_brokers(1, 2)
    topic_id = await controller.create_topic(TOPIC, [(1, 2)])
    await produce_async(brokers[0].listener, TOPIC, [b"x"] * 100)
    admin = AdminClient({"bootstrap.servers": bootstrap(brokers)})
    future = admin.delete_records([TopicPartition(TOPIC, 0, 40)])[TopicPartition(TOPIC, 0)]
    result = await asyncio.to_thread(future.result, 20)
    # The low watermark is the smallest log start of all replicas.
    assert result.low_watermark == 40
    # Both checkpoints are on disk when the client receives its answer.
    for broker in brokers:
        starts = LogStarts(broker.log_dir)
        starts.load()
        assert starts.recorded[TOPIC, 0].log_start_offset == 40
    statuses = controller.brokers[1].statuses
    await controller.until(
        lambda: (topic_id, 0) in statuses and statuses[topic_id, 0].low_watermark == 40
    )
    got = await consume_async(brokers[0].listener, TOPIC, 60, offset=40)
    assert got[0][0] == 40


async def test_brokers_continue_without_a_controller(
    controller: ScriptedController, start_brokers: StartBrokers
) -> None:
    brokers = await start_brokers(1, 2)
    topic_id = await controller.create_topic(TOPIC, [(1, 2)], MIN_ISR_2)
    # The successor listens on the same port.
    port = controller.port
    await controller.close()
    assert len(await produce_async(bootstrap(brokers), TOPIC, [b"x"] * 100)) == 100

    successor = await ScriptedController(epoch=2).start(port)
    successor.topics, successor.rows = controller.topics, controller.rows
    try:
        await successor.unfenced(1, 2)
        # Brokers report the highest epoch that they have seen.
        assert successor.registrations[0].highest_controller_epoch == 1
        assert all(
            registration.previous_broker_epoch > 0 for registration in successor.registrations
        )
        assert len(await produce_async(bootstrap(brokers), TOPIC, [b"y"] * 100)) == 100
        # No replica left the ISR without a controller.
        assert successor.rows[topic_id, 0].isr == (1, 2)
    finally:
        await successor.close()
