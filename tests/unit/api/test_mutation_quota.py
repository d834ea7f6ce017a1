"""KIP-599: what becomes of requests for more partitions than a client may have a second."""

from typing import Any

import pytest
from kio.schema.create_partitions.v3 import request as growth
from kio.schema.create_topics.v7 import request as creation

from tests.unit.api import api_requests as kafka
from tests.unit.api.admin_world import AdminWorld
from tests.user_states import quota
from tidemark_broker.api import create_partitions, create_topics, delete_topics
from tidemark_broker.api.table import Api
from tidemark_broker.quotas.client_quotas import ClientQuotas

REFUSED = "throttling_quota_exceeded"
#: Partitions a second; ten times as many are a burst that is let through.
RATE = 2


class Limited:
    """A client whose quota is ``RATE``, at a time that is set. The topics a to c have 15
    partitions each."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.quotas = ClientQuotas(now=lambda: self.now_s)
        self.quotas.apply([quota("ann", None, mutation=RATE)])
        self.world = AdminWorld()
        for name in "abc":
            self.world.topic(name, partitions=15)

    async def ask(self, api: Api[Any, Any], version: int, **fields: Any) -> Any:
        self.world.quotas = self.quotas.of("ann", "app")
        return await self.world.ask(api, version, timeout=kafka.duration(0), **fields)

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
        answer = await self.ask(
            create_topics.API, version, topics=topics, validate_only=validate_only
        )
        found = {topic.name: topic.error_code.name for topic in answer.topics}
        return [found[topic.name] for topic in topics]

    async def grow(self, version: int = 3) -> list[str]:
        topics = tuple(
            growth.CreatePartitionsTopic(name=name, count=30, assignments=None) for name in "abc"
        )
        answer = await self.ask(create_partitions.API, version, topics=topics, validate_only=False)
        found = {result.name: result.error_code.name for result in answer.results}
        return [found[topic.name] for topic in topics]

    async def delete(self, version: int = 5) -> list[str]:
        answer = await self.ask(delete_topics.API, version, topic_names=("a", "b", "c"), topics=())
        found = {response.name: response.error_code.name for response in answer.responses}
        return [found[name] for name in "abc"]

    @property
    def rest_s(self) -> float:
        assert self.world.quotas is not None
        return self.world.quotas.rest_s


@pytest.fixture
def limited() -> Limited:
    return Limited()


async def test_what_is_over_the_quota_is_refused_until_its_time_is_over(limited: Limited) -> None:
    told = await limited.create(15, 15, 15)
    assert told[2] == REFUSED
    assert REFUSED not in told[:2], "the second one went beyond it"
    assert [item.name for item in limited.world.operator.asked] == ["new0", "new1"]
    assert limited.rest_s == pytest.approx(5)  # 10 partitions too many, 2 a second
    assert await limited.create(1) == [REFUSED]
    limited.now_s += 30
    assert await limited.create(1) != [REFUSED]


@pytest.mark.parametrize("version", range(2, 6))
async def test_a_client_without_the_error_code_is_served_and_throttled(
    limited: Limited, version: int
) -> None:
    assert REFUSED not in await limited.create(15, 15, 15, version=version)
    assert len(limited.world.operator.asked) == 3
    assert limited.rest_s == pytest.approx(12.5)


async def test_partitions_that_are_added_count(limited: Limited) -> None:
    assert (await limited.grow())[2] == REFUSED
    assert REFUSED not in await Limited().grow(version=2)


async def test_partitions_that_are_deleted_count(limited: Limited) -> None:
    assert (await limited.delete())[2] == REFUSED
    assert REFUSED not in await Limited().delete(version=4)


async def test_what_is_not_made_does_not_count(limited: Limited) -> None:
    await limited.create(15, 15, 15, validate_only=True)
    await limited.create(1_000_000, 0, -7)
    assert limited.rest_s == 0
    assert REFUSED not in await limited.create(1)


async def test_the_default_number_of_partitions_counts(limited: Limited) -> None:
    limited.world.set_cluster(num_partitions="15")
    assert (await limited.create(-1, -1, -1))[2] == REFUSED


async def test_others_are_not_limited(limited: Limited) -> None:
    limited.quotas.apply([quota("bob", None, mutation=RATE)])
    assert REFUSED not in await limited.create(15, 15, 15, 15)
