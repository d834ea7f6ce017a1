"""Closed segments go to the object store, leave the brokers' disks, and are read from there."""

from e2e.pods.chapters.chapter import Chapter, Step
from e2e.pods.stage import Stage

TOPIC = "kept"


def _tier(stage: Stage) -> None:
    stage.make_tiered_topic(TOPIC)
    stage.produce_to_tier(TOPIC)
    stage.wait("the tier in its status", lambda: _complaint(stage))


def _complaint(stage: Stage) -> str:
    tiering = stage.topic(TOPIC).get("status", {}).get("tiering", {})
    return "" if tiering.get("remoteSegments") else str(tiering)


def _read_tier(stage: Stage) -> None:
    stage.reads_tier(TOPIC)


CHAPTER = Chapter(
    "tier",
    "segments in an object store",
    (
        Step("closed segments go to the tier", _tier),
        Step("they leave the brokers' disks and are read from the tier", _read_tier),
    ),
    takes_s=9,
)
