"""Marks of every test with a Spark session."""

import pytest

MARKS = [
    pytest.mark.java,
    pytest.mark.slow,
    # py4j leaves sockets to the garbage collector when a session stops.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
