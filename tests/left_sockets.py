"""What stock clients leave behind, for the conftest of each folder that has them."""

import gc
import warnings
from collections.abc import Iterator

import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """kafka-python leaves sockets to the garbage collector when a broker dies or lets it not in:
    collect them before the next test begins, whoever's that is, so that they are never taken for a
    leak of its own.

    As the outermost wrapper: the log records that pytest keeps until then hold on to them.
    """
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
