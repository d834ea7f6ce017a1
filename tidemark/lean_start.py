"""What a server does without while it starts.

kio imports Hypothesis where it finds it (``kio.static._phantom``), so in an environment with what
tests need each server would take a fifth longer to start, and 9 MB more. And the garbage collector
looks at what is imported again and again while ever more of it comes, a tenth of the start, though
all of it stays until the end.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


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
