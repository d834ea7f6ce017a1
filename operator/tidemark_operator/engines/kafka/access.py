"""Access to the Apache Kafka of a Cluster, from its spec and the Secrets that it names."""

from collections.abc import Mapping
from typing import Any

from cryptography import x509

from tidemark.kafka_client.access import OAUTHBEARER, KafkaAccess, Login, Tls
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.secrets import OfferedTo, read_secret

USERNAME, PASSWORD, TOKEN = "username", "password", "token"
CA, CERTIFICATE, KEY = "ca.crt", "tls.crt", "tls.key"
#: Source of a client certificate, for messages.
_OWN = f"a Secret that tls.certificateSecretRef names ({CERTIFICATE}, {KEY})"


async def read_access(api: KubeApi, namespace: str, spec: Mapping[str, Any]) -> KafkaAccess:
    """Return the access of ``spec.engine.kafka``. Raises ``SecretProblem``."""
    bootstrap = tuple(str(spec["bootstrapServers"]).split(","))
    tls, sasl = spec.get("tls"), spec.get("sasl")
    return KafkaAccess(
        bootstrap,
        None if tls is None else await _tls(api, namespace, tls),
        None if sasl is None else await _login(api, namespace, sasl),
    )


async def _tls(api: KubeApi, namespace: str, spec: Mapping[str, Any]) -> Tls:
    """Return the TLS settings for a Kafka cluster, from the Secrets that the spec names."""
    trusted, own = spec.get("caSecretRef"), spec.get("certificateSecretRef")
    ca = {} if trusted is None else await _read(api, namespace, trusted, [CA])
    leaf = {} if own is None else await _read(api, namespace, own, [CERTIFICATE, KEY])
    certificate = leaf.get(CERTIFICATE, "")
    return Tls(
        ca.get(CA, ""),
        certificate,
        leaf.get(KEY, ""),
        ca_source="" if trusted is None else f"Secret {trusted['name']} ({CA})",
        own_source=_OWN if own is None else f"Secret {own['name']} ({CERTIFICATE}, {KEY})",
        ends_s=_ends_s(certificate),
    )


async def _login(api: KubeApi, namespace: str, spec: Mapping[str, Any]) -> Login:
    mechanism, ref = str(spec["mechanism"]), spec["credentialsSecretRef"]
    name = str(ref["name"])
    # A token has no user name, and files often end with a line break.
    if mechanism == OAUTHBEARER:
        found = await _read(api, namespace, ref, [TOKEN])
        return Login(mechanism, "", found[TOKEN].strip(), f"Secret {name}")
    found = await _read(api, namespace, ref, [USERNAME, PASSWORD])
    return Login(mechanism, found[USERNAME], found[PASSWORD], f"Secret {name}")


async def _read(
    api: KubeApi, namespace: str, ref: Mapping[str, Any], keys: list[str]
) -> dict[str, str]:
    return await read_secret(api, namespace, str(ref["name"]), keys, OfferedTo.CLUSTER)


def _ends_s(certificate: str) -> float | None:
    """Return the end of a chain's first certificate.

    None if it cannot be read, which OpenSSL reports.
    """
    # With its end known, an expired certificate gets a message of its own instead of a failed
    # handshake.
    try:
        first = x509.load_pem_x509_certificate(certificate.encode())
    except ValueError:
        return None
    return first.not_valid_after_utc.timestamp()
