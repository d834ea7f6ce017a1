"""Cleanup after clients, for the conftest of each folder that uses them."""

import gc
import warnings
from collections.abc import Iterator

import pytest


def collect_left_sockets() -> None:
    """Collect sockets that libraries leave to the garbage collector, before the next test starts.

    kafka-python leaves them when a broker dies or rejects it, py4j when a session stops. The next
    test would count them as a leak of its own.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """As the outermost wrapper: the log records that pytest keeps until then hold on to them."""
    yield
    collect_left_sockets()
