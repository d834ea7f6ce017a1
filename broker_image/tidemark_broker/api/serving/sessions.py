"""Request handling of a connection, before and after its client has authenticated.

Without SASL the dispatcher serves it at once. With SASL only ApiVersions, SaslHandshake and
SaslAuthenticate are accepted at first, in small frames, one at a time and within a time-out. Any
other request closes the connection. Later the same restriction applies once the session has expired
(KIP-368), or once the user was deleted or has another password.
"""

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.metrics import broker_table
from tidemark.wire.framing import bare_frame, peek_request
from tidemark.wire.receiver import Frame
from tidemark_broker.admission.response_memory import ResponseMemory
from tidemark_broker.api.client import Client
from tidemark_broker.api.cluster import api_versions
from tidemark_broker.api.security import sasl_requests
from tidemark_broker.api.serving.dispatcher import Dispatcher
from tidemark_broker.config_entries import key_field
from tidemark_broker.listeners import ClientListener, SecurityProtocol
from tidemark_broker.net.connection import CloseConnection, Serve, Served, ServerConnection
from tidemark_broker.security import principal
from tidemark_broker.security.acls import ANONYMOUS
from tidemark_broker.security.authorizer import Authorizer
from tidemark_broker.security.errors import AuthenticationFailed
from tidemark_broker.security.sasl import SaslState, Verifier

_PROVING = frozenset(
    {api_versions.KEY, sasl_requests.HANDSHAKE.key, sasl_requests.AUTHENTICATE.key}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofLimits:
    """Limits of a client until it has authenticated, and the lifetime of its session."""

    frame_bytes_max: int = key_field("sasl.server.max.receive.size")
    timeout_ms: int = key_field("tidemark.authentication.timeout.ms")
    reauth_ms: int = key_field("connections.max.reauth.ms")
    failure_pause_ms: int = key_field("connection.failed.authentication.delay.ms")


class ConnectionSessions:
    """Sessions of one listener.

    ``waits_for_users``: reject connections until the users are known.
    """

    def __init__(
        self,
        listener: ClientListener,
        dispatcher: Dispatcher,
        verifier: Verifier,
        limits: ProofLimits,
        *,
        waits_for_users: bool,
    ) -> None:
        self._listener = listener
        self._dispatcher = dispatcher
        self._verifier = verifier
        self._limits = limits
        self._waits_for_users = waits_for_users

    def open(self, connection: ServerConnection) -> Serve:
        """Return the handler of a connection."""
        users = self._verifier.users
        # Users arrive with the first snapshot. Until then no password can be verified.
        if not users.known and (self._waits_for_users or users.awaited):
            return _end(connection, "the controller has not sent the users yet")
        if self._listener.protocol.is_sasl:
            return self._sasl(connection).serve
        try:
            client = self._client(connection, who=self._shown(connection))
        except AuthenticationFailed as error:
            return _end(connection, str(error))
        return functools.partial(self._dispatcher.begin, client=client)

    def _shown(self, connection: ServerConnection) -> str:
        """Return the principal of the client's certificate."""
        if self._listener.protocol is not SecurityProtocol.SSL:
            return ANONYMOUS
        return principal.of_certificate(connection.certificate())

    def _client(
        self, connection: ServerConnection, *, who: str = ANONYMOUS, sasl: SaslState | None = None
    ) -> Client:
        client = Client(
            connection.peer,
            self._listener.name,
            self._verifier.users,
            principal=who,
            sasl=sasl,
            mute=connection.mute,
            is_plaintext=not self._listener.protocol.is_tls,
        )
        connection.mute_before_first(client.mute_before_first_s)
        return client

    def _sasl(self, connection: ServerConnection) -> "SaslSession":
        limits = self._limits
        sasl = SaslState(
            self._verifier,
            self._listener.mechanisms,
            reauth_s=limits.reauth_ms / 1000,
            failure_pause_s=limits.failure_pause_ms / 1000,
        )
        # Before authentication a connection must stay cheap: small frames and a deadline.
        connection.confine(limits.frame_bytes_max, limits.timeout_ms / 1000)
        client = self._client(connection, sasl=sasl)
        return SaslSession(connection, self._dispatcher, client, sasl)


class SaslSession:
    """One connection of a listener with SASL."""

    def __init__(
        self, connection: ServerConnection, dispatcher: Dispatcher, client: Client, sasl: SaslState
    ) -> None:
        self._connection = connection
        self._dispatcher = dispatcher
        self._client = client
        self._sasl = sasl
        self._is_in = False
        self._checked: Authorizer | None = None

    def serve(self, frame: Frame, memory: ResponseMemory) -> Served:
        """Serve a request, before or after the client has authenticated (see ``Serve``).

        Raises :class:`CloseConnection` for one that is not permitted now.
        """
        # Bare messages have no header, so they must not be parsed as requests.
        if self._sasl.is_bare:
            return self._bare(frame)
        key, _, _ = peek_request(frame)
        if key in _PROVING:
            return self._prove(frame, memory)
        self._check(key)
        return self._dispatcher.begin(frame, memory, self._client)

    async def _prove(self, frame: Frame, memory: ResponseMemory) -> Sequence[bytes] | None:
        """Serve a request that is permitted before the client has authenticated."""
        answer = await self._dispatcher.serve(frame, memory, self._client)
        # The answer tells the client about the failure before the connection closes.
        if self._sasl.failure:
            raise _closing(self._sasl.failure, answer)
        self._let_in()
        return answer

    async def _bare(self, message: Frame) -> Sequence[bytes]:
        """Process a message of the mechanism after SaslHandshake v0.

        The answer is bare as well, and a failure has none (``SaslServerAuthenticator``).
        """
        try:
            step = await self._sasl.step(bytes(message))
        except AuthenticationFailed:
            raise _closing(self._sasl.failure) from None
        self._let_in()
        return bare_frame(step.answer)

    def _let_in(self) -> None:
        """Lift the restrictions once the client has authenticated."""
        if self._sasl.proven is not None and not self._is_in:
            self._is_in = True
            self._client.is_now(principal.of_user(self._sasl.proven.name))
            self._connection.release()

    def _check(self, key: int) -> None:
        if not self._is_in:
            raise _closing(f"a request of Api {key} before authentication")
        if time.monotonic() >= self._sasl.ends_s:
            raise _closing(f"a request of Api {key} after the session has expired")
        # The own mark, because a concurrent handler may have looked up the new users already.
        present = self._client.authorizer
        if self._checked is not present:
            if not self._sasl.is_current:
                raise _closing("the user was deleted, or has another password")
            self._checked = present


def _end(connection: ServerConnection, text: str) -> Serve:
    connection.end(broker_table.AUTHENTICATION, text)
    return _closed


async def _closed(_: Frame, __: ResponseMemory) -> Sequence[bytes] | None:
    raise _closing("the connection is being closed")


def _closing(text: str, answer: Sequence[bytes] | None = None) -> CloseConnection:
    return CloseConnection(text, reason=broker_table.AUTHENTICATION, answer=answer)
