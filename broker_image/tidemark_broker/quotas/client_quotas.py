"""What clients use of their quotas, and for how long they have to rest.

A request is served first and counted then; what it used too much of, its connection makes up for by
a rest, of which the answer tells in ``throttle_time_ms`` (KIP-219). A Fetch of somebody who is over
the quota already is answered with nothing, and one answer never has more than all windows together
allow: otherwise many connections at once would each get theirs.

Bytes are counted for each broker by itself, as in Kafka. Percents are of the time of the broker's
one thread; such a rest is one window at most (Kafka's ``ClientRequestQuotaManager``).
"""

import time
from collections.abc import Callable, Iterable, Mapping

from tidemark.lru import Lru
from tidemark.wire.users import ClientQuota
from tidemark_broker.quotas.rate import WindowedRate, Windows
from tidemark_broker.quotas.table import Limit, QuotaKind, QuotaTable

#: So many who are measured are remembered of a kind; who has used nothing for longest goes first.
#: Clients that are free to take any name drive out only each other.
MEASURED_MAX = 10_000
#: Nobody rests for longer at a time, however small the quota: what was used counts on.
REST_MAX_S = 3600.0


class ClientQuotas:
    """Of one broker. Belongs to its loop."""

    def __init__(
        self, windows: Windows | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.windows = windows or Windows()
        self._now = now
        self._table = QuotaTable()
        self._measured: Mapping[
            tuple[QuotaKind, bool], Lru[tuple[str | None, str | None], WindowedRate]
        ] = {(kind, any_): Lru(MEASURED_MAX) for kind in QuotaKind for any_ in (False, True)}

    @property
    def entries(self) -> tuple[ClientQuota, ...]:
        """All that hold."""
        return self._table.entries

    def apply(self, quotas: Iterable[ClientQuota] | QuotaTable) -> None:
        """These and no others hold from now on; what was used counts on."""
        self._table = quotas if isinstance(quotas, QuotaTable) else QuotaTable(quotas)

    @property
    def is_empty(self) -> bool:
        """Is nobody limited?"""
        return self._table.is_empty

    def of(self, user: str, client_id: str) -> "RequestQuotas":
        """What holds for one request."""
        return RequestQuotas(self, self._table.limits(user, client_id))

    def use(self, kind: QuotaKind, limit: Limit, amount: float) -> float:
        """Count it; for how many seconds its user has to rest."""
        rate, now_s = self._rate(kind, limit), self._now()
        if amount:
            rate.record(amount, now_s)
        rest_s = rate.rest_s(limit.value, now_s)
        return min(rest_s, self.windows.size_s) if kind is QuotaKind.REQUEST else rest_s

    def _rate(self, kind: QuotaKind, limit: Limit) -> WindowedRate:
        measured = self._measured[kind, limit.by_any_name]
        rate = measured.get(limit.shared_by)
        if rate is None:
            rate = WindowedRate(self.windows)
            measured.put(limit.shared_by, rate)
            measured.evict()
        return rate


class RequestQuotas:
    """What one request uses. ``rest_s``: for how long its connection has to rest afterwards."""

    __slots__ = ("_limits", "_quotas", "rest_s")

    def __init__(self, quotas: ClientQuotas, limits: Mapping[QuotaKind, Limit]) -> None:
        self._quotas = quotas
        self._limits = limits
        self.rest_s = 0.0

    def holds(self, kind: QuotaKind) -> bool:
        """Is that limited for it?"""
        return kind in self._limits

    def use(self, kind: QuotaKind, amount: float) -> None:
        """It has used so much more: bytes, partitions, or percents of a second."""
        limit = self._limits.get(kind)
        if limit is not None:
            rest_s = min(self._quotas.use(kind, limit, amount), REST_MAX_S)
            self.rest_s = max(self.rest_s, rest_s)

    def room(self, kind: QuotaKind) -> float | None:
        """How much it may use at most: 0 of a quota that is used up (then it has to rest), None
        where that is not limited."""
        limit = self._limits.get(kind)
        if limit is None:
            return None
        self.use(kind, 0)
        return 0.0 if self.rest_s else limit.value * self._quotas.windows.full_s
