"""The server's side of SASL on one connection: which mechanism, which message is next, who it is.

What a client hears of a failure is the same of all failures; why it was is for the log. Checking a
password takes a few milliseconds of a processor on purpose: it is done in threads, of which there
are few, so that many who try hold up each other and nobody else.
"""

import asyncio
import json
import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from tidemark_broker.listeners import OAUTHBEARER, PLAIN
from tidemark_broker.security import messages
from tidemark_broker.security.errors import AuthenticationFailed, IllegalState
from tidemark_broker.security.scram import NUMBERS, Credential, ScramServer
from tidemark_broker.security.tokens import TokenChecker
from tidemark_broker.security.user_store import UserStore

_PASSWORD_THREADS = 2
#: RFC 7628, 3.2.2: what a client is told whose token is refused, before it is told that it failed.
_INVALID_TOKEN = json.dumps({"status": "invalid_token"}).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """Who a client is. ``credential``: by what it was let in, None where that was a token, which
    is good until ``expires_s`` (seconds since 1970)."""

    mechanism: str
    name: str
    credential: Credential | None = field(default=None, repr=False)
    expires_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class Step:
    """What to answer; ``proven`` once it is done."""

    answer: bytes
    proven: Proven | None = None


class Exchange(Protocol):
    """Of one mechanism; ``step`` raises :class:`AuthenticationFailed`."""

    async def step(self, message: bytes) -> Step:
        """The next message of the client."""
        ...


class Verifier:
    """What the exchanges of all connections need: the users, the tokens' keys, the threads.
    ``tokens`` is None where no listener has OAUTHBEARER."""

    def __init__(self, users: UserStore, tokens: TokenChecker | None = None) -> None:
        self.users = users
        self._tokens = tokens
        self._threads = ThreadPoolExecutor(_PASSWORD_THREADS, "passwords")

    async def is_password(self, password: str, credential: Credential) -> bool:
        """Does it fit?"""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, credential.is_of, password)

    async def check_token(self, message: messages.BearerMessage) -> Proven:
        """Raises :class:`AuthenticationFailed`."""
        if self._tokens is None:
            raise AuthenticationFailed("no keys for tokens are configured")
        token = await self._tokens.check(message.token)
        if message.authzid not in ("", token.name):
            raise AuthenticationFailed("it asks to act for another user than its token's")
        return Proven(mechanism=OAUTHBEARER, name=token.name, expires_s=token.expires_s)

    def begin(self, mechanism: str) -> Exchange:
        """One of the mechanisms that are served."""
        if mechanism == PLAIN:
            return _Plain(self)
        return _Bearer(self) if mechanism == OAUTHBEARER else _Scram(self.users, mechanism)

    def is_current(self, proven: Proven) -> bool:
        """Would it still be let in? A user that is gone, or has another password, is not."""
        credential = proven.credential
        return credential is None or self.users.is_current(proven.name, credential)

    def close(self) -> None:
        """Ends the threads; what they do takes milliseconds."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class _Plain:
    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier

    async def step(self, message: bytes) -> Step:
        said = messages.plain(message)
        credential = self._verifier.users.password_credential(said.name)
        if not await self._verifier.is_password(said.password, credential):
            raise AuthenticationFailed("no such user, or not its password")
        return Step(b"", Proven(mechanism=PLAIN, name=said.name, credential=credential))


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
        said = messages.bearer(message)
        try:
            return Step(b"", await self._verifier.check_token(said))
        except AuthenticationFailed as error:
            self._refusal = error
            return Step(_INVALID_TOKEN)


class SaslState:
    """Of one connection: handshake, messages, proven; and then perhaps again (KIP-368), as the same
    user by the same mechanism. Raises :class:`IllegalState` for what does not follow. ``reauth_s``:
    for how long it is good to be proven, 0 for as long as the connection lasts;
    ``failure_pause_s``: how long whoever fails waits to hear so (KIP-306)."""

    def __init__(
        self,
        verifier: Verifier,
        mechanisms: tuple[str, ...],
        *,
        reauth_s: float = 0.0,
        failure_pause_s: float = 0.0,
    ) -> None:
        self._verifier = verifier
        self._failure_pause_s = failure_pause_s
        self._reauth_s = reauth_s or math.inf
        self._exchange: Exchange | None = None
        self._busy = False
        self.chosen = ""
        #: Do the messages of the exchange come without Kafka's header?
        self.is_bare = False
        self.mechanisms = mechanisms
        self.proven: Proven | None = None
        #: Until when it is good (monotonic), and for how long it was at first, 0 without an end.
        self.ends_s = math.inf
        self.lifetime_ms = 0
        #: Why it failed; nothing more is to be heard then.
        self.failure = ""

    def choose(self, mechanism: str, *, bare: bool = False) -> bool:
        """False where it is not served here. ``bare``: see :attr:`is_bare`."""
        if self._exchange is not None or self._busy:
            raise IllegalState("a handshake in the middle of an authentication")
        if mechanism not in self.mechanisms:
            return False
        if self.proven is not None and mechanism != self.proven.mechanism:
            raise IllegalState("it authenticates again by another mechanism")
        if self.proven is not None and bare:
            raise IllegalState("it authenticates again, by messages without Kafka's header")
        self.chosen, self.is_bare = mechanism, bare
        self._exchange = self._verifier.begin(mechanism)
        return True

    async def step(self, message: bytes) -> Step:
        """Raises :class:`AuthenticationFailed`, too."""
        exchange = self._exchange
        if exchange is None or self._busy:
            raise IllegalState("an authentication without a handshake before")
        self._busy = True
        try:
            step = await exchange.step(message)
            if step.proven is not None:
                self._enter(step.proven)
        except AuthenticationFailed as error:
            self.failure = f"{self.chosen}: {error}"
            await asyncio.sleep(self._failure_pause_s)
            raise
        finally:
            self._busy = False
        return step

    def _enter(self, proven: Proven) -> None:
        before, self._exchange, self.is_bare = self.proven, None, False
        if before is not None and before.name != proven.name:
            raise AuthenticationFailed("it authenticates again as another user")
        self.proven = proven
        life_s = min(self._reauth_s, max(0.0, proven.expires_s - time.time()))
        self.ends_s = time.monotonic() + life_s
        self.lifetime_ms = 0 if math.isinf(life_s) else max(1, int(life_s * 1000))

    @property
    def is_current(self) -> bool:
        """Would who was let in be let in now?"""
        return self.proven is None or self._verifier.is_current(self.proven)
