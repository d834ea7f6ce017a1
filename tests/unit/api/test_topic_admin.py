"""Kafka's admin API for topics: authorization, changes forwarded to the operator, and responses."""

import asyncio
import uuid
from collections.abc import Mapping
from typing import Any

import pytest
from kio.schema.alter_configs.v2 import request as whole
from kio.schema.alter_partition_reassignments.v1 import request as moves
from kio.schema.create_partitions.v3 import request as growth
from kio.schema.create_topics.v7 import request as creation
from kio.schema.delete_topics.v6 import request as deletion
from kio.schema.describe_configs.v4 import request as description
from kio.schema.elect_leaders.v2 import request as election
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1 import request as incremental
from kio.schema.list_partition_reassignments.v0 import request as listing

from tests.unit.api import api_requests as kafka
from tests.unit.api.admin_world import AdminWorld, result
from tidemark.configuration import table
from tidemark.tiering import TieringState
from tidemark.wire.topics import (
    DISABLEMENT_IN_PROGRESS,
    ChangeKind,
    PartitionResult,
    SettingOperation,
    TopicChange,
    TopicChangeResult,
)
from tidemark.wire.users import Operation, ResourceType
from tidemark_broker.api.configs import alter_configs, describe_configs
from tidemark_broker.api.topics import (
    create_partitions,
    create_topics,
    delete_topics,
    elect_leaders,
    metadata,
)
from tidemark_broker.api.topics import partition_reassignments as reassignments

TOPIC_ID = uuid.UUID(int=7)
CLUSTER = int(ResourceType.CLUSTER), "kafka-cluster"
TOPIC, BROKER = 2, 4


def topic(name: str = "t", **fields: Any) -> creation.CreatableTopic:
    base = {"num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
    return creation.CreatableTopic(name=name, **(base | fields))


async def create(
    world: AdminWorld, *topics: Any, version: int = 7, timeout_ms: int = 0, **fields: Any
) -> Mapping[str, Any]:
    answer = await world.send(
        create_topics.API,
        version,
        topics=topics,
        timeout=kafka.duration(timeout_ms),
        validate_only=fields.pop("validate_only", False),
    )
    return {topic_.name: topic_ for topic_ in answer.topics}


def errors_of(answers: Mapping[str, Any]) -> dict[str, str]:
    return {name: answer.error_code.name for name, answer in answers.items()}


def created(_: TopicChange) -> TopicChangeResult:
    return result(topic_id=TOPIC_ID, partitions=1, replication_factor=1)


# ---------------------------------------------------------------- CreateTopics


@pytest.mark.parametrize("version", range(2, 8))
async def test_a_creation_is_answered_once_the_topic_has_leaders(version: int) -> None:
    world = AdminWorld()
    world.operator.answer = created
    asking = asyncio.create_task(create(world, topic(), version=version, timeout_ms=10_000))
    # Neither the operator's answer nor a topic without leaders completes the request.
    for leader in (-1, 1):
        for _ in range(10):
            await asyncio.sleep(0)
        assert not asking.done()
        world.topic("t", TOPIC_ID, leader=leader)
    answer = (await asking)["t"]
    assert answer.error_code is ErrorCode.none
    assert (answer.topic_id, answer.num_partitions, answer.replication_factor) == (TOPIC_ID, 1, 1)


async def test_a_request_is_forwarded_with_its_principal() -> None:
    world = AdminWorld()
    config = creation.CreatableTopicConfig(name="retention.ms", value="5")
    part = creation.CreatableReplicaAssignment(partition_index=0, broker_ids=(1, 2))
    await create(world, topic(num_partitions=-1, configs=(config,), assignments=(part,)))
    (change,) = world.operator.changes
    assert (change.kind, change.name, change.partitions) == (ChangeKind.CREATE, "t", -1)
    assert [(setting.name, setting.value, setting.operation) for setting in change.settings] == [
        ("retention.ms", "5", SettingOperation.SET)
    ]
    assert [(assignment.partition, assignment.replicas) for assignment in change.assignments] == [
        (0, (1, 2))
    ]
    (requester,) = world.operator.requesters
    assert (requester.principal, requester.host) == ("User:ANONYMOUS", "10.0.0.7:4000")


async def test_a_creation_times_out_without_leaders() -> None:
    world = AdminWorld()
    world.operator.answer = created
    assert errors_of(await create(world, topic())) == {"t": "request_timed_out"}


async def test_validation_does_not_wait_for_leaders() -> None:
    world = AdminWorld()
    world.operator.answer = created
    assert errors_of(await create(world, topic(), validate_only=True)) == {"t": "none"}


async def test_a_creation_waits_for_the_deletion_of_the_former_topic() -> None:
    """The former topic exists for the operator, but no longer for any broker."""
    world = AdminWorld()
    answers = [result(ErrorCode.topic_already_exists), created(topic())]
    world.operator.answer = lambda _: answers.pop(0)
    asking = asyncio.create_task(create(world, topic(), timeout_ms=10_000))
    while answers:  # noqa: ASYNC110 - until the request was repeated
        await asyncio.sleep(0.01)
    world.topic("t", TOPIC_ID)
    assert errors_of(await asking) == {"t": "none"}


async def test_creations_of_existing_topics_are_repeated_with_backoff(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    loop = asyncio.get_running_loop()
    began_s = loop.time()

    async def sleep(for_s: float) -> None:
        if for_s:
            slept.append(for_s)

    # Virtual time: each sleep advances the loop's clock at once.
    monkeypatch.setattr(loop, "time", lambda: began_s + sum(slept))
    monkeypatch.setattr(create_topics.asyncio, "sleep", sleep)
    world = AdminWorld()
    world.operator.answer = lambda _: result(ErrorCode.topic_already_exists)
    assert errors_of(await create(world, topic(), timeout_ms=30_000)) == {
        "t": "topic_already_exists"
    }
    assert slept == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5, 5])


