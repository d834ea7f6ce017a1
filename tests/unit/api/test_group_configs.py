"""Configuration of one consumer group (KIP-848) through Kafka's API, and its effect."""

import asyncio

import pytest
from kio.schema.describe_configs.v4 import request as description
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1 import request as incremental

from tests.unit.api.admin_world import AdminWorld
from tests.unit.groups.consumers import ConsumerClient, ConsumerWorld
from tidemark.wire.topics import ChangeKind
from tidemark.wire.users import Operation, ResourceType
from tidemark_broker.api.configs import alter_configs, describe_configs

GROUP = 32
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


async def alter(world: AdminWorld, name: str, **values: str) -> tuple[str, str | None]:
    configs = tuple(
        incremental.AlterableConfig(name=key.replace("_", "."), config_operation=0, value=value)
        for key, value in values.items()
    )
    resource = incremental.AlterConfigsResource(
        resource_type=GROUP, resource_name=name, configs=configs
    )
    answer = await world.send(
        alter_configs.INCREMENTAL, 1, resources=(resource,), validate_only=False
    )
    (response,) = answer.responses
    return response.error_code.name, response.error_message


async def describe(world: AdminWorld, name: str) -> dict[str, tuple[str, int]] | str:
    resource = description.DescribeConfigsResource(
        resource_type=GROUP, resource_name=name, configuration_keys=None
    )
    answer = await world.send(describe_configs.DESCRIBE, 4, resources=(resource,))
    (found,) = answer.results
    if found.error_code is not ErrorCode.none:
        return str(found.error_code.name)
    return {config.name: (config.value, config.config_source) for config in found.configs}


async def test_a_group_configuration_is_forwarded_and_described() -> None:
    world = AdminWorld({"group.consumer.heartbeat.interval.ms": "4000"})
    asking = asyncio.create_task(alter(world, "g", consumer_session_timeout_ms="50000"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not asking.done(), "this broker does not have the change yet"
    world.set_group("g", consumer_session_timeout_ms="50000")
    assert await asking == ("none", None)
    (change,) = world.operator.changes
    assert (change.kind, change.name, change.replaces_all) == (
        ChangeKind.CONFIGURE_GROUP,
        "g",
        False,
    )
    assert [(setting.name, setting.value) for setting in change.settings] == [(SESSION, "50000")]
    # Sources: 5 is the default, 4 the broker's static configuration, 8 the group's own.
    described = {
        "consumer.assignment.interval.ms": ("1000", 5),
        HEARTBEAT: ("4000", 4),
        SESSION: ("50000", 8),
    }
    assert await describe(world, "g") == described
    assert await describe(world, "other") == described | {SESSION: ("45000", 5)}
    answer = await world.send(describe_configs.LIST_RESOURCES, 1, resource_types=(GROUP,))
    assert [
        (config_resource.resource_name, config_resource.resource_type)
        for config_resource in answer.config_resources
    ] == [("g", GROUP)]


@pytest.mark.parametrize(
    ("name", "value", "error", "fragment"),
    [
        (SESSION, "50", "invalid_config", "equal to group.consumer.min.session.timeout.ms"),
        (SESSION, "600001", "invalid_config", "equal to group.consumer.max.session.timeout.ms"),
        (SESSION, "5000", "invalid_config", "must be greater than consumer.heartbeat.interval.ms"),
        (HEARTBEAT, "99", "invalid_config", "equal to group.consumer.min.heartbeat.interval.ms"),
    ],
    ids=["short", "long", "no longer than a heartbeat", "often"],
)
async def test_values_out_of_bounds_are_rejected(
    name: str, value: str, error: str, fragment: str
) -> None:
    world = AdminWorld()
    reported, message = await alter(world, "g", **{name: value})
    assert reported == error
    assert fragment in (message or "")
    assert world.operator.changes == []


async def test_group_configs_need_permission_and_a_valid_name() -> None:
    world = AdminWorld()
    # Kafka has no default group resource, and names have at most 249 characters.
    assert await alter(world, "") == ("invalid_request", "Default group resources are not allowed.")
    assert await describe(world, "") == "invalid_request"
    assert (await alter(world, "g" * 250))[0] == "invalid_request"
    group = int(ResourceType.GROUP), "g"
    # READ of a group includes neither altering nor describing its configuration.
    world.allow((*group, Operation.READ))
    assert (await alter(world, "g"))[0] == "group_authorization_failed"
    assert await describe(world, "g") == "group_authorization_failed"
    world.allow((*group, Operation.ALTER_CONFIGS), (*group, Operation.DESCRIBE_CONFIGS))
    assert (await alter(world, "g"))[0] == "none"
    assert isinstance(await describe(world, "g"), dict)


def test_a_group_has_its_own_timeouts() -> None:
    world = ConsumerWorld()
    world.config = {SESSION: "10000", HEARTBEAT: "50"}
    a = ConsumerClient(world, "a")
    assert a.beat().heartbeat_interval_ms == 100  # no less than a broker allows
    # One millisecond before and after the group's own session timeout of 10 s.
    world.after(9_999)
    assert list(world.group.members) == ["a"]
    world.after(2)
    assert world.group.is_empty


def test_a_group_has_its_own_assignment_interval() -> None:
    world = ConsumerWorld()
    world.config = {"consumer.assignment.interval.ms": "60000"}
    world.join("a")
    world.after(1000)
    world.join("b")
    # KIP-1263: within 60 s of the first assignment no other one is computed, although a member
    # joined.
    world.after(40_000)
    assert (world.group.epoch, world.group.assignment_epoch) == (2, 1)
