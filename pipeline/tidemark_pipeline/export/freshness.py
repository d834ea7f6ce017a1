"""Freshness of a table: the latest time whose records it has completely, from offsets alone.

A busy topic always has a record that the table lacks, so the lag in offsets says little about the
age of the table's content. So the topic's end offsets are remembered at one moment. Once the table
reaches them, it is as fresh as that moment.

Pure. One moment is remembered at a time, so the result lags by at most two calls.
"""

from collections.abc import Mapping


class Freshness:
    """Freshness of one table.

    ``current_ms``: Unix time in milliseconds at which the table had all records of the topic; None
    while unknown.
    """

    def __init__(self) -> None:
        self.current_ms: int | None = None
        self._awaited: tuple[int, dict[int, int]] | None = None

    def observe(self, now_ms: int, ends: Mapping[int, int], offsets: Mapping[int, int]) -> None:
        """Update ``current_ms`` with the topic's end offsets and the table's offsets.

        ``now_ms``: Unix time. ``ends``: end offset of each partition now. ``offsets``: first offset
        of each partition that the table does not have.
        """
        # The table has everything, so it is as fresh as this moment.
        if _has(offsets, ends):
            self.current_ms, self._awaited = now_ms, None
            return
        if self._awaited is not None:
            then_ms, awaited = self._awaited
            # Wait until the table reaches the remembered ends. Replacing them at each call would
            # move the goal.
            if not _has(offsets, awaited):
                return
            self.current_ms = then_ms
        self._awaited = now_ms, dict(ends)


def _has(offsets: Mapping[int, int], ends: Mapping[int, int]) -> bool:
    return all(offsets.get(partition, 0) >= end for partition, end in ends.items())
