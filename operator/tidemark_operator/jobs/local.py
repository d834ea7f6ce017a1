"""Jobs of Exports as child processes, for a local cluster without a kubelet.

They end with the operator, however it ends: each has a pipe from it as standard input, and stops
when that is closed. None is left behind, and an operator that starts restarts the runs that its
status shows as running. The Secrets of a pod are read from the API server instead, and stored in a
folder of the job's own while it runs.
"""

import asyncio
import base64
import contextlib
import dataclasses
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from tidemark.export_job import ORDER_VARIABLE, REPORT_BYTES_MAX, JobReport
from tidemark_operator.background import BackgroundTasks
from tidemark_operator.controller.state.export_values import (
    ABSENT,
    DesiredJob,
    JobPhase,
    JobSeen,
    SecretFile,
)
from tidemark_operator.jobs.runner import JobRefused, Reports
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import NotFound
from tidemark_operator.kube.kinds import SECRET
from tidemark_operator.pods.export_job import PROGRAM, TOPICS_FILE, ExportRunIdentity, topics_text

logger = logging.getLogger(__name__)

READY_TIMEOUT_S = 60.0
#: Seconds for one job to end, and for all of them when the operator ends.
GRACE_S = 30.0
LAST_S = 10.0
#: Size of a job's log above which the next run starts a new one.
LOG_BYTES_MAX = 8 * 1024 * 1024
#: Beginning of the name of a folder with the Secrets of one process.
_SECRETS = "secrets-"


@dataclasses.dataclass(slots=True)
class _Process:
    """A job's process.

    ``secrets``: folder with its Secrets. ``page``: address of its page, "" until the job has
    reported it.
    """

    number: int
    uid: str
    child: asyncio.subprocess.Process
    folder: Path
    secrets: Path
    page: str = ""
    ending: bool = False


