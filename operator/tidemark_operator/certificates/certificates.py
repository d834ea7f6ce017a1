"""Certificates of one cluster as its operators use them.

Every operator process has a leaf of its own, which never leaves it. Each process issues it from the
stored authority, and again whenever the authority has changed. Only the leader creates the
authority, rotates it (:mod:`rotation`) and issues the brokers' leaves.

Clients have an authority of their own, and a leaf for each user with ``tls``. Unlike brokers, they
cannot be queried for what they trust. One authority therefore follows another by the clock. Both
are trusted long enough for every listener to know both, and then as long as the former one's leaves
may live (:data:`ISSUING_PAUSE`).
"""

import datetime as dt
import logging
import threading
from collections.abc import AsyncIterable, Callable, Collection, Iterable, Mapping
from pathlib import Path

from tidemark.scratch import ScratchFolder
from tidemark.tls.files import NoCertificates, TlsFiles
from tidemark.tls.identity import TlsIdentity
from tidemark_operator.certificates import authority
from tidemark_operator.certificates.authority import LEAF_LIFE, KeyPair
from tidemark_operator.certificates.certificate_stores import (
    BundleNameTaken,
    BundleStore,
    write_files,
)
from tidemark_operator.certificates.rotation import Authorities, RotationPhase
from tidemark_operator.certificates.stored_authority import (
    StoredAuthority,
    digest,
    leaf_data,
    read_leaf,
)
from tidemark_operator.kube.kinds import Json

logger = logging.getLogger(__name__)

#: A removed or changed leaf is replaced within this time.
LOOK_AGAIN = dt.timedelta(minutes=1)


def authority_name(cluster: str) -> str:
    """Return the name of the bundle with a Cluster's authority."""
    return f"{cluster}-ca"


def leaf_name(broker: str) -> str:
    """Return the name of a Broker's bundle."""
    return f"{broker}-tls"


class OwnLeaf:
    """This process's certificate, in a private folder that is deleted with it. Thread-safe."""

    def __init__(self, now: Callable[[], dt.datetime]) -> None:
        self._now = now
        self._scratch = ScratchFolder("operator")
        self._folder = self._scratch.path / "tls"
        # A takeover and the watch of the authority call `follow` in threads of their own.
        self._lock = threading.Lock()
        self._leaf: KeyPair | None = None
        self.cluster_id: str | None = None
        self.files = TlsFiles(self._folder)

    def follow(self, authorities: Authorities) -> KeyPair:
        """Return this operator's own certificate; issue a new one if it no longer fits.

        Also makes sure that :attr:`files` contain it. Blocks. Raises ``OSError`` if the files
        cannot be written; the next call tries again. Files that were deleted meanwhile are written
        again.
        """
        now, me = self._now(), TlsIdentity(authorities.cluster_id)
        with self._lock:
            leaf = self._leaf
            if leaf is None or not _fits(leaf, authority.is_for(leaf, me), authorities, now):
                leaf = authority.issue(authorities.issuing, me, now)
            data = leaf_data(leaf, authorities.trusted)
            # Compare with the files, because an earlier write can have failed or been deleted.
            if not _contains(self._folder, data):
                self._scratch.create()
                write_files(self._folder, data)
            # The listener reads these files next: a leaf that it cannot load is not in force.
            if self.files.contexts().digest != digest(data):
                raise NoCertificates(f"{self._folder}: the new certificate cannot be loaded")
            self._leaf, self.cluster_id = leaf, authorities.cluster_id
            return leaf

    def close(self) -> None:
        """Delete the folder with the key."""
        with self._lock:
            self._scratch.remove()


def _contains(folder: Path, data: Mapping[str, bytes]) -> bool:
    """Return whether each file exists and has this content."""
    try:
        return all((folder / name).read_bytes() == content for name, content in data.items())
    except OSError:
        return False


