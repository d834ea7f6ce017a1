"""A new idempotent producer whose first batch arrives before the replica leads, and the second
after it. librdkafka takes the second batch's success for the first one's, too."""

import asyncio
import sys
import threading
from pathlib import Path

from confluent_kafka import Producer

from tests.integration.broker.broker_process import BrokerProcess, StartBrokers
from tests.integration.broker.kafka_clients import consume_async
from tests.integration.broker.scripted_controller import ScriptedController


class LateLeaderBroker(BrokerProcess):
    @property
    def faults(self) -> Path:
        folder = self.folder / f"faults-{self.node_id}"
        folder.mkdir(exist_ok=True)
        return folder

    def command(self) -> list[str]:
        program = Path(__file__).with_name("late_leader_broker.py")
        return [sys.executable, str(program), str(self.faults), *super().command()[3:]]


def send_two(bootstrap: str, late: Path) -> dict[bytes, int | None]:
    """Send two batches that are in flight at once; return the acknowledged offset of each value."""
    delivered: dict[bytes, int | None] = {}
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0}
    )

    def settled(error: object, message: object) -> None:
        assert error is None, error
        delivered[message.value()] = message.offset()  # type: ignore[attr-defined]

    # Another partition first: the producer id and connection are established.
    producer.produce("t", b"its id is known then", partition=1)
    producer.flush(20)
    # The next batch of partition 0 is refused as one before the replica leads.
    late.touch()
    for value in (b"first", b"second"):
        producer.produce("t", value, partition=0, on_delivery=settled)
        threading.Event().wait(0.3)  # it is on its way: the next one does not go with it
    producer.flush(20)
    return delivered


async def test_acknowledged_batches_are_in_the_log_in_order(
    controller: ScriptedController, start_brokers: StartBrokers
) -> None:
    [broker] = await start_brokers(1, kind=LateLeaderBroker)
    await controller.create_topic("t", [(1,), (1,)])
    assert isinstance(broker, LateLeaderBroker)
    delivered = await asyncio.to_thread(send_two, broker.listener, broker.faults / "late")
    # The second batch must not be accepted before the first: its sequence is ahead.
    assert delivered == {b"first": 0, b"second": 1}
    got = await consume_async(broker.listener, "t", 2)
    assert [value for _, value in got] == [b"first", b"second"]
