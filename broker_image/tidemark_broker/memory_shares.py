"""Room in memory that clients fill with what outlives their requests: groups, offsets,
transactional ids.

None of them has more than half of what the others leave, so that one that makes up names without
end finds no more room for itself, and others go on finding some. What a client caused to be kept
counts as its own until it goes: the first that asks for something is its holder. What was there
before this broker looked after it is nobody's; so a client that has filled its share and waits for
another broker to take over has a smaller one there, and never all.

Who asks is set for each request once (:data:`asking`), by the task that serves it: the rules in
between know nothing of connections. Nobody asks for what happens by itself, and that has no share.
"""

from collections import Counter
from collections.abc import Hashable
from contextvars import ContextVar

#: Whose request is being served.
asking: ContextVar[Hashable] = ContextVar("asking", default=None)


class Shares:
    """Bytes that are taken, and may be. Pure but for who asks."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._of: Counter[Hashable] = Counter()
        #: Who holds what, and how much of it, by its name.
        self._held: dict[str, tuple[Hashable, int]] = {}

    def add(self, name: str, more_bytes: int) -> None:
        """So much more is taken under that name, or less."""
        self.used_bytes += more_bytes
        who, before = self._held.get(name, (asking.get(), 0))
        if who is None:
            return
        now = max(0, before + more_bytes)  # some of it may have been there before
        self._count(who, now - before)
        if now:
            self._held[name] = who, now
        else:
            self._held.pop(name, None)

    def leave(self, name: str) -> None:
        """Another broker looks after it: it is nobody's here. What it took is given back by
        whoever counted it."""
        who, held = self._held.pop(name, (None, 0))
        self._count(who, -held)

    def lacks(self, more_bytes: int) -> bool:
        """Is there no room for so much more, of whoever asks?"""
        if self.used_bytes + more_bytes >= self.limit_bytes:
            return True
        who = asking.get()
        if who is None:
            return False
        mine = self._of[who]
        others = self.used_bytes - mine
        return 2 * (mine + more_bytes) > self.limit_bytes - others

    def _count(self, who: Hashable, more_bytes: int) -> None:
        self._of[who] += more_bytes
        if not self._of[who]:
            del self._of[who]
