"""FindCoordinator: where a group or a transaction is coordinated, in every version's form."""

import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.answers import room
from tests.control_messages import partition_states, topic_state
from tests.unit.api import api_requests as kafka
from tests.user_states import user, user_states
from tidemark.logfiles.names import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from tidemark.wire import control
from tidemark.wire.framing import encode_response_pieces
from tidemark_broker.api import find_coordinator
from tidemark_broker.api.client import Client
from tidemark_broker.api.table import Call
from tidemark_broker.coordinators.java_hash import partition_of
from tidemark_broker.replication.metadata import MetadataCache
from tidemark_broker.security.user_store import UserStore

KEY = 10
LISTENER = "PLAINTEXT"


def row(number: int, leader: int) -> control.PartitionState:
    return control.PartitionState(
        partition=number,
        leader=leader,
        leader_epoch=0,
        partition_epoch=0,
        replicas=(1, 2),
        isr=(1, 2),
        manifest=False,
    )


def cluster_of(*topics: str, leaders: tuple[int, ...] = (1, 2)) -> MetadataCache:
    """Brokers 1 and 2."""
    cluster = MetadataCache("c")
    brokers = tuple(
        control.BrokerState(
            broker_id=node,
            broker_epoch=node,
            rack=None,
            fenced=False,
            listeners=(control.Endpoint(name=LISTENER, host=f"b{node}", port=9092),),
        )
        for node in (1, 2)
    )
    states = [
        topic_state(
            uuid.UUID(int=1 + number),
            name,
            partitions=tuple(row(n, leader) for n, leader in enumerate(leaders)),
        )
        for number, name in enumerate(topics)
    ]
    cluster.apply(partition_states(*states, full=True, brokers=brokers))
    return cluster


async def ask(
    version: int, cluster: MetadataCache, users: UserStore | None = None, **fields: Any
) -> tuple[find_coordinator.FindCoordinatorResponse, list[str]]:
    wanted: list[str] = []
    services: Any = SimpleNamespace(
        cluster=cluster, creations=SimpleNamespace(request=wanted.append)
    )
    client = Client("10.0.0.1:1", LISTENER, users)
    request: Any = kafka.fit(find_coordinator.API.request_type(version), **fields)
    answer = await find_coordinator.handle(request, Call(services, version, client, room()))
    return answer, wanted


@pytest.mark.parametrize("version", [0, 3])
async def test_one_group(version: int) -> None:
    answer, wanted = await ask(version, cluster_of(GROUP_OFFSETS_TOPIC), key="g", key_type=0)
    assert answer.error_code is ErrorCode.none
    assert answer.error_message == "NONE"  # as Kafka has it until version 3
    assert answer.node_id == 1 + partition_of("g", 2)
    assert (answer.host, answer.port) == (f"b{answer.node_id}", 9092)
    assert wanted == []


@pytest.mark.parametrize("key_type", [0, 1], ids=["groups", "transactions"])
@pytest.mark.parametrize("version", [4, 6])
async def test_many_at_once(version: int, key_type: int) -> None:
    cluster = cluster_of(GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC)
    keys = tuple(f"k{n}" for n in range(20))
    answer, _ = await ask(version, cluster, coordinator_keys=keys, key_type=key_type)
    assert [coordinator.key for coordinator in answer.coordinators] == list(keys)
    assert [coordinator.node_id for coordinator in answer.coordinators] == [
        1 + partition_of(k, 2) for k in keys
    ]
    assert {coordinator.error_message for coordinator in answer.coordinators} == {""}


async def test_a_missing_topic_is_requested() -> None:
    answer, wanted = await ask(4, cluster_of(), coordinator_keys=("a",), key_type=1)
    assert answer.coordinators[0].error_code is ErrorCode.coordinator_not_available
    assert wanted == [TRANSACTION_STATE_TOPIC]


async def test_a_partition_without_a_leader_has_no_coordinator() -> None:
    cluster = cluster_of(GROUP_OFFSETS_TOPIC, leaders=(-1,))
    answer, _ = await ask(2, cluster, key="g")
    assert answer.error_code is ErrorCode.coordinator_not_available
    assert (answer.node_id, answer.host, answer.port) == (-1, "", -1)


async def test_a_type_that_does_not_exist() -> None:
    answer, _ = await ask(6, cluster_of(), coordinator_keys=("a",), key_type=2)
    assert answer.coordinators[0].error_code is ErrorCode.invalid_request


async def test_coordinators_are_returned_only_with_describe() -> None:
    users = UserStore()
    users.apply(user_states(user("ANONYMOUS", "ALLOW DESCRIBE GROUP a...")))
    cluster = cluster_of(GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC)
    answer, _ = await ask(4, cluster, users, coordinator_keys=("a", "b"), key_type=0)
    assert [coordinator.error_code for coordinator in answer.coordinators] == [
        ErrorCode.none,
        ErrorCode.group_authorization_failed,
    ]
    answer, _ = await ask(4, cluster, users, coordinator_keys=("a",), key_type=1)
    denied = ErrorCode.transactional_id_authorization_failed
    assert answer.coordinators[0].error_code is denied


@pytest.mark.parametrize("version", [2, 6])
async def test_the_longest_key_is_refused_in_an_answer_that_can_be_written(version: int) -> None:
    users = UserStore()
    users.apply(user_states(user("ANONYMOUS", "ALLOW DESCRIBE GROUP a...")))
    cluster, key = cluster_of(GROUP_OFFSETS_TOPIC), "k" * 0x7FFF
    answer, _ = await ask(version, cluster, users, key=key, key_type=0, coordinator_keys=(key,))
    told = answer.coordinators[0] if version == 6 else answer
    assert told.error_code is ErrorCode.group_authorization_failed
    assert encode_response_pieces(answer, 1, find_coordinator.API.answer_type(version))