async def test_an_existing_topic_is_reported_at_once() -> None:
    world = AdminWorld()
    world.topic("t")
    world.operator.answer = lambda _: result(ErrorCode.topic_already_exists, "it is there")
    answers = await create(world, topic(), timeout_ms=60_000)
    assert errors_of(answers) == {"t": "topic_already_exists"}
    assert answers["t"].error_message == "it is there"


async def test_duplicate_names_and_the_metadata_log_are_rejected() -> None:
    world = AdminWorld()
    answers = await create(world, topic("a"), topic("a"), topic("__cluster_metadata"))
    assert errors_of(answers) == {
        "a": "invalid_request",
        "__cluster_metadata": "topic_authorization_failed",
    }
    # Nothing of the request reaches the operator.
    assert world.operator.changes == []


@pytest.mark.parametrize(
    ("acl", "expected"),
    [
        ((*CLUSTER, Operation.CREATE), {"a": "none", "b": "none"}),
        ((TOPIC, "a", Operation.CREATE), {"a": "none", "b": "topic_authorization_failed"}),
    ],
    ids=["cluster", "topic"],
)
async def test_creation_requires_create(
    acl: tuple[int, str, int], expected: dict[str, str]
) -> None:
    world = AdminWorld()
    world.allow(acl)
    world.operator.answer = created
    answers = await create(world, topic("a"), topic("b"), validate_only=True)
    assert errors_of(answers) == expected
    # The topic's configuration is visible only to clients that may describe it.
    assert answers["a"].topic_config_error_code == 29
    assert answers["a"].num_partitions == -1
    assert answers["a"].configs == ()


async def test_a_creation_returns_the_complete_configuration() -> None:
    world = AdminWorld({"log.retention.hours": "2"})
    world.operator.answer = created
    config = creation.CreatableTopicConfig(name="segment.ms", value="5")
    answer = (await create(world, topic(configs=(config,)), validate_only=True))["t"]
    found = {item.name: (item.value, item.config_source) for item in answer.configs}
    # Sources: 1 is the topic's own, 4 the broker's static configuration, 5 the default.
    assert found["segment.ms"] == ("5", 1)
    assert found["retention.ms"] == ("7200000", 4)
    assert found["max.message.bytes"] == ("1048588", 5)


