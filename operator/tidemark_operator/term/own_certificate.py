"""The operator's own certificate, renewed from the brokers' authority before and during terms."""

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable

from tidemark.error_text import error_text
from tidemark_operator.certificates.authority import BadCertificate, KeyPair
from tidemark_operator.certificates.certificate_stores import (
    BundleNameTaken,
    BundleStore,
    SecretStore,
)
from tidemark_operator.certificates.certificates import (
    Certificates,
    ClientCertificates,
    OwnLeaf,
    authority_name,
)
from tidemark_operator.certificates.rotation import Authorities
from tidemark_operator.certificates.stored_authority import read_authority, read_leaf
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import KubeError
from tidemark_operator.kube.kinds import USER
from tidemark_operator.metrics import Metrics
from tidemark_operator.objects.store import ObjectCache
from tidemark_operator.term.cluster_discovery import ClusterDiscovery
from tidemark_operator.users.user_secret import CERTIFICATE, KEY, USER_SECRETS

logger = logging.getLogger(__name__)

FOLLOW_AUTHORITY_S = 3.0
#: Users whose certificates are read if the Secret of the clients' authority is missing.
LEAVES_LOOKED_AT = 200


class CertificatesUnusable(Exception):
    """A takeover cannot get the authority, or a leaf for the control listener.

    ``is_of_process``: the fault is in this process, so another operator process may succeed.
    """

    def __init__(self, message: str, *, is_of_process: bool = False) -> None:
        super().__init__(message)
        self.is_of_process = is_of_process


class OwnCertificate:
    """Renewal of the leaf with which this process accepts brokers."""

    def __init__(
        self, leaf: OwnLeaf, metrics: Metrics, *, store_of: Callable[[KubeApi], BundleStore]
    ) -> None:
        """Prepare the renewal; ``store_of`` opens the store with the authority."""
        self._leaf = leaf
        self._metrics = metrics
        self._store_of = store_of

    async def follow(
        self, api: KubeApi, discovery: ClusterDiscovery, report: Callable[[str], None]
    ) -> None:
        """Renew the certificate from the present authority, until cancelled.

        Every operator does that, leading or not, so that a new leader can accept brokers at once.
        ``report`` receives why the certificate cannot be renewed, "" after a success.
        """
        while True:
            await asyncio.sleep(FOLLOW_AUTHORITY_S)
            try:
                # Without a term there is no state to consult, so the authority is read from its
                # Secret.
                name = await discovery.name(api)
                stored = name and await self._store_of(api).read(authority_name(name))
                if stored:
                    await self._renew(read_authority(stored.data))
            # The pacemaker of a term reports these.
            except (KubeError, BundleNameTaken, BadCertificate) as error:
                logger.warning("unreadable certificate authority: %s", error)
            except OSError as error:
                text = error_text(error)
                logger.warning("the operator's own certificate is not renewed: %s", text)
                report(text)
            else:
                report("")

    async def prepare_term(
        self, certificates: Certificates, broker_names: Iterable[str]
    ) -> Authorities:
        """Return the brokers' authorities, with the own leaf issued by them.

        No term begins before brokers can reach the control listener. Raises CertificatesUnusable.
        """
        # Read the authorities, or create them in the first term of a Cluster.
        try:
            authorities = await certificates.authorities(broker_names)
        except (BadCertificate, BundleNameTaken, OSError) as error:
            raise CertificatesUnusable(error_text(error)) from error
        # Only this process can be at fault for a file that cannot be written.
        try:
            await self._renew(authorities)
        except OSError as error:
            raise CertificatesUnusable(
                f"the operator's own certificate cannot be written: {error_text(error)}. Check "
                f"that the operator can write to its temporary directory {tempfile.gettempdir()}",
                is_of_process=True,
            ) from error
        return authorities

    async def _renew(self, authorities: Authorities) -> None:
        """Have the leaf issued by the authority, and export when either expires."""
        leaf = await asyncio.to_thread(self._leaf.follow, authorities)
        for name, pair in (("authority", authorities.issuing), ("controller", leaf)):
            ends = pair.parsed.not_valid_after_utc
            self._metrics.certificate_expiry.labels(name).set(ends.timestamp())


async def client_authority_problem(
    certificates: ClientCertificates, api: KubeApi, namespace: str, objects: ObjectCache
) -> str:
    """Return why the authority of the clients cannot be used, "" if it can.

    It does not stop a takeover: brokers serve clients with other credentials.
    """
    try:
        await certificates.check(_user_certificates(api, namespace, objects))
    except (BadCertificate, BundleNameTaken, OSError) as error:
        return error_text(error)
    return ""


async def _user_certificates(
    api: KubeApi, namespace: str, objects: ObjectCache
) -> AsyncIterator[tuple[str, KeyPair]]:
    """Yield the certificates of some users: enough to know that there was an authority."""
    store = SecretStore(api, namespace, USER_SECRETS)
    for key in sorted(objects.keys(USER), key=str)[:LEAVES_LOOKED_AT]:
        with contextlib.suppress(BundleNameTaken):
            stored = await store.read(key.name)
            leaf = None if stored is None else read_leaf(stored.data, CERTIFICATE, KEY)
            if leaf is not None:
                yield key.name, leaf
