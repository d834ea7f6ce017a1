"""Access to the API server: a kubeconfig file, or the pod's own service account.

Each client (the main loop's, the Lease thread's, kopf's) gets a configuration of its own. In a
shared one, a stalled connection of one client could block another.
"""

import asyncio
import base64
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import kopf
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.config.incluster_config import load_incluster_config
from kubernetes.aio.config.kube_config import load_kube_config

from tidemark.tls.trust import with_common_rules

#: The library keeps certificates of kubeconfigs in files that all loaders of a process share, and
#: names such a file before its content is written: two threads must not load at once.
_loading = threading.Lock()
_LOOK_AGAIN_S = 0.005


class _Connection(kopf.ConnectionInfo):
    """Connection of kopf's watches, which accepts what the other clients accept."""

    def as_ssl_context(self) -> ssl.SSLContext:
        return with_common_rules(super().as_ssl_context())


class AccessError(RuntimeError):
    """No usable access to the API server; the message names what was tried."""


@dataclass(frozen=True, slots=True)
class KubernetesAccess:
    """Access to the API server. ``kubeconfig`` None means the pod's service account."""

    kubeconfig: Path | None = None
    context: str | None = None

    async def configuration(self) -> Configuration:
        """Return a new client configuration without retries: the callers own the deadlines."""
        configuration = Configuration()
        try:
            async with _alone():
                await self._load(configuration)
        except (OSError, ValueError, ConfigException) as error:
            raise AccessError(f"no access to the Kubernetes API: {error}") from error
        # A retry inside the library would outlive the Lease's deadline.
        configuration.retries = None
        configuration.connection_pool_maxsize = 48
        # A proxy named in the environment is for the internet, not for the API server.
        configuration.client_session_kwargs = {"trust_env": False}
        return configuration

    async def _load(self, configuration: Configuration) -> None:
        if self.kubeconfig is None:
            load_incluster_config(configuration)  # type: ignore[no-untyped-call]
            return
        if not self.kubeconfig.is_file():
            raise AccessError(f"kubeconfig {self.kubeconfig} does not exist")
        await load_kube_config(  # type: ignore[no-untyped-call]
            config_file=str(self.kubeconfig),
            context=self.context,
            client_configuration=configuration,
            persist_config=False,
        )

    async def kopf_login(self) -> kopf.ConnectionInfo:
        """Return the credentials for the API server in kopf's form, for its watches."""
        found = await self.configuration()
        authorization = str(found.api_key.get("BearerToken") or "")
        # kopf takes scheme and token apart; the library has "Bearer TOKEN" in one field.
        scheme, _, token = authorization.partition(" ")
        if not token:
            scheme, token = "Bearer", authorization
        return _Connection(
            server=str(found.host),
            ca_path=found.ssl_ca_cert or None,
            ca_data=_pem(found.ca_cert_data),
            insecure=not found.verify_ssl,
            scheme=scheme if token else None,
            token=token or None,
            certificate_path=found.cert_file or None,
            private_key_path=found.key_file or None,
        )


@asynccontextmanager
async def _alone() -> AsyncIterator[None]:
    """Hold ``_loading``, waiting without blocking.

    Loops of several threads use it, and one loop may wait twice at once.
    """
    while not _loading.acquire(blocking=False):  # noqa: ASYNC110 - its holder may be in another loop
        await asyncio.sleep(_LOOK_AGAIN_S)
    try:
        yield
    finally:
        _loading.release()


def _pem(data: str | bytes | None) -> str | None:
    """Return certificate data as kopf expects it: PEM text or base64."""
    if data is None:
        return None
    if isinstance(data, bytes):
        try:
            return data.decode("ascii")
        except UnicodeDecodeError:
            return base64.b64encode(data).decode("ascii")
    return data
