"""Export a topic into a table, exactly once: all that is there, or for as long as the job runs.

A structured stream from the tier and the brokers, whose micro-batches are commits of the table.
Where it begins is the table's to say (:mod:`tidemark_pipeline.export.export_progress`): the
stream's checkpoint is a folder that ends with the job, and is read for one thing only, up to where
the batch goes that is to be written.
"""

import json
import logging
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tidemark.tier.head import ManifestError
from tidemark.tier.objects import StoreError
from tidemark.tier.topics import TopicNotFound
from tidemark_pipeline.brokers import BrokerRefused, BrokersUnavailable
from tidemark_pipeline.engines import is_kafkas
from tidemark_pipeline.errors import DataLoss, DependencyUnavailable
from tidemark_pipeline.export.export_progress import (
    Exported,
    ExportError,
    check_lineage,
    check_topic,
)
from tidemark_pipeline.export.freshness import Freshness
from tidemark_pipeline.export.record_deletion import Deleter, points
from tidemark_pipeline.export.row_shapes import RAW, raw
from tidemark_pipeline.export.table import RowCounts, TargetTable, Written
from tidemark_pipeline.options import ONLY_LOCAL, Options
from tidemark_pipeline.positions import Earliest
from tidemark_pipeline.streaming import run_available
from tidemark_pipeline.topic_source import stream_topic, topic_options
from tidemark_pipeline.topic_survey import Part, Survey

logger = logging.getLogger(__name__)

#: What a look at the topic's end may meet, and the next one may not.
_PASSING = (ManifestError, StoreError, TopicNotFound, BrokersUnavailable, BrokerRefused)
#: Of one commit, where the options have no limit; Kafka's protocol tells no bytes before it tells
#: records.
_OF_OURS = {"maxBytesPerTrigger": str(1024**3)}
_OF_KAFKA = {"maxOffsetsPerTrigger": "1000000"}
_LOOK_S = 1
_ONCE_LOOK_S = 60.0
#: Spark's error if the process that plans a stream does not start within 10 s, which no setting
#: changes.
_WORKER_LATE = re.compile(r"(?:failed|waiting for the Python worker) to connect back")
_WORKER_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class ExportProgress:
    """After a commit, or a look at the topic. ``lag``: offsets of the topic that the table has not;
    ``current_ms``: see :class:`~tidemark_pipeline.export.freshness.Freshness`; ``deleted``: offsets
    that the job has deleted from the topic."""

    commits: int
    written: Written
    exported: Exported
    lag: int
    counts: RowCounts
    current_ms: int | None
    deleted: int = 0