async def test_an_error_code_of_the_operator_is_passed_on() -> None:
    world = AdminWorld()
    world.operator.answer = lambda _: TopicChangeResult(
        error_code=DISABLEMENT_IN_PROGRESS, error_message="wait", topic_id=None
    )
    assert (await create(world, topic()))["t"].error_code == DISABLEMENT_IN_PROGRESS


async def test_topics_of_one_request_are_limited() -> None:
    world = AdminWorld()
    # One more than allowed rejects all of them.
    answers = await create(world, *(topic(f"t{n}") for n in range(create_topics.TOPICS_MAX + 1)))
    assert set(errors_of(answers).values()) == {"policy_violation"}
    assert world.operator.changes == []


# ---------------------------------------------------------------- DeleteTopics


async def delete(
    world: AdminWorld, *topics_to_delete: Any, version: int = 6, timeout_ms: int = 0
) -> Any:
    """Delete topics by names, ids, or pairs of both."""
    # Versions below 6 have only names. A text is a name, anything else but a pair is an id.
    pairs = [
        (item, None) if isinstance(item, str) else (None, item) if not isinstance(item, tuple)
        else item for item in topics_to_delete
    ]  # fmt: skip
    topics = tuple(deletion.DeleteTopicState(name=name, topic_id=id_) for name, id_ in pairs)
    answer = await world.send(
        delete_topics.API,
        version,
        topics=topics,
        topic_names=tuple(name for name, _ in pairs if name),
        timeout=kafka.duration(timeout_ms),
    )
    return [
        (response.name, response.topic_id, response.error_code.name)
        for response in answer.responses
    ]


@pytest.mark.parametrize("version", range(1, 7))
async def test_a_deletion_is_answered_once_the_broker_dropped_the_topic(version: int) -> None:
    world = AdminWorld()
    topic_id = world.topic("t")
    world.operator.answer = lambda _: result(topic_id=topic_id)
    asking = asyncio.create_task(delete(world, "t", version=version, timeout_ms=10_000))
    for _ in range(10):
        await asyncio.sleep(0)
    # The operator has accepted the deletion, but this broker still serves the topic.
    assert not asking.done()
    world.remove_topic(topic_id)
    assert await asking == [("t", topic_id, "none")]


async def test_a_topic_is_deleted_by_its_id() -> None:
    world = AdminWorld()
    topic_id = world.topic("t")
    world.operator.answer = lambda _: result(topic_id=topic_id)
    assert await delete(world, topic_id, TOPIC_ID) == [
        (None, TOPIC_ID, "unknown_topic_id"),
        ("t", topic_id, "request_timed_out"),
    ]


async def test_invalid_requests_are_rejected() -> None:
    world = AdminWorld()
    topic_id = world.topic("t")
    # The same name twice, neither name nor id, and both of them.
    found = await delete(world, "a", "a", (None, None), ("t", topic_id))
    assert {error for _, _, error in found} == {"invalid_request"}
    assert len(found) == 3
    assert world.operator.changes == []


@pytest.mark.parametrize(
    ("version", "error"), [(2, "invalid_request"), (3, "topic_deletion_disabled")]
)
async def test_a_disabled_deletion_is_reported_by_version(version: int, error: str) -> None:
    world = AdminWorld()
    # Version 2 does not have the error code TOPIC_DELETION_DISABLED.
    world.operator.answer = lambda _: result(ErrorCode.topic_deletion_disabled)
    assert [code for _, _, code in await delete(world, "t", version=version)] == [error]


async def test_deletion_requires_delete_and_names_require_describe() -> None:
    world = AdminWorld()
    seen, hidden = world.topic("seen"), world.topic("hidden")
    world.allow((TOPIC, "seen", Operation.DESCRIBE))
    denied = "topic_authorization_failed"
    # The name of a topic that was named by id is shown only with DESCRIBE. A name from the
    # request is repeated in any case.
    assert await delete(world, seen, hidden, "hidden") == [
        ("seen", seen, denied),
        (None, hidden, denied),
        ("hidden", None, denied),
    ]


