"""Memory that the broker holds for responses: being built, or built and not yet read by the client.

Without this limit, clients that request and do not read would cost the full size of their
responses: twelve connections that pipelined eight Fetches each took 5.3 GB. The builder of a large
response requests a size first and gets at most half of what is left, but never less than
``SMALL_BYTES``. No request waits for a client that does not read, and the remainder shrinks without
reaching zero. A Fetch may be answered with less than it requests, as KIP-74 does within one
request.
"""

#: Granted even if less is left.
SMALL_BYTES = 64 * 1024
#: Below this remainder, connections that do not read are closed.
SHORT_BYTES = 1024 * 1024


class ResponseBudget:
    """Budget of all connections of a listener. Used from the loop thread only."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self.used_bytes = 0

    @property
    def short(self) -> bool:
        """True if less than ``SHORT_BYTES`` are left."""
        return self._limit - self.used_bytes < SHORT_BYTES

    def at_most(self, wished_bytes: int) -> int:
        """Return the size in bytes that one more response may have."""
        # Half of the rest, so that one request cannot take everything.
        return min(wished_bytes, max(SMALL_BYTES, (self._limit - self.used_bytes) // 2))


class ResponseMemory:
    """One holder's share of a budget: a request, or a connection's unsent bytes."""

    __slots__ = ("_budget", "reserved_bytes")

    def __init__(self, budget: ResponseBudget) -> None:
        self._budget = budget
        self.reserved_bytes = 0

    def grant(self, wished_bytes: int) -> int:
        """Reserve and return the size in bytes that the response may have, at least
        ``SMALL_BYTES``.

        The reservation lasts until :meth:`set_reserved` replaces it with the actual size.
        """
        # Its own earlier reservation must not reduce what this request may get.
        self.set_reserved(0)
        self.set_reserved(self._budget.at_most(wished_bytes))
        return self.reserved_bytes

    def set_reserved(self, size_bytes: int) -> None:
        """Set the number of bytes held now."""
        self._budget.used_bytes += size_bytes - self.reserved_bytes
        self.reserved_bytes = size_bytes
