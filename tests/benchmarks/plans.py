"""Cost of a plan over a long manifest, and the small share of a year that an hour reads.

A year of segments is written to a manifest in a directory. Their objects are not created, because a
plan does not read them. Each plan is made in a process of its own, as Spark's driver does, so that
its memory can be measured.
"""

import argparse
import json
import pickle
import resource
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

from tidemark.tier.metadata.head import PAGE_ENTRIES, Claim, Head, new_head
from tidemark.tier.metadata.manifest import _Commit
from tidemark.tier.metadata.segment import (
    DigestAlgorithm,
    Digests,
    SegmentEntry,
    SegmentState,
    new_segment,
)
from tidemark.tier.metadata.topics import TopicObject
from tidemark.tier.open import Tier, open_tier
from tidemark.tier.stores.config import FilesystemConfig
from tidemark.tiering import Tiering, TieringState
from tidemark_pipeline.read.filters import NO_NARROWING, Narrowing
from tidemark_pipeline.read.options import parse
from tidemark_pipeline.read.plan import plan_batch
from tidemark_pipeline.read.streaming import TidemarkPartition
from tidemark_pipeline.read.tasks import RemoteTask
from tidemark_pipeline.read.topic_survey import Survey

SEGMENTS = 1_000_000
RECORDS, SEGMENT_BYTES = 1000, 16 * 1024 * 1024
YEAR_MS = 365 * 24 * 3_600_000
HOUR_MS = 3_600_000
_BY = Claim(1, 0)


@dataclass(frozen=True, slots=True)
class PlanCost:
    """Cost of one plan. ``rss_mib``: peak memory of the process that made it."""

    cpu_s: float
    rss_mib: float
    tasks: int
    bytes: int


def plan_figures(segments: int = SEGMENTS) -> str:
    """Prints each; all of them in a line."""
    costs = []
    with tempfile.TemporaryDirectory(prefix="bench-plans-") as scratch:
        # Twice the segments should take at most twice the time.
        for count in (segments // 2, segments):
            path = Path(scratch) / str(count)
            path.mkdir()
            _make(open_tier(FilesystemConfig(path)), count)
            costs.append(_planned(path))
            print(f"plan of {count:,} segments: {_text(costs[-1])}", flush=True)
        # One hour in the middle of the year, with a minute of clock skew.
        part = _planned(path, hour=True)
    share = part.bytes / costs[-1].bytes
    print(f"one hour of a year: {share:.3%} of the bytes, {_text(part)}", flush=True)
    return (
        f"{segments:,} segments planned: {_text(costs[-1])}, "
        f"{costs[-1].cpu_s / costs[0].cpu_s:.2f} times half of them; "
        f"one hour of a year {share:.3%} of the bytes"
    )


def _text(cost: PlanCost) -> str:
    return f"{cost.cpu_s:.1f} CPU-s, {cost.rss_mib:.0f} MiB at most, {cost.tasks:,} tasks"


def _planned(path: Path, *, hour: bool = False) -> PlanCost:
    """Plan in a new process, which has nothing of the tier in its cache."""
    command = [sys.executable, "-m", "tests.benchmarks.plans", "--measure", str(path)]
    run = subprocess.run(command + ["--hour"] * hour, stdout=subprocess.PIPE, check=True, text=True)
    return PlanCost(**json.loads(run.stdout))


def _measure(path: Path, narrowing: Narrowing) -> PlanCost:
    """Plan and serialize the tasks, as Spark's driver does."""
    options = parse({"topic": "t", "path": str(path), "timestampSkewMs": "60000"})
    began_s = time.process_time()
    with Survey(options) as survey:
        plan = plan_batch(survey, options, narrowing)
    groups = [TidemarkPartition(group) for group in plan.groups(options.task_bytes)]
    serialized = list(map(pickle.dumps, groups))
    cpu_s = time.process_time() - began_s
    tasks = [planned.task for planned in plan.tasks]
    size = sum(task.size_bytes for task in tasks if isinstance(task, RemoteTask))
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return PlanCost(cpu_s, peak_kib / 1024, len(serialized), size)


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
    # Pages are sealed without a commit for each, because those would take hours.
    pages, head = _Commit(tier.manifests._store, "", PAGE_ENTRIES), loaded.head
    for first in range(0, count, PAGE_ENTRIES):
        numbers = range(first, min(first + PAGE_ENTRIES, count))
        added = tuple(_entry(topic_id, number, count) for number in numbers)
        head = pages.sealed(replace(head, entries=head.entries + added))

    def write(before: Head) -> Head:
        return replace(head, version=before.version, commit_id=before.commit_id)

    tier.manifests.commit(loaded, write)


def _entry(topic_id: uuid.UUID, number: int, count: int) -> SegmentEntry:
    copied = new_segment(
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
    # Digests do not compress, so they have to differ.
    log, aux = (uuid.uuid4().bytes + uuid.uuid4().bytes for _ in range(2))
    digests = Digests(DigestAlgorithm.BLAKE3, log, aux)
    return replace(copied, state=SegmentState.COPY_FINISHED, digests=digests)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=SEGMENTS)
    parser.add_argument("--measure", type=Path, help="plan this tier only, and print the cost")
    parser.add_argument("--hour", action="store_true")
    given = parser.parse_args()
    if given.measure is None:
        print(plan_figures(given.segments))
        return
    hour = Narrowing(since_ms=YEAR_MS // 2, until_ms=YEAR_MS // 2 + HOUR_MS)
    cost = _measure(given.measure, hour if given.hour else NO_NARROWING)
    print(json.dumps({name: getattr(cost, name) for name in PlanCost.__slots__}))


if __name__ == "__main__":
    main()
