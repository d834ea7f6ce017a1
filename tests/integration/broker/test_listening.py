"""Restart of a broker: when it listens to clients, and how often it connects to the controller."""

import asyncio

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from tests.integration.broker.broker_process import BrokerProcess, StartBrokers
from tests.integration.broker.scripted_controller import ScriptedController


async def connects(broker: BrokerProcess) -> bool:
    host, _, port = broker.listener.rpartition(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


async def test_restarted_broker_serves_no_client_before_its_first_snapshot(
    controller: ScriptedController, start_brokers: StartBrokers
) -> None:
    """Otherwise clients read that their topic does not exist, and give up their records."""
    [broker] = await start_brokers(1)
    await controller.create_topic("flights", [(1,)])
    errors: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.listener,
            # The producer would refresh its metadata soon, and believe an unknown topic at once.
            "acks": "all",
            "reconnect.backoff.max.ms": 200,
            "topic.metadata.refresh.interval.ms": 100,
            "topic.metadata.propagation.max.ms": 0,
        }
    )

    def produce() -> None:
        producer.produce("flights", b"x", on_delivery=lambda error, _: errors.append(error))

    produce()
    assert await asyncio.to_thread(producer.flush, 10) == 0
    # A record is in flight when the broker is killed.
    await broker.kill()
    produce()

    # The restarted broker registers, but receives no snapshot yet.
    controller.sends_snapshots.clear()
    await broker.launch()
    await controller.until(lambda: len(controller.registrations) == 2)
    await controller.until(lambda: controller.brokers[1].commands is not None)
    # It registers the address that it will listen on.
    assert controller.registrations[1].listeners[0] == controller.registrations[0].listeners[0]
    assert not await connects(broker)
    await asyncio.to_thread(producer.poll, 0.5)  # as long as this, it would have been answered
    # The record is still waiting.
    assert len(errors) == 1

    # With the snapshot the broker listens, and the record is delivered.
    controller.sends_snapshots.set()
    await broker.wait_ready()
    assert await asyncio.to_thread(producer.flush, 20) == 0
    assert errors == [None, None]
    topics = await asyncio.to_thread(
        AdminClient({"bootstrap.servers": broker.listener}).list_topics, timeout=10
    )
    assert "flights" in topics.topics
    assert await broker.stop() == 0


async def test_broker_whose_address_is_taken_ends_with_an_error(
    controller: ScriptedController, start_brokers: StartBrokers
) -> None:
    [broker] = await start_brokers(1)
    [other] = await start_brokers(2)
    assert await other.stop() == 0
    other.entries["listeners"] = broker.listener
    await other.launch()
    assert other.process is not None
    assert await asyncio.wait_for(other.process.wait(), 20) == 1
    # The last log line is what an administrator sees.
    assert "address already in use" in other.log_text().splitlines()[-1].lower()


async def test_broker_whose_former_process_counts_as_alive_retries_soon(
    controller: ScriptedController, start_brokers: StartBrokers
) -> None:
    """Doubling pauses would delay the registration by up to three seconds."""
    controller.refuses_registrations = 20
    # 20 refusals in a row within 15 s.
    async with asyncio.timeout(15):
        [broker] = await start_brokers(1)
    # One process: it does not change its identity between attempts.
    assert len({registration.incarnation_id for registration in controller.registrations}) == 1
    assert broker.log_text().count("live with another process") == 1
    assert await broker.stop() == 0