async def test_a_missing_topic_is_reported_to_clients_that_may_describe_it() -> None:
    world = AdminWorld()
    world.allow((TOPIC, "none", Operation.DESCRIBE))
    assert await delete(world, "none") == [("none", None, "unknown_topic_or_partition")]


async def test_a_topic_named_by_name_and_id_is_deleted_once() -> None:
    world = AdminWorld()
    topic_id = world.topic("t")
    world.operator.answer = lambda _: result(topic_id=topic_id)
    assert await delete(world, "t", topic_id) == [
        ("t", None, "invalid_request"),
        ("t", topic_id, "request_timed_out"),
    ]


# ---------------------------------------------------------------- CreatePartitions


async def grow(world: AdminWorld, *topics: Any, version: int = 3) -> dict[str, str]:
    answer = await world.send(
        create_partitions.API,
        version,
        topics=topics,
        timeout=kafka.duration(0),
        validate_only=False,
    )
    return {result_.name: result_.error_code.name for result_ in answer.results}


@pytest.mark.parametrize("version", range(4))
async def test_a_growth_is_answered_once_all_partitions_have_leaders(version: int) -> None:
    world = AdminWorld()
    world.topic("t", partitions=3)
    world.operator.answer = lambda _: result(partitions=3)
    growth_request = growth.CreatePartitionsTopic(
        name="t", count=3, assignments=(growth.CreatePartitionsAssignment(broker_ids=(2,)),)
    )
    assert await grow(world, growth_request, version=version) == {"t": "none"}
    (change,) = world.operator.changes
    assert [(assignment.partition, assignment.replicas) for assignment in change.assignments] == [
        (0, (2,))
    ]
    # The fourth partition has no leader on this broker's metadata, so the request times out.
    world.operator.answer = lambda _: result(partitions=4)
    assert await grow(world, growth_request, version=version) == {"t": "request_timed_out"}


async def test_growth_requires_alter() -> None:
    world = AdminWorld()
    world.topic("a")
    world.allow((TOPIC, "a", Operation.ALTER))
    world.operator.answer = lambda _: result(partitions=1)
    growths = [
        growth.CreatePartitionsTopic(name=name, count=1, assignments=None) for name in "abcc"
    ]
    assert await grow(world, *growths) == {
        "a": "none",
        "b": "topic_authorization_failed",
        "c": "invalid_request",
    }


# ---------------------------------------------------------------- configuration


async def describe(
    world: AdminWorld, kind: int, name: str, *, keys: Any = None, version: int = 4, **fields: bool
) -> Any:
    resource = description.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=keys
    )
    answer = await world.send(describe_configs.DESCRIBE, version, resources=(resource,), **fields)
    (found,) = answer.results
    return found


@pytest.mark.parametrize("version", range(1, 5))
async def test_all_keys_of_a_topic_are_described(version: int) -> None:
    world = AdminWorld({"log.roll.hours": "3"})
    world.set_cluster(log_retention_ms="9")
    world.topic("t", config={"retention.ms": "9", "max.message.bytes": "5"})
    found = await describe(world, TOPIC, "t", version=version, include_synonyms=True)
    keys = {config.name: config for config in found.configs}
    assert set(keys) == set(table.TOPIC)
    named_none = await describe(world, TOPIC, "t", keys=(), version=version)
    assert {config.name for config in named_none.configs} == set(keys)
    assert [(s.name, s.value, s.source) for s in keys["max.message.bytes"].synonyms] == [
        ("max.message.bytes", "5", 1),
        ("message.max.bytes", "1048588", 5),
    ]
    # The topic's own value equals the cluster's, and is not shown as the topic's.
    assert [(s.name, s.value, s.source) for s in keys["retention.ms"].synonyms] == [
        ("log.retention.ms", "9", 3),
        ("log.retention.ms", "604800000", 5),
    ]
    assert (keys["segment.ms"].value, keys["segment.ms"].config_source) == ("10800000", 4)
    assert (keys["cleanup.policy"].config_type, keys["segment.bytes"].config_type) == (7, 3)
    assert not keys["segment.ms"].read_only


