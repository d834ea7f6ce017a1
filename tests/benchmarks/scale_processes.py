"""Two real broker processes under a scripted controller: what many partitions cost them.

CPU-seconds by /proc, so other programs on the machine do not count.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from tests.benchmarks.processes import cpu_seconds
from tests.integration.broker.broker_process import BrokerProcess
from tests.integration.broker.scripted_controller import ScriptedController
from tidemark.wire import control

#: Topics in one change, about what one group commit of the operator carries.
AT_ONCE = 50
#: What was created has been checkpointed and reported by then.
SETTLE_S = 20.0
IDLE_S = 10.0


class Pair:
    """Brokers 1 and 2; every partition has a replica on both, leaders in turn."""

    def __init__(self, controller: ScriptedController, brokers: Sequence[BrokerProcess]) -> None:
        self.controller = controller
        self.brokers = brokers

    def cpu_s(self) -> float:
        """CPU-seconds of a broker until now, the mean of both."""
        return sum(cpu_seconds(broker.pid) for broker in self.brokers) / len(self.brokers)

    async def create(self, topics: int, partitions: int = 1) -> None:
        """Create topics in changes of :data:`AT_ONCE` topics."""
        made = [_topic(number, partitions) for number in range(topics)]
        # A change of 50 topics at a time, as the operator's group commit sends them.
        for first in range(0, topics, AT_ONCE):
            change = replace(
                self.controller._states(()), brokers=(), topics=tuple(made[first : first + AT_ONCE])
            )
            answers = await asyncio.gather(*(self.controller.send(node, change) for node in (1, 2)))
            if any(answer is None or answer.errors for answer in answers):
                raise RuntimeError(f"a broker did not create a partition: {answers}")

    async def idle_share(self) -> float:
        """The share of a core that a broker uses while nothing happens."""
        # After the creation's own work: checkpoints, first fetches and reports.
        await asyncio.sleep(SETTLE_S)
        before = self.cpu_s()
        await asyncio.sleep(IDLE_S)
        return (self.cpu_s() - before) / IDLE_S


@asynccontextmanager
async def running_pair(folder: Path) -> AsyncIterator[Pair]:
    """Two brokers with an operator's usual settings; killed at the end."""
    controller = await ScriptedController(session_timeout_ms=9000).start()
    settings = {"replica.lag.time.max.ms": 30_000, "replica.fetch.wait.max.ms": 500}
    brokers = []
    for node in (1, 2):
        broker = BrokerProcess(node, folder, [controller.port])
        broker.executed = True
        broker.entries |= settings
        brokers.append(await broker.start())
    try:
        yield Pair(controller, brokers)
    finally:
        for broker in brokers:
            await broker.kill()
        await controller.close()


def _topic(number: int, partitions: int) -> control.TopicState:
    rows = (
        control.PartitionState(
            partition=partition,
            leader=1 + (number + partition) % 2,
            leader_epoch=0,
            partition_epoch=0,
            replicas=(1, 2),
            isr=(1, 2),
            manifest=False,
        )
        for partition in range(partitions)
    )
    return control.TopicState(
        topic_id=uuid.uuid4(),
        name=f"scale-{number}",
        config=(),
        tiering_state=0,
        tiered_epoch=0,
        disable_policy=0,
        partitions=tuple(rows),
    )
