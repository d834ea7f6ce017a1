"""UpdateFeatures (KIP-584): only the present level is granted. Other
requests get Kafka's errors."""

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.api.admin_world import AdminWorld
from tidemark.wire.users import Operation, ResourceType
from tidemark_broker.api.cluster import api_versions

FEATURE = "transaction.version"


def update(
    feature: str = FEATURE, level: int = 2, upgrade_type: int = 1, *, allow_downgrade: bool = False
) -> Any:
    return api_versions.FeatureUpdateKey(
        feature=feature,
        max_version_level=level,
        upgrade_type=upgrade_type,
        allow_downgrade=allow_downgrade,
    )


async def send(*updates: Any, version: int = 2, world: AdminWorld | None = None) -> Any:
    return await (world or AdminWorld()).send(
        api_versions.UPDATE_FEATURES, version, feature_updates=updates, validate_only=False
    )


@pytest.mark.parametrize(("version", "results"), [(0, [FEATURE]), (1, [FEATURE]), (2, [])])
async def test_the_present_level_is_granted(version: int, results: list[str]) -> None:
    # Version 2 has no results for single features.
    answer = await send(update(), version=version)
    assert answer.error_code is ErrorCode.none
    assert [result.feature for result in answer.results] == results


@pytest.mark.parametrize(
    ("invalid", "version", "message"),
    [
        (update(level=3), 2, "Supported are versions 0 to 2"),
        (update(level=-1), 2, "cannot be less than 0"),
        (update("metadata.version", 7), 2, "no such feature"),
        (update(upgrade_type=0), 2, "does not support the given upgrade type"),
        (update(upgrade_type=4), 2, "does not support the given upgrade type"),
        (update(level=1), 2, "without setting the upgrade type"),
        (update(level=1), 0, "without setting the upgrade type"),
        (update(level=1, allow_downgrade=True), 0, "This release only supports version 2"),
        (update(level=0, upgrade_type=3), 1, "This release only supports version 2"),
    ],
    ids=["above", "below", "unknown", "type 0", "type 4", "down", "old", "old down", "unsafe"],
)
async def test_one_rejected_update_rejects_all(invalid: Any, version: int, message: str) -> None:
    # The first update alone would be granted.
    answer = await send(update(), invalid, version=version)
    assert answer.error_code is ErrorCode.invalid_update_version
    assert message in answer.error_message
    assert answer.results == ()


async def test_updates_require_alter_on_the_cluster() -> None:
    world = AdminWorld()
    world.allow((int(ResourceType.CLUSTER), "kafka-cluster", int(Operation.DESCRIBE)))
    answer = await send(update(), world=world)
    assert answer.error_code is ErrorCode.cluster_authorization_failed
