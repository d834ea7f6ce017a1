"""A plan has each offset exactly once, whatever has happened to the partition's tier.

Copies overlap, leaders take over, segments expire, tiering is disabled with either policy and
enabled again, and pages are sealed and dropped (invariants 4, 5 and 26).
"""

import itertools
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tidemark.tier.metadata import transitions
from tidemark.tier.metadata.head import (
    Claim,
    Diverged,
    Head,
    IllegalTransition,
    ManifestPage,
    new_head,
)
from tidemark.tier.metadata.queries import pending_deletes
from tidemark.tier.metadata.segment import new_segment
from tidemark.tier.reader import Snapshot
from tidemark.tiering import DisablePolicy, Tiering, TieringState
from tidemark_pipeline.read.tasks import RemoteTask, cut
from tidemark_pipeline.read.topic_survey import tier_ranges

TOPIC_ID, CLUSTER = uuid.UUID(int=1), "c"
OPERATIONS = (
    # Most operations are copies, so that a history has segments to work on.
    *("copy",) * 6,
    *("enable",) * 3,
    "lead",
    "expire",
    "retain",
    "delete",
    "seal",
    "drop",
)


@dataclass
class PartitionHistory:
    """Head of a partition and its pages, for a log that ends at ``end``."""

    end: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(1, 0)])
    pages: dict[str, ManifestPage] = field(default_factory=dict)
    head: Head = field(
        default_factory=lambda: new_head(
            topic="t",
            topic_id=TOPIC_ID,
            partition=0,
            cluster_id=CLUSTER,
            leader_epoch=1,
            tiering=Tiering(TieringState.ENABLED, 0),
            broker_id=1,
            log_start_offset=0,
        )
    )

    def copy(self, a: int, b: int) -> None:
        """Copy ``a`` offsets beyond the tier's end, and ``b`` of its last offsets again."""
        # An expiration may have moved the log start beyond the tier's end.
        behind = max(self.head.next_copy_offset, self.head.log_start_offset)
        start, last = max(behind - b, self.head.log_start_offset), behind + a
        by = self.head.claim
        entry = new_segment(
            topic="t",
            topic_id=TOPIC_ID,
            partition=0,
            segment_id=uuid.uuid4(),
            start_offset=start,
            end_offset_inclusive=last,
            max_timestamp_ms=last,
            size_bytes=100,
            broker_id=1,
            event_time_ms=0,
            leader_epochs=self._epochs(start, last),
            leader_epoch=by.leader_epoch,
            tiered_epoch=by.tiered_epoch,
        )
        started = transitions.start_copy(self.head, by, entry)
        self.end = max(self.end, last + 1)
        if a == 3:  # The copy is abandoned.
            self.head = transitions.abandon_copy(started, by, entry, now_ms=0)
        else:
            self.head = transitions.finish_copy(started, by, entry, b"")

    def lead(self, a: int, b: int) -> None:
        self._claim(self.head.claim.leader_epoch + 1, self.head.tiering)
        self.end += b
        self.epochs.append((self.head.claim.leader_epoch, self.end))

    def expire(self, a: int, b: int) -> None:
        offset = min(self.head.log_start_offset + a + b, self.end)
        self.head = transitions.expire_to(
            self.head, self.head.claim, offset, now_ms=0, delete_delay_ms=0
        )

    def retain(self, a: int, b: int) -> None:
        epoch = self.head.tiering.epoch + 1
        retained = Tiering(TieringState.DISABLED, epoch, DisablePolicy.RETAIN)
        self._claim(self.head.claim.leader_epoch, retained)

    def delete(self, a: int, b: int) -> None:
        by = Claim(self.head.claim.leader_epoch, self.head.tiering.epoch + 1)
        self.head = transitions.disable_delete(
            self.head,
            by,
            cluster_id=CLUSTER,
            broker_id=1,
            log_start_offset=min(self.head.log_start_offset + a, self.end),
            now_ms=0,
            delete_delay_ms=0,
        )

    def enable(self, a: int, b: int) -> None:
        tiering = Tiering(TieringState.ENABLED, self.head.tiering.epoch + 1)
        self._claim(self.head.claim.leader_epoch, tiering)

    def seal(self, a: int, b: int) -> None:
        name = f"page-{uuid.uuid4()}"
        sealed = transitions.seal(self.head, name, 1 + a % 3)
        if sealed is not None:
            self.head, self.pages[name] = sealed

    def drop(self, a: int, b: int) -> None:
        deletable = pending_deletes(self.head, self.pages, now_ms=1, delay_ms=0, limit=1 + a)
        self.head = transitions.finish_delete(self.head, self.head.claim, deletable)

    def _epochs(self, start: int, last: int) -> list[tuple[int, int]]:
        """Return the epochs of the range."""
        ends = [*(begin for _, begin in self.epochs[1:]), last + 1]
        return [
            (epoch, max(begin, start))
            for (epoch, begin), end in zip(self.epochs, ends, strict=True)
            if max(begin, start) < min(end, last + 1)
        ]

    def _claim(self, leader_epoch: int, tiering: Tiering) -> None:
        self.head = transitions.claim(
            self.head, leader_epoch, tiering, cluster_id=CLUSTER, broker_id=1, now_ms=0
        )


steps = st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 9), st.integers(0, 6))


@given(
    steps=st.lists(steps, max_size=40),
    places=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    task_bytes=st.integers(1, 1000),
)
def test_plan_has_each_offset_once_after_any_history(
    steps: list[tuple[str, int, int]], places: tuple[float, float], task_bytes: int
) -> None:
    history = PartitionHistory()
    for name, a, b in steps:
        try:
            getattr(history, name)(a, b)
        except (IllegalTransition, Diverged):
            continue  # A leader does not make this transition either.
    first, until = sorted(round(history.end * place) for place in places)
    found = read(history.head, history.pages, first, until, task_bytes)
    assert found == list(range(max(first, history.head.log_start_offset), until))


def read(
    head: Head, pages: Mapping[str, ManifestPage], first: int, until: int, task_bytes: int
) -> list[int]:
    """Return the offsets of all tasks, in their order."""
    known: Any = pages
    snapshot = Snapshot(head, head.version, known)
    start, ranges = tier_ranges(snapshot, first, until)
    # The sizes cover the same offsets without a gap, although most pages are not loaded.
    covered = [
        (part.from_offset, part.to_offset_inclusive + 1)
        for part in tier_ranges(snapshot, first, until)[1]
    ]
    sizes = list(snapshot.sizes(start, until))
    assert [at[0] for at in covered][:1] == [size[0] for size in sizes][:1]
    assert [at[1] for at in covered][-1:] == [size[1] for size in sizes][-1:]
    assert all(one[1] == other[0] for one, other in itertools.pairwise(sizes))
    offsets: list[int] = []
    for task in (
        cut(0, start, until, ranges, brokers=True, task_bytes=task_bytes) if start < until else ()
    ):
        if isinstance(task, RemoteTask):
            for part in task.ranges:
                entry = part.entry
                assert entry.start_offset <= part.from_offset <= part.to_offset_inclusive
                assert part.to_offset_inclusive <= entry.end_offset_inclusive
                offsets += range(part.from_offset, part.to_offset_inclusive + 1)
        else:
            offsets += range(task.start_offset, task.end_offset)
    return offsets
