"""Selection of a client's quotas: for each kind that of the most specific entity.

An entity is a user, a client id, or both. Each part may be the default for names without a quota.
All clients of an entity share one quota, except that a default applies to each name separately. The
order is KIP-55's.
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tidemark.wire.users import ClientQuota

#: Part of an entity that stands for names without a quota of their own.
DEFAULT = ""


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
