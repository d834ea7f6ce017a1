"""Closed segments go to the object store, leave the brokers' disks, and are read from there."""

from e2e.pods.chapters.chapter import Chapter, Step
from e2e.pods.stage import PARTITIONS, Stage

TOPIC = "kept"
SEGMENT_BYTES = 1 << 20
RECORDS = 6000


def _tier(stage: Stage) -> None:
    stage.make_topic(
        TOPIC,
        config={"segment.bytes": str(SEGMENT_BYTES), "retention.ms": "-1"},
        tiering={"enabled": True, "localRetention": {"size": "1Mi"}},
    )
    # Segments are closed before they are full.
    stage.copies(lambda: stage.produce(TOPIC, RECORDS), PARTITIONS * SEGMENT_BYTES // 2)
    stage.wait("the tier in its status", lambda: _tier_complaint(stage))


def _tier_complaint(stage: Stage) -> str:
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
)
