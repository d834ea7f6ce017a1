"""Server side of SASL on one connection: mechanism, message sequence, and authenticated user.

A client receives the same text for every failure; the cause is only logged. Checking a password
deliberately takes a few milliseconds of CPU. It runs in few threads, so that a flood of attempts
delays only itself.
"""

import asyncio
import json
import math
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from tidemark_broker.listeners import OAUTHBEARER, PLAIN
from tidemark_broker.security.errors import AuthenticationFailed, IllegalState
from tidemark_broker.security.scram import NUMBERS, Credential, ScramServer
from tidemark_broker.security.tokens import TokenChecker
from tidemark_broker.security.user_store import UserStore

_PASSWORD_THREADS = 2
#: RFC 7628, 3.2.2: answer to a rejected token, before the failure itself.
_INVALID_TOKEN = json.dumps({"status": "invalid_token"}).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """An authenticated user.

    ``credential`` was used for it, None for a token, which is valid until ``expires_s`` (seconds
    since 1970).
    """

    mechanism: str
    name: str
    credential: Credential | None = field(default=None, repr=False)
    expires_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class Step:
    """Answer to a message; ``proven`` is set once authentication is complete."""

    answer: bytes
    proven: Proven | None = None


class Exchange(Protocol):
    """Exchange of one mechanism; ``step`` raises :class:`AuthenticationFailed`."""

    async def step(self, message: bytes) -> Step:
        """Process the client's next message."""
        ...


class Verifier:
    """Shared parts of all exchanges: users, token keys and threads.

    ``tokens`` is None if no listener has OAUTHBEARER.
    """

    def __init__(self, users: UserStore, tokens: TokenChecker | None = None) -> None:
        self.users = users
        self._tokens = tokens
        self._threads = ThreadPoolExecutor(_PASSWORD_THREADS, "passwords")

    async def is_password(self, password: str, credential: Credential) -> bool:
        """Return whether the password fits the credential."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, credential.is_of, password)

    async def check_token(self, message: "BearerMessage") -> Proven:
        """Verify a token. Raises :class:`AuthenticationFailed`."""
        if self._tokens is None:
            raise AuthenticationFailed("no keys for tokens are configured")
        token = await self._tokens.check(message.token)
        if message.authzid not in ("", token.name):
            raise AuthenticationFailed("the client requests another user than that of its token")
        return Proven(mechanism=OAUTHBEARER, name=token.name, expires_s=token.expires_s)

    def begin(self, mechanism: str) -> Exchange:
        """Start an exchange of a supported mechanism."""
        if mechanism == PLAIN:
            return _Plain(self)
        return _Bearer(self) if mechanism == OAUTHBEARER else _Scram(self.users, mechanism)

    def is_current(self, proven: Proven) -> bool:
        """Return whether the user still exists with the same password."""
        credential = proven.credential
        return credential is None or self.users.is_current(proven.name, credential)

    def close(self) -> None:
        """Stop the threads, whose work takes milliseconds."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class _Plain:
    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier

    async def step(self, message: bytes) -> Step:
        parsed = plain_message(message)
        credential = self._verifier.users.password_credential(parsed.name)
        if not await self._verifier.is_password(parsed.password, credential):
            raise AuthenticationFailed("unknown user or wrong password")
        return Step(b"", Proven(mechanism=PLAIN, name=parsed.name, credential=credential))


class _Scram:
    def __init__(self, users: UserStore, mechanism: str) -> None:
        number = NUMBERS[mechanism]
        self._server = ScramServer(lambda name: users.credential(name, number))
        self._mechanism = mechanism
        self._begun = False

    async def step(self, message: bytes) -> Step:
        server = self._server
        if not self._begun:
            self._begun = True
            return Step(server.first(message))
        answer = server.final(message)
        proven = Proven(mechanism=self._mechanism, name=server.name, credential=server.credential)
        return Step(answer, proven)


class _Bearer:
    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._refusal: AuthenticationFailed | None = None

    async def step(self, message: bytes) -> Step:
        if self._refusal is not None:
            raise self._refusal
        parsed = bearer_message(message)
        try:
            return Step(b"", await self._verifier.check_token(parsed))
        except AuthenticationFailed as error:
            # RFC 7628: the error is sent first, and the failure follows the client's empty answer.
            self._refusal = error
            return Step(_INVALID_TOKEN)


