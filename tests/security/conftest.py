"""Stock clients that are not let in leave sockets behind."""

from tests.left_sockets import pytest_runtest_teardown

__all__ = ["pytest_runtest_teardown"]
