"""KIP-950 and KIP-107, whichever engine keeps the topic: one state machine, one way to delete."""

import datetime

import pytest

from tests.conformance.local_cluster import wait
from tests.integration.engines.driver import LONG_S, Engine, Spec
from tidemark.kafka_client.values import EARLIEST, EARLIEST_LOCAL, LATEST

pytestmark = pytest.mark.slow

#: Segments that close a moment after they were begun.
SMALL = {"segment.ms": "200", "segment.bytes": "1048576"}
TIERED = {"enabled": True, "localRetention": {"time": "1s"}}
VALUES = [b"%d" % number for number in range(6)]


def tiering(engine: Engine, name: str, state: str, **fields: object) -> Spec:
    """Wait until the status says so."""
    expected = {"state": state, **fields}

    def holds(status: Spec) -> bool:
        found = status.get("tiering") or {}
        return all(found.get(key) == value for key, value in expected.items())

    found: Spec = engine.status(name, holds)["tiering"]
    return found


def test_tiering_is_turned_off_by_either_policy_and_on_again(engine: Engine) -> None:
    name, spec = engine.create(1, 3, config={**SMALL, "retention.ms": "3600000"}, tiering=TIERED)
    engine.ready(name)
    tiering(engine, name, "Enabled", epoch=0)
    engine.produce(name, *VALUES[:4])
    wait(lambda: engine.offset(name, EARLIEST_LOCAL) >= 2, "segments to go to the tier", LONG_S)
    assert engine.values(name) == VALUES[:4], "what is in the tier is read, too"

    engine.apply(name, {**spec, "tiering": {"enabled": False, "disablePolicy": "Retain"}})
    off = tiering(engine, name, "Disabled", epoch=1, policy="Retain")
    assert "pendingBrokers" not in off
    engine.told(name, "TieringSettled", "True", "Disabled")
    engine.produce(name, *VALUES[4:])
    assert engine.offset(name, EARLIEST) == 0
    assert engine.values(name) == VALUES, "data in the tier stays readable"

    engine.apply(name, {**spec, "tiering": {"enabled": False, "disablePolicy": "Delete"}})
    tiering(engine, name, "Disabled", epoch=2, policy="Delete")
    wait(
        lambda: engine.offset(name, EARLIEST) == engine.offset(name, EARLIEST_LOCAL) >= 2,
        "the log to begin where brokers have it",
        LONG_S,
    )
    assert engine.values(name) == VALUES[engine.offset(name, EARLIEST) :]

    engine.apply(name, spec)
    tiering(engine, name, "Enabled", epoch=2)
    local = engine.offset(name, EARLIEST_LOCAL)
    engine.produce(name, b"6", b"7", b"8")
    wait(lambda: engine.offset(name, EARLIEST_LOCAL) > local, "copying to resume", LONG_S)


def test_records_are_deleted_by_offset_and_time_and_to_the_end(engine: Engine) -> None:
    name, _ = engine.create(2, 3, config=SMALL)
    engine.ready(name)
    engine.produce(name, *VALUES[:3])
    between = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    engine.produce(name, *VALUES[3:5])
    engine.produce(name, *VALUES[:2], partition=1)

    told = engine.delete_records(f"{name}-dry", name, all={"beforeOffset": -1}, dryRun=True)
    assert told["records"] == 7
    assert engine.offset(name, EARLIEST) == 0

    one = [{"partition": 0, "beforeOffset": 2}]
    told = engine.delete_records(f"{name}-one", name, partitions=one)
    frozen = [(item["partition"], item["offset"], item["records"]) for item in told["resolved"]]
    assert frozen == [(0, 2, 2)]
    assert told["partitions"] == [{"partition": 0, "lowWatermark": 2}]
    assert engine.values(name) == VALUES[2:5]

    before = [{"partition": 0, "beforeTime": between.replace("+00:00", "Z")}]
    told = engine.delete_records(f"{name}-time", name, partitions=before)
    assert told["resolved"][0]["offset"] == 3
    assert engine.values(name) == VALUES[3:5]

    told = engine.delete_records(f"{name}-all", name, all={"beforeOffset": -1})
    assert [item["lowWatermark"] for item in told["partitions"]] == [5, 2]
    assert engine.offset(name, EARLIEST, 1) == engine.offset(name, LATEST, 1) == 2

    beyond = [{"partition": 1, "beforeOffset": 9}]
    told = engine.delete_records(f"{name}-beyond", name, partitions=beyond)
    assert told["partitions"][0]["error"].startswith("OFFSET_OUT_OF_RANGE")
    assert engine.offset(name, EARLIEST, 1) == 2


def test_of_a_compacted_topic_nothing_is_deleted(engine: Engine) -> None:
    name, _ = engine.create(config={"cleanup.policy": "compact"})
    engine.ready(name)
    engine.produce(name, b"kept")
    for asked in (True, False):
        deletion = f"{name}-{asked}".lower()
        engine.delete_records(deletion, name, all={"beforeOffset": -1}, dryRun=asked)
        told = engine.told(
            deletion, "Succeeded", "False", "PartitionsFailed", kind="RecordDeletion"
        )
        assert "POLICY_VIOLATION" in told
    assert engine.values(name) == [b"kept"]


def test_a_deletion_reaches_the_tier(engine: Engine) -> None:
    name, _ = engine.create(1, 3, config=SMALL, tiering=TIERED)
    engine.ready(name)
    engine.produce(name, *VALUES)
    wait(lambda: engine.offset(name, EARLIEST_LOCAL) >= 3, "segments to go to the tier", LONG_S)
    told = engine.delete_records(
        f"{name}-d", name, partitions=[{"partition": 0, "beforeOffset": 2}]
    )
    assert told["records"] == 2
    assert engine.values(name) == VALUES[2:]
