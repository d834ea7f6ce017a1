"""Which replicas' storage refuses, and when each may be tried again.

A full disk or an unwritable folder is no reason to stop: the replica answers KAFKA_STORAGE_ERROR
and is tried again after a growing pause.
"""

import logging
from collections.abc import Callable

from tidemark.backoff import Backoff
from tidemark_broker.replication.types import TopicPartition

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0


class StorageFailures:
    """``changed`` is called whenever another partition has failed, or one works again: the
    controller is to hear of it at once."""

    def __init__(self) -> None:
        self._backoffs: dict[TopicPartition, Backoff] = {}
        self._messages: dict[TopicPartition, str] = {}
        self.total = 0
        self.changed: Callable[[], None] = lambda: None

    def failed(self, tp: TopicPartition, error: BaseException, now_s: float) -> None:
        """Note a failure; one log line each time."""
        known = self._backoffs.get(tp)
        backoff = known or Backoff(first_s=_FIRST_PAUSE_S, most_s=_LONGEST_PAUSE_S)
        self._backoffs[tp] = backoff = backoff.failed(now_s)
        self._messages[tp] = str(error)
        self.total += 1
        logger.error(
            "storage of %s failed (%s); trying again in %.1f s", tp, error, backoff.until_s - now_s
        )
        if known is None:
            self.changed()

    def succeeded(self, tp: TopicPartition) -> None:
        """The partition's storage works."""
        if self._backoffs.pop(tp, None) is not None:
            self._messages.pop(tp, None)
            logger.info("storage of %s works again", tp)
            self.changed()

    def forget(self, tp: TopicPartition) -> None:
        """The partition is no more of this broker's: what its storage refused concerns nobody."""
        if self._backoffs.pop(tp, None) is not None:
            self._messages.pop(tp, None)
            self.changed()

    def may_try(self, tp: TopicPartition, now_s: float) -> bool:
        """False while the pause after a failure lasts."""
        backoff = self._backoffs.get(tp)
        return backoff is None or backoff.ready(now_s)

    def try_all_now(self) -> None:
        """End all pauses, because the cause of the failures is over."""
        self._backoffs = {tp: backoff.succeeded() for tp, backoff in self._backoffs.items()}

    @property
    def count(self) -> int:
        """How many partitions' last attempt failed."""
        return len(self._backoffs)

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """Those whose last attempt failed."""
        return tuple(self._backoffs)

    def has_failed(self, tp: TopicPartition) -> bool:
        """Did the last attempt fail?"""
        return tp in self._backoffs

    def message(self, tp: TopicPartition) -> str:
        """Why the last attempt failed."""
        return self._messages.get(tp, "")

    def summary(self) -> str:
        """For BrokerStatus: empty when all is well, else the first failure and how many more."""
        if not self._messages:
            return ""
        tp, message = min(self._messages.items())
        more = len(self._messages) - 1
        return f"{tp}: {message}" + (f" (and {more} more partitions)" if more else "")