def export(
    session: SparkSession,
    options: Mapping[str, str],
    table: TargetTable,
    *,
    every_s: float | None = None,
    stop: threading.Event | None = None,
    deleter: Deleter | None = None,
    say: Callable[[ExportProgress], None] = lambda _: None,
    watch: Callable[[ExportProgress], None] = lambda _: None,
) -> ExportProgress:
    """Export until the end that the topic has now, or with ``every_s`` a commit every so many
    seconds; in both cases until ``stop`` is set. ``options`` are the source's, with one ``topic``;
    those that say where to begin hold for a new table only. ``say`` is called after each commit;
    ``watch`` then, too, and when the table was claimed, and every ``every_s`` seconds. ``deleter``:
    deletes from the topic what is committed, at first what was before; the table's layout has to
    say that it does.

    Raises :class:`ExportError`, or Spark's error where reading or writing failed: what was
    committed stays, and the next run goes on from there."""
    if not options.get("topic"):
        raise ExportError("name the topic with the option 'topic'")
    # Whatever is wrong with them is told before the table is taken from whoever exports to it.
    read = topic_options(options, streaming=True)
    if deleter is not None and not read.fail_on_data_loss:
        raise ExportError(
            "with failOnDataLoss=false records may be left out, which deletion would take from the "
            "topic as well: leave that option out"
        )
    with Survey(read) as survey:
        parts = survey.parts()
        topic_id = str(parts[0].topic_id or "") if parts else ""
        claimed = table.claim(options["topic"], topic_id)
        try:
            check_log_lineage(survey, parts, claimed)
            given = stream_options(options, claimed, once=every_s is None)
            beginning = Beginning(topic_options(given, streaming=True), claimed.topic)
            if is_kafkas(options):
                beginning.check_kept(
                    claimed, {part.partition: at for part, at in survey.log_starts(parts).items()}
                )
            batches = _Batches(table, claimed, survey, beginning, deleter, say, watch)
            if deleter is not None:
                beginning.check_deletes(claimed, [part.partition for part in parts])
                batches.delete()
            watch(batches.progress)

            def run() -> None:
                reached = stream_options(options, batches.progress.exported, once=every_s is None)
                _run(session, reached, batches, every_s, stop)

            retry_late_workers(run)
        finally:
            table.close()
        return batches.progress


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where a run begins partitions of which the table has nothing, by its options."""

    options: Options
    topic: str

    def is_log_start(self, partition: int) -> bool:
        """So that nothing of it is left out that the topic has. What brokers hold locally begins
        later than what there is."""
        position = self.options.starting.of(self.topic, partition)
        return isinstance(position, Earliest) and self.options.tier != ONLY_LOCAL

    def check_kept(self, claimed: Exported, log_starts: Mapping[int, int]) -> None:
        """Raises :class:`DataLoss` where the topic begins behind what the table has."""
        for partition, offset in claimed.offsets.items():
            start = log_starts.get(partition, 0)
            if start > offset and self.options.fail_on_data_loss:
                raise DataLoss(
                    f"the table goes on at offset {offset} of {self.topic}-{partition}, which "
                    f"begins at {start}: what was between has expired. Export into a new table, "
                    "or go on without that by failOnDataLoss=false"
                )

    def check_deletes(self, claimed: Exported, partitions: Iterable[int]) -> None:
        """Raises :class:`ExportError` where a run begins behind what it would delete."""
        if not claimed.deletes:
            raise ExportError("the table's layout does not say that the export deletes")
        new = [partition for partition in partitions if partition not in claimed.offsets]
        if not all(self.is_log_start(partition) for partition in new):
            raise ExportError(
                "to delete up to what is committed would delete what is before the starting "
                "offsets, too, which is in no table: begin at the log start, with no starting "
                "option and without tier=local"
            )

    def reached(
        self,
        before: Exported,
        ends: Mapping[int, int],
        log_starts: Mapping[int, int],
        leader_epochs: Mapping[int, int] | None = None,
    ) -> Exported:
        """The table after a batch that reads up to ``ends``. ``log_starts``: of partitions that
        are new to it. ``leader_epochs``: of ``ends``."""
        starts = {
            partition: at for partition, at in log_starts.items() if self.is_log_start(partition)
        }
        reached = before.reaching(ends, starts, leader_epochs)
        return reached if self.options.fail_on_data_loss else reached.with_gap()


class _Batches:
    """What is done with each micro-batch, and what is told of it."""

    def __init__(
        self,
        table: TargetTable,
        claimed: Exported,
        survey: Survey,
        beginning: Beginning,
        deleter: Deleter | None,
        say: Callable[[ExportProgress], None],
        watch: Callable[[ExportProgress], None],
    ) -> None:
        self._table, self._survey, self._say, self._watch = table, survey, say, watch
        self._beginning, self._deleter, self._deleted = beginning, deleter, 0
        self.checkpoint = Path()
        self.failure: BaseException | None = None
        self._freshness = Freshness()
        #: Batches come in a thread of Spark's, looks in the job's own.
        self._lock = threading.Lock()
        self.progress = self._told(0, Written(), claimed)

    def __call__(self, frame: DataFrame, number: int) -> None:
        try:
            before = self.progress
            topic = before.exported.topic
            ends = planned_end(self.checkpoint, number, topic)
            with self._lock:
                parts = self._parts(before.exported)
                read = {part: ends[part.partition] for part in parts if part.partition in ends}
                positions = self._survey.positions(read)
                check_log_lineage(self._survey, parts, before.exported)
            epochs = {
                part.partition: at.leader_epoch
                for part, at in positions.items()
                if at.leader_epoch is not None
            }
            reached = self._beginning.reached(
                before.exported, ends, self._log_starts(before, ends), epochs
            )
            # The first of a query is made of nothing, too.
            if reached.offsets == before.exported.offsets:
                return
            written = self._table.commit(frame, reached)
            self.delete()
            with self._lock:
                self.progress = self._told(before.commits + 1, before.written + written, reached)
            self._say(self.progress)
            self._watch(self.progress)
        except BaseException as error:
            self.failure = error  # Spark keeps its text only
            raise

    def delete(self) -> None:
        """From the topic what the table's newest commit has, where that is wanted."""
        if self._deleter is None:
            return
        standing = self._table.standing()
        with self._lock:
            parts = self._parts(standing)
            check_log_lineage(self._survey, parts, standing)
            starts = {part.partition: at for part, at in self._survey.log_starts(parts).items()}
        below = points(standing, starts)
        if below:
            self._deleter.delete(standing.topic, standing.topic_id, below)
            self._deleted += sum(at.offset - starts[partition] for partition, at in below.items())
            with self._lock:
                self.progress = replace(self.progress, deleted=self._deleted)

    def _log_starts(self, before: ExportProgress, ends: Mapping[int, int]) -> dict[int, int]:
        """Of partitions that the table has nothing of. What expires until they are read is no more,
        so that it does not matter when this is asked."""
        numbers = ends.keys() - before.exported.offsets.keys()
        if not numbers:
            return {}
        with self._lock:
            new = [part for part in self._parts(before.exported) if part.partition in numbers]
            return {part.partition: e.log_start for part, e in self._survey.extents(new).items()}

    def _parts(self, exported: Exported) -> list[Part]:
        """Looked at anew. A source that knows offsets alone (Spark's of Apache Kafka) would go on
        with another topic of the same name. Raises :class:`ExportError`."""
        self._survey.forget()
        parts = self._survey.parts()
        for part in parts[:1]:
            check_topic(exported, str(part.topic_id or ""))
        return parts

    def look(self) -> None:
        """Where the topic ends now. What cannot be asked is asked again; a batch that cannot be
        planned ends the job."""
        try:
            with self._lock:
                now = self.progress
                self.progress = self._told(now.commits, now.written, now.exported)
        except _PASSING as error:
            logger.warning("the topic's end is not known: %s", error)
        self._watch(self.progress)

    def _told(self, commits: int, written: Written, exported: Exported) -> ExportProgress:
        parts = self._parts(exported)
        ends = {part.partition: end for part, end in self._survey.ends_of(parts).items()}
        # Of a partition of which the table has nothing yet there is no more than the topic has.
        new = [part for part in parts if part.partition not in exported.offsets]
        starts = {part.partition: e.log_start for part, e in self._survey.extents(new).items()}
        from_there = replace(exported, offsets={**starts, **exported.offsets})
        self._freshness.look(time.time_ns() // 1_000_000, ends, from_there.offsets)
        return ExportProgress(
            commits=commits,
            written=written,
            exported=exported,
            lag=from_there.lag(ends),
            counts=self._table.counts(),
            current_ms=self._freshness.current_ms,
            deleted=self._deleted,
        )


def check_log_lineage(survey: Survey, parts: Iterable[Part], exported: Exported) -> None:
    """Raise :class:`ExportError` if the topic has lost records that the table contains."""
    at = {
        part: exported.position(part.partition)
        for part in parts
        if part.partition in exported.offsets
    }
    diverged = survey.divergences(at)
    check_lineage(exported, {part.partition: lost_from for part, lost_from in diverged.items()})


def retry_late_workers(run: Callable[[], None]) -> None:
    """Call ``run``; repeat it if Spark's Python process did not start in time. The process starts
    before a query's first batch, so each call continues at the committed offsets. Raises
    :class:`DependencyUnavailable` if it never starts."""
    for attempt in range(1, _WORKER_ATTEMPTS + 1):
        try:
            return run()
        except Exception as error:
            if not _WORKER_LATE.search(str(error)):
                raise
            if attempt == _WORKER_ATTEMPTS:
                raise DependencyUnavailable(
                    "Spark's Python process did not start within the 10 s that Spark waits for it, "
                    f"{attempt} times: the machine is too busy. Nothing is lost. Give the job more "
                    "CPU, or run fewer jobs at a time on this machine, and start it again"
                ) from error
            logger.warning("Spark's Python process did not start in time: attempt %d", attempt + 1)
    return None


def planned_end(checkpoint: Path, batch: int, topic: str) -> dict[int, int]:
    """Up to where a micro-batch reads, by partition: what Spark writes down before it begins it,
    the offsets of the one source on the last line."""
    text = (checkpoint / "offsets" / str(batch)).read_text(encoding="utf-8")
    offsets = json.loads(text.splitlines()[-1])
    return {int(partition): int(offset) for partition, offset in offsets[topic].items()}


def stream_options(options: Mapping[str, str], claimed: Exported, *, once: bool) -> dict[str, str]:
    given = {name: value for name, value in options.items() if name.lower() != "columns"}
    limits = {"maxoffsetspertrigger", "maxbytespertrigger"}
    if not limits & {name.lower() for name in given}:
        given |= _OF_KAFKA if is_kafkas(options) else _OF_OURS
    if claimed.offsets:
        given = {n: v for n, v in given.items() if not n.lower().startswith("starting")}
        offsets = {str(partition): offset for partition, offset in claimed.offsets.items()}
        given["startingOffsets"] = json.dumps({claimed.topic: offsets})
    elif not any(name.lower().startswith("starting") for name in given):
        given["startingOffsets"] = "earliest"
    if is_kafkas(options):
        return given
    if once and not any(name.lower().startswith("ending") for name in given):
        given["endingOffsets"] = "latest"
    return {**given, "columns": ",".join(RAW)}


def _run(
    session: SparkSession,
    options: Mapping[str, str],
    batches: _Batches,
    every_s: float | None,
    stop: threading.Event | None,
) -> None:
    with tempfile.TemporaryDirectory(prefix="tidemark-export-") as folder:
        batches.checkpoint = Path(folder)
        writer = raw(stream_topic(session, options)).writeStream.foreachBatch(batches)
        writer = writer.option("checkpointLocation", Path(folder).as_uri())
        try:
            if every_s is not None:
                query = writer.trigger(processingTime=f"{every_s} seconds").start()
                _until(query, stop, batches.look, every_s)
            elif is_kafkas(options):  # Spark's own source can be asked for all that there is now
                query = writer.trigger(availableNow=True).start()
                _until(query, stop, batches.look, _ONCE_LOOK_S)
            else:
                run_available(writer, stop)
        except PySparkException as error:
            if batches.failure is not None:
                raise batches.failure from error
            raise


def _until(
    query: StreamingQuery, stop: threading.Event | None, look: Callable[[], None], every_s: float
) -> None:
    """A batch that runs when it is to stop is given up: the next run reads it again."""
    looked_s = time.monotonic()
    try:
        while not (stop is not None and stop.is_set()):
            if query.awaitTermination(_LOOK_S):
                return
            if time.monotonic() - looked_s >= every_s:
                look()
                looked_s = time.monotonic()
    finally:
        query.stop()
