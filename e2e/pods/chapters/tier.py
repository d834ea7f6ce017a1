"""Closed segments go to the object store, leave the brokers' disks, and are read from there."""

from e2e.pods.chapters.chapter import Chapter, Step
from e2e.pods.stage import BROKERS, PARTITIONS, Stage

TOPIC = "kept"
FETCHED = "kafka_server_brokertopicmetrics_remotefetchbytes_total"
RECORDS = 6000


def _tier(stage: Stage) -> None:
    stage.make_topic(
        TOPIC,
        config={"segment.bytes": "1048576", "retention.ms": "-1"},
        tiering={"enabled": True, "localRetention": {"size": "1Mi"}},
    )
    stage.produce(TOPIC, RECORDS)
    stage.wait("segments in the tier", lambda: _tier_complaint(stage))


def _tier_complaint(stage: Stage) -> str:
    tiering = stage.topic(TOPIC).get("status", {}).get("tiering", {})
    return "" if tiering.get("remoteSegments", 0) >= PARTITIONS else str(tiering)


def _read_tier(stage: Stage) -> None:
    def complaint() -> str:
        stage.consume(TOPIC)
        read = sum(stage.metric(f"broker-{n}-0", FETCHED) for n in range(1, BROKERS + 1))
        return "" if read else "all records are still read from the brokers' disks"

    stage.wait("a read from the tier", complaint)


CHAPTER = Chapter(
    "tier",
    "segments in an object store",
    (
        Step("closed segments go to the tier", _tier),
        Step("they leave the brokers' disks and are read from the tier", _read_tier),
    ),
)
