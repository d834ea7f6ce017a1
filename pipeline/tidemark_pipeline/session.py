"""A Spark session that has the ``tidemark`` source: on this machine, or on executors of a cluster.

A local session binds to the loopback only. With a ``master`` the driver stays in this process and
executors run the tasks. They run the same interpreter path, which must have this package.

Spark prints several lines to standard error before any log level applies, so the JVM gets a file
for its standard error. Failures are raised in Python. PySpark also prints each refused query there,
as a page of JSON with Java's stack. These loggers are disabled, as the exception has the same text.
"""

import atexit
import contextlib
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from tidemark.scratch import ScratchFolder
from tidemark_pipeline.java import find_java
from tidemark_pipeline.source import register

LOOPBACK = "127.0.0.1"
#: Half of the processor time of a short job is the JVM's optimising compiler and collector threads.
#: Without that compiler the JVM has only 48 MiB for compiled code. Some hundred queries fill them,
#: and the JVM then interprets all further code. So it gets the normal size, of address space only.
SHORT_JOB = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
#: Arrow checks bounds at each access to a batch, for each column of each row: a fifth of the work
#: of Spark's threads with rows. The batches that they access were written by Arrow, too.
UNCHECKED_ARROW = "-Darrow.enable_unsafe_memory_access=true"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_EXECUTOR_JAVA_OPTIONS = "spark.executor.extraJavaOptions"
#: Optional jar (``tools/columnar_jar.py``), and its extension of a session.
COLUMNAR_JAR = "tidemark-columnar.jar"
_COLUMNAR = "io.tidemark.spark.ColumnarReads"
_EXTENSIONS = "spark.sql.extensions"
#: Longest path of a folder in which Spark 4.1 creates sockets, in bytes.
_SOCKET_FOLDER_BYTES_MAX = 61
#: Loggers to which PySpark also writes the exceptions that it raises.
_TWICE = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


