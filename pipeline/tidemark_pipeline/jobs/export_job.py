"""Run the job of an ``Export``: ``python3 -m tidemark_pipeline.jobs.export_job``.

The job runs in a pod, or as a process next to a local operator. Its order is in the environment
(:mod:`tidemark.export_job`). It reports progress on a page, and its result in a file. It exits only
when it is done or has failed; the operator restarts it. SIGTERM stops it in order, and so does the
end of standard input if the job must not outlive its parent process.

spark-submit appends what the entry point of Spark's images takes: ``driver``, and the options of a
spark-submit in the pod. This process starts the JVM itself instead, so that SIGTERM reaches it.
"""

import argparse
import json
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tidemark.export_job import (
    EXECUTORS_VARIABLE,
    ORDER_VARIABLE,
    SOURCE_JARS_VARIABLE,
    USERNAME_OPTION,
    ExportJobPhase,
    MaintenanceReport,
    OptionPlace,
    Order,
    OrderError,
)
from tidemark.scratch import ScratchFolder
from tidemark_pipeline.errors import DataLoss, DependencyUnavailable, ExportError, project_error
from tidemark_pipeline.export.export_progress import Superseded
from tidemark_pipeline.export.record_deletion import BrokerDeletions
from tidemark_pipeline.export.table_options import TableOptions
from tidemark_pipeline.export.topic_tables import TopicTable
from tidemark_pipeline.java import JavaMissing, find_java
from tidemark_pipeline.jobs.executor import executors_of
from tidemark_pipeline.jobs.job_page import JobStatus
from tidemark_pipeline.read.options import OptionError, is_kafka_topic
from tidemark_pipeline.read.topic_source import check_session, topic_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark_pipeline.export.table import TargetTable
    from tidemark_pipeline.jobs.export import ExportProgress
    from tidemark_pipeline.jobs.table_upkeep import TableUpkeep, UpkeepTable

logger = logging.getLogger(__name__)

#: Time for an orderly stop after standard input has ended, as the parent process has exited.
LAST_S = 20.0
NO_SPARK = "Spark is not installed here: make spark, or give the Export's job an image that has it"
#: Errors whose message says what to do, and that a retry does not change.
_REFUSED = (OrderError, OptionError, ExportError, JavaMissing, DataLoss)
_HIDDEN = "***"
#: Most topics of one job that are exported at the same time.
_THREADS_MAX = 16


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the export job, with its status page, and return the exit status.

    It is 0 if the export is done or was stopped, otherwise 1.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listen", default="127.0.0.1:0", help="host:port of the page")
    parser.add_argument("--report", type=Path, help="file for the last report")
    parser.add_argument("--until-stdin-ends", action="store_true")
    parser.add_argument("--properties-file", type=Path, help="file with settings of spark-submit")
    parser.add_argument("--class", help="of spark-submit, not used")
    parser.add_argument("words", nargs="*", help="of spark-submit, not used: driver and this file")
    given = parser.parse_intermixed_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it tells of each batch and each end
    stop = _stop_on_signals()
    # The page starts before Spark, so that the operator can read the report while Spark starts.
    is_alone = EXECUTORS_VARIABLE not in os.environ and given.properties_file is None
    status = JobStatus(is_alone=is_alone)
    page = status.page()
    host, _, port = given.listen.rpartition(":")
    bound = page.start(host.strip("[]"), int(port))
    # A local operator reads this line to find the port that was chosen.
    sys.stdout.write(json.dumps({"ready": True, "page": f"{host}:{bound}"}) + "\n")
    sys.stdout.flush()
    if given.until_stdin_ends:
        threading.Thread(target=_stop_after_stdin, args=(stop,), name="stdin", daemon=True).start()
    phase, message = run(os.environ, status, stop, given.properties_file)
    status.end(phase, message)
    # The page stops with the process, so the operator reads the final state from this file.
    if given.report is not None:
        given.report.write_bytes(status.report.to_json())
    page.stop()
    logger.info("%s%s", phase, f": {message}" if message else "")
    return 0 if phase in (ExportJobPhase.DONE, ExportJobPhase.STOPPED) else 1


