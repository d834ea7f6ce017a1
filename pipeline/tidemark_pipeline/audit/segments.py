"""Audit of a topic in the tier, in tasks: verify each segment, and that each offset has one.

Objects are created and deleted meanwhile. They are therefore listed *before* the manifests are
read, and a finding about a segment counts only if the manifest still names it afterwards. This
module does not use Spark; ``jobs.audit`` distributes the tasks.

Readers verify what they serve. An audit verifies a segment before it is read: its sizes as listed,
the auxiliary object, the digest of each piece, and each batch.
"""

import itertools
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from tidemark.tier.maintenance.audit_record import WORST_MAX, TopicAudit, WorstFinding
from tidemark.tier.maintenance.findings import Finding, FindingKind, of_entry, of_line
from tidemark.tier.maintenance.head_repair import check_against_objects
from tidemark.tier.metadata.head import Head, ManifestError
from tidemark.tier.metadata.layout import topic_data_prefix
from tidemark.tier.metadata.manifest import PageNotFound
from tidemark.tier.metadata.queries import live_segments
from tidemark.tier.metadata.segment import SegmentEntry
from tidemark.tier.metadata.topics import TopicObject
from tidemark.tier.open import Tier, open_tier
from tidemark.tier.segments.integrity import (
    BatchLine,
    ObjectDamaged,
    damaged,
    list_batches,
    verified_batches,
)
from tidemark.tier.segments.remote_storage_manager import (
    RemoteStorageManager,
    decode_custom_metadata,
    stored_log_bytes,
)
from tidemark.tier.stores.config import RemoteStorage
from tidemark.tier.stores.objects import ObjectNotFound

TASK_BYTES = 64 * 1024 * 1024
#: Part of a log that is read at once.
_PART_BYTES = 8 * 1024 * 1024
#: Most findings of one manifest and of one task.
FINDINGS_MAX = 1000


@dataclass(frozen=True, slots=True)
class AuditTask:
    """Segments of one partition that one task reads.

    Each has the listed sizes of its log and of its indexes, or None if the listing lacks one.
    """

    topic_id: uuid.UUID
    partition: int
    segments: tuple[tuple[SegmentEntry, tuple[int, int] | None], ...]


@dataclass(frozen=True, slots=True)
class AuditPlan:
    """Tasks of a topic, findings within its manifests, and the versions of the readable heads."""

    tasks: tuple[AuditTask, ...]
    findings: tuple[Finding, ...]
    versions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TaskResult:
    """Result of a task: segments and bytes that were read, and findings."""

    segments: int
    size_bytes: int
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class AuditReport:
    """Report about one topic.

    ``versions``: as in the plan. ``segments`` and ``size_bytes``: what was read. ``findings`` are
    ordered by partition and offset.
    """

    topic: TopicObject
    versions: tuple[int, ...]
    segments: int
    size_bytes: int
    findings: tuple[Finding, ...]

    @classmethod
    def of(
        cls, topic: TopicObject, planned: AuditPlan, done: Sequence[TaskResult]
    ) -> "AuditReport":
        """Combine the findings of the manifests (``planned``) and of the tasks (``done``)."""
        findings = [
            *planned.findings,
            *(finding for result in done for finding in result.findings),
        ]
        return cls(
            topic,
            planned.versions,
            sum(result.segments for result in done),
            sum(result.size_bytes for result in done),
            tuple(
                sorted(findings, key=lambda item: (item.partition, item.start_offset, item.kind))
            ),
        )

    def outcome(self, *, at_ms: int, by: str) -> TopicAudit:
        """Return the summary of the audit that is stored in the tier.

        ``at_ms``: start of the audit, Unix time in milliseconds. ``by``: name of the program.
        """
        kinds = list(FindingKind)
        counts = Counter(finding.kind for finding in self.findings)
        # The stored summary is bounded: it has the counts of all findings, but only the most severe
        # ones in detail. FindingKind is ordered by severity.
        worst = sorted(self.findings, key=lambda item: kinds.index(item.kind))[:WORST_MAX]
        return TopicAudit(
            topic_id=self.topic.topic_id,
            name=self.topic.name,
            at_ms=at_ms,
            by=by,
            manifests=len(self.versions),
            versions=(min(self.versions, default=0), max(self.versions, default=0)),
            segments=self.segments,
            size_bytes=self.size_bytes,
            counts={kind: counts[kind] for kind in kinds if counts[kind]},
            worst=tuple(_worst(finding) for finding in worst),
        )


