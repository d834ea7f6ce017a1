"""Listening addresses that are taken before they are listened on."""

import asyncio
import socket


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
