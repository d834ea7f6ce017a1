"""Number of examples of a test that can try any number: fewer in ``make test`` than elsewhere."""

import os

IS_QUICK = os.environ.get("TIDEMARK_TEST_EFFORT") == "quick"
QUICK_SHARE = 4
EXAMPLES_MIN = 10


def examples(number: int) -> int:
    """Return ``number``, or a quarter of it in ``make test``, but at least ten."""
    return max(number // QUICK_SHARE, EXAMPLES_MIN) if IS_QUICK else number