class SaslState:
    """State of one connection: handshake, messages, authenticated, and possibly again (KIP-368).

    Reauthentication requires the same user and mechanism. Raises :class:`IllegalState` for an
    unexpected message. ``reauth_s`` is the lifetime of a session, 0 for that of the connection.
    ``failure_pause_s`` delays the answer to a failure (KIP-306).
    """

    def __init__(
        self,
        verifier: Verifier,
        mechanisms: tuple[str, ...],
        *,
        reauth_s: float = 0.0,
        failure_pause_s: float = 0.0,
    ) -> None:
        """Start unauthenticated.

        ``mechanisms``: accepted SASL mechanisms. ``reauth_s`` 0: an authentication is valid as long
        as the connection. ``failure_pause_s``: delay of the answer to a failure.
        """
        self._verifier = verifier
        self._failure_pause_s = failure_pause_s
        self._reauth_s = reauth_s or math.inf  # without a limit if 0
        #: Authentication in progress, None between authentications.
        self._exchange: Exchange | None = None
        #: True while a message is being checked; no other message may arrive then.
        self._busy = False
        #: Mechanism of the last handshake, "" before the first one.
        self.chosen = ""
        #: True if the exchange's messages have no Kafka header.
        self.is_bare = False
        self.mechanisms = mechanisms
        #: Authenticated identity, None before the first success. Stays during a reauthentication.
        self.proven: Proven | None = None
        #: End of the session (monotonic), and its lifetime in ms, 0 without an end.
        self.ends_s = math.inf
        self.lifetime_ms = 0
        #: Cause of a failure, after which no message is accepted.
        self.failure = ""

    def choose(self, mechanism: str, *, bare: bool = False) -> bool:
        """Select a mechanism by SaslHandshake; return False if it is not supported.

        ``bare``: the messages that follow have no Kafka header (:attr:`is_bare`). Raises
        :class:`IllegalState` during an authentication, and if a reauthentication differs in
        mechanism.
        """
        # A second handshake could replace the exchange whose answer is pending.
        if self._exchange is not None or self._busy:
            raise IllegalState("handshake during an authentication")
        if mechanism not in self.mechanisms:
            return False
        if self.proven is not None and mechanism != self.proven.mechanism:
            raise IllegalState("reauthentication with another mechanism")
        if self.proven is not None and bare:
            raise IllegalState("reauthentication with messages without Kafka's header")
        self.chosen, self.is_bare = mechanism, bare
        self._exchange = self._verifier.begin(mechanism)
        return True

    async def step(self, message: bytes) -> Step:
        """Process one SASL message of the client, and return the answer to send.

        Raises :class:`IllegalState` for an unexpected message, and :class:`AuthenticationFailed`
        after the configured pause.
        """
        exchange = self._exchange
        if exchange is None or self._busy:
            raise IllegalState("authentication without a handshake")
        # The check of a password yields, and a second message must not run meanwhile.
        self._busy = True
        try:
            # The identity is present only in the last step of an exchange.
            step = await exchange.step(message)
            if step.proven is not None:
                self._enter(step.proven)
        except AuthenticationFailed as error:
            self.failure = f"{self.chosen}: {error}"
            # Delays guessing. The connection holds no other resource meanwhile.
            await asyncio.sleep(self._failure_pause_s)
            raise
        finally:
            self._busy = False
        return step

    def _enter(self, proven: Proven) -> None:
        before, self._exchange, self.is_bare = self.proven, None, False
        # Requests in flight were authorized for the first user.
        if before is not None and before.name != proven.name:
            raise AuthenticationFailed("reauthentication as another user")
        self.proven = proven
        # A session cannot outlive its token.
        life_s = min(self._reauth_s, max(0.0, proven.expires_s - time.time()))
        self.ends_s = time.monotonic() + life_s
        self.lifetime_ms = 0 if math.isinf(life_s) else max(1, int(life_s * 1000))

    @property
    def is_current(self) -> bool:
        """True unless the authenticated user was deleted or has another password."""
        return self.proven is None or self._verifier.is_current(self.proven)


_SEPARATOR = "\x01"
_GS2 = re.compile(r"[ny],(?:a=(?P<authzid>[^,]*))?,")
_BEARER = re.compile(r"[Bb]earer +(?P<token>[A-Za-z0-9._~+/-]+=*) *")


@dataclass(frozen=True, slots=True)
class PlainMessage:
    name: str
    password: str = field(repr=False)


def plain_message(message: bytes) -> PlainMessage:
    """Parse a PLAIN message. Raises :class:`AuthenticationFailed`."""
    # authzid NUL authcid NUL password; the first may be empty.
    parts = message.split(b"\x00")
    if len(parts) != 3 or not parts[1] or not parts[2]:
        raise AuthenticationFailed("the PLAIN message lacks a name or a password")
    try:
        authzid, name, password = (part.decode("utf-8") for part in parts)
    except UnicodeDecodeError:
        raise AuthenticationFailed("the PLAIN message is not UTF-8") from None
    # Acting for another user (authorization id) is not supported, as in Kafka.
    if authzid not in ("", name):
        raise AuthenticationFailed("the client requests to act for another user")
    return PlainMessage(name, password)


@dataclass(frozen=True, slots=True)
class BearerMessage:
    """A token, and the requested name ("" if absent)."""

    token: str = field(repr=False)
    authzid: str


def bearer_message(message: bytes) -> BearerMessage:
    """Parse an OAUTHBEARER message. Raises :class:`AuthenticationFailed`."""
    try:
        header, *pairs = message.decode("ascii").split(_SEPARATOR)
    except UnicodeDecodeError:
        raise AuthenticationFailed("the OAUTHBEARER message is not ASCII") from None
    gs2 = _GS2.fullmatch(header)
    values = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    found = _BEARER.fullmatch(values.get("auth", ""))
    # Fields are separated by ^A and terminated by two of them (RFC 7628, 3.1).
    if gs2 is None or found is None or pairs[-2:] != ["", ""]:
        raise AuthenticationFailed("the OAUTHBEARER message is malformed")
    return BearerMessage(found["token"], gs2["authzid"] or "")
