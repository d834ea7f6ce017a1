"""Who looks for a controller while this process stands by.

A broker that has lost its controller asks every operator until one leads. Whoever takes over knows
from that, before its term begins, which brokers live, and since when whoever else is alive could
have come: of that time nobody has to be waited for again. As long as a Lease is renewed there is a
controller, and who knocks here has only not reached it: that is forgotten.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Looked:
    """``since_s``: when the first broker came that looked for a controller in vain, ``last_s``:
    when each did last (monotonic seconds). None: nobody has."""

    since_s: float | None = None
    last_s: Mapping[int, float] = field(default_factory=dict)

    def seconds(self, now_s: float) -> float:
        """For how long brokers have been looking."""
        return 0.0 if self.since_s is None else now_s - self.since_s


class Knocks:
    """Any thread may call. At most one entry for each node id that the authority has certified."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since_s: float | None = None
        self._last_s: dict[int, float] = {}

    def heard(self, node_id: int, now_s: float) -> None:
        """A broker, proven by its certificate, has asked and was told that nobody leads here."""
        with self._lock:
            if self._since_s is None:
                self._since_s = now_s
            self._last_s[node_id] = now_s

    def forget(self) -> None:
        """Somebody leads, here or elsewhere."""
        with self._lock:
            self._since_s = None
            self._last_s.clear()

    def looked(self) -> Looked:
        """Since somebody led."""
        with self._lock:
            return Looked(self._since_s, dict(self._last_s))
