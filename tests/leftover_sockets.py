"""What clients leave behind, for the conftest of each folder that has them."""

import gc
import warnings
from collections.abc import Iterator

import pytest


def collect_left_sockets() -> None:
    """Some libraries leave sockets to the garbage collector: kafka-python when a broker dies or
    lets it not in, py4j when a session stops. Collect them before the next test begins, whoever's
    that is, so that they are never taken for a leak of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """As the outermost wrapper: the log records that pytest keeps until then hold on to them."""
    yield
    collect_left_sockets()
