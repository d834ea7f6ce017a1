"""Resource usage of a process, from /proc."""

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time together."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def group_cpu_seconds(session_id: int) -> float:
    """User and system time of all processes of a session, and of those that have ended and whose
    parents have waited for them."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        # Fields 11 to 14 are the process's own and its waited-for children's ticks.
        if int(fields[3]) == session_id:
            total += sum(map(int, fields[11:15]))
    return total / _TICKS


def resident_mb(pid: int) -> float:
    """Resident memory in MB."""
    return _status_mb(pid, "VmRSS:")


def peak_resident_mb(pid: int) -> float:
    """The most that was ever resident."""
    return _status_mb(pid, "VmHWM:")


def _status_mb(pid: int, name: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    return float("nan")
