"""Kafka frames of an asyncio stream."""

import asyncio

from tidemark.wire.framing import LENGTH_BYTES, FrameError, frame_length


async def read_frame(reader: asyncio.StreamReader, limit_bytes: int) -> bytes | None:
    """The next frame without its length, None at the end of the connection. Raises
    :class:`FrameError` for a length that is none or above the limit, or an end inside a frame."""
    try:
        prefix = await reader.readexactly(LENGTH_BYTES)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise FrameError("the connection ended inside a frame's length") from error
        return None
    try:
        return await reader.readexactly(frame_length(prefix, 0, limit_bytes))
    except asyncio.IncompleteReadError as error:
        raise FrameError("the connection ended inside a frame") from error
