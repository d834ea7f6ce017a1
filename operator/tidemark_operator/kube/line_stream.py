"""Lines of a byte stream, in groups as they arrive.

The length of a line is limited, so that a sender without line ends cannot fill the memory.
"""

from collections.abc import AsyncIterable, AsyncIterator

#: Several times the largest object that an API server keeps (1.5 MiB in etcd).
LINE_MAX = 8 * 1024 * 1024


class LineTooLong(ValueError):
    """A line has more than ``LINE_MAX`` bytes."""


async def split_lines(pieces: AsyncIterable[bytes]) -> AsyncIterator[list[bytes]]:
    """Split a stream of bytes into complete lines; yield those of each piece, without line feeds.

    Empty lines and an unfinished last line are left out. Raises ``LineTooLong``.
    """
    unfinished: list[bytes] = []
    unfinished_bytes = 0
    async for piece in pieces:
        *lines, rest = piece.split(b"\n")
        if lines:
            # The first line feed completes what earlier pieces began.
            lines[0] = b"".join([*unfinished, lines[0]])
            unfinished, unfinished_bytes = [], 0
        unfinished.append(rest)
        unfinished_bytes += len(rest)
        if unfinished_bytes > LINE_MAX or any(len(line) > LINE_MAX for line in lines):
            raise LineTooLong(f"a line exceeds {LINE_MAX} bytes")
        if found := [line for line in lines if line]:
            yield found
