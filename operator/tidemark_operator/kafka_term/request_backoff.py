"""What Kafka was asked for last, so that the same is not asked again before its time."""

import time
from collections.abc import Hashable

from tidemark_operator.controller.topics import Blocker
from tidemark_operator.kafka_term import requeue_delays


class Asked:
    """What Kafka was asked for last, by topic and kind, and why it refused (None: it did not). The
    same is not asked again before its time: brokers tell of what was done in their own time, and
    what was refused waits for a person."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[Hashable, Blocker | None, float]] = {}

    def stands(self, topic: str, what: str, asked: Hashable) -> bool:
        """Whether the very same was asked a moment ago."""
        former, _, until_s = self._known.get((topic, what), (None, None, 0.0))
        return former == asked and time.monotonic() < until_s

    def refusal(self, topic: str, what: str) -> list[Blocker]:
        """Why it was refused, if it was."""
        blocker = self._known[topic, what][1]
        return [] if blocker is None else [blocker]

    def put(self, topic: str, what: str, asked: Hashable, blocker: Blocker | None) -> None:
        """It was asked for now."""
        is_final = blocker is not None and not blocker.goes_on
        pause_s = requeue_delays.REFUSED_S if is_final else requeue_delays.LOOK_AGAIN_S
        self._known[topic, what] = asked, blocker, time.monotonic() + pause_s

    def forget(self, topic: str) -> None:
        """The Topic is gone."""
        for key in [key for key in self._known if key[0] == topic]:
            del self._known[key]
