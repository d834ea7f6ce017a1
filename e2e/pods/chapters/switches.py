"""Tiering switched off by a manifest, with either policy (KIP-950), switched on again, and records
deleted by a manifest: what becomes of records, offsets and objects."""

import functools
from typing import Any

from e2e.pods import objects
from e2e.pods.chapters.chapter import Chapter, Step
from e2e.pods.client import Records
from e2e.pods.kubernetes import condition
from e2e.pods.progress import Failed
from e2e.pods.stage import Stage
from e2e.pods.store import segment_objects, segment_starts

RETAINED, DELETED = "switched-retain", "switched-delete"
#: Of the records of a partition, fewer than half: they are in the tier.
DELETED_BELOW = 1500
DELETION = "first-records"


# ------------------------------------------------------------ steps


def _tiered(stage: Stage) -> None:
    for name in (RETAINED, DELETED):
        stage.make_tiered_topic(name)
    for name in (RETAINED, DELETED):
        stage.produce_to_tier(name)
    for name in (RETAINED, DELETED):
        stage.reads_tier(name)


def _retain(stage: Stage) -> None:
    before = stage.client.records(RETAINED)
    _switch_off(stage, RETAINED, "Retain")
    # Retain: records are still read, in part from the tier.
    fetched = stage.fetched_from_tier()
    _expect_equal(stage.client.records(RETAINED), before)
    if stage.fetched_from_tier() == fetched:
        raise Failed("nothing of it was read from the tier")


def _delete(stage: Stage) -> None:
    before = stage.client.records(DELETED)
    _switch_off(stage, DELETED, "Delete")
    # Delete: the log starts at the local log start, so records that only the tier had are deleted.
    begins = stage.client.begins(DELETED)
    if not all(begins.values()):
        raise Failed(f"the records that were in the tier only are still there: {begins}")
    left = _from(before, begins)
    _expect_equal(stage.client.records(DELETED), left)
    stage.produce(DELETED)
    _expect_first(stage.client.records(DELETED), left)


def _objects(stage: Stage) -> None:
    stage.wait(f"no object of {DELETED}", lambda: _data(stage, DELETED))
    if not segment_objects(stage.topic(RETAINED)):
        raise Failed(f"no object of {RETAINED} is left")


def _on_again(stage: Stage) -> None:
    for name in (RETAINED, DELETED):
        # A later epoch separates the new objects from those of the time before.
        before, epoch = stage.client.records(name), _status(stage, name)["epoch"]
        stage.change_topic(name, **objects.tiered())
        stage.wait(f"tiering of {name}", functools.partial(_not_enabled, stage, name, epoch))
        stage.produce_to_tier(name)
        _expect_first(stage.client.records(name), before)


def _deletion(stage: Stage) -> None:
    before = stage.client.records(RETAINED)
    stage.kubernetes.apply(objects.record_deletion(DELETION, RETAINED, {0: DELETED_BELOW}))
    stage.wait("the deletion", lambda: _not_succeeded(stage))
    status = stage.object(f"recorddeletions.tidemark.dev/{DELETION}")["status"]
    told = {part["partition"]: part["lowWatermark"] for part in status["partitions"]}
    # The low watermark is the one that was requested, and the count that of the deleted records.
    if told != {0: DELETED_BELOW} or status["records"] != DELETED_BELOW:
        raise Failed(f"its status says {status}")
    begins = {**dict.fromkeys(before, 0), "0": DELETED_BELOW}
    if (found := stage.client.begins(RETAINED)) != begins:
        raise Failed(f"{RETAINED} begins at {found}, not at {begins}")
    _expect_equal(stage.client.records(RETAINED), _from(before, begins))


def _deleted_objects(stage: Stage) -> None:
    """One whole segment of a thousand records lies below, whatever its batches come to."""

    def complaint() -> str:
        starts = segment_starts(stage.topic(RETAINED), partition=0)
        return "" if starts and min(starts) > 0 else f"segments in the tier begin at {starts}"

    stage.wait("no object of the first segment", complaint)


def _over(stage: Stage) -> None:
    """Not every record that was written is there, as other chapters expect it."""
    stage.delete(f"recorddeletions.tidemark.dev/{DELETION}")
    for name in (RETAINED, DELETED):
        stage.delete(f"topics.tidemark.dev/{name}")
        del stage.written[name]
    stage.recovered()


# ------------------------------------------------------------ what they ask


def _status(stage: Stage, topic: str) -> dict[str, Any]:
    found = stage.topic(topic).get("status", {}).get("tiering", {})
    assert isinstance(found, dict)
    return found


def _switch_off(stage: Stage, topic: str, policy: str) -> None:
    epoch = _status(stage, topic)["epoch"]
    # All states in between are recorded: Disabling may be over soon.
    with stage.watched(f"topics.tidemark.dev/{topic}", ".status.tiering.state") as states:
        stage.change_topic(topic, **objects.tiered(enabled=False, disablePolicy=policy))
        stage.wait(
            f"{topic} without a tier", lambda: "" if states[-1] == "Disabled" else states[-1]
        )
    if states != ["Enabled", "Disabling", "Disabled"]:
        raise Failed(f"the states of {topic} were {', '.join(states)}")
    found = _status(stage, topic)
    if (found["epoch"], found["policy"]) != (epoch + 1, policy):
        raise Failed(f"the tiering of {topic} is {found}")


def _not_enabled(stage: Stage, topic: str, epoch: int) -> str:
    found = _status(stage, topic)
    return "" if (found["state"], found["epoch"]) == ("Enabled", epoch) else str(found)


def _data(stage: Stage, topic: str) -> str:
    number = len(segment_objects(stage.topic(topic)))
    return f"there are {number}" if number else ""


def _not_succeeded(stage: Stage) -> str:
    found = condition(stage.object(f"recorddeletions.tidemark.dev/{DELETION}"), "Succeeded")
    return "" if found.get("status") == "True" else str(found)


def _from(records: Records, begins: dict[str, int]) -> Records:
    return {
        part: {offset: number for offset, number in found.items() if offset >= begins[part]}
        for part, found in records.items()
    }


def _expect_first(found: Records, wanted: Records) -> None:
    """Others have come behind them."""
    first = {part: dict(list(found[part].items())[: len(wanted[part])]) for part in wanted}
    _expect_equal(first, wanted)


def _expect_equal(found: Records, wanted: Records) -> None:
    for part, records in wanted.items():
        if found[part] != records:
            odd = sorted(set(found[part].items()) ^ set(records.items()))
            raise Failed(f"partition {part}: {len(odd)} records are missing or odd: {odd[:5]}")


CHAPTER = Chapter(
    "switches",
    "tiering off with either policy and on again, records deleted, by manifests",
    (
        Step("two topics have records that only the tier has", _tiered),
        Step("switched off with Retain, every record is still read, from the tier too", _retain),
        Step("switched off with Delete, what is left keeps its offsets", _delete),
        Step("its objects are deleted, and the other's are there", _objects, beside_pods=True),
        Step("switched on again, both continue copying", _on_again),
        Step("a RecordDeletion removes what it names, and no more", _deletion),
        Step("the objects below it are deleted", _deleted_objects, beside_pods=True),
        Step("both topics can be deleted", _over),
    ),
    takes_s=74,
)
