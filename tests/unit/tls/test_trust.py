"""Trust in a server is the same on all versions of Python."""

import base64
import json
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.security.client_certificates import ClientAuthority, Leaf
from tidemark.kafka_client.access import Tls
from tidemark.tls.trust import trusting_context
from tidemark_kube.kubeconfig import KubeconfigEntry
from tidemark_kube.transport import tls_context
from tidemark_operator.kube.access import KubernetesAccess
from tidemark_operator.kube.client import KubeApi

_DEFAULT = ssl.create_default_context


@pytest.fixture(autouse=True)
def _strict_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let older versions of Python start from the rules of Python 3.13."""

    def strict(*args: object, **options: object) -> ssl.SSLContext:
        context = _DEFAULT(*args, **options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)


def _handshake(client: ssl.SSLContext, server: Leaf) -> None:
    """Complete a handshake in memory. Raises ``ssl.SSLError``."""
    listener = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    listener.load_cert_chain(server.certificate, server.key)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1"),
        listener.wrap_bio(to_server, to_client, server_side=True),
    ]
    # A side that needs data of the other one continues after it.
    while sides:
        side = sides.pop(0)
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            sides.append(side)


def _kubeconfig(ca: str, folder: Path) -> Path:
    data = base64.b64encode(Path(ca).read_bytes()).decode()
    cluster = {"server": "https://127.0.0.1:1", "certificate-authority-data": data}
    path = folder / "kubeconfig"
    context = {"name": "it", "context": {"cluster": "it", "user": "it"}}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "it",
        "clusters": [{"name": "it", "cluster": cluster}],
        "users": [{"name": "it", "user": {"token": "t"}}],
        "contexts": [context],
    }
    path.write_text(json.dumps(content))
    return path


def _of_commands(ca: str) -> ssl.SSLContext:
    return tls_context(KubeconfigEntry({"certificate-authority": ca}, Path("/")), b"")


def _of_kafka_clients(ca: str) -> ssl.SSLContext:
    return Tls(ca=ca).context()


def _of_other_servers(ca: str) -> ssl.SSLContext:
    return trusting_context(cafile=ca)


CONTEXTS = (_of_commands, _of_kafka_clients, _of_other_servers)


@pytest.mark.parametrize("context", CONTEXTS)
def test_authority_without_key_identifiers_is_trusted(
    tmp_path: Path, context: Callable[[str], ssl.SSLContext]
) -> None:
    """Authorities of existing clusters have none, which Python 3.13 refuses by default."""
    server = ClientAuthority(identifiers=False).leaf(tmp_path, "CN=server")
    with pytest.raises(ssl.SSLCertVerificationError, match="Authority Key Identifier"):
        _handshake(ssl.create_default_context(cafile=server.trusted), server)
    _handshake(context(server.trusted), server)


@pytest.mark.parametrize("context", CONTEXTS)
def test_another_authority_is_refused(
    tmp_path: Path, context: Callable[[str], ssl.SSLContext]
) -> None:
    server = ClientAuthority().leaf(tmp_path / "one", "CN=server")
    other = ClientAuthority("other").leaf(tmp_path / "other", "CN=server")
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(context(other.trusted), server)


@pytest.mark.parametrize("context", CONTEXTS)
def test_intermediate_authority_is_trusted_without_its_root(
    tmp_path: Path, context: Callable[[str], ssl.SSLContext]
) -> None:
    """Python 3.13 does so by default, and earlier versions do not."""
    server = ClientAuthority(issuer=ClientAuthority("root")).leaf(tmp_path, "CN=server")
    _handshake(context(server.trusted), server)


@pytest.mark.parametrize(
    "authority",
    [ClientAuthority(identifiers=False), ClientAuthority(issuer=ClientAuthority("root"))],
    ids=["without key identifiers", "without its root"],
)
async def test_operator_trusts_an_authority(authority: ClientAuthority, tmp_path: Path) -> None:
    server = authority.leaf(tmp_path, "CN=server")
    access = KubernetesAccess(_kubeconfig(server.trusted, tmp_path))
    # Both clients of the operator: that of its requests, and kopf's for watches.
    async with await KubeApi.open(access) as api:
        _handshake(api._client.rest_client.ssl_context, server)
    _handshake((await access.kopf_login()).as_ssl_context(), server)
