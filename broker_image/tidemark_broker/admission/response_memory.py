"""Memory that the broker holds for responses: being built, or built and not yet read by the client.

Without this limit, clients that request and do not read would cost the full size of their
responses: twelve connections that pipelined eight Fetches each took 5.3 GB. The builder of a large
response requests a size first and gets at most half of what is left, but never less than
``SMALL_BYTES``. No request waits for a client that does not read, and the remainder shrinks without
reaching zero. A Fetch may be answered with less than it requests, as KIP-74 does within one
request.
"""

import asyncio
from collections.abc import Callable

#: Granted even if less is left.
SMALL_BYTES = 64 * 1024
#: Below this remainder, connections that do not read are closed.
SHORT_BYTES = 1024 * 1024
#: Smaller written responses are not tracked.
_TRACKED_BYTES = 4096
#: Interval of polling the buffer's size.
_POLL_S = 0.02


class ResponseBudget:
    """Budget of all connections of a listener. Used from the loop thread only."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self.used_bytes = 0

    @property
    def is_short(self) -> bool:
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


class UnsentResponses:
    """Responses that were written to a connection and that its client has not received yet.

    They occupy memory while they are in the transport's buffer. The transport does not report
    progress, so its size is polled while it is not empty. ``emptied`` is called once all are sent.
    """

    def __init__(
        self,
        memory: ResponseMemory,
        loop: asyncio.AbstractEventLoop,
        emptied: Callable[[], None],
    ) -> None:
        self.transport: asyncio.Transport | None = None
        self._memory = memory
        self._loop = loop
        self._emptied = emptied
        self._paused = False
        self._last_progress_s = 0.0
        #: Bytes that were written, and how many of them the socket had taken at the last check.
        self._written_bytes = 0
        self._last_sent_bytes = -1

    @property
    def unsent_bytes(self) -> int:
        """Bytes at the last poll."""
        return self._memory.reserved_bytes

    def add(self, response: ResponseMemory) -> None:
        """Take over the memory of a written response until it is sent."""
        size = response.reserved_bytes
        self._written_bytes += size
        response.set_reserved(0)
        # The transport has already written what the socket takes, usually everything.
        if size > _TRACKED_BYTES and self._buffered_bytes():
            # One poll timer serves all responses of the connection.
            is_tracked = self._memory.reserved_bytes > 0
            self._memory.set_reserved(self._memory.reserved_bytes + size)
            if not is_tracked:
                self._loop.call_later(_POLL_S, self._poll)

    def forget(self) -> None:
        """Release everything, because the connection is closed."""
        self.transport = None
        self._memory.set_reserved(0)

    def pause(self) -> None:
        """Stop polling: the buffer is full, and the transport reports when it is empty."""
        self._paused = True

    def resume(self) -> None:
        """Handle an empty buffer."""
        self._paused = False
        self._poll()

    def _poll(self) -> None:
        if self._memory.reserved_bytes == 0:
            return
        buffered_bytes = self._buffered_bytes()
        self._memory.set_reserved(min(buffered_bytes, self._memory.reserved_bytes))
        if buffered_bytes and not self._paused:
            self._loop.call_later(_POLL_S, self._poll)
        elif not buffered_bytes:
            self._emptied()

    def _buffered_bytes(self) -> int:
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    def is_stalled(self, for_s: float) -> bool:
        """Return whether the client has received nothing for that long.

        Must be called repeatedly.
        """
        size = self._buffered_bytes()
        sent_bytes = self._written_bytes - size
        # Any progress restarts the period. More responses may be written meanwhile.
        if size == 0 or sent_bytes != self._last_sent_bytes:
            self._last_progress_s = self._loop.time()
        self._last_sent_bytes = sent_bytes
        return size > 0 and self._loop.time() - self._last_progress_s >= for_s