def plan(tier: Tier, topic: TopicObject, task_bytes: int = TASK_BYTES) -> AuditPlan:
    """Check a topic's manifests and divide the check of its segments into tasks.

    ``task_bytes``: segment bytes per task. Raises StoreUnavailable.
    """
    # The objects are listed before the manifests are read. An object that is deleted in between is
    # then no longer in its manifest, and is no finding.
    sizes = _listed(tier, topic)
    tasks: list[AuditTask] = []
    findings: list[Finding] = []
    versions: list[int] = []
    for partition in tier.reader.partitions(topic.topic_id):
        try:
            check_against_objects(tier, topic.topic_id, partition)
            head, live = _live(tier, topic.topic_id, partition)
        # A corrupt manifest is a finding of its partition; the others are still audited.
        except ManifestError as error:
            findings.append(
                Finding(
                    kind=FindingKind.MANIFEST,
                    topic=topic.name,
                    topic_id=topic.topic_id,
                    partition=partition,
                    detail=str(error),
                )
            )
            continue
        versions.append(head.version)
        findings += itertools.islice(of_line(head, live), FINDINGS_MAX)
        tasks += _split(topic.topic_id, partition, live, sizes, task_bytes)
    return AuditPlan(tuple(tasks), tuple(findings), tuple(versions))


def run_task(storage: RemoteStorage, task: AuditTask) -> TaskResult:
    """Read and verify the segments of one task.

    Raises StoreUnavailable, SegmentUnreadable included. Nothing is known about the segments then.
    """
    tier = open_tier(storage)
    findings: list[Finding] = []
    size_bytes = 0
    for entry, listed_bytes in task.segments:
        size_bytes += entry.size_bytes
        try:
            _verify_segment(tier.segments, entry, listed_bytes)
        except ObjectNotFound as error:
            # Retention may have deleted the segment after the plan was made.
            findings += _if_live(tier, task, entry, FindingKind.MISSING, str(error))
        except ObjectDamaged as error:
            findings += _if_live(tier, task, entry, FindingKind.DAMAGED, str(error))
    # In a damaged store each segment may have a finding, so the number is bounded to protect the
    # driver's memory.
    return TaskResult(len(task.segments), size_bytes, tuple(findings[:FINDINGS_MAX]))


def _if_live(
    tier: Tier, task: AuditTask, entry: SegmentEntry, kind: FindingKind, detail: str
) -> Iterator[Finding]:
    """Yield the finding if the manifest still names the segment, which may have expired
    meanwhile.
    """
    head, live = _live(tier, task.topic_id, task.partition)
    if any(segment.segment_id == entry.segment_id for segment in live):
        yield of_entry(head, entry, kind, detail)


def _live(tier: Tier, topic_id: uuid.UUID, partition: int) -> tuple[Head, list[SegmentEntry]]:
    """Return the current head and its live segments, from one consistent state.

    Raises ManifestError, StoreUnavailable.
    """
    # A page that the head names may be replaced meanwhile, so the head is read up to three times.
    for last in (False, False, True):
        head = tier.manifests.load(topic_id, partition).head
        try:
            return head, list(live_segments(head, tier.manifests.pages(topic_id, partition)))
        except PageNotFound:
            if last:
                raise
    raise AssertionError


def _listed(tier: Tier, topic: TopicObject) -> dict[str, int]:
    folder = topic_data_prefix(topic.name, topic.topic_id)
    return {
        info.key: info.size_bytes
        for store in tier.segments.stores.values()
        for info in store.list(folder)
    }


