"""Fair shares of memory that clients fill with state that outlives their requests: groups, offsets,
transactional ids.

A client may hold at most half of what the other clients leave free, so a client that creates names
without end exhausts its own share and others still find room. State counts for the client that
first created it, until the state is deleted. State that was loaded from a log has no owner here.
After a takeover by another broker a client therefore starts with less room, and can never take all
of it.

The client is set once per request (:data:`asking`) by the task that serves it, so the rules in
between need no connection. Work without a client, such as expiration, is not limited.
"""

from collections import Counter
from collections.abc import Hashable
from contextvars import ContextVar

#: Client whose request is being served, None for internal work.
asking: ContextVar[Hashable] = ContextVar("asking", default=None)


class Shares:
    """Bytes in use under a limit, and the part of each client."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._of: Counter[Hashable] = Counter()
        #: Owner and bytes, by the name of the state.
        self._owners: dict[str, tuple[Hashable, int]] = {}

    def add(self, name: str, more_bytes: int) -> None:
        """Count ``more_bytes`` (which may be negative) under ``name``."""
        self.used_bytes += more_bytes
        # The first client that adds to a name owns it, even if others add to it later.
        who, before = self._owners.get(name, (asking.get(), 0))
        if who is None:
            return
        now = max(0, before + more_bytes)  # bytes loaded from the log have no owner
        self._count(who, now - before)
        if now:
            self._owners[name] = who, now
        else:
            self._owners.pop(name, None)

    def forget_owner(self, name: str) -> None:
        """Drop the owner of state that another broker now serves.

        The caller subtracts its bytes from ``used_bytes``.
        """
        who, owned_bytes = self._owners.pop(name, (None, 0))
        self._count(who, -owned_bytes)

    def is_full_for(self, more_bytes: int) -> bool:
        """True if there is no room for ``more_bytes`` of the current client."""
        if self.used_bytes + more_bytes >= self.limit_bytes:
            return True
        who = asking.get()
        if who is None:
            return False
        # Half of what the other clients leave free, so that another client always finds room.
        own_bytes = self._of[who]
        other_bytes = self.used_bytes - own_bytes
        return 2 * (own_bytes + more_bytes) > self.limit_bytes - other_bytes

    def _count(self, who: Hashable, more_bytes: int) -> None:
        self._of[who] += more_bytes
        if not self._of[who]:
            del self._of[who]
