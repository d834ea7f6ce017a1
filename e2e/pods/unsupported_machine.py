"""A run that ends because of the machine, and not of what is tested, told apart by its exit status.

A machine may refuse namespaces, have no packages, or start no container. CI asks whether Tidemark
works, and such a machine has no answer to that.
"""

import contextlib
from collections.abc import Iterator

from e2e.pods.commands import CommandFailed
from e2e.pods.progress import Failed

#: The exit status of such a run.
STATUS = 3
LINES_MAX = 3


class CannotRun(RuntimeError):
    """There is no run as it was asked for; the text says what to do about it."""


class NotHere(CannotRun):
    """This machine runs no pods; the text says what it lacks or has refused."""


@contextlib.contextmanager
def of_the_machine() -> Iterator[None]:
    """What fails inside is the machine's. Raises :class:`NotHere`."""
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
