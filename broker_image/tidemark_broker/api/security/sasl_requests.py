"""SaslHandshake (17) and SaslAuthenticate (36): authentication of a connection (KIP-43, KIP-152).

SaslHandshake, versions 0 and 1:

- 0: the mechanism's messages are bare until authentication succeeds: a length without Kafka's
  header (:class:`tidemark_broker.api.serving.sessions.SaslSession`)
- 1: the mechanism's messages are SaslAuthenticate requests

SaslAuthenticate, versions 0 to 2:

- 1: lifetime of the session (KIP-368)
- 2: flexible

Behaviour:

- A failure has the same message whatever its cause. Then
  :mod:`tidemark_broker.api.serving.sessions` closes the connection.
- A message out of order closes the connection, because the protocol has no answer for it.
"""

from dataclasses import dataclass
from datetime import timedelta

from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest

from tidemark.metrics import broker_table
from tidemark_broker.api.schema import ZERO
from tidemark_broker.api.table import Api, Call
from tidemark_broker.net.connection import CloseConnection
from tidemark_broker.security.errors import AuthenticationFailed, IllegalState

# ---------------------------------------------------------------- SaslHandshake


@dataclass(slots=True, kw_only=True)
class SaslHandshakeResponse:
    """Answer with the mechanisms of the listener."""

    error_code: ErrorCode
    mechanisms: tuple[str, ...]


async def handshake(request: SaslHandshakeRequest, call: Call) -> SaslHandshakeResponse:
    """Select the mechanism if the listener supports it."""
    sasl = call.client.sasl
    if sasl is None:
        return SaslHandshakeResponse(error_code=ErrorCode.illegal_sasl_state, mechanisms=())
    try:
        # Version 0 announces bare messages, which need another parser.
        served = sasl.choose(request.mechanism, bare=call.version == 0)
    except IllegalState as error:
        raise CloseConnection(str(error), reason=broker_table.AUTHENTICATION) from None
    # The answer lists the mechanisms, so that the client can choose another one.
    error_code = ErrorCode.none if served else ErrorCode.unsupported_sasl_mechanism
    return SaslHandshakeResponse(error_code=error_code, mechanisms=sasl.mechanisms)


HANDSHAKE = Api(handshake, versions=(0, 1))


# ---------------------------------------------------------------- SaslAuthenticate


#: Messages for clients: what to correct, without revealing whether the user exists.
_WRONG_PASSWORD = "authentication failed: wrong user name or password"
_FAILED = {"OAUTHBEARER": "authentication failed: the token has expired, or is not trusted here"}


@dataclass(slots=True, kw_only=True)
class SaslAuthenticateResponse:
    """Answer. ``session_lifetime`` is 0 if the session does not expire."""

    error_code: ErrorCode
    error_message: str | None = None
    auth_bytes: bytes = b""
    session_lifetime: timedelta = ZERO


async def authenticate(request: SaslAuthenticateRequest, call: Call) -> SaslAuthenticateResponse:
    """Process one message of the client's SASL mechanism.

    With the last one the response contains the lifetime of the session (KIP-368).
    """
    sasl = call.client.sasl
    if sasl is None:
        return SaslAuthenticateResponse(
            error_code=ErrorCode.illegal_sasl_state, error_message="this listener has no SASL"
        )
    try:
        step = await sasl.step(bytes(request.auth_bytes))
    # A message out of order has no answer in the protocol, so the connection is closed.
    except IllegalState as error:
        raise CloseConnection(str(error), reason=broker_table.AUTHENTICATION) from None
    except AuthenticationFailed:
        return SaslAuthenticateResponse(
            error_code=ErrorCode.sasl_authentication_failed,
            error_message=f"{sasl.chosen}: {_FAILED.get(sasl.chosen or '', _WRONG_PASSWORD)}",
        )
    # The lifetime is only known, and only sent, with the last message.
    lifetime_ms = 0 if step.proven is None else sasl.lifetime_ms
    return SaslAuthenticateResponse(
        error_code=ErrorCode.none,
        auth_bytes=step.answer,
        session_lifetime=timedelta(milliseconds=lifetime_ms),
    )


AUTHENTICATE = Api(authenticate, versions=(0, 2))
