"""How a job proves who it is to brokers, and who they are to it.

Names and values are Kafka's (``security.protocol`` and so on). Certificates are files, which must
be there on every executor. What comes of it is a plain value that travels with a task; sockets are
opened from it in :mod:`tidemark_pipeline.brokers`.
"""

import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"
PROTOCOLS = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
PLAIN = "PLAIN"
#: Mechanism -> hashlib's name of its hash.
SCRAM = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISMS = (PLAIN, *SCRAM)
#: Where a password is looked for that stands in no option.
PASSWORD_VARIABLE = "TIDEMARK_SASL_PASSWORD"


class SecurityError(ValueError):
    """Options that do not fit together; the message says what to write."""


@dataclass(frozen=True, slots=True)
class Login:
    """A user, for SASL."""

    mechanism: str
    name: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths; empty: the system's authorities, and no certificate of our own."""

    ca: str = ""
    certificate: str = ""
    key: str = ""

    def connect_blocking(self, host: str, port: int, timeout_s: float) -> ssl.SSLSocket:
        """A connection to whom the certificate calls ``host``. Raises ``OSError``."""
        context = ssl.create_default_context(cafile=self.ca or None)
        if self.certificate:
            context.load_cert_chain(self.certificate, self.key or None)
        raw = socket.create_connection((host, port), timeout=timeout_s)
        try:
            return context.wrap_socket(raw, server_hostname=host)
        except BaseException:
            raw.close()
            raise


@dataclass(frozen=True, slots=True)
class Access:
    """Brokers to begin with, as ``host:port``, and how to speak to any of them."""

    bootstrap: tuple[str, ...]
    tls: Tls | None = None
    login: Login | None = None


def parse_access(given: Mapping[str, str], environment: Mapping[str, str]) -> Access | None:
    """From options without their prefix ``kafka.``; None where no broker is named. Raises
    :class:`SecurityError`."""
    addresses = tuple(a.strip() for a in given.get("bootstrap.servers", "").split(",") if a.strip())
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise SecurityError(f"the broker {address!r} is no host:port")
    protocol = given.get("security.protocol", PLAINTEXT).upper()
    if protocol not in PROTOCOLS:
        raise SecurityError(f"kafka.security.protocol is {protocol!r}: {', '.join(PROTOCOLS)}")
    if not addresses:
        return None
    tls = None
    if protocol in {SSL, SASL_SSL}:
        tls = Tls(*(given.get(f"ssl.{name}.location", "") for name in ("ca", "certificate", "key")))
    login = _login(given, environment) if protocol in {SASL_PLAINTEXT, SASL_SSL} else None
    return Access(addresses, tls, login)


def _login(given: Mapping[str, str], environment: Mapping[str, str]) -> Login:
    mechanism = given.get("sasl.mechanism", "SCRAM-SHA-512").upper()
    if mechanism not in MECHANISMS:
        raise SecurityError(f"kafka.sasl.mechanism is {mechanism!r}: {', '.join(MECHANISMS)}")
    name = given.get("sasl.username", "")
    password = given.get("sasl.password") or environment.get(PASSWORD_VARIABLE, "")
    if not name or not password:
        raise SecurityError(
            "SASL needs kafka.sasl.username and kafka.sasl.password (or the password in "
            f"{PASSWORD_VARIABLE})"
        )
    return Login(mechanism, name, password)
