"""Lock order check, turned on for a process and for the processes that it starts."""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tidemark_broker.lock_order import REPORT_VARIABLE


def check_lock_order() -> None:
    """Turn the check on for all locks that brokers create from now on, here and in processes that
    are started here. Each calling process has its own report."""
    descriptor, path = tempfile.mkstemp(prefix="tidemark-lock-order-")
    os.close(descriptor)
    os.environ[REPORT_VARIABLE] = path


def reported() -> str:
    """Return the violations since the last call, empty for none."""
    path = Path(os.environ[REPORT_VARIABLE])
    if not path.exists() or not path.stat().st_size:
        return ""
    text = path.read_text()
    os.truncate(path, 0)
    return text


def end_check() -> None:
    """End the check and remove the report."""
    path = os.environ.pop(REPORT_VARIABLE, "")
    if path:
        Path(path).unlink(missing_ok=True)


def in_order(main: Callable[[], int]) -> int:
    """Run a command with the check on. Return its status, or 1 if a lock was taken out of order."""
    check_lock_order()
    try:
        status, found = main(), reported()
        print(found, file=sys.stderr, end="")
        return status or int(bool(found))
    finally:
        end_check()