def run(
    environment: Mapping[str, str],
    status: JobStatus,
    stop: threading.Event,
    submitted: Path | None = None,
) -> tuple[ExportJobPhase, str]:
    """Run the export that the environment describes; return its final phase and a message.

    The message says what to do after a failure, "" otherwise. ``status``: receives the progress.
    ``stop``: ends the export when it is set. ``submitted``: settings of spark-submit.
    """
    secrets: list[str] = []
    try:
        # Secrets are collected before the order may fail, so that they can be removed from every
        # message.
        order = Order.of_json(environment.get(ORDER_VARIABLE, ""))
        secrets += [
            environment.get(secret.variable, "")
            for secret in order.hidden
            if secret.name != USERNAME_OPTION
        ]
        order = order.revealed(environment)
        _export(order, status, stop, partial(_without_secrets, secrets), submitted)
    except ModuleNotFoundError as error:
        if error.name not in ("pyspark", "py4j", "pyarrow"):
            raise
        return ExportJobPhase.REFUSED, NO_SPARK
    except Exception as error:
        if stop.is_set():  # A query that is stopped within a batch raises like one that failed.
            logger.info("given up: %s", error)
            return ExportJobPhase.STOPPED, ""
        logger.exception("the export failed")
        phase, message = phase_of(error)
        return phase, _without_secrets(secrets, message)
    return (ExportJobPhase.STOPPED if stop.is_set() else ExportJobPhase.DONE), ""


def phase_of(error: Exception) -> tuple[ExportJobPhase, str]:
    """Return the phase, which says whether a retry helps, and the message for the user."""
    if isinstance(error, Superseded):
        return ExportJobPhase.SUPERSEDED, str(error)
    if isinstance(error, DependencyUnavailable):
        return ExportJobPhase.FAILED, str(error)
    if isinstance(error, (*_REFUSED, DataLoss)):
        return ExportJobPhase.REFUSED, str(error)
    # An error of a Python worker reaches the driver as text, which starts with its class name.
    name, message = project_error(str(error))
    if name == DataLoss.__name__:
        return ExportJobPhase.REFUSED, message
    return ExportJobPhase.FAILED, message or type(error).__name__


def _export(
    order: Order,
    status: JobStatus,
    stop: threading.Event,
    hide: Callable[[str], str],
    submitted: Path | None,
) -> None:
    with ScratchFolder("schema") as folder:
        # Spark reads the definition from a path, so its text is written to a file.
        if order.definition:
            path = folder / Path(order.definition_name).name
            path.write_text(order.definition, encoding="utf-8")
            order = order.put({(OptionPlace.TABLE, "schema_file"): str(path)})
        _run(order, status, stop, hide, submitted)


def _run(
    order: Order,
    status: JobStatus,
    stop: threading.Event,
    hide: Callable[[str], str],
    submitted: Path | None,
) -> None:
    """Start a Spark session with the order's settings and run the export in it.

    ``status``: receives the progress. ``stop``: ends the export when it is set. ``hide``: removes
    secrets from a message. ``submitted``: settings of spark-submit.
    """
    table_options = TableOptions.of(order.table)
    # Options and Java are checked before the import of Spark, which takes seconds.
    table_options.check()
    find_java()
    from tidemark_pipeline.jobs.export import export
    from tidemark_pipeline.jobs.table_upkeep import UpkeepTable
    from tidemark_pipeline.session import local_session

    settings = table_options.settings(order.jars, order.conf)
    # A local operator has the jars of Spark's Kafka source for its jobs.
    jars = (settings.get("spark.jars", ""), os.environ.get(SOURCE_JARS_VARIABLE, ""))
    if is_kafka_topic(order.source) and any(jars):
        settings["spark.jars"] = ",".join(filter(None, jars))
    deleter = _deleter(order.source) if table_options.deletes else None
    # Stages of many topics share the cores, so that a large batch does not delay small ones.
    fair = {} if "topic" in order.source else {"spark.scheduler.mode": "FAIR"}
    with (
        executors_of(os.environ, submitted) as executors,
        local_session(
            "tidemark export",
            cores=executors.cores or order.cores,
            master=executors.master,
            settings={**fair, **settings, **executors.settings},
        ) as session,
    ):
        check_session(session, order.source)
        if "topic" not in order.source:
            names = _export_topics(session, order, table_options, status, stop, hide, deleter)
            _mark_runs(session, table_options, names, stop)
            return
        tables = [UpkeepTable(name) for name in table_options.names]
        export(
            session,
            order.source,
            table_options.tables(session, order.source, logger.info),
            every_s=order.every_s,
            stop=stop,
            deleter=deleter,
            upkeep=_upkeep(session, order, lambda: tables, status, hide),
            on_commit=_say,
            on_progress=status.update,
        )
        _mark_runs(session, table_options, table_options.names, stop)


