"""Frames on the control listener: a length, a header, one entity of the control protocol."""

import asyncio
import struct
from dataclasses import dataclass

from tidemark.wire import control, framing

#: A broker's requests are small; a whole BrokerStatus of 10,000 partitions is about 2 MB.
REQUEST_BYTES_MAX = 16 * 1024 * 1024

_LENGTH = struct.Struct(">i")
_REQUESTS: dict[int, type] = {
    control.BROKER_REGISTRATION: control.BrokerRegistrationRequest,
    control.BROKER_HEARTBEAT: control.BrokerHeartbeatRequest,
    control.ALTER_PARTITION: control.AlterPartitionRequest,
    control.BROKER_STATUS: control.BrokerStatusRequest,
    control.ATTACH: control.AttachRequest,
}

Request = (
    control.BrokerRegistrationRequest
    | control.BrokerHeartbeatRequest
    | control.AlterPartitionRequest
    | control.BrokerStatusRequest
    | control.AttachRequest
)
Response = (
    control.BrokerRegistrationResponse
    | control.BrokerHeartbeatResponse
    | control.AlterPartitionResponse
    | control.BrokerStatusResponse
    | control.AttachResponse
)


@dataclass(frozen=True, slots=True)
class Received:
    """A request and the number that its answer must carry."""

    correlation_id: int
    request: Request


async def read_frame(reader: asyncio.StreamReader, limit: int) -> bytes | None:
    """The next frame without its length, None at the end of the connection. Raises
    :class:`framing.FrameError` for a length that no peer of ours would send."""
    try:
        head = await reader.readexactly(_LENGTH.size)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise framing.FrameError("the connection ended inside a frame's length") from error
        return None
    (size,) = _LENGTH.unpack(head)
    if not 0 < size <= limit:
        raise framing.FrameError(f"a frame of {size} bytes; the limit is {limit}")
    try:
        return await reader.readexactly(size)
    except asyncio.IncompleteReadError as error:
        raise framing.FrameError("the connection ended inside a frame") from error


def decode_request(frame: bytes) -> Received:
    """Read a broker's request; :class:`framing.FrameError` if it is none that we serve."""
    key, version, correlation_id = framing.peek_request(frame)
    request_type = _REQUESTS.get(key)
    if request_type is None or version != 0:
        raise framing.FrameError(f"request key {key} version {version} is not served here")
    offset = framing.request_body_offset(frame, flexible=True)
    request: Request = framing.decode(request_type, frame, offset)
    return Received(correlation_id, request)
