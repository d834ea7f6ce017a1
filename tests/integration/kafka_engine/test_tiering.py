"""KIP-950 on Apache Kafka's two switches. The operator keeps the state machine; a broker has
acknowledged a change once its effective configuration shows it."""

import asyncio

import pytest

from tests.integration.kafka_engine.kafka_world import KafkaWorld
from tests.integration.kafka_engine.record_production import SMALL, offset, produce
from tests.integration.kafka_engine.test_topics import has, own, set_externally
from tests.integration.kafka_engine.waiting import until
from tidemark.kafka_client.admin import Admin
from tidemark.kafka_client.values import EARLIEST, EARLIEST_LOCAL, LATEST_TIERED
from tidemark_operator.kube.errors import Invalid
from tidemark_operator.kube.kinds import TOPIC, Json

TIERED = {"enabled": True, "localRetention": {"time": "1s"}}


async def tiering(world: KafkaWorld, name: str, state: str, **fields: object) -> Json:
    """Wait until the status has this state and these fields."""
    expected = {"state": state, **fields}

    def holds(status: Json) -> bool:
        found = status.get("tiering") or {}
        return all(found.get(key) == value for key, value in expected.items())

    return (await world.status_where(TOPIC, name, holds))["tiering"]  # type: ignore[no-any-return]


async def test_kafka_tiering_is_disabled_by_either_policy_and_enabled(
    world: KafkaWorld, admin: Admin, bootstrap: tuple[str, ...], name: str
) -> None:
    await world.start_operator()
    config = {**SMALL, "retention.ms": "3600000"}
    await world.create_topic(name, 1, 3, config=config, tiering=TIERED)
    await world.ready(name)
    await tiering(world, name, "Enabled", epoch=0)
    await produce(bootstrap, name, 0, b"0", b"1", b"2", b"3")
    # Two closed segments are in the tier, and deleted locally.
    await until(lambda: offset(admin, name, 0, EARLIEST_LOCAL), lambda found: found >= 2)
    assert await offset(admin, name, 0, EARLIEST) == 0

    # Retain: records stay in the tier, nothing is copied any more.
    await world.patch(TOPIC, name, tiering={"enabled": False, "disablePolicy": "Retain"})
    off = await tiering(world, name, "Disabled", epoch=1, policy="Retain")
    assert "pendingBrokers" not in off
    await has(admin, name, remote_storage_enable="true", remote_log_copy_disable="true",
              local_retention_ms="-2", local_retention_bytes="-2")  # fmt: skip
    copied = await offset(admin, name, 0, LATEST_TIERED)
    await produce(bootstrap, name, 0, b"4", b"5")
    await asyncio.sleep(2.5)  # two of the brokers' copy intervals
    assert await offset(admin, name, 0, LATEST_TIERED) == copied
    # The tier is still readable.
    assert await offset(admin, name, 0, EARLIEST) == 0
    settled = await world.condition(TOPIC, name, "TieringSettled", "True", "Disabled")
    assert "Apache Kafka has no tiered epoch" in settled["message"]

    local = await offset(admin, name, 0, EARLIEST_LOCAL)
    # Delete: everything in the tier is deleted.
    await world.patch(TOPIC, name, tiering={"enabled": False, "disablePolicy": "Delete"})
    await tiering(world, name, "Disabled", epoch=2, policy="Delete")
    await has(admin, name, remote_storage_enable="false", remote_log_delete_on_disable="true",
              remote_log_copy_disable=None, local_retention_ms=None)  # fmt: skip
    # The log starts where the local log starts.
    assert await offset(admin, name, 0, EARLIEST) == await offset(admin, name, 0, EARLIEST_LOCAL)
    assert await offset(admin, name, 0, EARLIEST) >= local

    # Enabled again, under the same epoch.
    await world.patch(TOPIC, name, tiering={"enabled": True, "disablePolicy": None})
    await tiering(world, name, "Enabled", epoch=2)
    await has(admin, name, remote_storage_enable="true", remote_log_delete_on_disable=None,
              local_retention_ms="1000")  # fmt: skip
    await produce(bootstrap, name, 0, b"6", b"7")
    await until(lambda: offset(admin, name, 0, LATEST_TIERED), lambda found: found > copied)


@pytest.mark.full
async def test_disablement_refuses_changes_until_it_settles(world: KafkaWorld, name: str) -> None:
    """A stall is reported after two copy intervals, which leaves time for the checks."""
    await world.start_operator()
    await world.create_topic(name, 1, 3, tiering=TIERED)
    await world.ready(name)
    await tiering(world, name, "Enabled")
    await world.patch(TOPIC, name, tiering={"enabled": False, "disablePolicy": "Retain"})
    await tiering(world, name, "Disabling", epoch=1, policy="Retain")
    # The CRD's validation rules refuse a change in the middle of a disablement.
    with pytest.raises(Invalid, match="TIERED_STORAGE_DISABLEMENT_IN_PROGRESS"):
        await world.patch(TOPIC, name, tiering={"enabled": True})
    await world.condition(TOPIC, name, "TieringSettled", "False", "Disabling")
    await tiering(world, name, "Disabled", epoch=1)


@pytest.mark.full
async def test_topic_tiered_externally_is_reported_and_left_alone(
    world: KafkaWorld, admin: Admin, name: str
) -> None:
    await world.start_operator()
    await world.create_topic(name)
    await world.ready(name)
    # Tiering is enabled by Kafka's own tools, against the manifest.
    await set_externally(admin, name, remote_storage_enable="true")
    await world.condition(TOPIC, name, "Stalled", "True", "TieringEnabledExternally")
    assert (await own(admin, name))["remote.storage.enable"] == "true"
    # The manifest adopts it.
    await world.patch(TOPIC, name, tiering=TIERED)
    await world.condition(TOPIC, name, "Stalled", "False")
    await tiering(world, name, "Enabled", epoch=0)
