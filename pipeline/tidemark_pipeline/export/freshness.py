"""Since when a table has all that its topic has, told from offsets alone.

A record is in the table some seconds after it was written, and of a busy topic there is always one
more: how many offsets the table lacks says little of how old what it shows is. So where the topic
ended is remembered at one moment, and once the table has reached that, it is as of then. Pure; one
moment is remembered at a time, so what is told lags by no more than two looks.
"""

from collections.abc import Mapping


class Freshness:
    """``current_ms``: all that the topic had then (Unix time in milliseconds) is in the table; None
    while nothing is known."""

    def __init__(self) -> None:
        self.current_ms: int | None = None
        self._awaited: tuple[int, dict[int, int]] | None = None

    def look(self, now_ms: int, ends: Mapping[int, int], offsets: Mapping[int, int]) -> None:
        """The topic's partitions end at ``ends`` now; ``offsets``: the first of each that the table
        has not."""
        if _has(offsets, ends):
            self.current_ms, self._awaited = now_ms, None
            return
        if self._awaited is not None:
            then_ms, awaited = self._awaited
            if not _has(offsets, awaited):
                return
            self.current_ms = then_ms
        self._awaited = now_ms, dict(ends)


def _has(offsets: Mapping[int, int], ends: Mapping[int, int]) -> bool:
    return all(offsets.get(partition, 0) >= end for partition, end in ends.items())
