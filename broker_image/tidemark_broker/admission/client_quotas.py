"""Quotas of clients (KIP-13, -55, -124, -599): their selection, usage and throttle times.

An entity is a user, a client id, or both. Each part may be the default for names without a quota.
All clients of an entity share one quota, except that a default applies to each name separately.

A request is served first and counted afterwards. An excess is compensated by muting the connection,
and the response contains the time in ``throttle_time_ms`` (KIP-219). A Fetch of a client that is
over its quota is answered empty, and one response never exceeds the allowance of all windows.
Otherwise many concurrent connections would each get a full response.

As in Kafka, each broker counts separately. Percentages are of the time of the broker's single
thread, and such a throttle is at most one window (Kafka's ``ClientRequestQuotaManager``). Time that
a handler waits is not counted: each of its steps on the loop is timed.
"""

import enum
import math
import time
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType, coroutine
from typing import Any, TypeVar

from tidemark.wire.users import ClientQuota
from tidemark_broker.admission.rate import WindowedRates, Windows

T = TypeVar("T")

#: Part of an entity that stands for names without a quota of their own.
DEFAULT = ""
#: Number of measured clients of a kind; the least recently active is dropped first. Clients that
#: choose their own names can only displace each other.
MEASURED_MAX = 10_000
#: Longest throttle at a time, however small the quota. The usage still counts afterwards.
THROTTLE_MAX_S = 3600.0
#: The operator accepts no topic with more partitions.
_PARTITIONS_MAX = 10_000


class QuotaKind(enum.Enum):
    """Limited resource, by its field in :class:`ClientQuota`."""

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"
    MUTATION = "controller_mutation_rate"


@dataclass(frozen=True, slots=True)
class Limit:
    """Limit of a client.

    ``value`` is bytes or partitions per second, or percent of a thread's time. ``shared_by`` is the
    user and client id that share it, None for any. ``by_any_name`` means that each client id has a
    separate allowance, whatever name the client chooses.
    """

    value: float
    shared_by: tuple[str | None, str | None]
    by_any_name: bool = False


class QuotaTable:
    """All quotas of a cluster. Of two for one entity the last counts."""

    def __init__(self, quotas: Iterable[ClientQuota] = ()) -> None:
        self.entries = tuple(quotas)
        found: dict[QuotaKind, dict[tuple[str | None, str | None], float]] = {}
        for quota in self.entries:
            for kind in QuotaKind:
                value = getattr(quota, kind.value)
                if value > 0:
                    found.setdefault(kind, {})[quota.user, quota.client_id] = float(value)
        self._limits: Mapping[QuotaKind, Mapping[tuple[str | None, str | None], float]]
        self._limits = MappingProxyType(found)

    @property
    def is_empty(self) -> bool:
        """True if no client is limited."""
        return not self._limits

    def limits(self, user: str, client_id: str) -> dict[QuotaKind, Limit]:
        """Return the limits of a client."""
        found = {}
        for kind, limits in self._limits.items():
            limit = _most_precise(limits, user, client_id)
            if limit is not None:
                found[kind] = limit
        return found


def _most_precise(
    limits: Mapping[tuple[str | None, str | None], float], user: str, client_id: str
) -> Limit | None:
    # Most specific first (KIP-55): the user before the client id, a name before the default.
    for entity in (
        (user, client_id),
        (user, DEFAULT),
        (user, None),
        (DEFAULT, client_id),
        (DEFAULT, DEFAULT),
        (DEFAULT, None),
        (None, client_id),
        (None, DEFAULT),
    ):
        value = limits.get(entity)
        if value is not None:
            by_user, by_client = entity
            return Limit(
                value,
                (None if by_user is None else user, None if by_client is None else client_id),
                by_any_name=by_client == DEFAULT,
            )
    return None


