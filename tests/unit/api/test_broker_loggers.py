"""Resource type BROKER_LOGGER (KIP-412): the loggers that clients see, and the levels that they may
set."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from kio.schema.alter_configs.v2 import request as whole
from kio.schema.describe_configs.v4 import request as description
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1 import request as incremental

from tests.unit.api.admin_world import AdminWorld
from tidemark.wire.topics import SettingOperation
from tidemark.wire.users import Operation, ResourceType
from tidemark_broker.api.configs import alter_configs, describe_configs

LOGGER = 8
#: A logger of the broker.
NAME = "tidemark_broker.api.configs.alter_configs"
SET, DELETE, APPEND = SettingOperation.SET, SettingOperation.DELETE, SettingOperation.APPEND


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    """Restore the log levels after the test."""
    loggers = [logging.getLogger(), logging.getLogger(NAME)]
    before = [logger.level for logger in loggers]
    yield
    for item, level in zip(loggers, before, strict=True):
        item.setLevel(level)


async def alter(
    world: AdminWorld,
    *entries: tuple[str, SettingOperation, str | None],
    broker: str = "1",
    validate_only: bool = False,
) -> tuple[str, str]:
    configs = tuple(
        incremental.AlterableConfig(name=name, config_operation=operation, value=value)
        for name, operation, value in entries
    )
    resource = incremental.AlterConfigsResource(
        resource_type=LOGGER, resource_name=broker, configs=configs
    )
    answer = await world.send(
        alter_configs.INCREMENTAL, 1, resources=(resource,), validate_only=validate_only
    )
    (response,) = answer.responses
    return response.error_code.name, response.error_message or ""


async def describe(world: AdminWorld, broker: str = "1") -> Any:
    resource = description.DescribeConfigsResource(
        resource_type=LOGGER, resource_name=broker, configuration_keys=None
    )
    answer = await world.send(describe_configs.DESCRIBE, 4, resources=(resource,))
    return answer.results[0]


async def test_a_level_applies_until_it_is_deleted() -> None:
    logging.getLogger().setLevel(logging.WARNING)
    world = AdminWorld()
    assert await alter(world, (NAME, SET, "DEBUG"), ("root", SET, "ERROR")) == ("none", "")
    assert logging.getLogger(NAME).isEnabledFor(logging.DEBUG)
    found = {config.name: config for config in (await describe(world)).configs}
    assert (found[NAME].value, found["root"].value) == ("DEBUG", "ERROR")
    # 6 is DYNAMIC_BROKER_LOGGER_CONFIG. Loggers of libraries are not listed.
    assert (found[NAME].config_source, found[NAME].read_only) == (6, False)
    assert all(name == "root" or name.startswith("tidemark") for name in found)
    # DELETE lets the logger inherit its level again. The operator is never involved.
    assert await alter(world, (NAME, DELETE, None)) == ("none", "")
    assert logging.getLogger(NAME).level == logging.NOTSET
    assert world.operator.changes == []


@pytest.mark.parametrize(
    ("entry", "error", "message"),
    [
        ((NAME, SET, "LOUD"), "invalid_config", "Valid log levels are FATAL"),
        ((NAME, SET, None), "invalid_config", "not a supported log level"),
        (("asyncio", SET, "DEBUG"), "invalid_config", "Logger asyncio does not exist!"),
        (("tidemark_broker.none", DELETE, None), "invalid_config", "does not exist!"),
        (("root", DELETE, None), "invalid_request", "root logger is not allowed"),
        ((NAME, APPEND, "INFO"), "invalid_request", "APPEND operation is not allowed"),
        ((NAME, 9, "INFO"), "invalid_request", "9 operation is not allowed"),
    ],
    ids=["level", "null", "a library's", "none", "the root", "append", "no operation"],
)
async def test_a_rejected_request_changes_no_level(
    entry: tuple[str, SettingOperation, str | None], error: str, message: str
) -> None:
    before = logging.getLogger(NAME).level
    # A valid entry comes first. It must not be applied either.
    reported, text = await alter(AdminWorld(), (NAME, SET, "TRACE"), entry)
    assert reported == error
    assert message in text
    assert logging.getLogger(NAME).level == before
    assert "tidemark_broker.none" not in logging.getLogger().manager.loggerDict


async def test_validation_alone_changes_nothing() -> None:
    before = logging.getLogger(NAME).level
    entry = (NAME, SET, "FATAL")
    assert await alter(AdminWorld(), entry, validate_only=True) == ("none", "")
    assert logging.getLogger(NAME).level == before


@pytest.mark.parametrize("broker", ["", "2"])
async def test_loggers_of_other_brokers_are_rejected(broker: str) -> None:
    world = AdminWorld()
    assert (await alter(world, (NAME, SET, "INFO"), broker=broker))[0] == "invalid_request"
    assert (await describe(world, broker)).error_code is ErrorCode.invalid_request


async def test_alter_configs_does_not_support_loggers() -> None:
    resource = whole.AlterConfigsResource(resource_type=LOGGER, resource_name="1", configs=())
    answer = await AdminWorld().send(
        alter_configs.WHOLE, 2, resources=(resource,), validate_only=False
    )
    assert answer.responses[0].error_code is ErrorCode.invalid_request


async def test_altering_loggers_requires_alter_on_the_cluster() -> None:
    world = AdminWorld()
    world.allow((int(ResourceType.CLUSTER), "kafka-cluster", int(Operation.DESCRIBE_CONFIGS)))
    assert (await alter(world, (NAME, SET, "INFO")))[0] == "cluster_authorization_failed"
    assert (await describe(world)).error_code is ErrorCode.none