async def test_only_requested_keys_are_described() -> None:
    world = AdminWorld()
    world.topic("t")
    found = await describe(world, TOPIC, "t", keys=("retention.ms", "what"))
    (key,) = found.configs
    assert (key.name, key.synonyms, key.documentation) == ("retention.ms", (), None)
    more = await describe(world, TOPIC, "t", keys=("retention.ms",), include_documentation=True)
    assert "Retention time of records" in more.configs[0].documentation


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (0, {"remote.log.copy.disable": "true", "remote.log.delete.on.disable": "false"}),
        (1, {"remote.log.copy.disable": "false", "remote.log.delete.on.disable": "true"}),
    ],
    ids=["retain", "delete"],
)
async def test_a_disabled_tiering_is_described_with_kafkas_keys(
    policy: int, expected: dict[str, str]
) -> None:
    world = AdminWorld()
    disabled = {"tiering_state": int(TieringState.DISABLED), "tiered_epoch": 2}
    world.topic("t", disable_policy=policy, **disabled)
    found = await describe(world, TOPIC, "t", keys=tuple(expected))
    assert {config.name: config.value for config in found.configs} == expected


async def test_a_broker_describes_itself_and_the_cluster() -> None:
    world = AdminWorld({"node.id": "1", "num.partitions": "2", "log.retention.hours": "5"})
    world.set_cluster(num_partitions="4")
    found = await describe(world, BROKER, "1", include_synonyms=True)
    keys = {config.name: config for config in found.configs}
    # The cluster's dynamic value precedes the static one and the default.
    assert [(s.value, s.source) for s in keys["num.partitions"].synonyms] == [
        ("4", 3),
        ("2", 4),
        ("1", 5),
    ]
    assert (keys["log.retention.hours"].value, keys["log.retention.hours"].config_source) == (
        "5",
        4,
    )
    assert keys["fetch.max.bytes"].config_source == 5
    assert {config.name for config in found.configs if not config.read_only} == set(table.DYNAMIC)
    cluster = await describe(world, BROKER, "")
    assert [(config.name, config.value) for config in cluster.configs] == [("num.partitions", "4")]


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (TOPIC, "none", "unknown_topic_or_partition"),
        (BROKER, "2", "invalid_request"),
        (BROKER, "x", "invalid_request"),
        (16, "metrics", "invalid_request"),
    ],
)
async def test_unknown_resources_cannot_be_described(kind: int, name: str, error: str) -> None:
    assert (await describe(AdminWorld(), kind, name)).error_code.name == error


async def test_describing_requires_describe_configs() -> None:
    world = AdminWorld()
    world.topic("t")
    world.allow((TOPIC, "t", Operation.DESCRIBE))
    assert (await describe(world, TOPIC, "t")).error_code.name == "topic_authorization_failed"
    assert (await describe(world, BROKER, "1")).error_code.name == "cluster_authorization_failed"
    world.allow((TOPIC, "t", Operation.DESCRIBE_CONFIGS), (*CLUSTER, Operation.ALTER_CONFIGS))
    assert (await describe(world, TOPIC, "t")).error_code is ErrorCode.none
    assert (await describe(world, BROKER, "1")).error_code is ErrorCode.none


async def test_resources_of_one_request_are_limited() -> None:
    resource = description.DescribeConfigsResource(
        resource_type=TOPIC, resource_name="t", configuration_keys=None
    )
    world = AdminWorld()
    world.topic("t")
    many = (resource,) * (describe_configs.RESOURCES_MAX + 1)
    answer = await world.send(describe_configs.DESCRIBE, 4, resources=many)
    assert {result_.error_code.name for result_ in answer.results} == {"invalid_request"}


