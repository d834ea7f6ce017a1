"""Brokers that look for a controller while this process is on standby.

A broker that has lost its controller queries every operator until one leads. The next leader then
knows which brokers are alive, and since when all others have been silent. Time that a broker has
already been silent counts towards its session timeout. As long as a Lease is renewed there is a
controller, and a broker that arrives here has only failed to reach it: that is forgotten.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class BrokerSearches:
    """Brokers that looked for a controller in vain.

    ``since_s``: time of the first attempt, None without one. ``last_s``: time of each broker's last
    attempt. Both are monotonic seconds.
    """

    since_s: float | None = None
    last_s: Mapping[int, float] = field(default_factory=dict)

    def seconds(self, now_s: float) -> float:
        """Return for how many seconds brokers have been looking."""
        return 0.0 if self.since_s is None else now_s - self.since_s


class ControllerSearches:
    """Record of brokers' searches. Thread-safe, with at most one entry for each node id."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since_s: float | None = None
        self._last_s: dict[int, float] = {}

    def record(self, node_id: int, now_s: float) -> None:
        """Record that a broker, proven by its certificate, received NOT_CONTROLLER."""
        with self._lock:
            if self._since_s is None:
                self._since_s = now_s
            self._last_s[node_id] = now_s

    def forget(self) -> None:
        """Forget all attempts: there is a controller, here or elsewhere."""
        with self._lock:
            self._since_s = None
            self._last_s.clear()

    def snapshot(self) -> BrokerSearches:
        """Return the attempts since there was a controller."""
        with self._lock:
            return BrokerSearches(self._since_s, dict(self._last_s))
