"""SaslAuthenticate (36): messages of the SASL mechanism (KIP-152), and the lifetime of the session
(KIP-368).

A failure has the same message whatever its cause. Then :mod:`tidemark_broker.api.sessions` closes
the connection.
"""

from dataclasses import dataclass
from datetime import timedelta

from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest

from tidemark.metrics import broker_table
from tidemark_broker.api.schema import ZERO
from tidemark_broker.api.table import Api, Call
from tidemark_broker.net.connection import CloseConnection
from tidemark_broker.security.errors import AuthenticationFailed, IllegalState

KEY = 36
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


async def handle(request: SaslAuthenticateRequest, call: Call) -> SaslAuthenticateResponse:
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


API = Api(
    key=KEY,
    name="SaslAuthenticate",
    version_min=0,
    version_max=2,
    request=SaslAuthenticateRequest,
    answer=SaslAuthenticateResponse,
    handler=handle,
)
