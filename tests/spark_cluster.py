"""A standalone Spark cluster on the loopback: a master, and workers whose executors run tasks."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from tests.benchmarks.processes import group_cpu_seconds
from tidemark_devcluster.ports import HOST, free_ports
from tidemark_pipeline.java import find_java

_SPARK = Path(pyspark.__file__).parent
_DEPLOY = "org.apache.spark.deploy"
_EXECUTOR = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"
_TIMEOUT_S = 120.0
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class SparkWorker:
    """Process of a worker, which is the leader of a session with its executors."""

    process: "subprocess.Popen[bytes]"

    def cpu_seconds(self) -> float:
        """CPU seconds of the worker, its executors and their Python processes."""
        return group_cpu_seconds(self.process.pid)


@dataclass(frozen=True, slots=True)
class SparkCluster:
    """Running cluster. ``master``: its URL."""

    master: str
    workers: tuple[SparkWorker, ...]


def executors_of(application: str) -> list[int]:
    """Return the process ids of an application's executors."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        if _EXECUTOR in words and application.encode() in words:
            found.append(int(path.parent.name))
    return found


@contextmanager
def spark_cluster(folder: Path, workers: int = 2, cores: int = 1) -> Iterator[SparkCluster]:
    """Yield a cluster that accepts drivers; its processes end with the block.

    ``cores``: of each worker. ``folder``: for logs and the files of executors. Raises
    :class:`~tidemark_pipeline.java.JavaMissing`.
    """
    with ExitStack() as stack:
        (port,) = free_ports(1)
        master = f"spark://{HOST}:{port}"
        arguments = ["--host", HOST, "--port", str(port), "--webui-port", "0"]
        stack.enter_context(_running(folder, "master", f"{_DEPLOY}.master.Master", arguments))
        _wait(lambda: _listens(port), "the master to listen")
        started = []
        for number in range(workers):
            name = f"worker-{number}"
            arguments = ["--host", HOST, "--cores", str(cores), "--memory", "2g"]
            arguments += ["--webui-port", "0", "--work-dir", str(folder / name), master]
            process = stack.enter_context(
                _running(folder, name, f"{_DEPLOY}.worker.Worker", arguments)
            )
            started.append(SparkWorker(process))
        # A driver gets executors of the workers that have registered.
        for number in range(workers):
            log = folder / f"worker-{number}.log"
            _wait(lambda log=log: "registered with master" in log.read_text("utf-8"), log.stem)
        yield SparkCluster(master, tuple(started))


@contextmanager
def _running(
    folder: Path, name: str, program: str, arguments: list[str]
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a process of Spark in a session with its children, and end all of them."""
    environment = {**os.environ, "SPARK_HOME": str(_SPARK), "SPARK_LOCAL_IP": HOST}
    # Spark's own scripts set the version, with which a worker finds the jars.
    environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_SCALA_VERSION": "2.13"}
    classes = str(_SPARK / "jars" / "*")
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [str(find_java()), "-Xmx256m", "-cp", classes, program, *arguments],
            env=environment,
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        # Executors and their Python processes belong to the session of their worker.
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.wait(10)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                pass
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((HOST, port)) == 0


def _wait(holds, what: str) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + _TIMEOUT_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {_TIMEOUT_S:.0f} s for {what}")
        time.sleep(_POLL_S)
