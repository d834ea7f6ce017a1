"""Export a topic into a table, exactly once: all that is there, or for as long as the job runs.

A structured stream from the tier and the brokers, whose micro-batches are commits of the table.
Where it begins is the table's to say (:mod:`tidemark_pipeline.export.exported`): the stream's
checkpoint is a folder that ends with the job, and is read for one thing only, up to where the batch
goes that is to be written.
"""

import json
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tidemark_pipeline.export.exported import Exported, ExportError
from tidemark_pipeline.export.shapes import RAW
from tidemark_pipeline.export.table import Table, Written
from tidemark_pipeline.options import parse
from tidemark_pipeline.streaming import run_available
from tidemark_pipeline.survey import Part, Survey

#: Of one commit, where the options have no limit.
BATCH_BYTES = 1024**3
_LOOK_S = 1


@dataclass(frozen=True, slots=True)
class Progress:
    """After a commit. ``lag``: offsets of the topic that the table has not."""

    commits: int
    written: Written
    exported: Exported
    lag: int


def export(
    session: SparkSession,
    options: Mapping[str, str],
    table: Table,
    *,
    every_s: float | None = None,
    stop: threading.Event | None = None,
    say: Callable[[Progress], None] = lambda _: None,
) -> Progress:
    """Export until the end that the topic has now, or with ``every_s`` a commit every so many
    seconds until ``stop`` is set. ``options`` are the source's, with one ``topic``; those that say
    where to begin hold for a new table only.

    Raises :class:`ExportError`, or Spark's error where reading or writing failed: what was
    committed stays, and the next run goes on from there."""
    if not options.get("topic"):
        raise ExportError("name the topic with the option 'topic'")
    with Survey(parse(options)) as survey:
        parts = survey.parts()
        topic_id = str(parts[0].topic_id or "") if parts else ""
        claimed = table.claim(options["topic"], topic_id)
        try:
            batches = _Batches(table, claimed, survey, say)
            _run(
                session,
                stream_options(options, claimed, once=every_s is None),
                batches,
                every_s,
                stop,
            )
        finally:
            table.close()
        return batches.progress


class _Batches:
    """What is done with each micro-batch."""

    def __init__(
        self, table: Table, claimed: Exported, survey: Survey, say: Callable[[Progress], None]
    ) -> None:
        self._table, self._survey, self._say = table, survey, say
        self.checkpoint = Path()
        self.failure: BaseException | None = None
        self.progress = Progress(0, Written(), claimed, 0)
        self.progress = self._told(0, Written(), claimed)

    def __call__(self, frame: DataFrame, number: int) -> None:
        try:
            before = self.progress
            topic = before.exported.topic
            reached = before.exported.reaching(planned_end(self.checkpoint, number, topic))
            if reached == before.exported:  # the first of a query, which is made of nothing, too
                return
            written = self._table.commit(frame, reached)
            self.progress = self._told(before.commits + 1, before.written + written, reached)
            self._say(self.progress)
        except BaseException as error:
            self.failure = error  # Spark keeps its text only
            raise

    def _told(self, commits: int, written: Written, exported: Exported) -> Progress:
        self._survey.forget()
        parts: list[Part] = self._survey.parts()
        ends = {part.partition: end for part, end in self._survey.ends_of(parts).items()}
        return Progress(commits, written, exported, exported.lag(ends))


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
        given["maxBytesPerTrigger"] = str(BATCH_BYTES)
    if claimed.offsets:
        given = {n: v for n, v in given.items() if not n.lower().startswith("starting")}
        offsets = {str(each): offset for each, offset in claimed.offsets.items()}
        given["startingOffsets"] = json.dumps({claimed.topic: offsets})
    elif not any(name.lower().startswith("starting") for name in given):
        given["startingOffsets"] = "earliest"
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
        frame = session.readStream.format("tidemark").options(**options).load().select(*RAW)
        writer = frame.writeStream.foreachBatch(batches)
        writer = writer.option("checkpointLocation", Path(folder).as_uri())
        try:
            if every_s is None:
                run_available(writer)
            else:
                _until(writer.trigger(processingTime=f"{every_s} seconds").start(), stop)
        except PySparkException as error:
            if batches.failure is not None:
                raise batches.failure from error
            raise


def _until(query: StreamingQuery, stop: threading.Event | None) -> None:
    """A batch that runs when it is to stop is given up: the next run reads it again."""
    try:
        while not (stop is not None and stop.is_set()):
            if query.awaitTermination(_LOOK_S):
                return
    finally:
        query.stop()
