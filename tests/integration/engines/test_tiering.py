"""KIP-950 and KIP-107 on both engines: the same state machine, the same way to delete."""

import datetime

import pytest

from tests.conformance.local_cluster import wait
from tests.integration.engines.driver import LONG_S, DrivenEngine, Spec
from tidemark.kafka_client.values import EARLIEST, EARLIEST_LOCAL, LATEST, LATEST_TIERED
from tidemark_devcluster.settings import KAFKA

pytestmark = [pytest.mark.slow, pytest.mark.full]

#: Configuration of segments that close soon after they were begun.
SMALL = {"segment.ms": "200", "segment.bytes": "1048576"}
TIERED = {"enabled": True, "localRetention": {"time": "1s"}}
VALUES = [b"%d" % number for number in range(6)]


def tiering(engine: DrivenEngine, name: str, state: str, **fields: object) -> Spec:
    """Wait until the status has this state and these fields."""
    expected = {"state": state, **fields}

    def holds(status: Spec) -> bool:
        found = status.get("tiering") or {}
        return all(found.get(key) == value for key, value in expected.items())

    found: Spec = engine.status(name, holds)["tiering"]
    return found


def test_tiering_is_disabled_by_either_policy_and_enabled_again(engine: DrivenEngine) -> None:
    name, spec = engine.create(1, 3, config={**SMALL, "retention.ms": "3600000"}, tiering=TIERED)
    engine.ready(name)
    tiering(engine, name, "Enabled", epoch=0)
    engine.produce(name, *VALUES[:4])
    # At least two of four segments have moved to the tier.
    wait(lambda: engine.offset(name, EARLIEST_LOCAL) >= 2, "segments to go to the tier", LONG_S)
    assert engine.values(name) == VALUES[:4], "what is in the tier is read, too"

    # Retain: everything stays readable, nothing more is copied.
    engine.apply(name, {**spec, "tiering": {"enabled": False, "disablePolicy": "Retain"}})
    off = tiering(engine, name, "Disabled", epoch=1, policy="Retain")
    assert "pendingBrokers" not in off
    engine.condition_message(name, "TieringSettled", "True", "Disabled")
    engine.produce(name, *VALUES[4:])
    assert engine.offset(name, EARLIEST) == 0
    assert engine.values(name) == VALUES, "data in the tier stays readable"

    # Delete: the log then starts where the local log starts.
    engine.apply(name, {**spec, "tiering": {"enabled": False, "disablePolicy": "Delete"}})
    tiering(engine, name, "Disabled", epoch=2, policy="Delete")
    wait(
        lambda: engine.offset(name, EARLIEST) == engine.offset(name, EARLIEST_LOCAL) >= 2,
        "the log to begin where brokers have it",
        LONG_S,
    )
    assert engine.values(name) == VALUES[engine.offset(name, EARLIEST) :]

    # Enabled again, under the same tiered epoch.
    engine.apply(name, spec)
    tiering(engine, name, "Enabled", epoch=2)
    local = engine.offset(name, EARLIEST_LOCAL)
    engine.produce(name, b"6", b"7", b"8")
    wait(lambda: engine.offset(name, EARLIEST_LOCAL) > local, "copying to resume", LONG_S)


def test_records_are_in_the_tier_within_the_maximum_lag(engine: DrivenEngine) -> None:
    lag = {**TIERED, "maxLag": {"time": "4s"}}
    name, spec = engine.create(1, 3, tiering=lag)
    if engine.cluster.local.settings.engine == KAFKA:
        message = engine.condition_message(name, "Stalled", "True", "TieringFieldNotSupported")
        assert message.startswith("spec.tiering.maxLag.time has no effect with engine kafka")
        engine.apply(name, {**spec, "tiering": TIERED})
        engine.status(name, lambda _: True, type_="Stalled", is_="False")
        return
    engine.ready(name)
    # Neither segment.ms nor segment.bytes would close this segment.
    engine.produce(name, *VALUES)
    wait(lambda: engine.offset(name, LATEST_TIERED) == len(VALUES) - 1, "the copy", 4.0)
    engine.condition_message(name, "TieringLagging", "False", "WithinMaxLag")

    engine.apply(name, {**spec, "tiering": {**lag, "paused": True}})
    engine.condition_message(name, "TieringLagging", "True", "CopyingPaused")
    engine.produce(name, b"6")
    wait(
        lambda: (
            "partition 0"
            in engine.condition_message(name, "TieringLagging", "True", "CopyingPaused")
        ),
        "the gap to be shown",
        LONG_S,
    )
    assert engine.offset(name, LATEST_TIERED) == len(VALUES) - 1
    engine.apply(name, spec)
    wait(lambda: engine.offset(name, LATEST_TIERED) == len(VALUES), "copying to resume", LONG_S)
    engine.condition_message(name, "TieringLagging", "False", "WithinMaxLag")


