"""Export a topic into a table exactly once, up to its current end or continuously.

The job plans one range of offsets after another, and each range is one read of Spark and one commit
of the table. The start position comes from the table
(:mod:`tidemark_pipeline.export.export_progress`), so the job needs no checkpoint of a stream. A
stream would also copy each row once more before it is written.
"""

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from pyspark.sql import DataFrame, SparkSession

from tidemark.export_job import TopicsReport
from tidemark.kafka_client.errors import KafkaError
from tidemark.log_lineage import LogLineage, divergence
from tidemark.tier.metadata.head import ManifestError
from tidemark.tier.metadata.topics import TopicNotFound
from tidemark.tier.stores.objects import StoreError
from tidemark_pipeline.errors import DataLoss, DependencyUnavailable
from tidemark_pipeline.export.export_progress import (
    Exported,
    ExportError,
    check_lineage,
    check_topic,
)
from tidemark_pipeline.export.maintenance import Upkeep
from tidemark_pipeline.export.record_deletion import Deleter, points
from tidemark_pipeline.export.row_shapes import RAW, raw
from tidemark_pipeline.export.table import RowCounts, TargetTable, Written
from tidemark_pipeline.read.options import ONLY_LOCAL, BatchLimits, Options, is_kafka_topic
from tidemark_pipeline.read.plan import ending, starting
from tidemark_pipeline.read.positions import Earliest
from tidemark_pipeline.read.streaming import end_of_batch
from tidemark_pipeline.read.topic_source import read_topic, topic_options
from tidemark_pipeline.read.topic_survey import Part, Survey

R = TypeVar("R")
logger = logging.getLogger(__name__)

#: Errors of a query of the topic's end that may be absent at the next attempt.
TRANSIENT = (ManifestError, StoreError, TopicNotFound, KafkaError)
#: Default limits of one commit. Kafka's protocol reports offsets but no sizes before the fetch, so
#: its limit is a number of records.
_DEFAULT_LIMITS = {"maxBytesPerTrigger": str(1024**3)}
_DEFAULT_KAFKA_LIMITS = {"maxOffsetsPerTrigger": "1000000"}
_POLL_S = 1.0
_LAG_INTERVAL_S = 60.0
#: Tag of the export's jobs in Spark.
_TAG = "tidemark-export"
#: Options of a read that a batch replaces.
_RANGE = ("starting", "ending", "maxoffsetspertrigger", "maxbytespertrigger", "columns")
#: Spark's error if the process that plans a read does not start within 10 s, which no setting
#: changes.
_WORKER_LATE = re.compile(r"(?:failed|waiting for the Python worker) to connect back")
_WORKER_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class ExportProgress:
    """Progress after a commit or a query of the topic's end.

    ``lag``: offsets of the topic that the table does not contain. ``current_ms``: see
    :class:`Freshness`. ``deleted``: offsets that the job has deleted from the topic.
    ``exported_offsets``: offsets from the log start, when the job started, to the table's position.
    ``observed_ms``: Unix time just before the last query of the topic's end.
    """

    commits: int
    written: Written
    exported: Exported
    lag: int
    counts: RowCounts
    current_ms: int | None
    deleted: int = 0
    exported_offsets: int | None = None
    observed_ms: int | None = None

    @property
    def lag_ms(self) -> int | None:
        """Return the time from ``current_ms`` to the last query, None while unknown."""
        if self.current_ms is None or self.observed_ms is None:
            return None
        return max(0, self.observed_ms - self.current_ms)

    @property
    def topics(self) -> TopicsReport | None:
        """Return None: the export has one topic."""
        return None