class LocalJobs:
    """Jobs of one operator process, over all its terms.

    ``folder`` contains a folder for each Export, with its log and its last report.
    """

    in_pods = False

    def __init__(self, api: KubeApi, namespace: str, folder: Path) -> None:
        self._api = api
        self._namespace = namespace
        self._folder = folder
        self._reports = Reports()
        self._running: dict[str, _Process] = {}
        self._background = BackgroundTasks()

    async def look(self, run: ExportRunIdentity) -> JobSeen:
        """Return the present state of a run's process, and end a process of an earlier run."""
        process = self._running.get(run.key)
        if process is None:
            return ABSENT
        # Running: the right run is queried, any other one is ended first.
        if process.child.returncode is None:
            if process.ending or (process.number, process.uid) != (run.number, run.uid):
                self._end(process)
                return JobSeen(phase=JobPhase.ENDING)
            if not process.page:
                return JobSeen(phase=JobPhase.STARTING)
            report = await self._reports.ask(run.key, run.number, process.page)
            return JobSeen(phase=JobPhase.RUNNING, report=report)
        # An ended process of another run: its result does not matter.
        if (process.number, process.uid) != (run.number, run.uid) or process.ending:
            del self._running[run.key]
            return ABSENT
        return self._ended(process)

    def _ended(self, process: _Process) -> JobSeen:
        code = process.child.returncode
        report = _read_report(_report_of(process.folder))
        log = process.folder / "log"
        why = "" if code == 0 else f"its process terminated with {_status(code or 0)}; see {log}"
        return JobSeen(phase=JobPhase.ENDED, report=report, why=why, well=code == 0)

    async def start(self, run: ExportRunIdentity, desired: DesiredJob) -> None:
        """Start the process of an Export run, unless one is running. Raises :class:`JobRefused`."""
        former = self._running.get(run.key)
        if former is not None and former.child.returncode is None:
            return
        # Everything that the order refers to exists before the process starts.
        folder = self._folder / run.name
        environment, secrets = await self._prepare(folder, desired)
        command = [sys.executable, "-m", PROGRAM, "--until-stdin-ends"]
        command += ["--report", str(_report_of(folder))]
        with _log(folder) as log:
            child = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, **environment},
                # A session of its own: a Ctrl-C in the terminal reaches the operator only, which
                # ends its jobs.
                start_new_session=True,
            )
        process = _Process(run.number, run.uid, child, folder, secrets)
        self._running[run.key] = process
        self._background.spawn(("job", child.pid), self._await_page(process))
        logger.info("export %s: run %d is process %d", run.key, run.number, child.pid)

    async def _prepare(self, folder: Path, desired: DesiredJob) -> tuple[dict[str, str], Path]:
        """Write the job's Secrets into a new folder. Return its variables, and that folder.

        Raises :class:`JobRefused` if a Secret or a key is missing.
        """
        # An operator that was killed has left the Secrets of its job.
        for left in folder.glob(f"{_SECRETS}*"):
            shutil.rmtree(left, ignore_errors=True)
        # Each process has another folder, because that of the former one may be deleted later.
        folder.mkdir(parents=True, exist_ok=True)
        secrets = Path(tempfile.mkdtemp(prefix=_SECRETS, dir=folder))
        # Remains of a former run must not be mistaken for this one's.
        _report_of(folder).unlink(missing_ok=True)
        # Read each Secret once.
        kept: dict[str, dict[str, bytes]] = {}
        names = {variable.secret for variable in desired.variables}
        names |= {file.secret for file in desired.files}
        for name in sorted(names):
            kept[name] = await self._secret(name)
        # Values that the job reads as files go into private files, whose paths the order contains.
        paths: dict[SecretFile, str] = {}
        for number, file in enumerate(desired.files):
            path = secrets / str(number)
            path.write_bytes(_value(kept, file.secret, file.key))
            path.chmod(0o600)
            paths[file] = str(path)
        # The order and the other values are environment variables.
        _write_topics(secrets, desired)
        order = desired.ordered(paths, str(secrets / TOPICS_FILE))
        environment = {ORDER_VARIABLE: order.to_json()}
        for variable in desired.variables:
            if variable.optional and variable.key not in kept[variable.secret]:
                continue
            value = _value(kept, variable.secret, variable.key)
            environment[variable.variable] = value.decode("utf-8", "replace")
        return environment, secrets

    async def _secret(self, name: str) -> dict[str, bytes]:
        try:
            body = await self._api.get(SECRET, self._namespace, name)
        except NotFound as error:
            raise JobRefused(f"Secret {name} does not exist. Create it") from error
        data = body.get("data") or {}
        return {str(key): base64.b64decode(text) for key, text in data.items()}

    async def _await_page(self, process: _Process) -> None:
        """Read the address of the job's page from its first line, then wait for its end."""
        output = process.child.stdout
        assert output is not None
        with contextlib.suppress(TimeoutError, ValueError, KeyError, TypeError):
            async with asyncio.timeout(READY_TIMEOUT_S):
                process.page = str(json.loads(await output.readline())["page"])
        # A full pipe would block the job. Children of the process, such as Spark's JVM, may have it
        # open for longer than the process, whose next run may have started then.
        while await output.readline():
            pass
        await process.child.wait()
        shutil.rmtree(process.secrets, ignore_errors=True)

    async def follow(self, run: ExportRunIdentity, desired: DesiredJob) -> None:
        process = self._running.get(run.key)
        # The folder of a process that has ended is deleted.
        if process is not None and process.number == run.number and process.secrets.exists():
            _write_topics(process.secrets, desired)

    async def stop(self, run: ExportRunIdentity) -> None:
        process = self._running.get(run.key)
        if process is not None:
            self._end(process)

    async def forget(self, key: str) -> None:
        """End the job of a deleted Export."""
        self._reports.forget(key)
        process = self._running.get(key)
        if process is None:
            return
        if process.child.returncode is None:
            self._end(process)
        else:
            del self._running[key]

    async def close(self) -> None:
        """End all jobs, when the operator ends."""
        left = [job for job in self._running.values() if job.child.returncode is None]
        # SIGTERM to all of them in parallel, then SIGKILL to those that do not end in time.
        for process in left:
            _signal(process, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_S):
                await asyncio.gather(*(job.child.wait() for job in left))
        for process in left:
            _signal(process, signal.SIGKILL)
        await asyncio.gather(*(job.child.wait() for job in left), return_exceptions=True)
        await self._background.close()

    def _end(self, process: _Process) -> None:
        if process.ending or process.child.returncode is not None:
            return
        process.ending = True
        _signal(process, signal.SIGTERM)
        self._background.spawn(("end of job", process.child.pid), self._kill_later(process))

    async def _kill_later(self, process: _Process) -> None:
        try:
            async with asyncio.timeout(GRACE_S):
                await process.child.wait()
        except TimeoutError:
            _signal(process, signal.SIGKILL)


def _signal(process: _Process, number: signal.Signals) -> None:
    if process.child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.child.send_signal(number)


def _write_topics(folder: Path, desired: DesiredJob) -> None:
    """Replace the file of the topics of a selector, so that a reader never gets a part of it."""
    if desired.topics:
        new = folder / f"{TOPICS_FILE}.new"
        new.write_text(topics_text(desired), encoding="utf-8")
        new.replace(folder / TOPICS_FILE)


def _report_of(folder: Path) -> Path:
    return folder / "report.json"


def _read_report(path: Path) -> JobReport | None:
    try:
        with path.open("rb") as file:
            return JobReport.of_json(file.read(REPORT_BYTES_MAX + 1))
    except OSError:
        return None


def _log(folder: Path) -> IO[bytes]:
    path = folder / "log"
    grown = path.exists() and path.stat().st_size > LOG_BYTES_MAX
    return path.open("wb" if grown else "ab")


def _value(kept: Mapping[str, Mapping[str, bytes]], secret: str, key: str) -> bytes:
    if key not in kept[secret]:
        raise JobRefused(f"Secret {secret} has no key {key}. Add it")
    return kept[secret][key]


def _status(code: int) -> str:
    if code >= 0:
        return f"status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
