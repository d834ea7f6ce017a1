"""Answers of each Api to an unauthorized client of a real broker: Kafka's codes, and no effect.

The client is ``User:ANONYMOUS``, over PLAINTEXT: ACLs apply to it, too.
"""

import uuid
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.static.primitive import i8

from tests.integration.api.api_broker import ApiBroker
from tests.unit.api import api_requests as kafka
from tests.user_states import user, user_states
from tidemark.wire.connection import ConnectionClosed
from tidemark.wire.users import Operation, UserState
from tidemark_broker.security.acls import bits

DENIED = ErrorCode.topic_authorization_failed
CLUSTER_DENIED = ErrorCode.cluster_authorization_failed
#: The Api's key, the version, the operation on the topic that it requires, and the location of the
#: error in the answer.
API_REQUESTS = {
    "Produce": (
        0,
        9,
        lambda name: kafka.produce(9, name, kafka.batch(b"x")),
        lambda answer: answer.responses[0].partition_responses[0],
    ),
    "Fetch": (
        1,
        12,
        lambda name: kafka.fetch(12, name, 0),
        lambda answer: answer.responses[0].partitions[0],
    ),
    "ListOffsets": (
        2,
        7,
        lambda name: kafka.list_offsets(7, name, -1, current_leader_epoch=-1),
        lambda answer: answer.topics[0].partitions[0],
    ),
    "Metadata": (
        3,
        9,
        lambda name: kafka.metadata(9, ((name, None),)),
        lambda answer: answer.topics[0],
    ),
    "DeleteRecords": (
        21,
        2,
        lambda name: kafka.delete_records(2, name, 0),
        lambda answer: answer.topics[0].partitions[0],
    ),
    "OffsetForLeaderEpoch": (
        23,
        4,
        lambda name: kafka.offset_for_leader_epoch(4, name, -1, 0),
        lambda answer: answer.topics[0].partitions[0],
    ),
}


def acls(broker: ApiBroker, *texts: str, others: tuple[UserState, ...] = ()) -> None:
    """Make these ACLs effective from now on."""
    broker.broker.users.apply(user_states(user("ANONYMOUS", *texts), *others))


async def ask(broker: ApiBroker, api: str, topic: str) -> Any:
    key, version, request, part = API_REQUESTS[api]
    return part(await broker.ask(request(topic), kafka.answer_type(key, version)))


@pytest.mark.parametrize(
    ("api", "needed"),
    [
        ("Produce", "WRITE"),
        ("Fetch", "READ"),
        ("ListOffsets", "DESCRIBE"),
        ("Metadata", "DESCRIBE"),
        ("DeleteRecords", "DELETE"),
        ("OffsetForLeaderEpoch", "DESCRIBE"),
    ],
)
async def test_each_api_needs_its_operation(broker: ApiBroker, api: str, needed: str) -> None:
    """The operation alone is enough; all operations that do not include it are not."""
    await broker.create("t")
    acls(broker, f"ALLOW {needed} TOPIC t")
    assert (await ask(broker, api, "t")).error_code is ErrorCode.none
    # DESCRIBE is implied by READ, WRITE, DELETE and ALTER, as in Kafka's AclAuthorizer.
    enough = {needed, "ALL"} | (
        {"READ", "WRITE", "DELETE", "ALTER"} if needed == "DESCRIBE" else set()
    )
    # Every other operation together is not enough.
    rest = [item.name for item in Operation if item.name not in {"ANY", *enough}]
    acls(broker, *(f"ALLOW {name} TOPIC t" for name in rest))
    assert (await ask(broker, api, "t")).error_code is DENIED


@pytest.mark.parametrize("api", API_REQUESTS)
async def test_denied_topics_do_not_reveal_whether_they_exist(broker: ApiBroker, api: str) -> None:
    await broker.create("there")
    acls(broker, "ALLOW ALL TOPIC mine")
    there, gone = await ask(broker, api, "there"), await ask(broker, api, "gone")
    assert there.error_code is DENIED
    # Otherwise an unauthorized client could test which topics exist.
    assert repr(there).replace("there", "gone") == repr(gone)


async def test_topics_of_one_request_are_decided_one_by_one(broker: ApiBroker) -> None:
    await broker.create("mine")
    await broker.create("other")
    acls(broker, "ALLOW WRITE TOPIC mine")
    parts = [kafka.produce(9, name, kafka.batch(b"x")).topic_data[0] for name in ("other", "mine")]
    request = kafka.request(
        0,
        9,
        topic_data=tuple(parts),
        transactional_id=None,
        acks=-1,
        timeout=kafka.duration(5000),
        # Two topics in one request: the first is denied, the second is not.
    )
    answer = await broker.ask(request, kafka.answer_type(0, 9))
    found = [topic.partition_responses[0] for topic in answer.responses]
    assert [part.error_code for part in found] == [DENIED, ErrorCode.none]
    assert [part.base_offset for part in found] == [-1, 0]
    acls(broker, "ALLOW DESCRIBE TOPIC *")
    other: Any = await broker.ask(kafka.list_offsets(5, "other", -1), kafka.answer_type(2, 5))
    assert other.topics[0].partitions[0].offset == 0, "nothing was written"


