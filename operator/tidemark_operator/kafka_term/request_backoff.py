"""Backoff of identical requests to Kafka."""

import time
from collections.abc import Hashable

from tidemark_operator.controller.topics import Blocker
from tidemark_operator.kafka_term import requeue_delays


class RequestBackoff:
    """Last request to Kafka by topic and kind, with its refusal (None if accepted).

    The same request is not repeated at once: brokers show changes with a delay, and a refused one
    waits for a person.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[Hashable, Blocker | None, float]] = {}

    def was_just_sent(self, topic: str, kind: str, request: Hashable) -> bool:
        """Return whether the same request was sent a moment ago."""
        former, _, until_s = self._known.get((topic, kind), (None, None, 0.0))
        return former == request and time.monotonic() < until_s

    def refusal(self, topic: str, kind: str) -> list[Blocker]:
        """Return its refusal, if there was one."""
        blocker = self._known[topic, kind][1]
        return [] if blocker is None else [blocker]

    def put(self, topic: str, kind: str, request: Hashable, blocker: Blocker | None) -> None:
        """Note a request that was sent now."""
        is_final = blocker is not None and not blocker.goes_on
        pause_s = requeue_delays.REFUSED_S if is_final else requeue_delays.LOOK_AGAIN_S
        self._known[topic, kind] = request, blocker, time.monotonic() + pause_s

    def forget(self, topic: str) -> None:
        """Forget a deleted Topic."""
        for key in [key for key in self._known if key[0] == topic]:
            del self._known[key]
