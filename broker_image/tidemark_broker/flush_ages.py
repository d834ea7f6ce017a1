"""How long the records of each log have been waiting to be made durable (``flush.ms``).

A log does not know when a record was appended, only how far it is durable: the age of what lies
above is counted from the first look that saw it, so it is too small by at most the pause between
two looks.
"""

from collections.abc import Mapping
from typing import Protocol

from tidemark.configuration.values import INT64_MAX
from tidemark_broker.log import LogConfig
from tidemark_broker.replication.types import TopicPartition


class Flushable(Protocol):
    """What is looked at of a log; offsets are the next ones."""

    config: LogConfig

    @property
    def recovery_point(self) -> int:
        """Up to where the log is durable."""

    @property
    def next_offset(self) -> int:
        """Where it ends."""


class FlushAges:
    """The loop thread owns it."""

    def __init__(self) -> None:
        self._since: dict[TopicPartition, tuple[int, float]] = {}

    def overdue(
        self, logs: Mapping[TopicPartition, Flushable], now_s: float
    ) -> frozenset[TopicPartition]:
        """The logs with records that have waited for ``flush.ms``; a log not named is forgotten."""
        since: dict[TopicPartition, tuple[int, float]] = {}
        for tp, log in logs.items():
            if log.config.flush_ms == INT64_MAX:
                continue  # as nearly every topic has it: never
            point = log.recovery_point
            if point < log.next_offset:
                known_point, began_s = self._since.get(tp, (-1, now_s))
                since[tp] = (point, began_s if known_point == point else now_s)
        self._since = since
        return frozenset(
            tp
            for tp, (_, began_s) in since.items()
            if (now_s - began_s) * 1000 >= logs[tp].config.flush_ms
        )
