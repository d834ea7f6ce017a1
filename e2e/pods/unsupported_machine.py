"""Failures that are caused by the machine and not by the tested code, distinguished by exit status.

A machine may refuse namespaces, have no packages, or start no container. CI tests whether Tidemark
works, and such a machine cannot answer that.
"""

import contextlib
from collections.abc import Iterator

from e2e.pods.commands import CommandFailed
from e2e.pods.progress import Failed

#: The exit status of such a run.
STATUS = 3
LINES_MAX = 3


class CannotRun(RuntimeError):
    """The requested run is not possible; the text says what to do."""


class NotHere(CannotRun):
    """This machine runs no pods; the text says what it lacks or has refused."""


@contextlib.contextmanager
def of_the_machine() -> Iterator[None]:
    """Treat failures inside the block as failures of the machine.

    Raises :class:`NotHere`.
    """
    try:
        yield
    except (CommandFailed, Failed) as error:
        raise NotHere(str(error)) from error


def tell(error: NotHere) -> int:
    """One line, whatever it was (the first and the last of many say it); the exit status."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    why = " / ".join(lines if len(lines) <= LINES_MAX else (lines[0], lines[-1]))
    print(f"make e2e: NOT POSSIBLE HERE, nothing of Tidemark was tried in pods: {why}", flush=True)
    return STATUS