async def test_acks_0_without_permission_ends_the_connection(broker: ApiBroker) -> None:
    await broker.create("t")
    acls(broker)
    # With acks=0 there is no response that could carry the error.
    request = kafka.produce(9, "t", kafka.batch(b"x"), acks=0)
    with pytest.raises(ConnectionClosed):
        await broker.ask(request, kafka.answer_type(0, 9))


async def test_fetch_by_id_is_authorized_by_the_topics_name(broker: ApiBroker) -> None:
    topic_id = await broker.create("t")
    acls(broker)
    # Ids bypass names, so the broker has to resolve them before it decides.
    request = kafka.fetch(13, "", 0, topic_id=topic_id)
    answer = await broker.ask(request, kafka.answer_type(1, 13))
    assert answer.responses[0].partitions[0].error_code is DENIED
    acls(broker, "ALLOW READ TOPIC t")
    answer = await broker.ask(request, kafka.answer_type(1, 13))
    assert answer.responses[0].partitions[0].error_code is ErrorCode.none


async def test_metadata_of_all_topics_hides_those_that_may_not_be_described(
    broker: ApiBroker,
) -> None:
    hidden = await broker.create("hidden")
    await broker.create("shown")
    acls(broker, "ALLOW READ TOPIC sh...")
    answer = await broker.ask(kafka.metadata(12, None), kafka.answer_type(3, 12))
    assert [topic.name for topic in answer.topics] == ["shown"]
    # By id an invisible topic looks like an unknown one.
    by_id = kafka.metadata(12, ((None, hidden), (None, uuid.uuid4())))
    answer = await broker.ask(by_id, kafka.answer_type(3, 12))
    assert {topic.error_code for topic in answer.topics} == {ErrorCode.unknown_topic_id}
    assert {topic.name for topic in answer.topics} == {None}


async def test_changed_acls_apply_to_open_connections(broker: ApiBroker) -> None:
    await broker.create("t")
    assert (await ask(broker, "Produce", "t")).error_code is ErrorCode.none
    acls(broker)
    assert (await ask(broker, "Produce", "t")).error_code is DENIED
    acls(broker, "ALLOW WRITE TOPIC t")
    assert (await ask(broker, "Produce", "t")).error_code is ErrorCode.none


async def test_metadata_lists_authorized_operations(broker: ApiBroker) -> None:
    """The answer lists the client's authorized operations (KIP-430)."""
    await broker.create("t")
    # READ implies DESCRIBE.
    acls(broker, "ALLOW READ TOPIC t", "ALLOW DESCRIBE CLUSTER kafka-cluster")
    request = kafka.request(
        3,
        8,
        topics=None,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    answer = await broker.ask(request, kafka.answer_type(3, 8))
    (topic,) = answer.topics
    assert topic.topic_authorized_operations == bits((Operation.READ, Operation.DESCRIBE))
    assert answer.cluster_authorized_operations == bits((Operation.DESCRIBE,))
    acls(broker)
    of_cluster = kafka.request(
        60, 1, include_cluster_authorized_operations=True, endpoint_type=i8(1)
    )
    described = await broker.ask(of_cluster, kafka.answer_type(60, 1))
    assert described.cluster_authorized_operations == 0


# ---------------------------------------------------------------- the Apis about ACLs


def describe(version: int = 3, **filters: Any) -> Any:
    default_filter = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    return kafka.request(29, version, **(default_filter | filters))


ADMIN = "ALLOW DESCRIBE CLUSTER kafka-cluster"
ANN = user("ann", "ALLOW READ TOPIC orders", "DENY WRITE TOPIC ord... @10.0.0.1", password="x")


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_acls_are_described(broker: ApiBroker, version: int) -> None:
    acls(broker, ADMIN, others=(ANN,))
    answer = await broker.ask(describe(version), kafka.answer_type(29, version))
    assert answer.error_code is ErrorCode.none
    found = {
        (resource.resource_type, resource.resource_name, resource.pattern_type, *_acl_fields(acl))
        for resource in answer.resources
        for acl in resource.acls
    }
    assert found == {
        (4, "kafka-cluster", 3, "User:ANONYMOUS", "*", 8, 3),
        (2, "orders", 3, "User:ann", "*", 3, 3),
        (2, "ord", 4, "User:ann", "10.0.0.1", 4, 2),
    }


def _acl_fields(acl: Any) -> tuple[Any, ...]:
    return acl.principal, acl.host, acl.operation, acl.permission_type


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        ({"principal_filter": "User:ann"}, 2),
        ({"principal_filter": "User:eve"}, 0),
        ({"resource_name_filter": "orders", "pattern_type_filter": 3}, 1),
        ({"resource_name_filter": "orders", "pattern_type_filter": 2}, 2),
        ({"resource_name_filter": "ord", "pattern_type_filter": 1}, 1),
        ({"operation": 4}, 1),
        ({"permission_type": 3}, 2),
        ({"host_filter": "10.0.0.1"}, 1),
        ({"resource_type_filter": 3}, 0),
    ],
    ids=str,
)
async def test_acls_are_found_by_a_filter(
    broker: ApiBroker, filters: dict[str, Any], count: int
) -> None:
    acls(broker, ADMIN, others=(ANN,))
    answer = await broker.ask(describe(**filters), kafka.answer_type(29, 3))
    assert sum(len(resource.acls) for resource in answer.resources) == count


