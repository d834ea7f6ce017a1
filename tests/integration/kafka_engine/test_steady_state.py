"""At rest the operator writes nothing to Kubernetes or Kafka, and sends Kafka few requests however
however many topics there are (invariant 21).
"""

import asyncio
import re
from collections import Counter

from tests.integration.kafka_engine.kafka_world import KafkaWorld
from tidemark_operator.kube.kinds import TOPIC

TOPICS = 30
LOOKED_S = 16.0


async def test_steady_state_writes_nothing_and_requests_little(
    world: KafkaWorld, name: str
) -> None:
    operator = await world.start_operator()
    names = [f"{name}-{number}" for number in range(TOPICS)]
    for item in names:
        # Three of thirty topics are tiered.
        tiering = {"enabled": True} if item.endswith("0") else None
        await world.create_topic(item, 2, 3, **({"tiering": tiering} if tiering else {}))
    for item in names:
        await world.condition(TOPIC, item, "Ready", "True")
    await world.until(lambda: settled(world), "nothing was written for four seconds", 60.0)
    # From here on nothing may be written.
    before, requests_before = await world.versions(), requests(operator.log)
    writes = await operator.metric("tidemark_operator_status_writes_total")
    await asyncio.sleep(LOOKED_S)
    after = await world.versions()
    changed = Counter(key.split("/")[0] for key in after if after[key] != before.get(key))
    assert not changed, f"written: {changed}"
    assert await operator.metric("tidemark_operator_status_writes_total") == writes
    # Only reads, and few of them.
    since = requests(operator.log) - requests_before
    assert set(since) <= {
        "DescribeClusterRequest", "ListPartitionReassignmentsRequest", "MetadataRequest",
        "DescribeConfigsRequest",
    }, since  # fmt: skip
    # Four requests per interval of five seconds, with two intervals of tolerance.
    assert since.total() <= 4 * (LOOKED_S / 5 + 2), since


def requests(log: str) -> Counter[str]:
    """Return the number of requests to Kafka by name."""
    return Counter(re.findall(r"kafka_client.client: request to \S+: (\w+)", log))


async def settled(world: KafkaWorld) -> bool:
    """Wait until the writes that follow the creation are done."""
    before = await world.versions()
    await asyncio.sleep(4.0)
    return await world.versions() == before