def _mark_runs(
    session: "SparkSession",
    table_options: TableOptions,
    names: Iterable[str],
    stop: threading.Event,
) -> None:
    """Leave a tag or a branch of the run in each table. ``names``: of the tables in Spark."""
    from tidemark_pipeline.export.iceberg_branch import mark_run

    # A run that was stopped has not reached the topic's end.
    if table_options.run_ref is None or stop.is_set():
        return
    now_ms = time.time_ns() // 1_000_000
    for name in names:
        mark_run(session, name, table_options.run_ref, now_ms)


def _upkeep(
    session: "SparkSession",
    order: Order,
    tables: "Callable[[], Sequence[UpkeepTable]]",
    status: JobStatus,
    hide: Callable[[str], str],
) -> "TableUpkeep | None":
    """Return the maintenance of the job's tables, None without any."""
    from tidemark_pipeline.jobs.table_upkeep import TableUpkeep

    if order.maintenance is None:
        return None

    def report(state: MaintenanceReport) -> None:
        status.maintained(replace(state, message=hide(state.message)))

    kind = TableOptions.of(order.table).format
    return TableUpkeep(session, kind, tables, order.maintenance, report)


def _export_topics(
    session: "SparkSession",
    order: Order,
    table_options: TableOptions,
    status: JobStatus,
    stop: threading.Event,
    hide: Callable[[str], str],
    deleter: BrokerDeletions | None,
) -> list[str]:
    """Export each topic that the order selects, into the table that its templates name.

    Returns the names of the tables.
    """
    from tidemark_pipeline.jobs.export_topics import TopicsExport

    def options_of(named: TopicTable) -> TableOptions:
        return replace(table_options, table=named.table, dead_letters=named.letters)

    def opened(own: "SparkSession", named: TopicTable, source: Mapping[str, str]) -> "TargetTable":
        return options_of(named).tables(own, source, logger.info)

    def explain(error: Exception) -> tuple[ExportJobPhase, str]:
        phase, message = phase_of(error)
        return phase, hide(message)

    job = TopicsExport(
        session,
        order.source,
        (table_options.table, table_options.letters if table_options.has_schema else ""),
        opened,
        lambda named: options_of(named).names,
        every_s=order.every_s,
        # Threads mostly wait for the store, the catalog and brokers.
        threads=min(max(2 * order.cores, 4), _THREADS_MAX),
        stop=stop,
        explain=explain,
        deleter=deleter,
        topics_file=Path(order.topics_file) if order.topics_file else None,
        on_progress=status.update,
    )
    job.run(_upkeep(session, order, job.upkeep_tables, status, hide))
    return [table.name for table in job.upkeep_tables()]


def _deleter(source: Mapping[str, str]) -> BrokerDeletions:
    """Return the deletions through the brokers: the job's pod has no token of the API server."""
    access = topic_options(source, streaming=True).access
    if access is None:
        raise ExportError("brokers delete records, and none is named")
    return BrokerDeletions(access)


def _say(progress: "ExportProgress") -> None:
    written = progress.written
    logger.info(
        "%d commits: %d rows, %d dead letters, %d bytes; %d offsets behind",
        progress.commits,
        written.rows,
        written.letters,
        written.bytes,
        progress.lag,
    )


def _without_secrets(secrets: Iterable[str], text: str) -> str:
    """Replace secrets in a text.

    Messages of catalogs and drivers may contain their address with its password. Some change the
    case or omit the line end. A secret that is part of another one is replaced after it.
    """
    forms = {form for secret in secrets for form in (secret, secret.strip()) if form}
    for form in sorted(forms, key=len, reverse=True):
        text = re.sub(re.escape(form), _HIDDEN, text, flags=re.IGNORECASE)
    return text


def _stop_on_signals() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


def _stop_after_stdin(stop: threading.Event) -> None:
    # Reading to the end detects the parent's exit, whatever ended it.
    while os.read(sys.stdin.fileno(), 4096):
        pass
    stop.set()
    # Spark may block an orderly stop, so the process exits after a limit.
    threading.Event().wait(LAST_S)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
