"""FindCoordinator: the coordinator of a group or a transaction, in the form of each version."""

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
from tidemark_broker.api.client import Client
from tidemark_broker.api.groups import find_coordinator
from tidemark_broker.api.table import Call
from tidemark_broker.coordinators.coordinator_lookup import partition_of
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
    """Return the metadata of brokers 1 and 2 with these topics."""
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
    # Partition n of each topic is led by the n-th of ``leaders``.
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


async def find(
    version: int, cluster: MetadataCache, users: UserStore | None = None, **fields: Any
) -> tuple[find_coordinator.FindCoordinatorResponse, list[str]]:
    requested: list[str] = []
    services: Any = SimpleNamespace(
        cluster=cluster, creations=SimpleNamespace(request=requested.append)
    )
    client = Client("10.0.0.1:1", LISTENER, users)
    request: Any = kafka.fit(find_coordinator.API.request_type(version), **fields)
    answer = await find_coordinator.handle(request, Call(services, version, client, room()))
    return answer, requested


@pytest.mark.parametrize("version", [0, 3])
async def test_a_coordinator_is_the_leader_of_the_groups_partition(version: int) -> None:
    answer, creations = await find(version, cluster_of(GROUP_OFFSETS_TOPIC), key="g", key_type=0)
    assert answer.error_code is ErrorCode.none
    assert answer.error_message == "NONE"  # as Kafka sends it until version 3
    assert answer.node_id == 1 + partition_of("g", 2)
    assert (answer.host, answer.port) == (f"b{answer.node_id}", 9092)
    assert creations == []


@pytest.mark.parametrize("key_type", [0, 1], ids=["groups", "transactions"])
@pytest.mark.parametrize("version", [4, 6])
async def test_many_keys_in_one_request(version: int, key_type: int) -> None:
    cluster = cluster_of(GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC)
    keys = tuple(f"group{n}" for n in range(20))
    answer, _ = await find(version, cluster, coordinator_keys=keys, key_type=key_type)
    assert [coordinator.key for coordinator in answer.coordinators] == list(keys)
    assert [coordinator.node_id for coordinator in answer.coordinators] == [
        1 + partition_of(group, 2) for group in keys
    ]
    assert {coordinator.error_message for coordinator in answer.coordinators} == {""}


async def test_a_missing_internal_topic_is_created() -> None:
    answer, creations = await find(4, cluster_of(), coordinator_keys=("a",), key_type=1)
    assert answer.coordinators[0].error_code is ErrorCode.coordinator_not_available
    assert creations == [TRANSACTION_STATE_TOPIC]


async def test_a_partition_without_a_leader_has_no_coordinator() -> None:
    cluster = cluster_of(GROUP_OFFSETS_TOPIC, leaders=(-1,))
    answer, _ = await find(2, cluster, key="g")
    assert answer.error_code is ErrorCode.coordinator_not_available
    assert (answer.node_id, answer.host, answer.port) == (-1, "", -1)


async def test_an_unknown_key_type_is_rejected() -> None:
    answer, _ = await find(6, cluster_of(), coordinator_keys=("a",), key_type=2)
    assert answer.coordinators[0].error_code is ErrorCode.invalid_request


async def test_coordinators_are_returned_only_with_describe() -> None:
    users = UserStore()
    users.apply(user_states(user("ANONYMOUS", "ALLOW DESCRIBE GROUP a...")))
    cluster = cluster_of(GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC)
    answer, _ = await find(4, cluster, users, coordinator_keys=("a", "b"), key_type=0)
    assert [coordinator.error_code for coordinator in answer.coordinators] == [
        ErrorCode.none,
        ErrorCode.group_authorization_failed,
    ]
    # The ACL is for groups. Transactional ids are another resource type.
    answer, _ = await find(4, cluster, users, coordinator_keys=("a",), key_type=1)
    denied = ErrorCode.transactional_id_authorization_failed
    assert answer.coordinators[0].error_code is denied


@pytest.mark.parametrize("version", [2, 6])
async def test_a_key_of_maximum_length_can_be_encoded_in_the_response(version: int) -> None:
    users = UserStore()
    users.apply(user_states(user("ANONYMOUS", "ALLOW DESCRIBE GROUP a...")))
    # 32767 bytes: error messages that repeated the key would not fit into a string.
    cluster, key = cluster_of(GROUP_OFFSETS_TOPIC), "k" * 0x7FFF
    answer, _ = await find(version, cluster, users, key=key, key_type=0, coordinator_keys=(key,))
    coordinator = answer.coordinators[0] if version == 6 else answer
    assert coordinator.error_code is ErrorCode.group_authorization_failed
    assert encode_response_pieces(answer, 1, find_coordinator.API.answer_type(version))
