"""Certificates of clients: an authority of their own, and a leaf for each user with ``tls``.

Unlike brokers, clients cannot be queried for what they trust. One authority therefore follows
another by the clock. Both are trusted long enough for every listener to know both, and then as long
as the former one's leaves may live (:data:`ISSUING_PAUSE`).
"""

import datetime as dt
from collections.abc import AsyncIterable, Callable

from tidemark_operator.certificates import authority
from tidemark_operator.certificates.authority import LEAF_LIFE, KeyPair
from tidemark_operator.certificates.certificate_stores import BundleStore
from tidemark_operator.certificates.rotation import Authorities, RotationPhase
from tidemark_operator.certificates.stored_authority import StoredAuthority

ANNOUNCED_PAUSE = dt.timedelta(days=1)
ISSUING_PAUSE = LEAF_LIFE


def clients_authority_name(cluster: str) -> str:
    """Return the name of the bundle with the authority of a Cluster's clients."""
    return f"{cluster}-clients-ca"


class ClientCertificates:
    """Client certificates of one Cluster, for the leader. ``now`` returns aware UTC times."""

    def __init__(
        self, keeper: BundleStore, cluster: str, cluster_id: str, now: Callable[[], dt.datetime]
    ) -> None:
        self._cluster_id = cluster_id
        self._authority = StoredAuthority(keeper, clients_authority_name(cluster), cluster_id, now)
        self._now = now
        #: By user: the trusted bundle when its leaf was last checked.
        self._seen: dict[str, bytes] = {}

    async def leaf(self, name: str, former: KeyPair | None) -> tuple[KeyPair, bytes]:
        """Return a user's client certificate, and the PEM bundle of trusted client authorities.

        ``former`` is the user's present certificate, None without one. It is returned if it is
        still valid, for this user and of the present authority; otherwise a new one is issued.
        Raises :class:`BadCertificate`, :class:`BundleNameTaken`.
        """

        async def issued() -> str:
            """Return where a certificate of a lost authority was found, "" for none."""
            is_of_it = former and authority.is_of_cluster(former, self._cluster_id)
            return _certificate_of(name) if is_of_it else ""

        # The former leaf stays as long as possible: clients may need a restart for a new one.
        authorities, now = await self._authority.get(issued), self._now()
        fits = (
            former is not None
            and authority.is_for_client(former, name)
            and authority.is_issued_by(former, authorities.issuing)
            and not authority.is_due(former, now)
        )
        leaf = (
            former if fits and former else authority.issue_to_client(authorities.issuing, name, now)
        )
        self._seen[name] = authorities.trusted
        return leaf, authorities.trusted

    async def check(self, leaves: AsyncIterable[tuple[str, KeyPair]]) -> None:
        """Check that the authority can be used; one that was never created can.

        ``leaves``: users and their certificates, read only if the authority is missing. Raises
        :class:`BadCertificate`, :class:`BundleNameTaken`.
        """

        async def issued() -> str:
            async for name, leaf in leaves:
                if authority.is_of_cluster(leaf, self._cluster_id):
                    return _certificate_of(name)
            return ""

        await self._authority.check(issued)

    def forget(self, name: str) -> None:
        """Drop a user that is deleted or uses other credentials."""
        self._seen.pop(name, None)

    async def rotate(self, *, all_looked_at: bool, renewal: str = "") -> bool:
        """Take one step of a rotation that is due; return True if all leaves have to be checked.

        ``all_looked_at``: every user was checked since the term began. ``renewal``: as for the
        brokers' authority.
        """
        return await self._authority.step(
            all_up_to_date=lambda authorities: (
                all_looked_at and all(seen == authorities.trusted for seen in self._seen.values())
            ),
            pause=_pause,
            renewal=renewal,
        )


def _certificate_of(name: str) -> str:
    return f"the certificate of User {name}"


def _pause(authorities: Authorities) -> dt.timedelta:
    return ISSUING_PAUSE if authorities.phase is RotationPhase.ISSUING else ANNOUNCED_PAUSE
