"""A new idempotent producer whose first batch comes before the replica leads, and whose second one
comes after it: librdkafka takes the second one's success for the first one's too."""

import asyncio
import sys
import threading
from pathlib import Path

from confluent_kafka import Producer

from tests.integration.broker.broker_process import BrokerProcess, StartBrokers
from tests.integration.broker.kafka_clients import consume_async
from tests.integration.broker.scripted_controller import ScriptedController


class Late(BrokerProcess):
    @property
    def faults(self) -> Path:
        folder = self.folder / f"faults-{self.node_id}"
        folder.mkdir(exist_ok=True)
        return folder

    def command(self) -> list[str]:
        program = Path(__file__).with_name("late_leader_broker.py")
        return [sys.executable, str(program), str(self.faults), *super().command()[3:]]


def send_two(bootstrap: str, late: Path) -> dict[bytes, int | None]:
    """Value to acknowledged offset, of two batches that are under way at once."""
    delivered: dict[bytes, int | None] = {}
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0}
    )

    def settled(error: object, message: object) -> None:
        assert error is None, error
        delivered[message.value()] = message.offset()  # type: ignore[attr-defined]

    producer.produce("t", b"its id is known then", partition=1)
    producer.flush(20)
    late.touch()
    for value in (b"first", b"second"):
        producer.produce("t", value, partition=0, on_delivery=settled)
        threading.Event().wait(0.3)  # it is on its way: the next one does not go with it
    producer.flush(20)
    return delivered


async def test_what_is_acknowledged_is_in_the_log(
    controller: ScriptedController, start_brokers: StartBrokers
) -> None:
    [broker] = await start_brokers(1, kind=Late)
    await controller.create_topic("t", [(1,), (1,)])
    assert isinstance(broker, Late)
    delivered = await asyncio.to_thread(send_two, broker.listener, broker.faults / "late")
    assert delivered == {b"first": 0, b"second": 1}
    got = await consume_async(broker.listener, "t", 2)
    assert [value for _, value in got] == [b"first", b"second"]
