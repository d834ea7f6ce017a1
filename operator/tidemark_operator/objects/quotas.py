"""Conversion of manifests' quotas to the protocol's. Pure."""

from collections.abc import Iterator

from tidemark.wire.users import ClientQuota
from tidemark_operator.resources.quotas import (
    EVERY_OTHER,
    ClientIdQuotas,
    ClusterQuotas,
    Rates,
    UserQuotas,
)

#: Name in the protocol of users, and of client ids, without a quota of their own.
_DEFAULT = ""


def user_quotas(quotas: UserQuotas | None, user: str = _DEFAULT) -> tuple[ClientQuota, ...]:
    """Return the quotas of one user, or of every user without their own."""
    if quotas is None:
        return ()
    # A quota without any rate would only take the place of a more general one.
    own = _quota(quotas, user, None)
    is_any = (
        own.producer_byte_rate
        or own.consumer_byte_rate
        or own.request_percentage
        or own.controller_mutation_rate
    )
    return *((own,) if is_any else ()), *_by_client(quotas.clients, user)


def cluster_quotas(quotas: ClusterQuotas | None) -> tuple[ClientQuota, ...]:
    """Return the quotas of users without their own."""
    if quotas is None:
        return ()
    return *user_quotas(quotas.every_user), *_by_client(quotas.clients, None)


def _by_client(
    clients: tuple[ClientIdQuotas, ...] | None, user: str | None
) -> Iterator[ClientQuota]:
    for client in clients or ():
        client_id = _DEFAULT if client.client_id == EVERY_OTHER else client.client_id
        yield _quota(client, user, client_id)


def _quota(rates: Rates, user: str | None, client_id: str | None) -> ClientQuota:
    return ClientQuota(
        user=user,
        client_id=client_id,
        producer_byte_rate=rates.producer_byte_rate or 0,
        consumer_byte_rate=rates.consumer_byte_rate or 0,
        request_percentage=rates.request_percentage or 0,
        controller_mutation_rate=rates.controller_mutation_rate or 0,
    )
