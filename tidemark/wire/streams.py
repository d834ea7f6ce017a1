"""Kafka frames of an asyncio stream."""

import asyncio

from tidemark.wire.framing import LENGTH_BYTES, FrameError, frame_length


async def read_frame(reader: asyncio.StreamReader, limit_bytes: int) -> bytes | None:
    """Return the next frame without its length, None at the end of the connection.

    Raises :class:`FrameError` for an invalid length, or an end inside a frame.
    """
    size = await read_length(reader, limit_bytes)
    return None if size is None else await read_body(reader, size)


async def read_length(reader: asyncio.StreamReader, limit_bytes: int) -> int | None:
    """Return the length of the next frame, the first half of :func:`read_frame`."""
    try:
        prefix = await reader.readexactly(LENGTH_BYTES)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise FrameError("the connection ended inside a frame's length") from error
        return None
    return frame_length(prefix, 0, limit_bytes)


async def read_body(reader: asyncio.StreamReader, size_bytes: int) -> bytes:
    """Return the body of a frame, the second half of :func:`read_frame`."""
    try:
        return await reader.readexactly(size_bytes)
    except asyncio.IncompleteReadError as error:
        raise FrameError("the connection ended inside a frame") from error
