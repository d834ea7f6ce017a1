"""Memory of unanswered requests over all connections.

Kafka's ``queued.max.request.bytes``: a request counts from its arrival until it is answered. Above
the limit no connection starts to read another request; they resume in turn as requests are
answered. A request that has started to arrive is always read to its end, so two incomplete requests
never wait for each other.
"""

from collections.abc import Callable


class RequestBudget:
    """Number of bytes in use. Paused connections are called back once there is room."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._waiting: dict[Callable[[], None], None] = {}
        self.used_bytes = 0

    @property
    def exhausted(self) -> bool:
        """True if reading must pause."""
        return self.used_bytes >= self._limit

    def take(self, size: int) -> None:
        """Count a request of ``size`` bytes."""
        self.used_bytes += size

    def give(self, size: int) -> None:
        """Uncount a request, and resume paused connections if there is room."""
        self.used_bytes -= size
        if self._waiting and not self.exhausted:
            # Swapped first, because a resumed connection may have to wait again.
            waiting, self._waiting = self._waiting, {}
            for resume in waiting:
                resume()

    def call_back(self, resume: Callable[[], None]) -> None:
        """Call ``resume`` once there is room."""
        self._waiting[resume] = None

    def forget(self, resume: Callable[[], None]) -> None:
        """Do not call ``resume`` any more."""
        self._waiting.pop(resume, None)
