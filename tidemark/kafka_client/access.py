"""How a client proves who it is to brokers, and who they are to it: plain values.

Certificates are files, or text where they come from a Secret. What options, manifests and the
command line say of security ends here; sockets are opened from it.
"""

import socket
import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
#: Mechanism -> hashlib's name of its hash.
SCRAM = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
#: Those of a user and a password.
PASSWORD_MECHANISMS = (PLAIN, *SCRAM)
_PEM = "-----BEGIN"
#: Of an encrypted key: without one OpenSSL would ask the terminal, and wait.
_NO_PASSWORD = b""


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class BadAddress(ValueError):
    """A broker's address that is no ``host:port``."""


@dataclass(frozen=True, slots=True)
class Login:
    """A user, for SASL. ``password``: of OAUTHBEARER the token, which names the user itself.
    ``source``: where it was read, for who has to mend it."""

    mechanism: str
    name: str
    password: str = field(repr=False)
    source: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Tls:
    """Files, or what would stand in them (PEM); empty: the system's authorities, and no certificate
    of our own. ``key`` may stand in the certificate's file, too. ``check_names``: a certificate has
    to name the host that is dialled. ``ca_source``, ``own_source``: where the authorities and our
    own certificate were read, for who has to mend them; ``ends_s``: when the latter ends (Unix
    time), where that is known."""

    ca: str = ""
    certificate: str = ""
    key: str = field(default="", repr=False)
    check_names: bool = True
    ca_source: str = field(default="", compare=False)
    own_source: str = field(default="", compare=False)
    ends_s: float | None = field(default=None, compare=False)

    def context(self) -> ssl.SSLContext:
        """For the next connection. Raises ``OSError`` (``ssl.SSLError`` is one)."""
        as_text = self.ca.startswith(_PEM)
        context = ssl.create_default_context(
            cafile=None if as_text else self.ca or None, cadata=self.ca if as_text else None
        )
        context.check_hostname = self.check_names
        if self.certificate.startswith(_PEM):
            # OpenSSL reads keys from files only; nobody else sees this one, nor for long.
            with tempfile.TemporaryDirectory(prefix="tidemark-") as folder:
                both = Path(folder) / "tls.pem"
                both.touch(mode=0o600)
                both.write_text(f"{self.key}\n{self.certificate}\n", encoding="utf-8")
                context.load_cert_chain(both, password=_NO_PASSWORD)
        elif self.certificate:
            context.load_cert_chain(self.certificate, self.key or None, password=_NO_PASSWORD)
        return context

    def connect_blocking(self, host: str, port: int, timeout_s: float) -> ssl.SSLSocket:
        """A connection to whom the certificate calls ``host``. Raises ``OSError``."""
        context = self.context()
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


def parse_address(text: str) -> Address:
    """``host:port``, the host of IPv6 in brackets. Raises :class:`BadAddress`."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise BadAddress(f"{text!r} is no host:port")
    return Address(host, int(port))
