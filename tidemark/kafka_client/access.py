"""Credentials of a client and trusted authorities, as plain values.

Certificates are files, or text if they come from a Secret. The security settings of options,
manifests and the command line become these values, from which sockets are opened.
"""

import socket
import ssl
from dataclasses import dataclass, field
from typing import NamedTuple

from tidemark.scratch import ScratchFolder
from tidemark.tls.trust import trusting_context

PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
#: Mechanism -> hashlib's name of its hash.
SCRAM = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
#: Mechanisms with a user and a password.
PASSWORD_MECHANISMS = (PLAIN, *SCRAM)
_PEM = "-----BEGIN"
#: Without a password for an encrypted key OpenSSL would prompt on the terminal, and block.
_NO_PASSWORD = b""


class BrokerAddress(NamedTuple):
    """Address of a broker's listener."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class BadAddress(ValueError):
    """A broker's address is not ``host:port``."""


@dataclass(frozen=True, slots=True)
class Login:
    """SASL credentials.

    ``password``: for OAUTHBEARER the token, which names the user itself. ``source``: origin of the
    credentials, for error messages.
    """

    mechanism: str
    name: str
    password: str = field(repr=False)
    source: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS settings.

    Certificates and keys are paths, or PEM text. Empty: the system's authorities, and no client
    certificate. ``key`` may be in the certificate's file too. ``check_names``: the certificate must
    name the host that is dialled. ``ca_source``, ``own_source``: origin of the authorities and of
    the client certificate, for error messages. ``ends_s``: expiry of the latter (Unix time), if
    known.
    """

    ca: str = ""
    certificate: str = ""
    key: str = field(default="", repr=False)
    check_names: bool = True
    ca_source: str = field(default="", compare=False)
    own_source: str = field(default="", compare=False)
    ends_s: float | None = field(default=None, compare=False)

    def context(self) -> ssl.SSLContext:
        """Return an SSL context with the present certificates, for the next connection.

        Files are read again each time, so that renewed certificates take effect. Raises ``OSError``
        (``ssl.SSLError`` is one).
        """
        # Trusted authorities: PEM text, a file, or those of the system if both are None.
        as_text = self.ca.startswith(_PEM)
        context = trusting_context(
            cafile=None if as_text else self.ca or None, cadata=self.ca if as_text else None
        )
        context.check_hostname = self.check_names
        # The client certificate: PEM text from a Secret, or files.
        if self.certificate.startswith(_PEM):
            # OpenSSL reads keys from files only: a private file that exists for a moment.
            with ScratchFolder("key") as folder:
                both = folder / "tls.pem"
                both.touch(mode=0o600)
                both.write_text(f"{self.key}\n{self.certificate}\n", encoding="utf-8")
                context.load_cert_chain(both, password=_NO_PASSWORD)
        elif self.certificate:
            context.load_cert_chain(self.certificate, self.key or None, password=_NO_PASSWORD)
        return context

    def connect_blocking(self, host: str, port: int, timeout_s: float) -> ssl.SSLSocket:
        """Return a connection to a peer whose certificate names ``host``. Raises ``OSError``."""
        context = self.context()
        raw = socket.create_connection((host, port), timeout=timeout_s)
        # A failed handshake leaves the TCP socket open.
        try:
            return context.wrap_socket(raw, server_hostname=host)
        except BaseException:
            raw.close()
            raise


@dataclass(frozen=True, slots=True)
class KafkaAccess:
    """Bootstrap brokers as ``host:port``, and how to connect to any broker."""

    bootstrap: tuple[str, ...]
    tls: Tls | None = None
    login: Login | None = None


def parse_address(text: str) -> BrokerAddress:
    """Parse ``host:port``, with the host of IPv6 in brackets. Raises :class:`BadAddress`."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise BadAddress(f"{text!r} is no host:port")
    return BrokerAddress(host, int(port))
