"""Identities of the node's programs: an authority, certificates, tokens, kubeconfigs.

Each run creates its own in its folder; they are not valid anywhere else.
"""

import datetime as dt
import ipaddress
import json
import secrets
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from e2e.pods.node.addresses import API_PORT, API_SERVICE, DOMAIN, NODE, NODE_NAME
from e2e.pods.node.layout import Layout

#: Kubernetes' own names and groups, which its built-in roles are bound to.
USERS = {
    "admin": ("admin", "system:masters"),
    "kube-controller-manager": ("system:kube-controller-manager", ""),
    "kube-scheduler": ("system:kube-scheduler", ""),
    "kube-proxy": ("system:kube-proxy", ""),
    # CoreDNS lists Services and slices; no other program's rights are tested here.
    "coredns": ("coredns", "system:masters"),
    # So does what enforces policies, with pods and namespaces.
    "policies": ("policies", "system:masters"),
    "kubelet": (f"system:node:{NODE_NAME}", "system:nodes"),
}
SERVER = f"https://{NODE}:{API_PORT}"
LIFETIME = dt.timedelta(days=2)


def write_credentials(layout: Layout) -> None:
    """Write all keys and certificates under ``layout.pki``."""
    layout.pki.mkdir(parents=True, mode=0o700)
    # An authority for the run alone, in its folder.
    key = ec.generate_private_key(ec.SECP256R1())
    authority = _certificate("tidemark-e2e", key, None)
    _write_pair(layout.pki, "ca", key, authority)
    _issue(layout.pki, "apiserver", "kube-apiserver", "", key, authority)
    # The API server's client certificate for the kubelet, for logs and commands in a container.
    _issue(layout.pki, "apiserver-kubelet", "kube-apiserver", "system:masters", key, authority)
    _write_key(layout.pki / "service-accounts.key", ec.generate_private_key(ec.SECP256R1()))
    lines = []
    # Tokens in a file are the simplest authentication that maps to Kubernetes' built-in roles.
    for who, (user, group) in USERS.items():
        token = secrets.token_hex(24)
        lines.append(f'{token},{user},{user},"{group}"')
        _write(layout.kubeconfig(who), json.dumps(_kubeconfig(layout.pki / "ca.crt", token)))
    _write(layout.pki / "tokens.csv", "\n".join(lines) + "\n")


def _kubeconfig(authority: Path, token: str) -> dict[str, object]:
    cluster = {"server": SERVER, "certificate-authority": str(authority)}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "e2e", "cluster": cluster}],
        "users": [{"name": "e2e", "user": {"token": token}}],
        "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": "e2e"}}],
        "current-context": "e2e",
    }


def _issue(
    folder: Path,
    name: str,
    common_name: str,
    organisation: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate,
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _certificate(common_name, issuer_key, issuer, key, organisation)
    _write_pair(folder, name, key, certificate)


def _certificate(
    common_name: str,
    signing: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    key: ec.EllipticCurvePrivateKey | None = None,
    organisation: str = "",
) -> x509.Certificate:
    """The authority's own where there is no issuer, else one for both ends of a connection."""
    # The organization is the group that RBAC's built-in roles are bound to.
    names = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organisation:
        names.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation))
    subject = x509.Name(names)
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key((key or signing).public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    # Addresses and names by which the node, pods and Services reach the server.
    if issuer is not None:
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        service = "kubernetes.default.svc"
        hosts = ["localhost", "kubernetes", "kubernetes.default", service, f"{service}.{DOMAIN}"]
        addresses = [ipaddress.ip_address(text) for text in ("127.0.0.1", NODE, API_SERVICE)]
        alternatives = [*map(x509.DNSName, hosts), *map(x509.IPAddress, addresses)]
        builder = builder.add_extension(x509.ExtendedKeyUsage(both), critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    return builder.sign(signing, hashes.SHA256())


def _write_pair(
    folder: Path, name: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate
) -> None:
    _write_key(folder / f"{name}.key", key)
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    _write(folder / f"{name}.crt", pem.decode())


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        # kube-apiserver reads no other format of the key that signs accounts.
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
    _write(path, pem.decode())


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
