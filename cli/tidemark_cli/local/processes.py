"""Processes of a local cluster, known by id and start time, so that none is lost or mistaken.

Each is started in a session of its own (Ctrl-C reaches ``tidemark`` alone, which then stops them
in order) and leaves a record in the run folder. A record names the process's start time in clock
ticks as well: an id that the kernel has given to another process is never signalled.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tidemark_cli.local.layout import Layout, LayoutError, read_json, write_json

#: Children of this process by id, kept until they have ended so that they can be reaped.
_children: "dict[int, subprocess.Popen[bytes]]" = {}

LAST_THREADS_S = 5.0
#: What a process says once it is ready, None before.
Ready = Callable[[], dict[str, Any] | None]


class StartError(RuntimeError):
    """A process did not become ready; the message names its log and quotes the end of it."""


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """A process that was started: its name, id, start time in ticks, and its ready line."""

    name: str
    pid: int
    start_ticks: int
    ready: dict[str, Any] = field(default_factory=dict)

    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        state = _stat(self.pid)
        return state is not None and state == ("run", self.start_ticks) and _is_ours(self.pid)

    def signal(self, number: int) -> None:
        """Signal the process if it still is the one that was started."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait_gone(self, timeout_s: float) -> bool:
        """Wait until the process has ended; False when it has not in time."""
        deadline = time.monotonic() + timeout_s
        while self.alive():
            _reap(self.pid)
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        _reap(self.pid, wait_s=LAST_THREADS_S)
        return True


def ensure(
    layout: Layout,
    name: str,
    command: Sequence[str],
    *,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    ready: Ready | None = None,
) -> ProcessRecord:
    """The process of that name, started as :func:`spawn` does if it does not run. One that another
    ``tidemark`` has started and not seen ready (it was killed, or waits still) is waited for."""
    found = find(layout, name)
    if found is None:
        return spawn(
            layout, name, command, timeout_s=timeout_s, environment=environment, ready=ready
        )
    return found if found.ready else _once_ready(layout, found, timeout_s, ready)


def spawn(
    layout: Layout,
    name: str,
    command: Sequence[str],
    *,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    ready: Ready | None = None,
) -> ProcessRecord:
    """Start ``command`` and wait for the JSON line ``{"ready": true, …}`` on its standard output;
    for a program that has no such line, until ``ready`` has it.

    Raises :class:`StartError` when it ends or stays silent for ``timeout_s`` seconds; it is then
    stopped again, as it is when the wait is interrupted.
    """
    ready_path = layout.ready(name)
    ready_path.unlink(missing_ok=True)
    with ready_path.open("wb") as out, layout.log(name).open("ab") as err:
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
    _children[child.pid] = child
    stat = _stat(child.pid)
    record = ProcessRecord(name, child.pid, stat[1] if stat else 0)
    _store(layout, record)
    return _once_ready(layout, record, timeout_s, ready)


def _once_ready(
    layout: Layout, record: ProcessRecord, timeout_s: float, is_ready: Ready | None
) -> ProcessRecord:
    path = layout.ready(record.name)
    try:
        line = _await_ready(layout, record, timeout_s, is_ready or (lambda: _ready_line(path)))
    except BaseException:
        stop(layout, record, timeout_s=5)
        raise
    ready = ProcessRecord(record.name, record.pid, record.start_ticks, line)
    _store(layout, ready)
    return ready


def adopt(
    layout: Layout, name: str, child: "subprocess.Popen[bytes]", ready: dict[str, Any]
) -> ProcessRecord:
    """Record a process that another part of the command line started; from now on it is reaped
    here."""
    stat = _stat(child.pid)
    record = ProcessRecord(name, child.pid, stat[1] if stat else 0, ready)
    _children[child.pid] = child
    _store(layout, record)
    return record


def find(layout: Layout, name: str) -> ProcessRecord | None:
    """The record of a process if it is still alive, else None."""
    record = _read(layout.run / f"{name}.json")
    return record if record and record.alive() else None


def _read(path: Path) -> ProcessRecord | None:
    """A record as it was stored. Raises :class:`LayoutError` for anything else."""
    value = read_json(path)
    if value is None:
        return None
    pid, start_ticks = value.get("pid"), value.get("start_ticks")
    if (
        value.get("name") != path.stem
        or not (type(pid) is int and pid > 1 and type(start_ticks) is int)
        or not isinstance(value.get("ready"), dict)
        or set(value) != {"name", "pid", "start_ticks", "ready"}
    ):
        raise LayoutError(
            f"{path} is no record of a process: remove it, and end the process by hand"
        )
    return ProcessRecord(**value)


def running(layout: Layout) -> list[ProcessRecord]:
    """All processes of this cluster that are alive, by name."""
    for pid in list(_children):  # also those that another command killed
        _reap(pid)
    paths = sorted(layout.run.glob("*.json")) if layout.run.exists() else []
    return [r for r in (find(layout, p.stem) for p in paths) if r]


def stop(layout: Layout, record: ProcessRecord, *, timeout_s: float) -> bool:
    """SIGTERM, then SIGKILL after ``timeout_s``; True when the process ended by itself."""
    record.signal(signal.SIGTERM)
    clean = record.wait_gone(timeout_s)
    if not clean:
        record.signal(signal.SIGKILL)
        record.wait_gone(5)
    (layout.run / f"{record.name}.json").unlink(missing_ok=True)
    return clean


def kill(layout: Layout, record: ProcessRecord) -> None:
    """SIGKILL, as a machine that loses power would."""
    record.signal(signal.SIGKILL)
    record.wait_gone(10)
    (layout.run / f"{record.name}.json").unlink(missing_ok=True)


def _store(layout: Layout, record: ProcessRecord) -> None:
    write_json(layout.run / f"{record.name}.json", asdict(record))


def _await_ready(
    layout: Layout, record: ProcessRecord, timeout_s: float, is_ready: Ready
) -> dict[str, Any]:
    log_path = layout.log(record.name)
    deadline = time.monotonic() + timeout_s
    while True:
        ready = is_ready()
        if ready is not None:
            return ready
        child = _children.get(record.pid)
        if child is not None and child.poll() is not None:
            raise StartError(
                f"{record.name} ended with status {child.returncode}; {_tail(log_path)}"
            )
        if child is None and not record.alive():
            raise StartError(f"{record.name} ended; {_tail(log_path)}")
        if time.monotonic() > deadline:
            raise StartError(
                f"{record.name} was not ready after {timeout_s:.0f} s; {_tail(log_path)}"
            )
        time.sleep(0.02)


def _ready_line(path: Path) -> dict[str, Any] | None:
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            value = json.loads(line)
            if isinstance(value, dict) and value.get("ready"):
                return value
    return None


def _tail(path: Path, lines: int = 12) -> str:
    text = path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]
    return f"the end of {path}:\n" + "\n".join(text)


def _stat(pid: int) -> tuple[str, int] | None:
    """("run" | "zombie", start time in ticks) from /proc; None where there is no process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return ("zombie" if fields[0] in "ZX" else "run", int(fields[19]))


def _is_ours(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}").stat().st_uid == os.geteuid()
    except OSError:
        return False


def _reap(pid: int, *, wait_s: float = 0.0) -> None:
    """A process can be a zombie, and not yet to be waited for, while its last threads end."""
    child = _children.get(pid)
    if child is None:
        return
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(wait_s)
        _children.pop(pid, None)