@contextmanager
def local_session(
    name: str,
    *,
    cores: int = 2,
    master: str | None = None,
    log: Path | None = None,
    short: bool = False,
    settings: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """Yield a session on ``cores`` threads of this machine; it is stopped at the end.

    ``master``: URL of a cluster, whose executors have ``cores`` threads each.
    ``log`` receives the output of the JVM and its Python workers (default: this process's standard
    error). ``short`` is for a job of seconds: the JVM compiles little and optimises nothing.
    ``settings``: more of Spark's configuration, such as a table format's packages and catalogs.

    Raises :class:`~tidemark_pipeline.java.JavaMissing`.
    """
    # Without Java, Spark fails with a message that does not name the cause.
    find_java()
    for logger in _TWICE:
        PySparkLogger.getLogger(logger).disabled = True
    # Workers must run the interpreter that has this package, whatever the PATH says.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Executors on other machines must reach the driver.
    if master is None or LOOPBACK in master:
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    with ExitStack() as stack:
        stack.enter_context(unwinding_at_sigterm())
        scratch = str(stack.enter_context(ScratchFolder("spark")))
        conf = _settings(name, cores, master, scratch)
        # Settings of the caller override the defaults.
        for key, value in (settings or {}).items():
            conf.set(key, value)
        # SQL statements contain names that records brought. With substitution, Spark would replace
        # one like ${env:NAME} by that environment variable, which may be a secret.
        conf.set("spark.sql.variable.substitute", "false")
        for option in (_JAVA_OPTIONS, *([] if master is None else [_EXECUTOR_JAVA_OPTIONS])):
            java = [UNCHECKED_ARROW, conf.get(option, ""), SHORT_JOB if short else ""]
            conf.set(option, " ".join(filter(None, java)))
        # A JVM that is killed leaves its native libraries. Spark splits options at white space.
        if len(_jvm_folder().split()) == 1:
            option = f"-Djava.io.tmpdir={_jvm_folder()}"
            conf.set(_JAVA_OPTIONS, f"{option} {conf.get(_JAVA_OPTIONS)}")
        if _has_columnar_jar(conf):
            conf.set(_EXTENSIONS, ",".join(filter(None, [conf.get(_EXTENSIONS, ""), _COLUMNAR])))
        gateway = None
        # A JVM that this process has started before is reused, and keeps its standard error.
        if log is not None and SparkContext._gateway is None:
            errors = stack.enter_context(log.open("ab"))
            gateway = launch_gateway(  # type: ignore[no-untyped-call]
                conf, {"stderr": errors, "stdout": errors}
            )
        context = SparkContext(conf=conf, gateway=gateway)
        session = SparkSession(context)
        register(session)
        try:
            yield session
        finally:
            session.stop()


@contextmanager
def unwinding_at_sigterm() -> Iterator[None]:
    """End ``with`` blocks at SIGTERM, whose default action would leave their files behind.

    A handler of the caller stays in effect. Only the main thread can set one.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _has_columnar_jar(conf: SparkConf) -> bool:
    """Return whether the jar that reads columns is among Spark's own jars or the session's."""
    named = [Path(jar).name for jar in conf.get("spark.jars", "").split(",")]
    return COLUMNAR_JAR in named or (Path(pyspark.__file__).parent / "jars" / COLUMNAR_JAR).exists()


def _settings(name: str, cores: int, master: str | None, scratch: str) -> SparkConf:
    """Return the default Spark configuration of a session.

    ``scratch``: folder for Spark's temporary files.
    """
    conf = SparkConf().setAll(
        [
            ("spark.master", master or f"local[{cores}]"),
            ("spark.app.name", name),
            ("spark.ui.enabled", "false"),
            ("spark.ui.showConsoleProgress", "false"),
            ("spark.sql.warehouse.dir", scratch),
            ("spark.local.dir", scratch),
            ("spark.log.level", "ERROR"),
            ("spark.sql.session.timeZone", "UTC"),
            ("spark.python.daemon.module", "tidemark_pipeline.daemon"),
            # Spark's default of 15 s is too short for a worker on a busy machine.
            ("spark.python.authenticate.socketTimeout", "120s"),
        ]
    )
    if master is None or LOOPBACK in master:
        conf.set("spark.driver.host", LOOPBACK).set("spark.driver.bindAddress", LOOPBACK)
    if master is None:
        # Bytes of Python workers then do not go through TCP. On a cluster, Spark would create the
        # sockets in a folder that is shared with other users of the machine.
        folder = _jvm_folder()
        if len(os.fsencode(folder)) <= _SOCKET_FOLDER_BYTES_MAX:
            conf.set("spark.python.unix.domain.socket.enabled", "true")
            conf.set("spark.python.unix.domain.socket.dir", folder)
        return conf.set("spark.sql.shuffle.partitions", str(cores))
    # An executor that is about to be lost hands over its shuffle data first, as on spot nodes.
    conf.set("spark.executor.cores", str(cores)).set("spark.decommission.enabled", "true")
    conf.set("spark.storage.decommission.enabled", "true")
    return conf.set("spark.storage.decommission.shuffleBlocks.enabled", "true")


@functools.cache
def _jvm_folder() -> str:
    """Return a folder for Unix domain sockets and the JVM's files, which only this user can open.

    Spark does not authenticate clients of such sockets. The folder exists as long as the process,
    because the JVM keeps it from the first session on.
    """
    folder = ScratchFolder("sockets")
    atexit.register(folder.remove)
    return str(folder.create())


# ------------------------------------------------------------ Progress

# Progress of Spark's running stages, reported periodically while a job runs.
#
# Spark's own bar overwrites the terminal's last line and writes nothing to a file. This module
# calls back instead, so that the caller chooses the output.

EVERY_S = 5.0


@contextlib.contextmanager
def reporting_stages(
    context: SparkContext, say: Callable[[int, int], None], every_s: float = EVERY_S
) -> Iterator[None]:
    """Report the progress of Spark's running stages while the ``with`` block runs.

    Calls ``say(done, all)`` with numbers of tasks, from another thread, at most every ``every_s``
    seconds, and only with numbers that have changed.
    """
    done = threading.Event()

    def watch() -> None:
        tracker = context.statusTracker()
        reported = None
        # The wait doubles as the interval, so that the thread ends at once when the job does.
        while not done.wait(every_s):
            stages = [tracker.getStageInfo(stage_id) for stage_id in tracker.getActiveStageIds()]
            running = [stage for stage in stages if stage is not None]
            counts = (
                sum(stage.numCompletedTasks for stage in running),
                sum(stage.numTasks for stage in running),
            )
            # Between two stages nothing runs. A repeated line would look like a second job.
            if running and counts != reported:
                say(*counts)
                reported = counts

    # The block itself waits for Spark, so another thread reports.
    watcher = threading.Thread(target=watch, name="spark-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
