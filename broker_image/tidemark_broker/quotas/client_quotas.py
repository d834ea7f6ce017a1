"""Usage of client quotas, and the resulting throttle times.

A request is served first and counted afterwards. An excess is compensated by muting the connection,
and the answer contains the time in ``throttle_time_ms`` (KIP-219). A Fetch of a client that is over
its quota is answered empty, and one answer never exceeds the allowance of all windows. Otherwise
many concurrent connections would each get a full answer.

As in Kafka, bytes are counted by each broker separately. Percentages are of the time of the
broker's single thread, and such a throttle is at most one window (Kafka's
``ClientRequestQuotaManager``).
"""

import time
from collections.abc import Callable, Iterable, Mapping

from tidemark.lru import Lru
from tidemark.wire.users import ClientQuota
from tidemark_broker.quotas.rate import WindowedRate, Windows
from tidemark_broker.quotas.table import Limit, QuotaKind, QuotaTable

#: Number of measured clients of a kind; the least recently active is dropped first. Clients that
#: choose their own names can only displace each other.
MEASURED_MAX = 10_000
#: Longest throttle at a time, however small the quota. The usage still counts afterwards.
REST_MAX_S = 3600.0


class ClientQuotas:
    """Quotas of one broker. Used from its loop only."""

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
        """All quotas of the cluster."""
        return self._table.entries

    def apply(self, quotas: Iterable[ClientQuota] | QuotaTable) -> None:
        """Replace the quotas; measured usage is preserved."""
        self._table = quotas if isinstance(quotas, QuotaTable) else QuotaTable(quotas)

    @property
    def is_empty(self) -> bool:
        """True if no client is limited."""
        return self._table.is_empty

    def of(self, user: str, client_id: str) -> "RequestQuotas":
        """Return the quotas of one request."""
        return RequestQuotas(self, self._table.limits(user, client_id))

    def use(self, kind: QuotaKind, limit: Limit, amount: float) -> float:
        """Count usage; return the throttle time in seconds."""
        rate, now_s = self._rate(kind, limit), self._now()
        if amount:
            rate.record(amount, now_s)
        # Kafka caps only the request-time throttle at one window.
        throttle_s = rate.throttle_s(limit.value, now_s)
        return min(throttle_s, self.windows.size_s) if kind is QuotaKind.REQUEST else throttle_s

    def _rate(self, kind: QuotaKind, limit: Limit) -> WindowedRate:
        measured = self._measured[kind, limit.by_any_name]
        # Clients under a default share no rate, so each name is measured by itself.
        rate = measured.get(limit.shared_by)
        if rate is None:
            rate = WindowedRate(self.windows)
            measured.put(limit.shared_by, rate)
            measured.evict()
        return rate


class RequestQuotas:
    """Usage of one request. ``throttle_s`` is the throttle time of its connection."""

    __slots__ = ("_limits", "_quotas", "throttle_s")

    def __init__(self, quotas: ClientQuotas, limits: Mapping[QuotaKind, Limit]) -> None:
        self._quotas = quotas
        self._limits = limits
        self.throttle_s = 0.0

    def holds(self, kind: QuotaKind) -> bool:
        """True if that kind is limited."""
        return kind in self._limits

    def use(self, kind: QuotaKind, amount: float) -> None:
        """Count usage in bytes, partitions, or percent of a second."""
        limit = self._limits.get(kind)
        if limit is not None:
            throttle_s = min(self._quotas.use(kind, limit, amount), REST_MAX_S)
            self.throttle_s = max(self.throttle_s, throttle_s)

    def room(self, kind: QuotaKind) -> float | None:
        """Return the remaining allowance: 0 for an exceeded quota, None without a limit."""
        limit = self._limits.get(kind)
        if limit is None:
            return None
        # Refreshes throttle_s from the usage of other connections, without counting anything.
        self.use(kind, 0)
        return 0.0 if self.throttle_s else limit.value * self._quotas.windows.full_s