def export(
    session: SparkSession,
    options: Mapping[str, str],
    table: TargetTable,
    *,
    every_s: float | None = None,
    stop: threading.Event | None = None,
    deleter: Deleter | None = None,
    upkeep: Upkeep | None = None,
    on_commit: Callable[[ExportProgress], None] = lambda _: None,
    on_progress: Callable[[ExportProgress], None] = lambda _: None,
) -> ExportProgress:
    """Export a topic into a table, up to its current end or continuously.

    With ``every_s`` the export commits at this interval (seconds) until ``stop`` is set. Without it
    the export ends at the topic's current end, or when ``stop`` is set.

    ``options`` are those of the source, with one ``topic``. Its starting options apply only to a
    new table. ``on_commit`` is called after each commit. ``on_progress`` is called after each
    commit, after the claim of the table, and after each query of the topic's end. ``deleter``
    deletes committed records from the topic, first those of earlier runs. The table's layout must
    declare that the export deletes. ``upkeep`` maintains the table between batches.

    Returns the final progress. Raises :class:`ExportError`, or Spark's error if reading or writing
    failed. Committed data stays, and the next run continues after the last committed offset.
    """
    if not options.get("topic"):
        raise ExportError("name the topic with the option 'topic'")
    # Options are validated before the claim, which takes the table from a running export.
    read = topic_options(options, streaming=True)
    with Survey(read) as survey:
        try:
            batches = claimed_batches(
                options, table, survey, deleter, on_commit=on_commit, on_progress=on_progress
            )
            maintained: AbstractContextManager[None] = nullcontext()
            if upkeep is not None:
                batches.writing = upkeep.writing
                maintained = upkeep.during(
                    batches.has_exported, stop or threading.Event(), once=every_s is None
                )
            on_progress(batches.progress)
            with maintained:
                _run_batches(session, options, batches, every_s, stop or threading.Event())
        finally:
            table.close()
        return batches.progress


def claimed_batches(
    options: Mapping[str, str],
    table: TargetTable,
    survey: Survey,
    deleter: Deleter | None,
    *,
    on_commit: Callable[[ExportProgress], None] = lambda _: None,
    on_progress: Callable[[ExportProgress], None] = lambda _: None,
) -> "TopicBatches":
    """Claim the table for a topic, and return what commits the topic's batches to it.

    ``survey``: of the topic. Records that an earlier run committed but did not delete are deleted.
    Raises :class:`ExportError`. The caller closes the table.
    """
    if deleter is not None and not topic_options(options, streaming=True).fail_on_data_loss:
        raise ExportError(
            "failOnDataLoss=false allows to skip records, and the export would delete these from "
            "the topic as well. Remove failOnDataLoss=false"
        )
    parts = survey.parts()
    topic_id = str(parts[0].topic_id or "") if parts else ""
    # The claim fences an earlier writer of the table: its later commits fail. The progress that the
    # claim returns is therefore final until this job commits.
    claimed = table.claim(options["topic"], topic_id)
    # If the topic was re-created, or lost records in an unclean leader election, the table has
    # records that the topic no longer has. New records must not be appended to them.
    check_log_lineage(survey, parts, claimed)
    given = batch_options(options, claimed)
    rules = StartRules(topic_options(given, streaming=True), claimed.topic)
    if is_kafka_topic(options):
        # Spark's own Kafka source does not report records that expired before they were read, so
        # the job compares the log starts with the table's end.
        rules.check_not_expired(
            claimed, {part.partition: at for part, at in survey.log_starts(parts).items()}
        )
    batches = TopicBatches(table, claimed, survey, rules, deleter, on_commit, on_progress)
    if deleter is not None:
        rules.check_deletable(claimed, [part.partition for part in parts])
        batches.delete()
    return batches


@dataclass(frozen=True, slots=True)
class StartRules:
    """Rules for the start of partitions that the table does not contain yet."""

    options: Options
    topic: str

    def is_log_start(self, partition: int) -> bool:
        """Return whether the run starts a new partition at its log start and skips no record.

        With tier=local the brokers' local log starts behind the first record of the tier.
        """
        position = self.options.starting.of(self.topic, partition)
        return isinstance(position, Earliest) and self.options.tier != ONLY_LOCAL

    def check_not_expired(self, claimed: Exported, log_starts: Mapping[int, int]) -> None:
        """Raise :class:`DataLoss` if the topic starts behind the table's end."""
        for partition, offset in claimed.offsets.items():
            start = log_starts.get(partition, 0)
            if start > offset and self.options.fail_on_data_loss:
                raise DataLoss(
                    f"the table continues at offset {offset} of {self.topic}-{partition}, but the "
                    f"log starts at {start}: the records in between have expired. Export into a "
                    "new table, or set failOnDataLoss=false to skip them"
                )

    def check_deletable(self, claimed: Exported, partitions: Iterable[int]) -> None:
        """Raise :class:`ExportError` if deletion would reach records that no table has."""
        if not claimed.deletes:
            raise ExportError("the table's layout does not declare that the export deletes records")
        new = [partition for partition in partitions if partition not in claimed.offsets]
        if not all(self.is_log_start(partition) for partition in new):
            raise ExportError(
                "deletion up to the committed offsets would also delete the records before the "
                "starting offsets, which no table contains. Start at the log start: remove the "
                "starting options and tier=local"
            )

    def reached(
        self,
        before: Exported,
        ends: Mapping[int, int],
        log_starts: Mapping[int, int],
        leader_epochs: Mapping[int, int] | None = None,
    ) -> Exported:
        """Return the progress that the table records for a batch whose records end at ``ends``.

        ``ends``: exclusive end offsets by partition. ``log_starts``: of partitions that are new to
        the table. ``leader_epochs``: of the records below ``ends``, which identify the log later. A
        job that accepts data loss marks the progress as possibly incomplete.
        """
        # Only a partition that is read from its log start has no records before its first row.
        starts = {
            partition: at for partition, at in log_starts.items() if self.is_log_start(partition)
        }
        reached = before.reaching(ends, starts, leader_epochs)
        return reached if self.options.fail_on_data_loss else reached.with_gap()


