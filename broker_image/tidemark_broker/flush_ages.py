"""Age of the unflushed records of each log, for ``flush.ms``.

A log does not record append times, only its recovery point. The age of unflushed records is counted
from the first look that found them, so it is too small by at most the interval between two looks.
"""

from collections.abc import Mapping
from typing import Protocol

from tidemark.configuration.values import INT64_MAX
from tidemark_broker.log import LogConfig
from tidemark_broker.replication.types import TopicPartition


class Flushable(Protocol):
    """Properties of a log that decide whether a flush is due. Offsets are exclusive."""

    config: LogConfig

    @property
    def recovery_point(self) -> int:
        """End of the durable part of the log."""

    @property
    def next_offset(self) -> int:
        """Offset of the next record."""


class FlushAges:
    """Start of the waiting time of each log's unflushed records. Used from the loop thread only."""

    def __init__(self) -> None:
        #: Recovery point and time in seconds at which records above it were first seen unflushed.
        self._since: dict[TopicPartition, tuple[int, float]] = {}

    def overdue(
        self, logs: Mapping[TopicPartition, Flushable], now_s: float
    ) -> frozenset[TopicPartition]:
        """Return the logs that must be flushed now, because records have waited for ``flush.ms``.

        Called periodically with all logs. A log that is not in ``logs`` is forgotten.
        """
        since: dict[TopicPartition, tuple[int, float]] = {}
        for tp, log in logs.items():
            if log.config.flush_ms == INT64_MAX:
                continue  # Kafka's default: leave flushing to the operating system
            point = log.recovery_point
            if point < log.next_offset:
                # The time continues as long as the recovery point is unchanged since the last call.
                # If a flush has moved it, the age of what is still unflushed restarts.
                known_point, began_s = self._since.get(tp, (-1, now_s))
                since[tp] = (point, began_s if known_point == point else now_s)
        self._since = since
        return frozenset(
            tp
            for tp, (_, began_s) in since.items()
            if (now_s - began_s) * 1000 >= logs[tp].config.flush_ms
        )
