"""KIP-599: requests that create or delete more partitions than the client's quota allows."""

from typing import Any

import pytest
from kio.schema.create_partitions.v3 import request as growth
from kio.schema.create_topics.v7 import request as creation

from tests.unit.api import api_requests as kafka
from tests.unit.api.admin_world import AdminWorld
from tests.user_states import quota
from tidemark_broker.admission.client_quotas import ClientQuotas
from tidemark_broker.api.table import Api
from tidemark_broker.api.topics import create_partitions, create_topics, delete_topics

REFUSED = "throttling_quota_exceeded"
#: Partitions per second. A burst of ten times this number is allowed.
RATE = 2


class LimitedClient:
    """Client with a quota of ``RATE`` and a manual clock. Topics a to c have 15 partitions each."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.quotas = ClientQuotas(now=lambda: self.now_s)
        self.quotas.apply([quota("ann", None, mutation=RATE)])
        self.world = AdminWorld()
        for name in "abc":
            self.world.topic(name, partitions=15)

    async def send(self, api: Api[Any, Any], version: int, **fields: Any) -> Any:
        self.world.quotas = self.quotas.of("ann", "app")
        return await self.world.send(api, version, timeout=kafka.duration(0), **fields)

    async def create(
        self, *counts: int, version: int = 7, validate_only: bool = False
    ) -> list[str]:
        topics = tuple(
            creation.CreatableTopic(
                name=f"new{number}",
                num_partitions=count,
                replication_factor=1,
                assignments=(),
                configs=(),
            )
            for number, count in enumerate(counts)
        )
        answer = await self.send(
            create_topics.API, version, topics=topics, validate_only=validate_only
        )
        found = {topic.name: topic.error_code.name for topic in answer.topics}
        return [found[topic.name] for topic in topics]

    async def grow(self, version: int = 3) -> list[str]:
        topics = tuple(
            growth.CreatePartitionsTopic(name=name, count=30, assignments=None) for name in "abc"
        )
        answer = await self.send(create_partitions.API, version, topics=topics, validate_only=False)
        found = {result.name: result.error_code.name for result in answer.results}
        return [found[topic.name] for topic in topics]

    async def delete(self, version: int = 5) -> list[str]:
        answer = await self.send(delete_topics.API, version, topic_names=("a", "b", "c"), topics=())
        found = {response.name: response.error_code.name for response in answer.responses}
        return [found[name] for name in "abc"]

    @property
    def throttle_s(self) -> float:
        assert self.world.quotas is not None
        return self.world.quotas.throttle_s


@pytest.fixture
def limited() -> LimitedClient:
    return LimitedClient()


async def test_creations_above_the_quota_are_rejected_for_a_while(limited: LimitedClient) -> None:
    errors = await limited.create(15, 15, 15)
    assert errors[2] == REFUSED
    assert REFUSED not in errors[:2], "the second one exceeds the quota"
    assert [item.name for item in limited.world.operator.changes] == ["new0", "new1"]
    assert limited.throttle_s == pytest.approx(5)  # 10 partitions too many, 2 a second
    assert await limited.create(1) == [REFUSED]
    # The token bucket has refilled.
    limited.now_s += 30
    assert await limited.create(1) != [REFUSED]


@pytest.mark.parametrize("version", range(2, 6))
async def test_an_old_client_is_served_and_throttled(limited: LimitedClient, version: int) -> None:
    assert REFUSED not in await limited.create(15, 15, 15, version=version)
    assert len(limited.world.operator.changes) == 3
    # Versions without THROTTLING_QUOTA_EXCEEDED: 45 - 20 = 25 partitions too many, 2 per second.
    assert limited.throttle_s == pytest.approx(12.5)


async def test_added_partitions_count(limited: LimitedClient) -> None:
    assert (await limited.grow())[2] == REFUSED
    assert REFUSED not in await LimitedClient().grow(version=2)


async def test_deleted_partitions_count(limited: LimitedClient) -> None:
    assert (await limited.delete())[2] == REFUSED
    assert REFUSED not in await LimitedClient().delete(version=4)


async def test_rejected_and_validated_creations_do_not_count(limited: LimitedClient) -> None:
    await limited.create(15, 15, 15, validate_only=True)
    await limited.create(1_000_000, 0, -7)
    assert limited.throttle_s == 0
    assert REFUSED not in await limited.create(1)


async def test_the_default_number_of_partitions_counts(limited: LimitedClient) -> None:
    limited.world.set_cluster(num_partitions="15")
    assert (await limited.create(-1, -1, -1))[2] == REFUSED


async def test_other_users_are_not_limited(limited: LimitedClient) -> None:
    limited.quotas.apply([quota("bob", None, mutation=RATE)])
    assert REFUSED not in await limited.create(15, 15, 15, 15)
