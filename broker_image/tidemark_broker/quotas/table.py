"""Which quota holds for a client: that of the most precise entity that has one of that kind.

An entity is a user, a client id, or both; each may stand for all that have no quota of their own.
Whom an entity names together share one quota, except that a default is each one's own. The order is
KIP-55's.
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tidemark.wire.users import ClientQuota

#: In an entity: whoever has no quota of their own.
DEFAULT = ""


class QuotaKind(enum.Enum):
    """What is limited, by the field of a :class:`ClientQuota`."""

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"
    MUTATION = "controller_mutation_rate"


@dataclass(frozen=True, slots=True)
class Limit:
    """``value``: bytes or partitions a second, or percent of a thread's time; ``shared_by``: (user,
    client id) of those who use it together, None for any; ``by_any_name``: each client id has one
    of its own, whatever it calls itself."""

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
        """Is nobody limited?"""
        return not self._limits

    def limits(self, user: str, client_id: str) -> dict[QuotaKind, Limit]:
        """Those that hold for a client."""
        found = {}
        for kind, limits in self._limits.items():
            limit = _most_precise(limits, user, client_id)
            if limit is not None:
                found[kind] = limit
        return found


def _most_precise(
    limits: Mapping[tuple[str | None, str | None], float], user: str, client_id: str
) -> Limit | None:
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
