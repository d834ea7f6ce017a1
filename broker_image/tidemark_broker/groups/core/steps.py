"""Decisions in steps, with long computations in a thread.

A heartbeat with a few names is decided at once. For a member with thousands of topics the long
parts, which change nothing, run in a thread: the steps yield them as :class:`Work` and continue
with the result. Between two steps the group's memory and records are consistent. The driver of the
steps ensures that no other request changes the group meanwhile.
"""

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeAlias, TypeVar

R = TypeVar("R")

#: Names or partitions that take about a millisecond or two.
AT_ONCE_MAX = 1000


class Work(NamedTuple):
    """A computation for a thread.

    It changes nothing, and reads only data that stays unchanged until the steps continue.
    """

    do: Callable[[], Any]


#: Generator of work that returns the result.
Steps: TypeAlias = Generator[Work, Any, R]


def off_loop(size: int, do: Callable[[], R]) -> Steps[R]:
    """Run ``do``: at once for at most :data:`AT_ONCE_MAX` names or partitions, else as a step."""
    # A thread costs more than a short computation.
    if size <= AT_ONCE_MAX:
        return do()
    made: R = yield Work(do)
    return made
