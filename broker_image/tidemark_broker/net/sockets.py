"""Socket functions that asyncio lacks: binding without listening, and detection of a gone peer."""

import asyncio
import socket

#: Linux TCP states of a connection whose peer no longer sends: CLOSE and CLOSE_WAIT.
_LEFT = frozenset({7, 8})


async def bound_socket(host: str, port: int) -> socket.socket:
    """Bind a TCP socket to ``host`` and ``port`` without listening, and return it (non-blocking).

    The broker registers the bound port with the controller before it accepts connections. Raises
    ``OSError``.
    """
    # The first address decides, as the registration has only one.
    infos = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, kind, protocol, _, address = infos[0]
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind(address)
    except OSError:
        made.close()
        raise
    return made


def has_left(transport: asyncio.Transport) -> bool:
    """Return whether the peer has closed the connection, even with unread data.

    False if unknown.
    """
    own = transport.get_extra_info("socket")
    if own is None or not hasattr(socket, "TCP_INFO"):
        return False
    try:
        # tcpi_state is the first byte of the structure.
        state: int = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    except OSError:
        return True
    return state in _LEFT
