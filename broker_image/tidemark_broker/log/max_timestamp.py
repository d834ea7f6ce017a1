"""Search for the record with the largest timestamp (ListOffsets -3) by look-ups by time.

A segment knows the largest timestamp in its file. That record may be deleted: the log start may be
within the segment, or another segment may serve the part that contains it. Then the largest
remaining timestamp is found by bisection, with one look-up per step.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar


class _Dated(Protocol):
    @property
    def timestamp_ms(self) -> int:
        """Timestamp of the record in ms."""


_Found = TypeVar("_Found", bound=_Dated)


def newest(find: Callable[[int], _Found | None], largest_ms: int) -> _Found | None:
    """Return the first record with the largest timestamp, None if no record has one.

    ``find`` returns the first record at or after a time in milliseconds, or None. ``largest_ms`` is
    an upper bound of the timestamps: the record that had it may be deleted.
    """
    if largest_ms < 0:
        return None
    found = find(largest_ms) or find(0)
    if found is None:
        return None
    # Bisection: a record at or after ``low_ms`` is known, none exists at or after ``none_ms``.
    # If the first look-up has found a record with the upper bound itself, the loop does not run.
    low_ms, none_ms = found.timestamp_ms, largest_ms
    while low_ms + 1 < none_ms:
        middle_ms = (low_ms + none_ms) // 2
        newer = find(middle_ms)
        if newer is None:
            none_ms = middle_ms
        else:
            # A look-up that reached its limit returns a batch, which may be older than requested.
            found, low_ms = newer, max(middle_ms, newer.timestamp_ms)
    return found
