"""What a server does without while it starts, and that it can be told to end meanwhile.

kio imports Hypothesis where it finds it (``kio.static._phantom``), so in an environment with what
tests need each server would take a fifth longer to start, and 9 MB more. And the garbage collector
looks at what is imported again and again while ever more of it comes, a tenth of the start, though
all of it stays until the end.

In a container a server is process 1, and the kernel drops a signal that process 1 has no handler
for: one that is stopped while its server still imports would stay for its whole grace period. (Pods
share one namespace of processes, in which no server is process 1.)
"""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def end_when_told() -> None:
    """To be called first: until the server has handlers of its own it holds nothing that would have
    to be given back, so SIGTERM and SIGINT end the process at once, with exit status 0."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))


def leave_out_hypothesis() -> None:
    """To be called before the first import of kio; does nothing where a test has it already."""
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]  # as the import system has it


@contextmanager
def importing() -> Iterator[None]:
    """Around the imports of a program: no collection looks at what they make, now or later."""
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()
