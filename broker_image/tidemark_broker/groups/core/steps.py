"""Decisions in steps: what goes through thousands of topics is done in a thread.

A heartbeat that brings a few names is decided at once. One of a member of thousands of topics has
the long parts of it, which change nothing, done in a thread: its steps give them away as
:class:`Work` and go on with what comes back. Between two steps the group is as it should be, on
record and in memory; nobody else may change it meanwhile (whoever drives the steps sees to that).
"""

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeAlias, TypeVar

R = TypeVar("R")

#: Names, partitions, and such; so many take a millisecond or two.
AT_ONCE_MAX = 1000


class Work(NamedTuple):
    """To be done in a thread: it changes nothing, and looks at nothing that anybody changes until
    the steps go on."""

    do: Callable[[], Any]


#: What comes of them, once all their work is done.
Steps: TypeAlias = Generator[Work, Any, R]


def elsewhere(size: int, do: Callable[[], R]) -> Steps[R]:
    """Do it: at once where it is small, of no more than :data:`AT_ONCE_MAX` names or partitions."""
    if size <= AT_ONCE_MAX:
        return do()
    made: R = yield Work(do)
    return made