def test_records_are_deleted_by_offset_and_time_and_to_the_end(engine: DrivenEngine) -> None:
    name, _ = engine.create(2, 3, config=SMALL)
    engine.ready(name)
    engine.produce(name, *VALUES[:3])
    # A time between records 2 and 3.
    between = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    engine.produce(name, *VALUES[3:5])
    engine.produce(name, *VALUES[:2], partition=1)

    # A dry run counts five and two records, and deletes nothing.
    deletion_status = engine.delete_records(
        f"{name}-dry", name, all={"beforeOffset": -1}, dryRun=True
    )
    assert deletion_status["records"] == 7
    assert engine.offset(name, EARLIEST) == 0

    one = [{"partition": 0, "beforeOffset": 2}]
    # Offsets are resolved once, and recorded in the status.
    deletion_status = engine.delete_records(f"{name}-one", name, partitions=one)
    frozen = [
        (item["partition"], item["offset"], item["records"]) for item in deletion_status["resolved"]
    ]
    assert frozen == [(0, 2, 2)]
    assert deletion_status["partitions"] == [{"partition": 0, "lowWatermark": 2}]
    assert engine.values(name) == VALUES[2:5]

    # The first record at or after that time is record 3.
    before = [{"partition": 0, "beforeTime": between.replace("+00:00", "Z")}]
    deletion_status = engine.delete_records(f"{name}-time", name, partitions=before)
    assert deletion_status["resolved"][0]["offset"] == 3
    assert engine.values(name) == VALUES[3:5]

    # -1 is the high watermark of each partition.
    deletion_status = engine.delete_records(f"{name}-all", name, all={"beforeOffset": -1})
    assert [item["lowWatermark"] for item in deletion_status["partitions"]] == [5, 2]
    assert engine.offset(name, EARLIEST, 1) == engine.offset(name, LATEST, 1) == 2

    # Beyond the log's end nothing is deleted.
    beyond = [{"partition": 1, "beforeOffset": 9}]
    deletion_status = engine.delete_records(f"{name}-beyond", name, partitions=beyond)
    assert deletion_status["partitions"][0]["error"].startswith("OFFSET_OUT_OF_RANGE")
    assert engine.offset(name, EARLIEST, 1) == 2


def test_record_deletion_refuses_a_compacted_topic(engine: DrivenEngine) -> None:
    name, _ = engine.create(config={"cleanup.policy": "compact"})
    engine.ready(name)
    engine.produce(name, b"kept")
    # The refusal is the same for a dry run.
    for is_dry_run in (True, False):
        deletion = f"{name}-{is_dry_run}".lower()
        engine.delete_records(deletion, name, all={"beforeOffset": -1}, dryRun=is_dry_run)
        deletion_status = engine.condition_message(
            deletion, "Succeeded", "False", "PartitionsFailed", kind="RecordDeletion"
        )
        assert "POLICY_VIOLATION" in deletion_status
    assert engine.values(name) == [b"kept"]


def test_record_deletion_reaches_the_tier(engine: DrivenEngine) -> None:
    name, _ = engine.create(1, 3, config=SMALL, tiering=TIERED)
    engine.ready(name)
    engine.produce(name, *VALUES)
    wait(lambda: engine.offset(name, EARLIEST_LOCAL) >= 3, "segments to go to the tier", LONG_S)
    # Offsets below 2 are in the tier, and are deleted there.
    deletion_status = engine.delete_records(
        f"{name}-d", name, partitions=[{"partition": 0, "beforeOffset": 2}]
    )
    assert deletion_status["records"] == 2
    assert engine.values(name) == VALUES[2:]
