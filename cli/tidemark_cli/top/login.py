"""How ``tidemark top`` gets in at a listener that asks for TLS or SASL: from a file of properties.

The names are those of the clients that take PEM files (librdkafka's), so that the file of such a
client is good here. What else stands in it is not looked at.
"""

import secrets
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
from kio.schema.sasl_authenticate.v2.response import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse

from tidemark.wire.blocking import BlockingConnection
from tidemark_cli.top.scram_client import HASHES, ScramClient

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("PLAIN", *HASHES)
_PROTOCOL, _MECHANISM = "security.protocol", "sasl.mechanism"
_USERNAME, _PASSWORD = "sasl.username", "sasl.password"
_TRUSTED, _CERTIFICATE, _KEY = "ssl.ca.location", "ssl.certificate.location", "ssl.key.location"
_NAMES = "ssl.endpoint.identification.algorithm"
_KNOWN = {_PROTOCOL, _MECHANISM, _USERNAME, _PASSWORD, _TRUSTED, _CERTIFICATE, _KEY, _NAMES}
#: Of what is not understood here these would change who gets in.
_OURS = ("security.", "sasl.", "ssl.")
_NONCE_BYTES = 24


class BadLogin(ValueError):
    """A file cannot be used; the text says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """``tls`` None: no TLS; ``mechanism`` "": no SASL."""

    tls: ssl.SSLContext | None = field(default=None, repr=False)
    mechanism: str = ""
    name: str = ""
    password: str = field(default="", repr=False)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Of a file. Raises :class:`BadLogin`."""
        try:
            found = properties(path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise BadLogin(f"{path} cannot be read: {error}") from error
        try:
            return cls.of(found)
        except BadLogin as error:
            raise BadLogin(f"{path}: {error}") from error

    @classmethod
    def of(cls, found: Mapping[str, str]) -> Self:
        """Of properties. Raises :class:`BadLogin`."""
        strange = [key for key in found if key.startswith(_OURS) and key not in _KNOWN]
        if strange:
            raise BadLogin(f"{strange[0]} is not known; there are {', '.join(sorted(_KNOWN))}")
        protocol = found.get(_PROTOCOL, _PROTOCOLS[0]).upper()
        if protocol not in _PROTOCOLS:
            raise BadLogin(f"{_PROTOCOL}={protocol}: it is one of {', '.join(_PROTOCOLS)}")
        tls = _context(found) if protocol.endswith("SSL") else None
        if not protocol.startswith("SASL"):
            return cls(tls=tls)
        mechanism = found.get(_MECHANISM, "").upper()
        if mechanism not in _MECHANISMS:
            raise BadLogin(f"{_MECHANISM}={mechanism}: it is one of {', '.join(_MECHANISMS)}")
        for key in (_USERNAME, _PASSWORD):
            if not found.get(key):
                raise BadLogin(f"{key} is missing")
        return cls(tls=tls, mechanism=mechanism, name=found[_USERNAME], password=found[_PASSWORD])

    def connect_blocking(self, host: str, port: int, timeout_s: float) -> socket.socket:
        """As a dialer of :class:`BlockingConnection`. Raises ``OSError``."""
        raw = socket.create_connection((host, port), timeout=timeout_s)
        if self.tls is None:
            return raw
        try:
            return self.tls.wrap_socket(raw, server_hostname=host)
        except BaseException:
            raw.close()
            raise

    def authenticate(self, connection: BlockingConnection, timeout_s: float) -> None:
        """The first requests of a connection. Raises ``OSError``, ``FrameError``."""
        if not self.mechanism:
            return
        answer = connection.request(
            SaslHandshakeRequest(mechanism=self.mechanism), SaslHandshakeResponse, timeout_s
        )
        if answer.error_code is not ErrorCode.none:
            there = ", ".join(answer.mechanisms) or "none"
            raise ConnectionError(f"its listener has not {self.mechanism}, but {there}")
        if self.mechanism == "PLAIN":
            _say(connection, f"\0{self.name}\0{self.password}".encode(), timeout_s)
            return
        nonce = secrets.token_urlsafe(_NONCE_BYTES)
        scram = ScramClient(self.mechanism, self.name, self.password, nonce)
        challenge = _say(connection, scram.first(), timeout_s)
        scram.check(_say(connection, scram.final(challenge), timeout_s))


def properties(text: str) -> dict[str, str]:
    """A line for each key; what begins with ``#`` is none."""
    lines = (line.strip() for line in text.splitlines())
    parts = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, _, value in parts}


def _say(connection: BlockingConnection, message: bytes, timeout_s: float) -> bytes:
    answer = connection.request(
        SaslAuthenticateRequest(auth_bytes=message), SaslAuthenticateResponse, timeout_s
    )
    if answer.error_code is not ErrorCode.none:
        raise ConnectionError(answer.error_message or answer.error_code.name)
    return bytes(answer.auth_bytes)


def _context(found: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=found.get(_TRUSTED) or None)
        if certificate := found.get(_CERTIFICATE):
            context.load_cert_chain(certificate, found.get(_KEY) or None, password="")
    except (OSError, ValueError) as error:
        raise BadLogin(f"certificates or keys cannot be read: {error}") from error
    context.check_hostname = found.get(_NAMES, "https").lower() not in ("", "none")
    return context