@dataclass(frozen=True, slots=True)
class BatchRange:
    """Offsets of one batch by partition. ``is_last``: it reaches the end that was requested.
    ``is_empty``: the table already has its ends."""

    starts: Mapping[int, int]
    ends: Mapping[int, int]
    is_last: bool
    is_empty: bool


class TopicBatches:
    """Ranges of a topic that are committed to its table, and the export's progress."""

    def __init__(
        self,
        table: TargetTable,
        claimed: Exported,
        survey: Survey,
        rules: StartRules,
        deleter: Deleter | None,
        on_commit: Callable[[ExportProgress], None],
        on_progress: Callable[[ExportProgress], None],
    ) -> None:
        """Query the topic's ends for the first progress report.

        ``claimed``: progress of the table. ``deleter``: None if the topic keeps its records.
        """
        self._table, self._survey = table, survey
        self._on_commit, self._on_progress = on_commit, on_progress
        # Offsets that this job has deleted from the topic.
        self._rules, self._deleter, self._deleted = rules, deleter, 0
        # Held while a batch is planned and written.
        self.writing: AbstractContextManager[object] = nullcontext()
        self._freshness = Freshness()
        # End of each partition, at the last query.
        self._ends: Mapping[int, int] = {}
        # Log start of each partition at the first query, from which the progress counts.
        self._first_starts: dict[int, int] = {}
        # Guards the survey's connections and the progress: batches and queries of the topic's end
        # run in two threads.
        self._lock = threading.Lock()
        self.progress = self._progress_after(0, Written(), claimed)

    def next_range(
        self, until: Mapping[int, int] | None = None, *, limited: bool = True
    ) -> BatchRange:
        """Return the offsets of the next batch of the topic, within the limits of one commit.

        ``until``: end offset of each partition, None for the end that the options request, which
        is the topic's current end by default. Raises :class:`ExportError`, and :class:`DataLoss` if
        records to read have expired.
        """
        exported, options = self.progress.exported, self._rules.options
        with self._lock:
            parts = self._current_parts(exported)
            extents = self._survey.extents(parts)
            log_starts = {part.partition: extent.log_start for part, extent in extents.items()}
            self._rules.check_not_expired(exported, log_starts)
            # A log that ends below the table has lost records, even if it has no new ones.
            if any(e.end < exported.offsets.get(p.partition, 0) for p, e in extents.items()):
                check_log_lineage(self._survey, parts, exported)
            starts, ends = {}, {}
            for part, extent in extents.items():
                # The starting options apply to a new table only. A partition that is added later
                # starts at its log start: records that precede this query are not skipped.
                # Without failOnDataLoss, expired records are.
                starts[part] = (
                    max(exported.offsets.get(part.partition, 0), extent.log_start)
                    if exported.offsets
                    else starting(self._survey, options, part, extent)
                )
                end = (
                    ending(self._survey, options, part, extent)
                    if until is None
                    else until.get(part.partition, 0)
                )
                ends[part] = max(starts[part], min(end, extent.end))
            limits = options.limits if limited else BatchLimits()
            reached = end_of_batch(self._survey, limits, starts, ends)
        return BatchRange(
            {part.partition: at for part, at in starts.items()},
            {part.partition: at for part, at in reached.items()},
            is_last=reached == ends,
            is_empty=all(
                exported.offsets.get(part.partition) == at for part, at in reached.items()
            ),
        )

    def commit_next(
        self, read: Callable[[BatchRange], DataFrame], until: Mapping[int, int] | None
    ) -> bool:
        """Commit the next batch if it is not empty; return whether it reaches the requested end.

        ``read``: returns the rows of a range. ``until``: see :meth:`next_range`.
        """
        # The range and the checks of the topic follow the wait for maintenance, which may take
        # minutes: records may expire meanwhile, and the topic may be recreated.
        with self.writing:
            batch = self.next_range(until)
            if not batch.is_empty:
                self.commit(read(batch), batch.ends)
        return batch.is_last

    def commit(self, frame: DataFrame, ends: Mapping[int, int]) -> None:
        """Commit a batch, then delete its records from the topic if that is requested.

        ``ends``: end offset of each partition in the batch.
        """
        before = self.progress
        # Check that the topic is still the one that was exported, and read the leader epochs of
        # the ends.
        with self._lock:
            parts = self._current_parts(before.exported)
            read = {part: ends[part.partition] for part in parts if part.partition in ends}
            positions = self._survey.positions(read)
            check_log_lineage(self._survey, parts, before.exported)
        epochs = {
            part.partition: at.leader_epoch
            for part, at in positions.items()
            if at.leader_epoch is not None
        }
        # Combine the end offsets and their epochs into the progress that this commit stores in
        # the table.
        reached = self._rules.reached(before.exported, ends, self._log_starts(before, ends), epochs)
        # An empty batch, such as the first one of a query, needs no commit.
        if reached.offsets == before.exported.offsets:
            return
        written = self._table.commit(frame, reached)
        # Deletion follows the commit, so that a crash between them loses no record.
        self.delete()
        with self._lock:
            self.progress = self._progress_after(
                before.commits + 1, before.written + written, reached
            )
        self._on_commit(self.progress)
        self._on_progress(self.progress)

    def has_exported(self) -> bool:
        """Return whether the job has committed, or had nothing to commit."""
        return self.progress.commits > 0 or self.progress.lag == 0

    def delete(self) -> None:
        """Delete the records from the topic that the table's newest commit contains."""
        if self._deleter is None:
            return
        committed = self._table.progress()
        with self._lock:
            # If the topic was re-created or truncated, its offsets may belong to records that the
            # table does not have. These must not be deleted.
            parts = self._current_parts(committed)
            check_log_lineage(self._survey, parts, committed)
            starts = {part.partition: at for part, at in self._survey.log_starts(parts).items()}
        below = points(committed, starts)
        # Empty if the log starts have already reached the committed offsets.
        if below:
            self._deleter.delete(committed.topic, committed.topic_id, below)
            self._deleted += sum(at.offset - starts[partition] for partition, at in below.items())
            with self._lock:
                self.progress = replace(self.progress, deleted=self._deleted)

    def _log_starts(self, before: ExportProgress, ends: Mapping[int, int]) -> dict[int, int]:
        """Return the log starts of partitions that the table does not contain.

        Records that expire before they are read are lost in any case, so the time of the query does
        not matter.
        """
        numbers = ends.keys() - before.exported.offsets.keys()
        if not numbers:
            return {}
        with self._lock:
            new = [
                part for part in self._current_parts(before.exported) if part.partition in numbers
            ]
            return {part.partition: e.log_start for part, e in self._survey.extents(new).items()}

    def _current_parts(self, exported: Exported) -> list[Part]:
        """Query the partitions again and check the topic's id. Raises :class:`ExportError`.

        Spark's own Kafka source knows only offsets, so it would continue with another topic of the
        same name.
        """
        self._survey.forget()
        parts = self._survey.parts()
        for part in parts[:1]:
            check_topic(exported, str(part.topic_id or ""))
        return parts

    def observe_end(self) -> bool:
        """Query the topic's end, for lag and freshness of the progress.

        Returns whether the table ends elsewhere. A log that ends below it has lost records.
        """
        with self._lock:
            now = self.progress
            self.progress = self._progress_after(now.commits, now.written, now.exported)
            offsets = now.exported.offsets
            return any(offsets.get(partition) != end for partition, end in self._ends.items())

    def report_lag(self) -> None:
        """Query the topic's end and report the lag.

        A failed query is repeated at the next call. Only a batch that cannot be planned ends the
        job.
        """
        try:
            self.observe_end()
        except TRANSIENT as error:
            logger.warning("the topic's end is not known: %s", error)
        self._on_progress(self.progress)

    def _progress_after(self, commits: int, written: Written, exported: Exported) -> ExportProgress:
        """Query the topic's current ends and return the progress, with lag and freshness."""
        parts = self._current_parts(exported)
        # The time before the query: later records may be missing from its answer.
        now_ms = time.time_ns() // 1_000_000
        ends = {part.partition: end for part, end in self._survey.ends(parts).items()}
        self._ends = ends
        # A partition that the table does not contain counts as read up to its log start.
        new = [
            part
            for part in parts
            if part.partition not in exported.offsets or part.partition not in self._first_starts
        ]
        starts = {part.partition: e.log_start for part, e in self._survey.extents(new).items()}
        self._first_starts = {**starts, **self._first_starts}
        from_log_start = replace(exported, offsets={**starts, **exported.offsets})
        self._freshness.observe(now_ms, ends, from_log_start.offsets)
        return ExportProgress(
            commits=commits,
            written=written,
            exported=exported,
            lag=from_log_start.lag(ends),
            counts=self._table.counts(),
            current_ms=self._freshness.current_ms,
            deleted=self._deleted,
            exported_offsets=sum(
                max(0, exported.offsets.get(partition, start) - start)
                for partition, start in self._first_starts.items()
            ),
            observed_ms=now_ms,
        )


