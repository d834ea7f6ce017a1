"""Client side of SASL:

PLAIN (RFC 4616), SCRAM (RFC 5802, RFC 7677; KIP-84) and OAUTHBEARER (RFC 7628; KIP-255).

With SCRAM the server must prove that it knows the user too; a broker that does not is refused. An
exchange is a generator of messages, so that clients with and without an event loop share it.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Generator
from typing import Any, TypeAlias

from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
from kio.schema.sasl_authenticate.v2.response import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse

from tidemark.kafka_client.access import OAUTHBEARER, PLAIN, SCRAM, Login
from tidemark.wire.blocking import BlockingConnection

_NONCE_BYTES = 24
_ITERATIONS_MAX = 1_000_000
#: "n,,": no channel binding, and no other authorization identity.
_HEADER = "n,,"
#: Message by which a client requests the cause of a refusal (RFC 7628, 3.2.3).
_OAUTH_ABORT = b"\x01"


class LoginFailed(Exception):
    """Brokers refuse the user, or fail to prove their identity. A retry cannot succeed."""


#: Yields (request, type of its answer) and receives the answer; returns the seconds for which the
#: login is valid (0.0: as long as the connection).
Exchange: TypeAlias = Generator[tuple[Any, type[Any]], Any, float]


def log_in(connection: BlockingConnection, login: Login, timeout_s: float) -> None:
    """Log in; call this first on a connection.

    Raises :class:`LoginFailed`, ``OSError``, ``FrameError``.
    """
    steps = exchange(login)
    try:
        request, answer_type = next(steps)
        while True:
            request, answer_type = steps.send(connection.request(request, answer_type, timeout_s))
    except StopIteration:
        return


def exchange(login: Login) -> Exchange:
    """Yield the requests of one login with their response types; receive the responses.

    A generator without a connection: the caller sends what it yields. Returns the lifetime of the
    session in seconds, 0.0 for the lifetime of the connection. Raises :class:`LoginFailed`.
    """
    # The broker confirms the mechanism first (KIP-43), and lists the ones it has otherwise.
    answer: SaslHandshakeResponse = yield (
        SaslHandshakeRequest(mechanism=login.mechanism),
        SaslHandshakeResponse,
    )
    if answer.error_code:
        accepted = ", ".join(answer.mechanisms) or "none: this listener has no SASL"
        raise LoginFailed(f"the broker does not accept {login.mechanism} (accepted: {accepted})")
    if login.mechanism == PLAIN:
        last = yield from _exchange_message(login, f"\0{login.name}\0{login.password}".encode())
    elif login.mechanism == OAUTHBEARER:
        last = yield from _send_token(login)
    else:
        # SCRAM takes two rounds. The broker's last message proves that it knows the user as well.
        scram = ScramClient(login, secrets.token_urlsafe(_NONCE_BYTES))
        challenge = yield from _exchange_message(login, scram.first())
        last = yield from _exchange_message(login, scram.final(bytes(challenge.auth_bytes)))
        scram.check(bytes(last.auth_bytes))
    return last.session_lifetime.total_seconds()


def _exchange_message(
    login: Login, message: bytes
) -> Generator[tuple[Any, type[Any]], Any, SaslAuthenticateResponse]:
    """Send one message of the mechanism; return its answer. Raises :class:`LoginFailed`."""
    answer: SaslAuthenticateResponse = yield (
        SaslAuthenticateRequest(auth_bytes=message),
        SaslAuthenticateResponse,
    )
    if answer.error_code:
        why = answer.error_message or answer.error_code.name
        who = f"user {login.name!r}" if login.name else "the token"
        raise LoginFailed(f"the broker refuses {who}: {why}")
    return answer


def _send_token(login: Login) -> Generator[tuple[Any, type[Any]], Any, SaslAuthenticateResponse]:
    """Send the token. Raises :class:`LoginFailed` with the broker's cause if it is refused."""
    message = f"{_HEADER}\x01auth=Bearer {login.password}\x01\x01".encode()
    answer = yield from _exchange_message(login, message)
    # A first answer that is not empty contains the cause. The broker completes the refusal only
    # after another message of the client (RFC 7628, 3.2.3).
    if answer.auth_bytes:
        yield from _exchange_message(login, _OAUTH_ABORT)
        raise LoginFailed(f"the broker refuses the token: {bytes(answer.auth_bytes)[:200]!r}")
    return answer


class ScramClient:
    """One SCRAM exchange. ``nonce``: printable characters without a comma."""

    def __init__(self, login: Login, nonce: str) -> None:
        self._login, self._nonce = login, nonce
        self._hash = SCRAM[login.mechanism]
        # "=" and "," delimit the fields of a SCRAM message (RFC 5802, 5.1).
        name = login.name.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={name},r={nonce}"
        self._expected = b""

    def first(self) -> bytes:
        """Return the first message."""
        return (_HEADER + self._first_bare).encode()

    def final(self, challenge: bytes) -> bytes:
        """Return the client-final message with the proof, for the server's challenge (RFC 5802).

        ``challenge``: the server-first message with nonce, salt and iterations. Raises
        :class:`LoginFailed`.
        """
        fields = _fields(challenge)
        try:
            nonce, salt = fields["r"], base64.b64decode(fields["s"], validate=True)
            iterations = int(fields["i"])
        except (KeyError, ValueError) as error:
            raise LoginFailed("the broker's SCRAM challenge cannot be read") from error
        # A foreign nonce would let a server replay a former exchange; the bound limits the work.
        if not nonce.startswith(self._nonce) or not 1 <= iterations <= _ITERATIONS_MAX:
            raise LoginFailed("the broker's SCRAM challenge is of another exchange")
        # RFC 5802, section 3: the client proves that it knows the password, without sending it.
        password = self._login.password.encode()
        salted = hashlib.pbkdf2_hmac(self._hash, password, salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", self._hash)
        # The proof covers all messages of the exchange (AuthMessage).
        unproven = f"c={base64.b64encode(_HEADER.encode()).decode()},r={nonce}"
        signed = f"{self._first_bare},{challenge.decode()},{unproven}".encode()
        stored = hashlib.new(self._hash, client_key).digest()
        signature = hmac.digest(stored, signed, self._hash)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        # The signature that the server must send in return.
        server_key = hmac.digest(salted, b"Server Key", self._hash)
        self._expected = hmac.digest(server_key, signed, self._hash)
        return f"{unproven},p={base64.b64encode(proof).decode()}".encode()

    def check(self, verdict: bytes) -> None:
        """Check the server's proof. Raises :class:`LoginFailed`."""
        signature = _fields(verdict).get("v", "")
        if not hmac.compare_digest(signature.encode(), base64.b64encode(self._expected)):
            raise LoginFailed("the broker does not prove that it knows the user")


def _fields(message: bytes) -> dict[str, str]:
    text = message.decode("utf-8", "replace")
    return {part[:1]: part[2:] for part in text.split(",") if part[1:2] == "="}