async def test_acl_filter_with_an_unknown_operation_is_invalid(broker: ApiBroker) -> None:
    acls(broker, ADMIN)
    answer = await broker.ask(describe(operation=99), kafka.answer_type(29, 3))
    assert answer.error_code is ErrorCode.invalid_request


async def test_without_acls_they_are_not_described(broker: ApiBroker) -> None:
    answer = await broker.ask(describe(), kafka.answer_type(29, 3))
    assert answer.error_code is ErrorCode.security_disabled
    assert "set spec.authorization of the Cluster object" in (answer.error_message or "")


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_clients_cannot_write_acls(broker: ApiBroker, version: int) -> None:
    acls(broker, "ALLOW ALTER CLUSTER kafka-cluster")
    creation = kafka.nested(
        30,
        version,
        "AclCreation",
        resource_type=2,
        resource_name="t",
        resource_pattern_type=3,
        principal="User:eve",
        host="*",
        operation=3,
        permission_type=3,
    )
    request = kafka.request(30, version, creations=(creation, creation))
    answer = await broker.ask(request, kafka.answer_type(30, version))
    # The Kafka client receives the reason: ACLs are declared in User objects.
    assert [result.error_code for result in answer.results] == [ErrorCode.policy_violation] * 2
    assert "spec.authorization.acls" in answer.results[0].error_message
    filters = kafka.nested(31, version, "DeleteAclsFilter", **_fields(describe(version)))
    request = kafka.request(31, version, filters=(filters,))
    answer = await broker.ask(request, kafka.answer_type(31, version))
    (refused,) = answer.filter_results
    assert refused.error_code is ErrorCode.policy_violation
    assert refused.matching_acls == ()


def _fields(request: Any) -> dict[str, Any]:
    return {name: getattr(request, name) for name in type(request).__dataclass_fields__}


async def test_credentials_are_described_without_secrets(broker: ApiBroker) -> None:
    acls(broker, ADMIN, others=(ANN, user("robot")))
    everyone = await broker.ask(kafka.request(50, 0, users=None), kafka.answer_type(50, 0))
    (ann,) = everyone.results
    assert [
        (credential_info.mechanism, credential_info.iterations)
        for credential_info in ann.credential_infos
    ] == [
        (1, 4096),
        (2, 4096),
    ]
    names = tuple(
        # A user named twice is an error of its own, as in Kafka.
        kafka.nested(50, 0, "UserName", name=name)
        for name in ("robot", "eve", "ann", "eve")
    )
    described = await broker.ask(kafka.request(50, 0, users=names), kafka.answer_type(50, 0))
    assert {result.user: result.error_code for result in described.results} == {
        "robot": ErrorCode.resource_not_found,
        "eve": ErrorCode.duplicate_resource,
        "ann": ErrorCode.none,
    }


@pytest.mark.parametrize(
    ("request_of", "key", "version"),
    [
        (describe, 29, 3),
        (lambda: kafka.request(50, 0, users=None), 50, 0),
        (lambda: kafka.request(48, 1, components=(), strict=False), 48, 1),
    ],
    ids=["DescribeAcls", "DescribeUserScramCredentials", "DescribeClientQuotas"],
)
async def test_user_names_are_visible_to_administrators_only(
    broker: ApiBroker, request_of: Any, key: int, version: int
) -> None:
    acls(broker, "ALLOW ALL TOPIC *", others=(ANN,))
    # Names of users are hidden from clients that may not describe the cluster.
    answer = await broker.ask(request_of(), kafka.answer_type(key, version))
    assert answer.error_code is CLUSTER_DENIED
    assert "ann" not in repr(answer)


async def test_sasl_is_refused_on_a_plaintext_listener(broker: ApiBroker) -> None:
    # SaslHandshake on a PLAINTEXT listener.
    shake = kafka.request(17, 1, mechanism="PLAIN")
    answer: Any = await broker.ask(shake, kafka.answer_type(17, 1))
    assert answer.error_code is ErrorCode.illegal_sasl_state
    prove = kafka.request(36, 2, auth_bytes=b"\0a\0b")
    answer = await broker.ask(prove, kafka.answer_type(36, 2))
    assert answer.error_code is ErrorCode.illegal_sasl_state