def check_log_lineage(survey: Survey, parts: Sequence[Part], exported: Exported) -> None:
    """Raise :class:`ExportError` if the topic has lost records that the table contains.

    ``parts``: those that are read. A restore from the tier may also have lost other partitions of
    the table, if the tier had none of their records.
    """
    at = {
        part: exported.position(part.partition)
        for part in parts
        if part.partition in exported.offsets
    }
    diverged = survey.divergences(at)
    lost = {part.partition: lost_from for part, lost_from in diverged.items()}
    # The log of a partition that is not read, or is missing, cannot be queried. A recorded restore
    # shows where it ended.
    others = exported.offsets.keys() - {part.partition for part in parts}
    restores = survey.restores(parts[0]) if parts and others else ()
    for partition in others:
        known = LogLineage(partition=partition, restores=restores)
        lost_from = divergence(exported.position(partition), known)
        if lost_from is not None:
            lost[partition] = lost_from
    check_lineage(exported, lost)


def retry_late_workers(run: Callable[[], R]) -> R:
    """Call ``run``, and repeat it if Spark's Python process did not start within Spark's 10 s.

    The process starts before a batch is written, and a repeated call continues at the committed
    offsets. Raises :class:`DependencyUnavailable` after ``_WORKER_ATTEMPTS`` attempts.
    """
    for attempt in range(1, _WORKER_ATTEMPTS + 1):
        try:
            return run()
        except Exception as error:
            # Any other error belongs to the export and is not retried.
            if not _WORKER_LATE.search(str(error)):
                raise
            if attempt == _WORKER_ATTEMPTS:
                raise DependencyUnavailable(
                    "Spark's Python process did not start within the 10 s that Spark waits for it, "
                    f"{attempt} times: the machine is too busy. Nothing is lost. Give the job more "
                    "CPU, or run fewer jobs at a time on this machine, and start it again"
                ) from error
            logger.warning("Spark's Python process did not start in time: attempt %d", attempt + 1)
    raise AssertionError("unreachable: the last attempt returns or raises")


