"""Duration of a plan over a long manifest, and the small share of a year that a query of one hour
reads.

A year of segments is committed to a manifest in a directory as brokers would, many in one commit.
Their objects are not created, because a plan does not read them.
"""

import tempfile
import time
import uuid
from pathlib import Path

from tidemark.tier.metadata import transitions
from tidemark.tier.metadata.head import PAGE_ENTRIES, Claim, Head, new_head
from tidemark.tier.metadata.segment import SegmentEntry, new_segment
from tidemark.tier.metadata.topics import TopicObject
from tidemark.tier.open import Tier, open_tier
from tidemark.tier.stores.config import FilesystemConfig
from tidemark.tiering import Tiering, TieringState
from tidemark_pipeline.read.filters import NO_NARROWING, Narrowing
from tidemark_pipeline.read.options import parse
from tidemark_pipeline.read.plan import ReadPlan, plan_batch
from tidemark_pipeline.read.tasks import RemoteTask, bytes_of
from tidemark_pipeline.read.topic_survey import Survey

SEGMENTS = (50_000, 100_000)
RECORDS, SEGMENT_BYTES = 1000, 16 * 1024 * 1024
YEAR_MS = 365 * 24 * 3_600_000
HOUR_MS = 3_600_000
_BY = Claim(1, 0)


def plan_figures() -> str:
    """Prints each; all of them in a line."""
    seconds = []
    with tempfile.TemporaryDirectory(prefix="bench-plans-") as scratch:
        # Twice the segments should take at most twice the time.
        for count in SEGMENTS:
            path = Path(scratch) / str(count)
            path.mkdir()
            _make(open_tier(FilesystemConfig(path)), count)
            plan, took_s = _planned(path)
            seconds.append(took_s)
            print(
                f"plan of {count:,} segments: {took_s:.2f} CPU-s, {len(plan.tasks):,} tasks",
                flush=True,
            )
        # One hour in the middle of the year, with a minute of clock skew.
        all_bytes = _bytes(plan)
        hour = Narrowing(since_ms=YEAR_MS // 2, until_ms=YEAR_MS // 2 + HOUR_MS)
        part, part_s = _planned(path, hour)
    share = _bytes(part) / all_bytes
    print(
        f"one hour of a year: {share:.3%} of the bytes, planned in {part_s:.2f} CPU-s", flush=True
    )
    return (
        f"{SEGMENTS[-1]:,} segments planned in {seconds[-1]:.2f} CPU-s, "
        f"{seconds[-1] / seconds[0]:.2f} times half of them; "
        f"one hour of a year {share:.3%} of the bytes"
    )


def _planned(path: Path, narrowing: Narrowing = NO_NARROWING) -> tuple[ReadPlan, float]:
    """Nothing is known of the tier before."""
    options = parse({"topic": "t", "path": str(path), "timestampSkewMs": "60000"})
    began_s = time.process_time()
    # A new survey has no cache, as the first query of a driver.
    with Survey(options) as survey:
        plan = plan_batch(survey, options, narrowing)
    return plan, time.process_time() - began_s


def _bytes(plan: ReadPlan) -> int:
    tasks = [item.task for item in plan.tasks]
    return sum(bytes_of(r) for task in tasks if isinstance(task, RemoteTask) for r in task.ranges)


def _make(tier: Tier, count: int) -> None:
    topic_id = uuid.uuid4()
    # The topic object and an empty head, as the first leader writes them.
    tier.topics.put(
        TopicObject(topic_id=topic_id, name="t", cluster_id="c", partitions=1, config={})
    )
    loaded = tier.manifests.create(
        new_head(
            topic="t",
            topic_id=topic_id,
            partition=0,
            cluster_id="c",
            leader_epoch=_BY.leader_epoch,
            tiering=Tiering(TieringState.ENABLED, _BY.tiered_epoch),
            broker_id=1,
            log_start_offset=0,
        )
    )
    entries = [_entry(topic_id, number, count) for number in range(count)]
    # A page of entries in each commit, because a year of single commits would take hours.
    for first in range(0, count, PAGE_ENTRIES):
        loaded = tier.manifests.commit(
            loaded, lambda head, first=first: _copied(head, entries[first : first + PAGE_ENTRIES])
        )


def _entry(topic_id: uuid.UUID, number: int, count: int) -> SegmentEntry:
    return new_segment(
        topic="t",
        topic_id=topic_id,
        partition=0,
        segment_id=uuid.uuid4(),
        start_offset=number * RECORDS,
        end_offset_inclusive=(number + 1) * RECORDS - 1,
        max_timestamp_ms=(number + 1) * YEAR_MS // count,
        size_bytes=SEGMENT_BYTES,
        broker_id=1,
        event_time_ms=0,
        leader_epochs=[(1, 0)],
        leader_epoch=_BY.leader_epoch,
        tiered_epoch=_BY.tiered_epoch,
    )


def _copied(head: Head, entries: list[SegmentEntry]) -> Head:
    for entry in entries:
        head = transitions.start_copy(head, _BY, entry)
        head = transitions.finish_copy(head, _BY, entry, b"", None)
    return head


if __name__ == "__main__":
    print(plan_figures())
