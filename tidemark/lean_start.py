"""Measures that shorten the start of a server, and signals during it.

kio imports Hypothesis where it is installed (``kio.static._phantom``). In an environment with the
test packages each server would therefore start a fifth slower, with 9 MB more. The garbage
collector would examine imported modules again and again, a tenth of the start, although all of them
stay until the end.

In a container a server is process 1, and the kernel drops a signal for which process 1 has no
handler. A server that is stopped during its imports would stay for its whole grace period. (Pods
share one process namespace, in which no server is process 1.)
"""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def exit_on_signals() -> None:
    """End the process at SIGTERM and SIGINT with exit status 0. Call this first.

    Until the server has handlers of its own it holds nothing that must be released.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))


def leave_out_hypothesis() -> None:
    """Keep kio from importing Hypothesis. Call this before the first import of kio.

    Does nothing if a test has imported it already.
    """
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]  # as the import system has it


@contextmanager
def importing() -> Iterator[None]:
    """Exclude objects that the enclosed imports create from garbage collection, now and later."""
    # Imports create many objects that all stay, so collections during them find nothing.
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()
