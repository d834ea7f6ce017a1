"""SaslHandshake (17): select the SASL mechanism of a connection (KIP-43, KIP-152).

After version 0 the mechanism's messages are bare until authentication succeeds: a length without
Kafka's header. See :class:`tidemark_broker.api.sessions.SaslSession`.
"""

from dataclasses import dataclass

from kio.schema.errors import ErrorCode
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest

from tidemark.metrics import broker_table
from tidemark_broker.api.table import Api, Call
from tidemark_broker.net.connection import CloseConnection
from tidemark_broker.security.errors import IllegalState

KEY = 17


@dataclass(slots=True, kw_only=True)
class SaslHandshakeResponse:
    """Answer with the mechanisms of the listener."""

    error_code: ErrorCode
    mechanisms: tuple[str, ...]


async def handle(request: SaslHandshakeRequest, call: Call) -> SaslHandshakeResponse:
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


API = Api(
    key=KEY,
    name="SaslHandshake",
    version_min=0,
    version_max=1,
    request=SaslHandshakeRequest,
    answer=SaslHandshakeResponse,
    handler=handle,
)
