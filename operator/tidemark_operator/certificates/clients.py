"""Certificates of clients: an authority of their own, and a leaf for each user with ``tls``.

What clients and brokers trust cannot be asked, unlike what brokers trust of each other. So one
authority follows another by the clock: long enough beside each other for every listener to trust
both, then for as long as the former one's leaves may live (:data:`ISSUING_PAUSE`).
"""

import datetime as dt
from collections.abc import AsyncIterable, Callable

from tidemark_operator.certificates import authority
from tidemark_operator.certificates.authority import LEAF_LIFE, KeyPair
from tidemark_operator.certificates.certificate_stores import Keeper
from tidemark_operator.certificates.rotation import Authorities, Phase
from tidemark_operator.certificates.stored_authority import KeptAuthority

ANNOUNCED_PAUSE = dt.timedelta(days=1)
ISSUING_PAUSE = LEAF_LIFE


def clients_authority_name(cluster: str) -> str:
    """The bundle with the authority of a Cluster's clients."""
    return f"{cluster}-clients-ca"


class ClientCertificates:
    """Of one Cluster, for the operator that leads. ``now``: aware, UTC."""

    def __init__(
        self, keeper: Keeper, cluster: str, cluster_id: str, now: Callable[[], dt.datetime]
    ) -> None:
        self._cluster_id = cluster_id
        self._authority = KeptAuthority(keeper, clients_authority_name(cluster), cluster_id, now)
        self._now = now
        #: By user: what was trusted when its leaf was looked at last.
        self._seen: dict[str, bytes] = {}

    async def leaf(self, name: str, former: KeyPair | None) -> tuple[KeyPair, bytes]:
        """The leaf of a user and all that is trusted as a client, in PEM: ``former`` where it
        still fits, else a new one. Raises :class:`BadCertificate`, :class:`KeptByAnother`."""

        async def issued() -> str:
            is_of_it = former and authority.is_of_cluster(former, self._cluster_id)
            return _certificate_of(name) if is_of_it else ""

        held, now = await self._authority.get(issued), self._now()
        fits = (
            former is not None
            and authority.is_for_client(former, name)
            and authority.is_issued_by(former, held.issuing)
            and not authority.is_due(former, now)
        )
        leaf = former if fits and former else authority.issue_to_client(held.issuing, name, now)
        self._seen[name] = held.trusted
        return leaf, held.trusted

    async def check(self, leaves: AsyncIterable[tuple[str, KeyPair]]) -> None:
        """Raises :class:`BadCertificate`, :class:`KeptByAnother` where the authority cannot be
        used; one that was never made can. ``leaves``: users and their certificates, asked for only
        where it is not there."""

        async def issued() -> str:
            async for name, leaf in leaves:
                if authority.is_of_cluster(leaf, self._cluster_id):
                    return _certificate_of(name)
            return ""

        await self._authority.check(issued)

    def forget(self, name: str) -> None:
        """A user is gone, or proves itself otherwise."""
        self._seen.pop(name, None)

    async def rotate(self, *, all_looked_at: bool, renewal: str = "") -> bool:
        """One step, where one is due; True: every leaf is to be looked at. ``all_looked_at``: no
        user is left that has not been since the term began; ``renewal``: as for the brokers'
        authority."""
        return await self._authority.step(
            all_have_it=lambda held: (
                all_looked_at and all(seen == held.trusted for seen in self._seen.values())
            ),
            pause=_pause,
            renewal=renewal,
        )


def _certificate_of(name: str) -> str:
    return f"the certificate of User {name}"


def _pause(held: Authorities) -> dt.timedelta:
    return ISSUING_PAUSE if held.phase is Phase.ISSUING else ANNOUNCED_PAUSE