async def test_a_response_is_limited_by_the_available_memory() -> None:
    """One response may use half of the one megabyte here. Each topic has dozens of keys."""
    world = AdminWorld()
    world.topic("t")
    many = tuple(
        description.DescribeConfigsResource(
            resource_type=TOPIC, resource_name="t", configuration_keys=None
        )
        for _ in range(200)
    )
    answer = await world.send(describe_configs.DESCRIBE, 4, resources=many)
    errors = [result_.error_code.name for result_ in answer.results]
    assert 10 < errors.index("request_timed_out") < 100
    assert errors[-1] == "request_timed_out"
    assert answer.results[-1].configs == ()


def _incremental(kind: int, name: str, **values: str) -> incremental.AlterConfigsResource:
    configs = tuple(
        incremental.AlterableConfig(name=key.replace("_", "."), config_operation=0, value=value)
        for key, value in values.items()
    )
    return incremental.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)


async def alter(world: AdminWorld, *resources: Any, api: Any = None) -> dict[str, Any]:
    answer = await world.send(
        api or alter_configs.INCREMENTAL, 1, resources=resources, validate_only=False
    )
    return {response.resource_name: response for response in answer.responses}


@pytest.mark.parametrize("before", [{"retention.ms": "1"}, {}], ids=["another value", "unset"])
async def test_a_change_is_answered_once_the_broker_has_it(before: dict[str, str]) -> None:
    world = AdminWorld()
    world.topic("t", config=before)
    asking = asyncio.create_task(alter(world, _incremental(TOPIC, "t", retention_ms="5")))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not asking.done()
    world.topic("t", config={"retention.ms": "5"})
    assert (await asking)["t"].error_code is ErrorCode.none


async def test_alter_configs_replaces_all_keys() -> None:
    world = AdminWorld()
    config = whole.AlterableConfig(name="retention.ms", value="5")
    resource = whole.AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=(config,))
    await alter(world, resource, api=alter_configs.WHOLE)
    (change,) = world.operator.changes
    assert change.replaces_all
    assert [(setting.name, setting.operation) for setting in change.settings] == [
        ("retention.ms", 0)
    ]


@pytest.mark.parametrize("version", [0, 1])
async def test_a_cluster_wide_setting_is_forwarded(version: int) -> None:
    world = AdminWorld()
    change_request = _incremental(BROKER, "", log_retention_ms="2")
    asking = asyncio.create_task(
        world.send(
            alter_configs.INCREMENTAL, version, resources=(change_request,), validate_only=False
        )
    )
    for _ in range(10):
        await asyncio.sleep(0)
    assert not asking.done(), "this broker does not have the change yet"
    world.set_cluster(log_retention_ms="2")
    (response,) = (await asking).responses
    assert response.error_code is ErrorCode.none
    (change,) = world.operator.changes
    assert (change.kind, change.name, change.replaces_all) == (
        ChangeKind.CONFIGURE_CLUSTER,
        "",
        False,
    )
    assert [(setting.name, setting.value) for setting in change.settings] == [
        ("log.retention.ms", "2")
    ]


async def test_settings_of_a_single_broker_are_rejected() -> None:
    world = AdminWorld()
    answers = await alter(
        world,
        _incremental(BROKER, "1", log_retention_ms="2"),
        _incremental(BROKER, "2", log_retention_ms="2"),
        _incremental(16, "m"),
    )
    assert errors_of(answers) == {
        "1": "policy_violation",
        "2": "invalid_request",
        "m": "invalid_request",
    }
    assert "set it for all of them" in answers["1"].error_message
    static = (await alter(world, _incremental(BROKER, "1", node_id="2")))["1"]
    assert static.error_code is ErrorCode.invalid_request
    assert "Cannot update these configs dynamically: node.id" in static.error_message
    # Deleting a value that does not exist is allowed, as in Kafka.
    nothing = incremental.AlterableConfig(name="node.id", config_operation=1, value=None)
    resource = incremental.AlterConfigsResource(
        resource_type=BROKER, resource_name="1", configs=(nothing,)
    )
    assert errors_of(await alter(world, resource)) == {"1": "none"}
    assert world.operator.changes == []


