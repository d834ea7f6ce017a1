"""At rest the operator writes nothing, in Kubernetes or in Kafka, and sends Kafka few requests,
however many topics there are (invariant 21).
"""

import asyncio
import re
from collections import Counter

from tests.integration.kafka_engine.kafka_world import KafkaWorld
from tidemark_operator.kube.kinds import TOPIC

TOPICS = 30
LOOKED_S = 16.0


async def test_at_rest_nothing_is_written_and_little_is_requested(
    world: KafkaWorld, name: str
) -> None:
    operator = await world.start_operator()
    names = [f"{name}-{number}" for number in range(TOPICS)]
    for item in names:
        tiering = {"enabled": True} if item.endswith("0") else None
        await world.create_topic(item, 2, 3, **({"tiering": tiering} if tiering else {}))
    for item in names:
        await world.condition(TOPIC, item, "Ready", "True")
    await world.until(lambda: settled(world), "nothing was written for four seconds", 60.0)
    before, asked = await world.versions(), requests(operator.log)
    writes = await operator.metric("tidemark_operator_status_writes_total")
    await asyncio.sleep(LOOKED_S)
    after = await world.versions()
    changed = Counter(key.split("/")[0] for key in after if after[key] != before.get(key))
    assert not changed, f"written: {changed}"
    assert await operator.metric("tidemark_operator_status_writes_total") == writes
    since = requests(operator.log) - asked
    assert set(since) <= {
        "DescribeClusterRequest", "ListPartitionReassignmentsRequest", "MetadataRequest",
        "DescribeConfigsRequest",
    }, since  # fmt: skip
    assert since.total() <= 4 * (LOOKED_S / 5 + 2), since


def requests(log: str) -> Counter[str]:
    """Return the number of requests to Kafka by name."""
    return Counter(re.findall(r"kafka_client.client: request to \S+: (\w+)", log))


async def settled(world: KafkaWorld) -> bool:
    """Wait until the writes that follow the creation are done."""
    before = await world.versions()
    await asyncio.sleep(4.0)
    return await world.versions() == before