class ClientQuotas:
    """Quotas of one broker. Used from its loop only."""

    def __init__(
        self, windows: Windows | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.windows = windows or Windows()
        self._now = now
        self.apply(QuotaTable())
        self._measured = {
            (kind, by_any_name): WindowedRates[tuple[str | None, str | None]](
                self.windows, MEASURED_MAX
            )
            for kind in QuotaKind
            for by_any_name in (False, True)
        }

    @property
    def entries(self) -> tuple[ClientQuota, ...]:
        """All quotas of the cluster."""
        return self._table.entries

    def apply(self, quotas: Iterable[ClientQuota] | QuotaTable) -> None:
        """Replace the quotas; measured usage is preserved."""
        self._table = quotas if isinstance(quotas, QuotaTable) else QuotaTable(quotas)
        #: True if no client is limited. Each request reads it.
        self.is_empty = self._table.is_empty

    def of(self, user: str, client_id: str) -> "RequestQuotas":
        """Return the quotas of one request."""
        return RequestQuotas(self, self._table.limits(user, client_id))

    def use(self, kind: QuotaKind, limit: Limit, amount: float) -> float:
        """Count usage; return the throttle time in seconds."""
        # Clients under a default share no rate, so each name is measured by itself.
        rate, now_s = self._measured[kind, limit.by_any_name].of(limit.shared_by), self._now()
        if amount:
            rate.record(amount, now_s)
        # Kafka caps only the request-time throttle at one window.
        throttle_s = rate.throttle_s(limit.value, now_s)
        return min(throttle_s, self.windows.size_s) if kind is QuotaKind.REQUEST else throttle_s


class RequestQuotas:
    """Usage of one request, and the throttle time of its connection. ``now`` returns seconds."""

    __slots__ = ("_began_s", "_counted_s", "_limits", "_now", "_quotas", "_spent_s", "throttle_s")

    def __init__(
        self,
        quotas: ClientQuotas,
        limits: Mapping[QuotaKind, Limit],
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._quotas = quotas
        self._limits = limits
        self._now = now
        #: Seconds for which the client must be muted.
        self.throttle_s = 0.0
        #: Seconds that the request has used, and the part of them that the quota has counted.
        self._spent_s = self._counted_s = 0.0
        #: Start of the step in progress, None while the request waits.
        self._began_s: float | None = None

    def use(self, kind: QuotaKind, amount: float) -> None:
        """Count usage in bytes, partitions, or percent of a second."""
        limit = self._limits.get(kind)
        if limit is not None:
            throttle_s = min(self._quotas.use(kind, limit, amount), THROTTLE_MAX_S)
            self.throttle_s = max(self.throttle_s, throttle_s)

    def remaining(self, kind: QuotaKind) -> float | None:
        """Return the remaining allowance: 0 for an exceeded quota, None without a limit."""
        limit = self._limits.get(kind)
        if limit is None:
            return None
        # Refreshes throttle_s from the usage of other connections, without counting anything.
        self.use(kind, 0)
        return 0.0 if self.throttle_s else limit.value * self._quotas.windows.full_s

    def may_mutate(self, partitions: int, *, is_strict: bool) -> bool:
        """Return whether ``partitions`` may be created or deleted, and count them if so.

        Each such change costs writes to the API server and work of the controller (KIP-599). With
        ``is_strict`` the client understands THROTTLING_QUOTA_EXCEEDED. Others are served, and then
        throttled. A number of partitions that the operator would reject is not counted.
        """
        # Strict mode: an accepted request may still exceed the quota by its own size (KIP-599).
        if is_strict and self.remaining(QuotaKind.MUTATION) == 0:
            return False
        self.use(QuotaKind.MUTATION, partitions if 0 < partitions <= _PARTITIONS_MAX else 0)
        return True

    async def timed(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the request's work, and count its time even if it fails (KIP-124)."""
        try:
            return await self._step_by_step(work)
        finally:
            self._count_time()

    def add_time(self, spent_s: float) -> None:
        """Add time that a thread has spent on the request."""
        self._spent_s += spent_s

    def set_throttle_time(self, response: Any) -> None:
        """Set the throttle time of the response, if it has that field."""
        self._count_time()
        if self.throttle_s > 0 and hasattr(response, "throttle_time"):
            response.throttle_time = timedelta(milliseconds=math.ceil(self.throttle_s * 1000))

    def _count_time(self) -> None:
        # The time so far includes the step in progress, since the response is built within one.
        spent_s = self._spent_s
        if self._began_s is not None:
            spent_s += self._now() - self._began_s
        self.use(QuotaKind.REQUEST, 100 * (spent_s - self._counted_s))
        self._counted_s = spent_s

    # A generator drives the coroutine step by step, which is the only place to time each step.
    @coroutine
    def _step_by_step(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Run a coroutine and add the time of each of its steps on the event loop to ``_spent_s``.

        A step is the code between two suspensions. The time of the suspensions does not count.
        """
        error: BaseException | None = None
        while True:
            self._began_s = self._now()
            try:
                # Run one step. It ends with the future that the coroutine awaits, or with the
                # result.
                awaited = work.send(None) if error is None else work.throw(error)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self._spent_s += self._now() - self._began_s
                self._began_s = None
            error = None
            try:
                # Pass the future on to the event loop, which resumes here once it is done.
                yield awaited
            except BaseException as raised:  # noqa: BLE001 - the work's to handle, a cancellation too
                error = raised
