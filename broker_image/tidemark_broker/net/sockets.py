"""What asyncio does not say of sockets: addresses that are taken before they are listened on, peers
that have gone while nobody read."""

import asyncio
import socket

#: Linux's states of a connection whose peer sends no more: closed, and half closed.
_LEFT = frozenset({7, 8})


async def bound_socket(host: str, port: int) -> socket.socket:
    """A non-blocking socket of an address, not listening yet. Raises ``OSError``."""
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
    """Has the peer closed the connection, though not all of what it sent was read? False where the
    system does not tell."""
    own = transport.get_extra_info("socket")
    if own is None or not hasattr(socket, "TCP_INFO"):
        return False
    try:
        state: int = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    except OSError:
        return True
    return state in _LEFT
