"""Quotas of manifests as brokers are told them. Pure."""

from collections.abc import Iterator

from tidemark.wire.users import ClientQuota
from tidemark_operator.resources.quotas import (
    EVERY_OTHER,
    ClientIdQuotas,
    ClusterQuotas,
    Rates,
    UserQuotas,
)

#: In the protocol: whoever has no quota of their own.
_DEFAULT = ""


def user_quotas(quotas: UserQuotas | None, user: str = _DEFAULT) -> tuple[ClientQuota, ...]:
    """Of one user, or of every user."""
    if quotas is None:
        return ()
    own = _quota(quotas, user, None)
    is_any = (
        own.producer_byte_rate
        or own.consumer_byte_rate
        or own.request_percentage
        or own.controller_mutation_rate
    )
    return *((own,) if is_any else ()), *_by_client(quotas.clients, user)


def cluster_quotas(quotas: ClusterQuotas | None) -> tuple[ClientQuota, ...]:
    """Of whoever has none of their own."""
    if quotas is None:
        return ()
    return *user_quotas(quotas.every_user), *_by_client(quotas.clients, None)


def _by_client(
    clients: tuple[ClientIdQuotas, ...] | None, user: str | None
) -> Iterator[ClientQuota]:
    for each in clients or ():
        yield _quota(each, user, _DEFAULT if each.client_id == EVERY_OTHER else each.client_id)


def _quota(rates: Rates, user: str | None, client_id: str | None) -> ClientQuota:
    return ClientQuota(
        user=user,
        client_id=client_id,
        producer_byte_rate=rates.producer_byte_rate or 0,
        consumer_byte_rate=rates.consumer_byte_rate or 0,
        request_percentage=rates.request_percentage or 0,
        controller_mutation_rate=rates.controller_mutation_rate or 0,
    )
