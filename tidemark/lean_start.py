"""What a server does without, though it is installed.

kio imports Hypothesis where it finds it (``kio.static._phantom``), so in an environment with what
tests need each server would take a fifth longer to start, and 9 MB more.
"""

import sys


def leave_out_hypothesis() -> None:
    """To be called before the first import of kio; does nothing where a test has it already."""
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]  # as the import system has it
