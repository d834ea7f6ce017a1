"""Export many topics into a table each, in one Spark driver.

In each interval the job lists its topics, and each of them waits for a turn. A turn queries the end
of one topic, and commits one batch if there are new records. The commit is made and fenced like
that of an export of a single topic (:class:`~tidemark_pipeline.jobs.export.TopicBatches`). A few
threads give turns to the topic that has waited longest. So a large topic delays the others by one
batch, and the job is idle between the intervals.

A topic that fails waits, longer after each failure, and the others continue. Then its table is
claimed again. A topic that appears gets its table in the next interval. A topic has no turn while
its table is maintained.

Each topic belongs to one thread, which has its own session and connections: a commit passes its
offsets in the session's settings, and clients of brokers serve one thread.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path

from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession

from tidemark.export_job import ExportJobPhase, TopicsReport
from tidemark.message_text import count
from tidemark_pipeline.errors import DependencyUnavailable
from tidemark_pipeline.export.record_deletion import Deleter
from tidemark_pipeline.export.table import RowCounts, TargetTable, Written
from tidemark_pipeline.export.topic_tables import (
    TopicExportState,
    TopicTable,
    next_topic,
    report_of,
    topic_tables,
)
from tidemark_pipeline.jobs.export import (
    TRANSIENT,
    ExportProgress,
    TopicBatches,
    claimed_batches,
    read_batch,
    retry_late_workers,
)
from tidemark_pipeline.jobs.table_upkeep import TableUpkeep, UpkeepTable
from tidemark_pipeline.read.options import Options
from tidemark_pipeline.read.topic_source import topic_options
from tidemark_pipeline.read.topic_survey import Survey
from tidemark_pipeline.source import register

logger = logging.getLogger(__name__)

#: Interval at which a thread without a due topic looks for one whose pause is over.
_POLL_S = 1.0
#: Options that select topics.
_SELECTING = ("subscribe", "subscribepattern")
#: Function that opens the target of a topic in a session, with the options of its source.
Opener = Callable[[SparkSession, TopicTable, Mapping[str, str]], TargetTable]
#: Function that returns the phase and the message of an error.
Explainer = Callable[[Exception], tuple[ExportJobPhase, str]]


@dataclass(frozen=True, slots=True)
class TopicsProgress:
    """Progress of all topics of a job.

    ``current_ms`` and ``observed_ms``: the earliest of the tables that do not fail. ``lag_ms``: the
    largest.
    """

    topics: TopicsReport
    commits: int
    written: Written
    lag: int | None
    counts: RowCounts
    current_ms: int | None
    exported_offsets: int | None = None
    observed_ms: int | None = None
    lag_ms: int | None = None


class _Topic:
    """One topic of the job: its state, and its claimed table once it had a turn.

    ``until``: end offsets of an export that ends. The job's lock guards the state. The rest belongs
    to the thread of the topic.
    """

    def __init__(self, state: TopicExportState, thread: int) -> None:
        self.state, self.thread = state, thread
        self.is_gone = False
        #: Held while the table is written or maintained.
        self.writing = threading.Lock()
        self.until: Mapping[int, int] | None = None
        self.table: TargetTable | None = None
        self.batches: TopicBatches | None = None
        self.progress: ExportProgress | None = None

    def close(self) -> None:
        """Close the table, which is claimed again at the next turn."""
        if self.table is not None:
            self.table.close()
        self.table = self.batches = None


class TopicsExport:
    """Export of the topics that options select (``subscribe`` or ``subscribePattern``)."""

    def __init__(
        self,
        session: SparkSession,
        options: Mapping[str, str],
        templates: tuple[str, str],
        open_table: Opener,
        names: Callable[[TopicTable], Sequence[str]],
        *,
        every_s: float | None,
        threads: int,
        stop: threading.Event,
        explain: Explainer,
        deleter: Deleter | None = None,
        topics_file: Path | None = None,
        on_progress: Callable[[TopicsProgress], None] = lambda _: None,
    ) -> None:
        """Check the options; nothing is read yet.

        ``templates``: of the tables, and of the tables of dead letters ("" for none). ``names``:
        returns the names of a topic's tables in Spark. ``every_s``: interval of commits, None to
        export each topic up to its end. ``threads``: topics that are exported at the same time.
        ``deleter``: None if topics keep their records. ``topics_file``: lines with names of topics,
        which replace those of the options whenever topics are listed.
        """
        self._session, self._given, self._templates = session, dict(options), templates
        self._options = topic_options(options, streaming=True)
        self._open_table, self._names = open_table, names
        self._explain, self._deleter = explain, deleter
        self._every_s, self._threads, self._stop = every_s, threads, stop
        self._topics_file = topics_file
        self._on_progress = on_progress
        self._topics: dict[str, _Topic] = {}
        # Totals of the job, which keep the commits of topics that are deleted.
        self._commits, self._written = 0, Written()
        #: Guards topics and totals. It is notified when topics wait for a turn.
        self._changed = threading.Condition()
        self._failure: BaseException | None = None

    def run(self, upkeep: TableUpkeep | None = None) -> TopicsProgress:
        """Export until ``stop`` is set, or until each topic has reached its end or has failed.

        ``upkeep``: of :meth:`upkeep_tables`; None if they are not maintained. Returns the final
        progress. Raises the error of the first listing of topics, or of Spark. An export that ends
        raises :class:`DependencyUnavailable` if topics have failed.
        """
        ended = threading.Event()
        threads = [
            threading.Thread(target=self._serve, args=(number, ended), name=f"export-{number}")
            for number in range(self._threads)
        ]
        with Survey(self._options) as survey:
            self._list_topics(survey)
            try:
                for thread in threads:
                    thread.start()
                maintained: AbstractContextManager[None] = (
                    nullcontext()
                    if upkeep is None
                    else upkeep.during(self._has_exported, self._stop, once=self._every_s is None)
                )
                with maintained:
                    self._follow(survey)
            finally:
                ended.set()
                # A batch that is running is abandoned. The next run reads its records again.
                self._session.sparkContext.cancelAllJobs()
                for thread in threads:
                    thread.join()
        if self._failure is not None:
            raise self._failure
        progress = self._progress()
        if self._every_s is None and progress.topics.failing and not self._stop.is_set():
            worst = progress.topics.worst[0]
            raise DependencyUnavailable(
                f"{progress.topics.failing} of {count(progress.topics.total, 'topic')} failed, "
                f"such as {worst.topic}: {worst.failure}"
            )
        return progress

    def upkeep_tables(self) -> list[UpkeepTable]:
        """Return the tables of topics that are exported at present."""
        with self._changed:
            topics = [topic for topic in self._topics.values() if not topic.is_gone]
        return [
            UpkeepTable(name, topic.writing, sum(topic.progress.exported.offsets.values()))
            for topic in topics
            if topic.progress is not None and not topic.state.reported_failure
            for name in self._names(topic.state.table)
        ]

    def _has_exported(self) -> bool:
        """Return whether the job has committed, or had nothing to commit."""
        return self._commits > 0 or self._is_done()

    def _follow(self, survey: Survey) -> None:
        """List the topics in each interval, and report the progress."""
        listed_s = time.monotonic()
        while self._failure is None and not self._stop.wait(_POLL_S):
            self._on_progress(self._progress())
            if self._every_s is None:
                if self._is_done():
                    break
            elif time.monotonic() - listed_s >= self._every_s:
                listed_s = time.monotonic()
                try:
                    self._list_topics(survey)
                except TRANSIENT as error:
                    logger.warning("the topics are not known: %s", error)
        self._on_progress(self._progress())

    def _list_topics(self, survey: Survey) -> None:
        """List the topics, and let each of them wait for a turn. Raises the errors of a survey."""
        options = self._selection()
        present = survey.of_topics(options).topics()
        named = {*present, *options.topics.names}
        tables, now_s = topic_tables(named, *self._templates), time.monotonic()
        with self._changed:
            for name in self._topics.keys() - named:
                self._topics[name].is_gone = True  # its thread closes the table
            for name, table in tables.items():
                topic = self._topics.get(name)
                if topic is None:
                    # The thread with the fewest topics gets the new one.
                    taken = [topic.thread for topic in self._topics.values()]
                    thread = min(range(self._threads), key=taken.count)
                    topic = self._topics[name] = _Topic(TopicExportState(table), thread)
                # A topic that appears or disappears can cause or solve a conflict of names.
                state = replace(topic.state, table=table)
                topic.state = state.waiting(now_s) if name in present else state.missing()
            self._changed.notify_all()

    def _selection(self) -> Options:
        """Return the options with the names of topics that are in the file at present.

        A file that is missing, or names no topic, changes nothing.
        """
        try:
            text = "" if self._topics_file is None else self._topics_file.read_text("utf-8")
        except OSError as error:
            logger.warning("the selected topics are not known: %s", error)
            text = ""
        if text.split():
            given = {**self._given, "subscribe": ",".join(text.split())}
            self._options = topic_options(given, streaming=True)
        return self._options

    def _is_done(self) -> bool:
        """Return whether each topic is exported up to its end, or has failed."""
        with self._changed:
            states = [topic.state for topic in self._topics.values()]
        return all(state.waits_since_s is None or state.reported_failure for state in states)

    # ------------------------------------------------------------ turns

    def _serve(self, number: int, ended: threading.Event) -> None:
        """Give turns to the topics of one thread until the job ends."""
        try:
            session = self._session.newSession()
            register(session)
            with Survey(self._options) as survey:
                while not ended.is_set():
                    topic = self._next_topic(number)
                    if topic is not None:
                        self._give_turn(topic, session, survey, ended)
        except BaseException as error:
            logger.exception("thread %d of the export failed", number)
            self._failure = error
        finally:
            with self._changed:
                own = [topic for topic in self._topics.values() if topic.thread == number]
            for topic in own:
                topic.close()

    def _next_topic(self, number: int) -> _Topic | None:
        """Return the topic whose turn it is, or wait a while and return None.

        Tables of topics that no longer exist are closed.
        """
        with self._changed:
            own = [topic for topic in self._topics.values() if topic.thread == number]
            gone = [topic for topic in own if topic.is_gone]
            for topic in gone:
                del self._topics[topic.state.table.topic]
            # A topic whose table is maintained would keep the others of this thread waiting.
            able = [t.state for t in own if not t.is_gone and not t.writing.locked()]
            due = next_topic(able, time.monotonic())
            if due is None and not gone:
                self._changed.wait(_POLL_S)
            found = None if due is None else self._topics[due.table.topic]
        for topic in gone:
            topic.close()
        return found

    def _give_turn(
        self, topic: _Topic, session: SparkSession, survey: Survey, ended: threading.Event
    ) -> None:
        """Commit the next batch of a topic if it has new records, and record a failure."""
        name = topic.state.table.topic
        try:
            is_behind = self._commit_batch(topic, session, survey)
        except Py4JNetworkError:
            raise  # Spark's JVM has ended
        except Exception as error:
            # A batch that is cancelled at the end of the job raises, too.
            if ended.is_set() or self._stop.is_set():
                return
            phase, message = self._explain(error)
            logger.exception("topic %s: the export failed", name)
            # The next turn claims the table again, which shows what the failed one has committed.
            topic.close()
            # A table that another job has taken over is not taken back.
            is_final = phase is ExportJobPhase.SUPERSEDED
            with self._changed:
                topic.state = topic.state.failed(time.monotonic(), message, is_final=is_final)
            return
        assert topic.progress is not None
        with self._changed:
            topic.state = topic.state.committed(
                time.monotonic(), topic.progress.lag, is_behind=is_behind
            )

    def _commit_batch(self, topic: _Topic, session: SparkSession, survey: Survey) -> bool:
        """Commit the next batch of a topic; return whether its table still lacks records."""
        options = {n: v for n, v in self._given.items() if n.lower() not in _SELECTING}
        options["topic"] = topic.state.table.topic
        has_news = True
        if topic.batches is None:
            own = survey.of_topics(topic_options(options, streaming=True))
            topic.table = self._open_table(session, topic.state.table, options)
            topic.batches = claimed_batches(options, topic.table, own, self._deleter)
            topic.batches.writing = topic.writing
            # The end is fixed at the first turn. Otherwise producers could keep the job running.
            if self._every_s is None and topic.until is None:
                topic.until = topic.batches.next_range(limited=False).ends
        else:
            has_news = topic.batches.observe_end()
        before, batches = topic.batches.progress, topic.batches

        def commit() -> bool:
            # Each attempt starts at the offsets that the previous one committed.
            return not batches.commit_next(partial(read_batch, session, options), topic.until)

        is_behind = retry_late_workers(commit) if has_news else False
        topic.progress = batches.progress
        with self._changed:
            self._commits += topic.progress.commits - before.commits
            self._written += Written(
                *(
                    new - old
                    for new, old in zip(
                        astuple(topic.progress.written), astuple(before.written), strict=True
                    )
                )
            )
        return is_behind

    def _progress(self) -> TopicsProgress:
        """Return sums over all topics. Those of failed topics are the last known ones."""
        with self._changed:
            topics = list(self._topics.values())
            commits, written = self._commits, self._written
            report = report_of([topic.state for topic in topics])
        found = [topic.progress for topic in topics if topic.progress is not None]
        healthy = [topic.progress for topic in topics if not topic.state.reported_failure]
        # Topics that had no turn yet count as behind, in the report of topics.
        is_unknown = not found and bool(healthy)
        rows, letters = (
            sum(number or 0 for number in numbers)
            for numbers in (
                [progress.counts.rows for progress in found],
                [progress.counts.letters for progress in found],
            )
        )
        return TopicsProgress(
            topics=report,
            commits=commits,
            written=written,
            lag=None if is_unknown else sum(progress.lag for progress in found),
            counts=RowCounts(rows, letters),
            current_ms=_of_all(min, [None if p is None else p.current_ms for p in healthy]),
            exported_offsets=sum(progress.exported_offsets or 0 for progress in found),
            observed_ms=_of_all(min, [None if p is None else p.observed_ms for p in healthy]),
            lag_ms=_of_all(max, [None if p is None else p.lag_ms for p in healthy]),
        )


def _of_all(choose: Callable[[list[int]], int], times: list[int | None]) -> int | None:
    """Return the chosen time; None if there is none, or one is unknown."""
    known = [ms for ms in times if ms is not None]
    return choose(known) if known and len(known) == len(times) else None
