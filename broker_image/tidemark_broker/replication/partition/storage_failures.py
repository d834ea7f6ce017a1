"""Replicas whose storage fails, and the time of each one's next attempt.

A full disk or an unwritable directory does not stop the broker: the replica returns
KAFKA_STORAGE_ERROR and is retried after a growing pause.
"""

import logging
from collections.abc import Callable

from tidemark.backoff import Backoff
from tidemark_broker.replication.types import TopicPartition

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0


class StorageFailures:
    """Storage failures by partition.

    ``changed`` is called when another partition fails or one works again, because the controller is
    notified at once.
    """

    def __init__(self) -> None:
        self._backoffs: dict[TopicPartition, Backoff] = {}
        self._messages: dict[TopicPartition, str] = {}
        self.total = 0
        self.changed: Callable[[], None] = lambda: None

    def failed(self, tp: TopicPartition, error: BaseException, now_s: float) -> None:
        """Record and log a storage failure; the pause before the partition's next attempt grows."""
        known = self._backoffs.get(tp)
        backoff = known or Backoff(first_s=_FIRST_PAUSE_S, most_s=_LONGEST_PAUSE_S)
        self._backoffs[tp] = backoff = backoff.failed(now_s)
        self._messages[tp] = str(error)
        self.total += 1
        logger.error(
            "storage of %s failed (%s); the next attempt is in %.1f s",
            tp,
            error,
            backoff.until_s - now_s,
        )
        # The controller is notified of the first failure only, not of each attempt.
        if known is None:
            self.changed()

    def succeeded(self, tp: TopicPartition) -> None:
        """Clear the failure of a partition whose storage works."""
        if self._backoffs and self._backoffs.pop(tp, None) is not None:
            self._messages.pop(tp, None)
            logger.info("storage of %s works again", tp)
            self.changed()

    def forget(self, tp: TopicPartition) -> None:
        """Drop the failure of a partition that this broker no longer hosts."""
        if self._backoffs.pop(tp, None) is not None:
            self._messages.pop(tp, None)
            self.changed()

    def may_try(self, tp: TopicPartition, now_s: float) -> bool:
        """Return False during the pause after a failure."""
        # Nearly always there is none, and this is called for each append.
        backoff = self._backoffs.get(tp) if self._backoffs else None
        return backoff is None or backoff.ready(now_s)

    def try_all_now(self) -> None:
        """End all pauses, because the cause of the failures is over."""
        self._backoffs = {tp: backoff.succeeded() for tp, backoff in self._backoffs.items()}

    @property
    def count(self) -> int:
        """Number of partitions whose last attempt failed."""
        return len(self._backoffs)

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """Partitions whose last attempt failed."""
        return tuple(self._backoffs)

    def has_failed(self, tp: TopicPartition) -> bool:
        """Return whether the last attempt failed."""
        return tp in self._backoffs

    def message(self, tp: TopicPartition) -> str:
        """Return the cause of the last failure, or ""."""
        return self._messages.get(tp, "")

    def summary(self) -> str:
        """Return the first failure and the number of others for BrokerStatus; empty without
        failures.
        """
        if not self._messages:
            return ""
        tp, message = min(self._messages.items())
        more = len(self._messages) - 1
        return f"{tp}: {message}" + (f" (and {more} more partitions)" if more else "")
