"""Processes of a local cluster, identified by id and start time.

Each is started in its own session: Ctrl-C reaches only ``tidemark``, which then stops them in
order. Each leaves a record in the run folder. The record contains the start time in clock ticks, so
a process id that the kernel has reused is never signalled.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tidemark_devcluster.layout import Layout, LayoutError, read_json, write_json

#: Children of this process by id, kept until they have ended and can be reaped.
_children: "dict[int, subprocess.Popen[bytes]]" = {}

LAST_THREADS_S = 5.0
#: Check that returns a process's ready line, or None before it is ready.
Ready = Callable[[], dict[str, Any] | None]


class ProcessStartError(RuntimeError):
    """Process that did not become ready; the message quotes the end of its log."""


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """Started process: name, id, start time in ticks, and its ready line."""

    name: str
    pid: int
    start_ticks: int
    ready: dict[str, Any] = field(default_factory=dict)

    def alive(self) -> bool:
        """Return whether this very process still runs; a zombie does not."""
        state = _stat(self.pid)
        return state == ("run", self.start_ticks) and _belongs_to_user(self.pid)

    def signal(self, number: int) -> None:
        """Send a signal if the process is still the one that was started."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait_ended(self, timeout_s: float) -> bool:
        """Wait until the process has ended; return False after the timeout."""
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
    """Return the process of this name; if it does not run, start it and wait until it is ready.

    It is ready when it prints the JSON line ``{"ready": true, …}``, or for a program without one,
    when ``ready`` returns a value. Raises :class:`ProcessStartError` if it ends or is not ready
    after ``timeout_s`` seconds. It is then stopped, as it is if the wait is interrupted.
    """
    # Another ``tidemark`` may have started it and not have seen it ready, because that was killed
    # or still waits: it is waited for, not started twice.
    record = find(layout, name) or _spawn(layout, name, command, environment or {})
    return record if record.ready else _once_ready(layout, record, timeout_s, ready)


def _spawn(
    layout: Layout, name: str, command: Sequence[str], environment: Mapping[str, str]
) -> ProcessRecord:
    """Start a process in its own session, and record it."""
    ready_path = layout.ready(name)
    ready_path.unlink(missing_ok=True)
    with ready_path.open("wb") as out, layout.log(name).open("ab") as err:
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            env={**os.environ, **environment},
        )
    # Recorded before it is ready, so that another ``tidemark`` finds and can stop it.
    return adopt(layout, name, child, {})


def _once_ready(
    layout: Layout, record: ProcessRecord, timeout_s: float, is_ready: Ready | None
) -> ProcessRecord:
    path = layout.ready(record.name)
    try:
        line = _await_ready(layout, record, timeout_s, is_ready or (lambda: _ready_line(path)))
    except BaseException:
        stop(layout, record, timeout_s=5)
        raise
    ready = replace(record, ready=line)
    _store(layout, ready)
    return ready


def adopt(
    layout: Layout, name: str, child: "subprocess.Popen[bytes]", ready: dict[str, Any]
) -> ProcessRecord:
    """Record a process that another part of the command line started; it is reaped here from
    now on.
    """
    stat = _stat(child.pid)
    record = ProcessRecord(name, child.pid, stat[1] if stat else 0, ready)
    _children[child.pid] = child
    _store(layout, record)
    return record


def find(layout: Layout, name: str) -> ProcessRecord | None:
    """Return the record of a process if it is alive, else None."""
    record = _read(_path(layout, name))
    return record if record and record.alive() else None


def _read(path: Path) -> ProcessRecord | None:
    """Return the process record in a file, None if there is no file.

    Raises :class:`LayoutError` for any other content.
    """
    value = read_json(path)
    if value is None:
        return None
    pid, start_ticks = value.get("pid"), value.get("start_ticks")
    # Every field is checked, because signals are sent to the process ID in the record.
    if (
        value.get("name") != path.stem
        or not (type(pid) is int and pid > 1 and type(start_ticks) is int)
        or not isinstance(value.get("ready"), dict)
        or set(value) != {"name", "pid", "start_ticks", "ready"}
    ):
        raise LayoutError(
            f"{path} is not a process record: remove it, and stop the process yourself"
        )
    return ProcessRecord(**value)


def running(layout: Layout) -> list[ProcessRecord]:
    """Return all running processes of this cluster, by name."""
    for pid in list(_children):  # also those that another command killed
        _reap(pid)
    paths = sorted(layout.run.glob("*.json")) if layout.run.exists() else []
    return [r for r in (find(layout, p.stem) for p in paths) if r]


def is_child(record: ProcessRecord) -> bool:
    """Return whether this process started the other one, which is not reaped yet."""
    return record.pid in _children


def stop(layout: Layout, record: ProcessRecord, *, timeout_s: float) -> bool:
    """Send SIGTERM, and SIGKILL after ``timeout_s``; return True if the process ended by itself."""
    record.signal(signal.SIGTERM)
    clean = record.wait_ended(timeout_s)
    if not clean:
        record.signal(signal.SIGKILL)
        record.wait_ended(5)
    _path(layout, record.name).unlink(missing_ok=True)
    return clean


def kill(layout: Layout, record: ProcessRecord) -> None:
    """Send SIGKILL, to simulate a power loss."""
    record.signal(signal.SIGKILL)
    record.wait_ended(10)
    _path(layout, record.name).unlink(missing_ok=True)


def _path(layout: Layout, name: str) -> Path:
    return layout.run / f"{name}.json"


def _store(layout: Layout, record: ProcessRecord) -> None:
    write_json(_path(layout, record.name), asdict(record))


def _await_ready(
    layout: Layout, record: ProcessRecord, timeout_s: float, is_ready: Ready
) -> dict[str, Any]:
    """Wait until the process is ready and return the values of its ready line.

    Raises :class:`ProcessStartError` if it ends, or is not ready after ``timeout_s`` seconds.
    """
    log_path = layout.log(record.name)
    deadline = time.monotonic() + timeout_s
    while True:
        ready = is_ready()
        if ready is not None:
            return ready
        # The exit status is known only of this process's own children.
        child = _children.get(record.pid)
        if child is not None and child.poll() is not None:
            raise ProcessStartError(
                f"{record.name} ended with status {child.returncode}; {_tail(log_path)}"
            )
        if child is None and not record.alive():
            raise ProcessStartError(f"{record.name} ended; {_tail(log_path)}")
        if time.monotonic() > deadline:
            raise ProcessStartError(
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
    """Return ("run" | "zombie", start time in ticks) from /proc; None if there is no process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command name before ")" may contain spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    return ("zombie" if fields[0] in "ZX" else "run", int(fields[19]))


def _belongs_to_user(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}").stat().st_uid == os.geteuid()
    except OSError:
        return False


def _reap(pid: int, *, wait_s: float = 0.0) -> None:
    """Reap a child that has ended.

    A process can be a zombie that cannot be waited for yet, while its last threads end.
    """
    child = _children.get(pid)
    if child is None:
        return
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(wait_s)
        _children.pop(pid, None)
