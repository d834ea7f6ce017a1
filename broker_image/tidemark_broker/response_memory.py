"""How many bytes of answers the broker holds: being made, or made and not taken by the client yet.

Whoever asks and does not read would else cost what its answers weigh: twelve connections that
pipelined eight Fetches each took 5.3 GB. So the maker of a large answer asks first how large it may
be, and is given at most half of what is left, but never less than ``SMALL_BYTES``: nobody waits for
anybody who does not read, and what remains shrinks but does not end. A Fetch may be answered with
less than it asks for; the client asks again (KIP-74 does the same within one request).
"""

#: Granted however little is left.
SMALL_BYTES = 64 * 1024
#: So little left that those who take nothing have to go.
SHORT_BYTES = 1024 * 1024


class AnswerBudget:
    """Of all connections of a listener. The loop thread owns it."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self.used_bytes = 0

    @property
    def short(self) -> bool:
        """Is hardly anything left?"""
        return self._limit - self.used_bytes < SHORT_BYTES

    def at_most(self, wished_bytes: int) -> int:
        """How many bytes a further answer may have."""
        return min(wished_bytes, max(SMALL_BYTES, (self._limit - self.used_bytes) // 2))


class AnswerMemory:
    """One holder's share of a budget: that of a request, or of a connection's unsent bytes."""

    __slots__ = ("_budget", "held_bytes")

    def __init__(self, budget: AnswerBudget) -> None:
        self._budget = budget
        self.held_bytes = 0

    def grant(self, wished_bytes: int) -> int:
        """How many bytes may be made, at least a batch (see the module); they are held until
        :meth:`hold` says how many there really are."""
        self.hold(0)
        self.hold(self._budget.at_most(wished_bytes))
        return self.held_bytes

    def hold(self, size_bytes: int) -> None:
        """So many bytes are held now."""
        self._budget.used_bytes += size_bytes - self.held_bytes
        self.held_bytes = size_bytes
