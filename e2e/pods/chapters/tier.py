"""Closed segments go to the object store, leave the brokers' disks, and are read from there."""

from e2e.pods.chapters.chapter import Chapter, Step
from e2e.pods.stage import BROKERS, Stage

TOPIC = "kept"
FETCHED = "kafka_server_brokertopicmetrics_remotefetchbytes_total"
RECORDS = 6000


def _tier(stage: Stage) -> None:
    stage.make_tiered_topic(TOPIC)
    stage.produce(TOPIC, RECORDS)
    stage.wait("segments in the tier", lambda: stage.tier_complaint(TOPIC))


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