async def test_settings_of_a_resource_are_limited() -> None:
    """One turn of the event loop would process all of them. A topic has dozens of keys."""
    world = AdminWorld()
    values = {f"key.{number}": "1" for number in range(1001)}
    resources = [_incremental(TOPIC, "a", **values), _incremental(8, "1", **values)]
    answers = await alter(world, *resources)
    assert errors_of(answers) == {"a": "invalid_request", "1": "invalid_request"}
    assert "At most 1000 settings" in answers["a"].error_message
    configs = tuple(creation.CreatableTopicConfig(name=name, value="1") for name in values)
    assert errors_of(await create(world, topic("a", configs=configs))) == {"a": "invalid_request"}
    assert world.operator.changes == []


async def test_altering_requires_alter_configs() -> None:
    world = AdminWorld()
    world.allow((TOPIC, "a", Operation.ALTER_CONFIGS))
    twice = _incremental(TOPIC, "c")
    answers = await alter(
        world,
        _incremental(TOPIC, "a"),
        _incremental(TOPIC, "b"),
        _incremental(BROKER, "1"),
        twice,
        twice,
    )
    assert errors_of(answers) == {
        "a": "none",
        "b": "topic_authorization_failed",
        "1": "cluster_authorization_failed",
        "c": "invalid_request",
    }


# ---------------------------------------------------------------- leaders and replicas


def _part(number: int, code: ErrorCode = ErrorCode.none) -> PartitionResult:
    return PartitionResult(partition=number, error_code=int(code), error_message=None)


async def elect(world: AdminWorld, version: int, *topics: Any) -> Any:
    return await world.send(
        elect_leaders.API,
        version,
        election_type=0,
        topic_partitions=topics or None,
        timeout=kafka.duration(0),
    )


@pytest.mark.parametrize("version", range(3))
async def test_leaders_are_elected_by_the_operator(version: int) -> None:
    world = AdminWorld()
    world.topic("t", partitions=2)
    parts = (_part(0), _part(1, ErrorCode.election_not_needed))
    world.operator.answer = lambda _: result(parts=parts)
    partitions_of_t = election.TopicPartitions(topic="t", partitions=(0, 1))
    answer = await elect(world, version, partitions_of_t)
    ((topic_, found),) = _by_topic(answer)
    assert (topic_, found) == ("t", {0: "none", 1: "election_not_needed"})
    assert [assignment.partition for assignment in world.operator.changes[0].assignments] == [0, 1]
    # Without partitions the request means all. Those that need no election are left out.
    ((_, found),) = _by_topic(await elect(world, version))
    assert found == {0: "none"}
    world.operator.answer = lambda _: result(parts=parts[1:])
    assert _by_topic(await elect(world, version)) == [("t", {})]


def _by_topic(answer: Any) -> list[tuple[str, dict[int, str]]]:
    return [
        (
            replica_election_result.topic,
            {
                part.partition_id: part.error_code.name
                for part in replica_election_result.partition_result
            },
        )
        for replica_election_result in answer.replica_election_results
    ]


async def test_an_unknown_election_type_is_rejected() -> None:
    world = AdminWorld()
    election_partitions = (election.TopicPartitions(topic="t", partitions=(0,)),)
    answer = await world.send(
        elect_leaders.API,
        2,
        election_type=2,
        topic_partitions=election_partitions,
        timeout=kafka.duration(0),
    )
    assert answer.error_code is ErrorCode.invalid_request
    assert world.operator.changes == []


