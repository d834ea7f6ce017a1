"""The client's side of SASL: PLAIN (RFC 4616) and SCRAM (RFC 5802, RFC 7677; KIP-84).

Who serves must prove that it knows the user as well: a broker that cannot is not believed.
"""

import base64
import hashlib
import hmac
import secrets

from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
from kio.schema.sasl_authenticate.v2.response import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse

from tidemark.wire.blocking import BlockingConnection
from tidemark_pipeline.security import PLAIN, SCRAM, Login

_NONCE_BYTES = 24
_ITERATIONS_MAX = 1_000_000
#: "n,,": no channel binding, and nobody else to act for.
_HEADER = "n,,"


class LoginFailed(Exception):
    """Brokers refuse the user, or cannot prove who they are. Nothing to be tried again."""


def log_in(connection: BlockingConnection, login: Login, timeout_s: float) -> None:
    """The first thing on a connection. Raises :class:`LoginFailed`, ``OSError``, ``FrameError``."""
    answer = connection.request(
        SaslHandshakeRequest(mechanism=login.mechanism), SaslHandshakeResponse, timeout_s
    )
    if answer.error_code:
        raise LoginFailed(
            f"the broker does not take {login.mechanism}; it takes {', '.join(answer.mechanisms)}"
        )

    def say(message: bytes) -> bytes:
        answer = connection.request(
            SaslAuthenticateRequest(auth_bytes=message), SaslAuthenticateResponse, timeout_s
        )
        if answer.error_code:
            why = answer.error_message or answer.error_code.name
            raise LoginFailed(f"the broker refuses user {login.name!r}: {why}")
        return bytes(answer.auth_bytes)

    if login.mechanism == PLAIN:
        say(f"\0{login.name}\0{login.password}".encode())
        return
    exchange = ScramClient(login, secrets.token_urlsafe(_NONCE_BYTES))
    exchange.check(say(exchange.final(say(exchange.first()))))


class ScramClient:
    """One exchange; ``nonce`` is of printable characters without a comma."""

    def __init__(self, login: Login, nonce: str) -> None:
        self._login, self._nonce = login, nonce
        self._hash = SCRAM[login.mechanism]
        name = login.name.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={name},r={nonce}"
        self._expected = b""

    def first(self) -> bytes:
        """The first message."""
        return (_HEADER + self._first_bare).encode()

    def final(self, challenge: bytes) -> bytes:
        """The proof, for the server's nonce, salt and iterations. Raises :class:`LoginFailed`."""
        fields = _fields(challenge)
        try:
            nonce, salt = fields["r"], base64.b64decode(fields["s"], validate=True)
            iterations = int(fields["i"])
        except (KeyError, ValueError) as error:
            raise LoginFailed("the broker's SCRAM challenge cannot be read") from error
        if not nonce.startswith(self._nonce) or not 1 <= iterations <= _ITERATIONS_MAX:
            raise LoginFailed("the broker's SCRAM challenge is of another exchange")
        password = self._login.password.encode()
        salted = hashlib.pbkdf2_hmac(self._hash, password, salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", self._hash)
        unproven = f"c={base64.b64encode(_HEADER.encode()).decode()},r={nonce}"
        signed = f"{self._first_bare},{challenge.decode()},{unproven}".encode()
        stored = hashlib.new(self._hash, client_key).digest()
        signature = hmac.digest(stored, signed, self._hash)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        server_key = hmac.digest(salted, b"Server Key", self._hash)
        self._expected = hmac.digest(server_key, signed, self._hash)
        return f"{unproven},p={base64.b64encode(proof).decode()}".encode()

    def check(self, verdict: bytes) -> None:
        """The server's proof. Raises :class:`LoginFailed`."""
        signature = _fields(verdict).get("v", "")
        if not hmac.compare_digest(signature.encode(), base64.b64encode(self._expected)):
            raise LoginFailed("the broker does not prove that it knows the user")


def _fields(message: bytes) -> dict[str, str]:
    text = message.decode("utf-8", "replace")
    return {part[:1]: part[2:] for part in text.split(",") if part[1:2] == "="}
