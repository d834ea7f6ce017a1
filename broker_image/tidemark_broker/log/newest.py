"""The record with the largest timestamp (ListOffsets -3), by look-ups by time alone.

What is known of a segment is the largest timestamp in its file. That record may be deleted: a log
start may lie within the segment, or another segment may answer for the part that holds it. Then the
largest of the others is found by bisection, each step one look-up.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar


class _Dated(Protocol):
    @property
    def timestamp_ms(self) -> int:
        """Of the record."""


_Found = TypeVar("_Found", bound=_Dated)


def newest(find: Callable[[int], _Found | None], largest_ms: int) -> _Found | None:
    """The first record with the largest timestamp; None where none has one. ``find`` gives the
    first record that is not older than a time; none is newer than ``largest_ms``."""
    if largest_ms < 0:
        return None
    found = find(largest_ms) or find(0)
    if found is None:
        return None
    low_ms, none_ms = found.timestamp_ms, largest_ms
    while low_ms + 1 < none_ms:
        middle_ms = (low_ms + none_ms) // 2
        newer = find(middle_ms)
        if newer is None:
            none_ms = middle_ms
        else:
            # A look-up that was cut short tells a batch, which may be older than was asked.
            found, low_ms = newer, max(middle_ms, newer.timestamp_ms)
    return found
