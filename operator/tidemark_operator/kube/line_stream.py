"""The lines of a stream of bytes, as many at a time as have come. A line has a limit: whoever sends
one without an end is not to be held in memory."""

from collections.abc import AsyncIterable, AsyncIterator

#: Several times the largest object that an API server keeps (1.5 MiB in etcd).
LINE_MAX = 8 * 1024 * 1024


class LineTooLong(ValueError):
    """Of one line more than ``LINE_MAX`` bytes have come."""


async def split_lines(pieces: AsyncIterable[bytes]) -> AsyncIterator[list[bytes]]:
    """What ends with a line feed, without it; empty lines are left out, and so is a last line that
    was not finished. Raises ``LineTooLong``."""
    begun: list[bytes] = []
    held = 0
    async for piece in pieces:
        *lines, rest = piece.split(b"\n")
        if lines:
            lines[0] = b"".join([*begun, lines[0]])
            begun, held = [], 0
        begun.append(rest)
        held += len(rest)
        if held > LINE_MAX or any(len(line) > LINE_MAX for line in lines):
            raise LineTooLong(f"a line exceeds {LINE_MAX} bytes")
        if found := [line for line in lines if line]:
            yield found
