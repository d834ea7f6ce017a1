"""How many bytes of unanswered requests the broker holds, over all connections.

Kafka's ``queued.max.request.bytes``: a request counts from the moment its bytes are here until it
is answered. Above the limit no connection reads further; those with bytes to take go on in turn
as requests are answered. What has begun to arrive is always finished, so nobody waits for anybody
who waits.
"""

from collections.abc import Callable


class RequestBudget:
    """Counts bytes; whoever was turned away is called back once there is room."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._waiting: dict[Callable[[], None], None] = {}
        self.used_bytes = 0

    @property
    def exhausted(self) -> bool:
        """Whether reading must pause."""
        return self.used_bytes >= self._limit

    def take(self, size: int) -> None:
        """A request of ``size`` bytes is held."""
        self.used_bytes += size

    def give(self, size: int) -> None:
        """It is answered. May call back those who wait."""
        self.used_bytes -= size
        if self._waiting and not self.exhausted:
            waiting, self._waiting = self._waiting, {}
            for resume in waiting:
                resume()

    def call_back(self, resume: Callable[[], None]) -> None:
        """Call ``resume`` once there is room."""
        self._waiting[resume] = None

    def forget(self, resume: Callable[[], None]) -> None:
        """Do not call ``resume`` any more."""
        self._waiting.pop(resume, None)