def batch_options(options: Mapping[str, str], claimed: Exported) -> dict[str, str]:
    """Return the source options from which batches are planned: with the limit of a batch, and with
    the start.

    ``claimed``: progress of the table.
    """
    given = dict(options)
    limits = {"maxoffsetspertrigger", "maxbytespertrigger"}
    # Without a limit the first batch would contain the whole topic in one commit.
    if not limits & {name.lower() for name in given}:
        given |= _DEFAULT_KAFKA_LIMITS if is_kafka_topic(options) else _DEFAULT_LIMITS
    if claimed.offsets:
        # The table's offsets take precedence over all starting options.
        given = {n: v for n, v in given.items() if not n.lower().startswith("starting")}
        offsets = {str(partition): offset for partition, offset in claimed.offsets.items()}
        given["startingOffsets"] = json.dumps({claimed.topic: offsets})
    elif not any(name.lower().startswith("starting") for name in given):
        given["startingOffsets"] = "earliest"
    return given


def read_batch(session: SparkSession, options: Mapping[str, str], batch: BatchRange) -> DataFrame:
    """Return the rows of a topic between two offsets of each partition.

    ``options``: those of the source, with one ``topic``.
    """
    given = {
        name: value
        for name, value in options.items()
        if name.lower() != "topic" and not name.lower().startswith(_RANGE)
    }
    topic = options["topic"]
    moved = [n for n, start in sorted(batch.starts.items()) if start < batch.ends[n]]
    # Without new records the batch only adds partitions to the progress.
    numbers = moved or sorted(batch.starts)[:1]
    for side, offsets in (("starting", batch.starts), ("ending", batch.ends)):
        named = {str(n): offsets[n] for n in numbers}
        given[f"{side}Offsets"] = json.dumps({topic: named})
    given["assign"] = json.dumps({topic: numbers})
    # Kafka's protocol has fewer columns, and ``raw`` adds the others.
    if not is_kafka_topic(options):
        given["columns"] = ",".join(RAW)
    return raw(read_topic(session, given))