class Certificates:
    """Certificates of one Cluster, for the leader. ``now`` returns aware UTC times."""

    def __init__(
        self, keeper: BundleStore, cluster: str, cluster_id: str, now: Callable[[], dt.datetime]
    ) -> None:
        """Prepare the certificates of a Cluster; ``keeper`` stores them."""
        self._keeper = keeper
        self._authority = StoredAuthority(keeper, authority_name(cluster), cluster_id, now)
        self._cluster_id = cluster_id
        self._now = now
        #: By node id: digest of the last issued bundle, and of the bundle that the broker reports.
        self.issued: dict[int, str] = {}
        self.used: dict[int, str] = {}
        #: Trusted bundle at the time of issue: a rotation may step between two lines of
        #: :meth:`leaf`, or be written by a call that failed.
        self._trusted: dict[int, bytes] = {}
        self._looked_at: dict[int, dt.datetime] = {}  # By node id: time of the last check.

    async def authorities(self, brokers: Iterable[str] = ()) -> Authorities:
        """Return the cluster's stored certificate authorities; create them for a new cluster.

        An existing certificate of this cluster for one of ``brokers`` (names of Broker objects)
        proves that the cluster once had an authority. If that is missing, or the stored one is
        unreadable or of another cluster, it is never replaced: :class:`BadCertificate` is raised.
        """

        async def leaf() -> str:
            """Return where a certificate of this cluster is stored, "" if there is none."""
            for broker in brokers:
                try:
                    kept = await self._keeper.read(leaf_name(broker))
                except BundleNameTaken:  # another owner's Secret proves nothing
                    continue
                found = None if kept is None else read_leaf(kept.data)
                if found and authority.is_of_cluster(found, self._cluster_id):
                    return self._keeper.where(leaf_name(broker))
            return ""

        return await self._authority.get(leaf)

    async def leaf(self, node_id: int, broker: str, owner: Json) -> None:
        """Make sure that a broker's stored certificate is valid and of the present authority.

        Writes its Secret (or folder), owned by the Broker object ``owner``, if the certificate or
        the bundle of trusted authorities has changed. The store is checked at most once in
        :data:`LOOK_AGAIN`. Raises :class:`BundleNameTaken`, :class:`BadCertificate`.
        """
        now = self._now()
        if node_id in self.issued and now < self._looked_at[node_id] + LOOK_AGAIN:
            return
        authorities, name = await self.authorities((broker,)), leaf_name(broker)
        who = TlsIdentity(self._cluster_id, node_id)
        kept = await self._keeper.read(name)
        leaf = None if kept is None else read_leaf(kept.data)
        if leaf is None or not _fits(leaf, authority.is_for(leaf, who), authorities, now):
            leaf = authority.issue(authorities.issuing, who, now)
            logger.info("issued a certificate for broker %d", node_id)
        # The leaf may still fit while the trusted bundle has changed.
        data = leaf_data(leaf, authorities.trusted)
        if kept is None or dict(kept.data) != data:
            await self._keeper.write(name, data, kept, owner)
        # Only after the write: a failure is repeated by the next call.
        self.issued[node_id] = digest(data)
        self._trusted[node_id] = authorities.trusted
        self._looked_at[node_id] = now

    async def rotate(self, live: Collection[int], renewal: str = "") -> bool:
        """Take the next step of the authority's rotation if it is due; return whether it was.

        After a step, the caller has to check all brokers' certificates. ``live``: node ids of the
        live brokers, which must use the latest certificates before the next step. ``renewal``: a
        user's request to rotate now (any text that differs from the previous request; "" for none).
        """
        stepped = await self._authority.step(
            all_up_to_date=lambda authorities: all(
                self._uses_last_issued(node, authorities) for node in live
            ),
            pause=lambda _: self._keeper.arrives_within,
            renewal=renewal,
        )
        # All stored certificates have to be checked against the new authority.
        if stepped:
            self.issued.clear()
        return stepped

    def _uses_last_issued(self, node_id: int, authorities: Authorities) -> bool:
        return (
            node_id in self.issued
            and self._trusted[node_id] == authorities.trusted
            and self.issued[node_id] == self.used.get(node_id)
        )


def _fits(leaf: KeyPair, is_named: bool, authorities: Authorities, now: dt.datetime) -> bool:
    """Return whether a leaf may stay: it is valid and of the present authority, too."""
    return (
        is_named
        and authority.is_issued_by(leaf, authorities.issuing)
        and not authority.is_due(leaf, now)
    )


# ------------------------------------------------------------ certificates of clients


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
        leaf = former
        is_named = leaf is not None and authority.is_for_client(leaf, name)
        if leaf is None or not _fits(leaf, is_named, authorities, now):
            leaf = authority.issue_to_client(authorities.issuing, name, now)
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