async def test_elections_and_reassignments_require_alter_on_the_cluster() -> None:
    world = AdminWorld()
    world.allow((*CLUSTER, Operation.DESCRIBE))
    election_partitions = election.TopicPartitions(topic="t", partitions=(0,))
    answer = await elect(world, 2, election_partitions)
    assert answer.error_code is ErrorCode.cluster_authorization_failed
    assert _by_topic(answer) == [("t", {0: "cluster_authorization_failed"})]
    moved = await _reassign(world, 1)
    assert moved.error_code is ErrorCode.cluster_authorization_failed
    # Listing reassignments requires DESCRIBE only.
    listed = await world.send(reassignments.LIST, 0, topics=None, timeout=kafka.duration(0))
    assert listed.error_code is ErrorCode.none
    world.allow()
    listed = await world.send(reassignments.LIST, 0, topics=None, timeout=kafka.duration(0))
    assert listed.error_code is ErrorCode.cluster_authorization_failed


async def _reassign(world: AdminWorld, version: int, **replicas: tuple[int, ...] | None) -> Any:
    """Reassign partitions 0, 1, ... of topic t."""
    parts = tuple(
        moves.ReassignablePartition(partition_index=number, replicas=replica)
        for number, replica in enumerate(replicas.values())
    )
    return await world.send(
        reassignments.ALTER,
        version,
        topics=(moves.ReassignableTopic(name="t", partitions=parts),),
        timeout=kafka.duration(0),
        allow_replication_factor_change=False,
    )


@pytest.mark.parametrize("version", range(2))
async def test_reassignments_are_forwarded_to_the_operator(version: int) -> None:
    world = AdminWorld()
    world.operator.answer = lambda _: result(parts=(_part(0), _part(1)))
    # Partition 0 moves, 1 cancels its move (null), and 2 names no replica, which is invalid.
    answer = await _reassign(world, version, a=(2, 1), b=None, c=())
    (found,) = answer.responses
    assert {part.partition_index: part.error_code.name for part in found.partitions} == {
        0: "none",
        1: "none",
        2: "invalid_replica_assignment",
    }
    (change,) = world.operator.changes
    assert [(assignment.partition, assignment.replicas) for assignment in change.assignments] == [
        (0, (2, 1)),
        (1, ()),
    ]
    assert change.keeps_factor is (version == 1)


async def test_ongoing_reassignments_are_listed() -> None:
    world = AdminWorld()
    world.topic("still")
    world.topic("t", partitions=2, moving={1: ((3,), (1,))})
    for requested_topics in (
        None,
        (listing.ListPartitionReassignmentsTopics(name="t", partition_indexes=(0, 1, 7)),),
    ):
        answer = await world.send(
            reassignments.LIST, 0, topics=requested_topics, timeout=kafka.duration(0)
        )
        (found,) = answer.topics
        (part,) = found.partitions
        assert (found.name, part.partition_index) == ("t", 1)
        assert (part.adding_replicas, part.removing_replicas) == ((3,), (1,))


# ---------------------------------------------------------------- Metadata


async def request_metadata(world: AdminWorld, *names: str, allowed: bool = True) -> dict[str, str]:
    request = kafka.metadata(12, tuple((name, None) for name in names))
    answer = await world.send(
        metadata.API, 12, topics=request.topics, allow_auto_topic_creation=allowed,
        include_topic_authorized_operations=False,
    )  # fmt: skip
    return {topic_.name: topic_.error_code.name for topic_ in answer.topics}


async def test_requested_topics_are_created_automatically_if_enabled() -> None:
    world = AdminWorld()
    world.set_cluster(auto_create_topics_enable="true")
    running = asyncio.create_task(world.services.creations.run())
    await request_metadata(world, "no", allowed=False)
    # Invalid names and Kafka's own log are not created.
    found = await request_metadata(world, "t", "a b", "__cluster_metadata")
    assert found["t"] == "unknown_topic_or_partition"
    for _ in range(5):
        await asyncio.sleep(0)
    assert [(item.name, item.automatic) for item in world.operator.changes] == [("t", True)]
    running.cancel()


async def test_automatic_creation_requires_create() -> None:
    world = AdminWorld()
    world.set_cluster(auto_create_topics_enable="true")
    world.allow((TOPIC, "t", Operation.DESCRIBE))
    assert await request_metadata(world, "t") == {"t": "topic_authorization_failed"}