def _run_batches(
    session: SparkSession,
    options: Mapping[str, str],
    batches: TopicBatches,
    every_s: float | None,
    stop: threading.Event,
) -> None:
    """Commit batches until ``stop`` is set or, without ``every_s``, up to the topic's end.

    ``every_s``: interval of a continuous export's commits in seconds. A batch that is running when
    ``stop`` is set is abandoned. The next run reads its records again. Raises the error of the
    batch that failed.
    """
    ended, context = threading.Event(), session.sparkContext

    def commit_all() -> None:
        context.addJobTag(_TAG)
        _commit_batches(session, options, batches, every_s, ended)

    # This thread reports the lag while a batch is written, and cancels the batch.
    with ThreadPoolExecutor(1, "export") as threads:
        done = threads.submit(commit_all)
        looked_s = time.monotonic()
        try:
            while not done.done() and not stop.is_set():
                wait([done], _POLL_S)
                if not done.done() and time.monotonic() - looked_s >= (every_s or _LAG_INTERVAL_S):
                    batches.report_lag()
                    looked_s = time.monotonic()
        finally:
            ended.set()
            # A batch starts further jobs after one was cancelled, so it is repeated.
            while not done.done():
                context.cancelJobsWithTag(_TAG)
                wait([done], _POLL_S)
    # A batch that is cancelled raises, too.
    if not stop.is_set():
        done.result()


def _commit_batches(
    session: SparkSession,
    options: Mapping[str, str],
    batches: TopicBatches,
    every_s: float | None,
    ended: threading.Event,
) -> None:
    """Commit one batch after another until ``ended`` is set or, without ``every_s``, up to the end.

    A table that is behind gets its next batch at once.
    """
    # The end is fixed when the job starts. Otherwise producers could keep the job running forever.
    until = batches.next_range(limited=False).ends if every_s is None else None

    def commit() -> bool:
        # Each attempt starts at the offsets that the previous one committed.
        return batches.commit_next(partial(read_batch, session, options), until)

    while not ended.is_set():
        due_s = time.monotonic() + (every_s or 0.0)
        if not retry_late_workers(commit):
            continue
        if every_s is None:
            return
        ended.wait(max(due_s - time.monotonic(), 0.0))


# ------------------------------------------------------------ Freshness


class Freshness:
    """Latest time whose records a table has completely, from offsets alone.

    A busy topic always has a record that the table lacks, so the lag in offsets says little about
    the age of the table's content. So the topic's end offsets are remembered at one moment. Once
    the table reaches them, it is as fresh as that moment. One moment is remembered at a time, so
    the result lags by at most two calls.

    ``current_ms``: that time, as Unix time in milliseconds; None while unknown.
    """

    def __init__(self) -> None:
        self.current_ms: int | None = None
        self._awaited: tuple[int, dict[int, int]] | None = None

    def observe(self, now_ms: int, ends: Mapping[int, int], offsets: Mapping[int, int]) -> None:
        """Update ``current_ms`` with the topic's end offsets and the table's offsets.

        ``now_ms``: Unix time. ``ends``: end offset of each partition now. ``offsets``: first offset
        of each partition that the table does not have.
        """
        # The table has everything, so it is as fresh as this moment.
        if _has(offsets, ends):
            self.current_ms, self._awaited = now_ms, None
            return
        if self._awaited is not None:
            then_ms, awaited = self._awaited
            # Wait until the table reaches the remembered ends. Replacing them at each call would
            # move the goal.
            if not _has(offsets, awaited):
                return
            self.current_ms = then_ms
        self._awaited = now_ms, dict(ends)


def _has(offsets: Mapping[int, int], ends: Mapping[int, int]) -> bool:
    return all(offsets.get(partition, 0) >= end for partition, end in ends.items())