def _split(
    topic_id: uuid.UUID,
    partition: int,
    live: Sequence[SegmentEntry],
    sizes: dict[str, int],
    task_bytes: int,
) -> Iterator[AuditTask]:
    """Yield tasks for the live segments of a partition.

    Each task but the last has at least ``task_bytes``. ``sizes``: listed object sizes by key.
    """
    group: list[tuple[SegmentEntry, tuple[int, int] | None]] = []
    size_bytes = 0
    for entry in live:
        # If one of the two objects is not listed, no size is compared and reading reports the
        # missing object.
        both = sizes.get(entry.log_key), sizes.get(entry.aux_key)
        group.append((entry, None if None in both else both))  # type: ignore[arg-type]
        size_bytes += entry.size_bytes
        if size_bytes >= task_bytes:
            yield AuditTask(topic_id, partition, tuple(group))
            group, size_bytes = [], 0
    if group:
        yield AuditTask(topic_id, partition, tuple(group))


def _worst(finding: Finding) -> WorstFinding:
    return WorstFinding(
        finding.kind,
        finding.partition,
        finding.object,
        finding.start_offset,
        finding.end_offset_inclusive,
    )


def _verify_segment(
    segments: RemoteStorageManager, entry: SegmentEntry, listed_bytes: tuple[int, int] | None
) -> None:
    """Read a whole segment and verify it: sizes, indexes, digests and every batch.

    ``listed_bytes``: sizes of ``.log`` and ``.aux`` in a listing, None to skip this check. Raises
    ObjectDamaged with the cause, ObjectNotFound if an object is missing, SegmentUnreadable, and
    another StoreUnavailable if the store does not answer.
    """
    # Cheapest checks first: sizes, then the small auxiliary object, then the log.
    if listed_bytes is not None:
        _check_sizes(segments, entry, listed_bytes)
    aux = segments.fetch_aux(entry)
    store = segments.describe(entry)
    line = BatchLine(entry, store)
    parts = (
        segments.fetch(entry, begin, begin + _PART_BYTES, aux.frames)
        for begin in range(0, entry.size_bytes, _PART_BYTES)
    )
    for position, data, headers in verified_batches(entry, parts, aux.pieces, store, list_batches):
        for at, header in headers:
            line.follow(header.base_offset, header.last_offset, position + at, header.size_bytes)
            # Offsets below this one are served from the preceding segment. Their leader epochs may
            # be truncated from the entry.
            if header.last_offset >= entry.from_offset:
                line.check_batch(data, at)
    line.finish()


def _check_sizes(
    segments: RemoteStorageManager, entry: SegmentEntry, listed_bytes: tuple[int, int]
) -> None:
    """Compare the listed sizes of both objects with the manifest's. Raises ObjectDamaged."""
    log_bytes, aux_bytes = listed_bytes
    expected_bytes = stored_log_bytes(entry)
    if log_bytes != expected_bytes:
        what = f"it has {log_bytes} bytes, the manifest says {expected_bytes}"
        raise _damaged(segments, entry, entry.log_key, what)
    if entry.custom_metadata is None:
        return
    stored_bytes = decode_custom_metadata(entry.custom_metadata).size_bytes
    if log_bytes + aux_bytes != stored_bytes:
        what = f"it has {aux_bytes} bytes, its copier wrote {stored_bytes - log_bytes}"
        raise _damaged(segments, entry, entry.aux_key, what)


def _damaged(
    segments: RemoteStorageManager, entry: SegmentEntry, key: str, what: str
) -> ObjectDamaged:
    return damaged(entry, key, segments.describe(entry), what)


# ------------------------------------------------------------ Audit in Spark

# Audit a topic on Spark.
#
# Executors read whole segments, so the audit takes the time of reading the tier once, divided by
# the number of cores.


def audit(
    session: SparkSession,
    storage: RemoteStorage,
    topic: TopicObject,
    task_bytes: int = TASK_BYTES,
) -> AuditReport:
    """Verify every live segment of a topic, in Spark tasks of about ``task_bytes``.

    Raises StoreUnavailable if the store fails or a segment is unreadable here, wrapped in Spark's
    error if an executor fails. In both cases the audit has no result.
    """
    planned = plan(open_tier(storage), topic, task_bytes)
    done: list[TaskResult] = []
    # A topic without segments needs no Spark job. Otherwise each task is a partition of its own,
    # so that executors share the work evenly.
    if planned.tasks:
        shares = session.sparkContext.parallelize(planned.tasks, len(planned.tasks))
        done = shares.map(lambda task: run_task(storage, task)).collect()
    return AuditReport.of(topic, planned, done)
