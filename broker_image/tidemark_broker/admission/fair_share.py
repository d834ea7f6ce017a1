"""Fair shares of a limited resource among clients.

- :class:`FairQueue`: slots or bytes that a request uses for some time. Requests wait for them. A
  client with large requests delays only itself. No client holds more than half of the budget.
- :class:`MemoryShares`: state that outlives its request, such as groups, offsets and transactional
  ids. Requests that find no room are rejected. A client may hold at most half of what the other
  clients leave free, so one that creates names without end still leaves room for others.

State counts for the client that first created it, until it is deleted. State that was loaded from a
log has no owner. After a takeover by another broker a client therefore starts with less room, and
can never take all of it.
"""

import asyncio
import collections
from collections import Counter
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from contextvars import ContextVar

#: Client whose request is being served, None for internal work such as expiration, which is not
#: limited. Set once for each request, so the code in between needs no connection.
requesting_client: ContextVar[Hashable] = ContextVar("requesting_client", default=None)

#: Size of a waiting request, and the future that resolves when it may start.
_Waiting = tuple[int, "asyncio.Future[None]"]


class UsageByClient(Counter[Hashable]):
    """Use of a resource by each client. Clients without use take no memory."""

    def add(self, client: Hashable, amount: int) -> None:
        """Add ``amount`` (which may be negative) to the use of a client."""
        self[client] += amount
        if not self[client]:
            del self[client]


class FairQueue:
    """Queue for a ``budget`` of any unit. Used from one event loop only.

    Requests of one client start in their order, interleaved with those of other clients.
    """

    def __init__(self, budget: int) -> None:
        self._budget = self._left = budget
        self._used = UsageByClient()
        #: Waiting requests by client. The client whose request is next is first.
        self._waiting: dict[Hashable, collections.deque[_Waiting]] = {}

    @asynccontextmanager
    async def admit(self, size: int, client: Hashable) -> AsyncIterator[None]:
        """Hold ``size`` of the budget, at most half of it, during the context."""
        await self._wait(size, client)
        try:
            yield
        finally:
            self._release(size, client)

    async def _wait(self, size: int, client: Hashable) -> None:
        admitted = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, collections.deque()).append((size, admitted))
        self._admit_waiting()
        try:
            await admitted
        except asyncio.CancelledError:
            # The request may have been admitted just before the cancellation.
            if admitted.done() and not admitted.cancelled():
                self._release(size, client)
            else:
                self._forget(admitted, client)
            raise

    def _forget(self, admitted: "asyncio.Future[None]", client: Hashable) -> None:
        """Remove a request that was not admitted from the queue."""
        waiting = self._waiting.get(client, ())
        if left := collections.deque(item for item in waiting if item[1] is not admitted):
            self._waiting[client] = left
        else:
            self._waiting.pop(client, None)
        # Larger requests of other clients may have been blocked behind the removed one.
        self._admit_waiting()

    def _release(self, size: int, client: Hashable) -> None:
        self._left += size
        self._used.add(client, -size)
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        while (following := self._next()) is not None:
            client, (size, admitted) = following
            if not admitted.done():
                if size > self._left:
                    return  # smaller requests must not overtake it for ever
                self._left -= size
                self._used.add(client, size)
                admitted.set_result(None)
            queue = self._waiting.pop(client)
            queue.popleft()
            if queue:  # back to the end, so that other clients come first
                self._waiting[client] = queue

    def _next(self) -> "tuple[Hashable, _Waiting] | None":
        for client, waiting in self._waiting.items():
            size, admitted = waiting[0]
            # A client above half of the budget is skipped until it returns some.
            if admitted.done() or self._used[client] + size <= self._budget // 2:
                return client, waiting[0]
        return None


class MemoryShares:
    """Bytes in use under a limit, and the share of each client."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._by_client = UsageByClient()
        #: Owner and bytes, by the name of the state.
        self._owners: dict[str, tuple[Hashable, int]] = {}

    def add(self, name: str, more_bytes: int) -> None:
        """Count ``more_bytes`` (which may be negative) under ``name``."""
        self.used_bytes += more_bytes
        # The first client that adds to a name owns it, even if others add to it later.
        client, before = self._owners.get(name, (requesting_client.get(), 0))
        if client is None:
            return
        now = max(0, before + more_bytes)  # bytes loaded from the log have no owner
        self._by_client.add(client, now - before)
        if now:
            self._owners[name] = client, now
        else:
            self._owners.pop(name, None)

    def forget_owner(self, name: str) -> None:
        """Drop the owner of state that another broker now serves.

        The caller subtracts its bytes from ``used_bytes``.
        """
        client, owned_bytes = self._owners.pop(name, (None, 0))
        self._by_client.add(client, -owned_bytes)

    def is_full_for(self, more_bytes: int) -> bool:
        """True if there is no room for ``more_bytes`` of the current client."""
        if self.used_bytes + more_bytes >= self.limit_bytes:
            return True
        client = requesting_client.get()
        if client is None:
            return False
        # Half of what the other clients leave free, so that another client always finds room.
        own_bytes = self._by_client[client]
        other_bytes = self.used_bytes - own_bytes
        return 2 * (own_bytes + more_bytes) > self.limit_bytes - other_bytes
