"""DescribeTopicPartitions (KIP-966): the pages of a response, and topics that do not exist or are
not allowed."""

import uuid
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.answers import room
from tests.control_messages import partition_states, topic_state
from tests.services import services
from tests.unit.api import api_requests as kafka
from tests.user_states import user, user_states
from tidemark.wire import control
from tidemark_broker.api.client import Client
from tidemark_broker.api.services import HandlerSettings
from tidemark_broker.api.table import Call
from tidemark_broker.api.topics import describe_topic_partitions
from tidemark_broker.replication.metadata import MetadataCache
from tidemark_broker.security.user_store import UserStore

LISTENER = "PLAINTEXT"
#: Topics with their numbers of partitions.
TOPICS = {"a": 3, "b": 2, "c": 4}


def rows(count: int, **fields: Any) -> tuple[control.PartitionState, ...]:
    bare: dict[str, Any] = {
        "leader": 1,
        "leader_epoch": 7,
        "partition_epoch": 1,
        "replicas": (1, 2, -1),
        "isr": (1,),
        "manifest": False,
    }
    return tuple(control.PartitionState(partition=n, **bare | fields) for n in range(count))


def cache() -> MetadataCache:
    endpoint = control.Endpoint(name=LISTENER, host="h", port=9)
    made = MetadataCache("c")
    made.apply(
        partition_states(
            *(
                topic_state(uuid.uuid5(uuid.NAMESPACE_DNS, name), name, partitions=rows(count))
                for name, count in TOPICS.items()
            ),
            full=True,
            brokers=(
                control.BrokerState(
                    broker_id=1, broker_epoch=1, rack=None, fenced=False, listeners=(endpoint,)
                ),
            ),
        )
    )
    return made


async def describe(
    *topics: str,
    limit: int = 2000,
    cursor: tuple[str, int] | None = None,
    users: UserStore | None = None,
    cluster: MetadataCache | None = None,
    limit_of_broker: int = 2000,
) -> describe_topic_partitions.DescribeTopicPartitionsResponse:
    shared = services(
        cluster or cache(), settings=HandlerSettings(partitions_described_max=limit_of_broker)
    )
    call = Call(shared, 0, Client("10.0.0.1:1", LISTENER, users), room())
    # 75 is the API key of DescribeTopicPartitions.
    request = kafka.request(
        75,
        0,
        topics=tuple(kafka.nested(75, 0, "TopicRequest", name=name) for name in topics),
        response_partition_limit=limit,
        cursor=None
        if cursor is None
        else kafka.nested(75, 0, "Cursor", topic_name=cursor[0], partition_index=cursor[1]),
    )
    return await describe_topic_partitions.handle(request, call)


def topics_of(answer: describe_topic_partitions.DescribeTopicPartitionsResponse) -> list[Any]:
    return [
        (topic.name, [part.partition_index for part in topic.partitions])
        if topic.error_code is ErrorCode.none
        else (topic.name, topic.error_code)
        for topic in answer.topics
    ]


def cursor_of(
    answer: describe_topic_partitions.DescribeTopicPartitionsResponse,
) -> tuple[str, int] | None:
    cursor = answer.next_cursor
    return None if cursor is None else (cursor.topic_name, cursor.partition_index)


@pytest.mark.parametrize(
    ("limit", "page", "next_cursor"),
    [
        (9, [("a", [0, 1, 2]), ("b", [0, 1]), ("c", [0, 1, 2, 3])], None),
        # The cursor names the first partition that did not fit, also at the start of a topic. A
        # limit below one counts as one.
        (8, [("a", [0, 1, 2]), ("b", [0, 1]), ("c", [0, 1, 2])], ("c", 3)),
        (5, [("a", [0, 1, 2]), ("b", [0, 1])], ("c", 0)),
        (1, [("a", [0])], ("a", 1)),
        (0, [("a", [0])], ("a", 1)),
        (-1, [("a", [0])], ("a", 1)),
    ],
)
async def test_a_page_of_all_topics(
    limit: int, page: list[Any], next_cursor: tuple[str, int] | None
) -> None:
    answer = await describe(limit=limit)
    assert (topics_of(answer), cursor_of(answer)) == (page, next_cursor)


async def test_all_pages_together_contain_every_partition() -> None:
    found, cursor = [], None
    while True:
        answer = await describe(limit=2, cursor=cursor)
        found += [(name, number) for name, numbers in topics_of(answer) for number in numbers]
        cursor = cursor_of(answer)
        if cursor is None:
            break
    assert found == [(name, number) for name, count in TOPICS.items() for number in range(count)]


async def test_the_broker_has_a_limit_too() -> None:
    assert cursor_of(await describe(limit_of_broker=3)) == ("b", 0)


async def test_missing_topics_are_errors_and_duplicates_are_merged() -> None:
    answer = await describe("c", "nope", "no spaces", "a", "a")
    assert topics_of(answer) == [
        ("a", [0, 1, 2]),
        ("c", [0, 1, 2, 3]),
        ("no spaces", ErrorCode.invalid_topic_exception),
        ("nope", ErrorCode.unknown_topic_or_partition),
    ]


async def test_a_cursor_may_name_a_deleted_topic() -> None:
    assert topics_of(await describe(cursor=("aa", 5))) == [("b", [0, 1]), ("c", [0, 1, 2, 3])]


@pytest.mark.parametrize("cursor", [("b", 0), ("a", -1)])
async def test_a_cursor_must_belong_to_the_request(cursor: tuple[str, int]) -> None:
    assert topics_of(await describe("a", cursor=cursor)) == [("a", ErrorCode.invalid_request)]


async def test_topics_without_permission_are_hidden_or_errors() -> None:
    users = UserStore()
    users.apply(user_states(user("ANONYMOUS", "ALLOW DESCRIBE TOPIC b")))
    assert topics_of(await describe(users=users)) == [("b", [0, 1])]
    assert topics_of(await describe("a", "b", "nope", users=users)) == [
        ("b", [0, 1]),
        ("a", ErrorCode.topic_authorization_failed),
        ("nope", ErrorCode.topic_authorization_failed),
    ]
    # The cursor's topic is hidden. The page starts with the next allowed one.
    hidden = await describe(users=users, cursor=("a", 2))
    assert topics_of(hidden) == [("b", [0, 1])]


async def test_a_partition_has_eligible_leaders_and_offline_replicas() -> None:
    cluster = cache()
    # Broker 2 is not registered: it cannot be shown as leader, and its replica is offline.
    (eligible,) = rows(1, leader=2, partition_epoch=2, elr=(2,), last_known_elr=(3,))
    cluster.update(cluster.topics["a"].topic_id, eligible)
    parts = (await describe("a", cluster=cluster)).topics[0].partitions
    assert [part.leader_id for part in parts] == [-1, 1, 1]
    assert [part.leader_epoch for part in parts] == [7, 7, 7]
    assert (parts[1].replica_nodes, parts[1].isr_nodes) == ((1, 2, -1), (1,))
    assert parts[1].offline_replicas == (2, -1)
    assert [part.eligible_leader_replicas for part in parts] == [(2,), (), ()]
    assert [part.last_known_elr for part in parts] == [(3,), (), ()]
