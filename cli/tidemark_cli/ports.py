"""Ports of the loopback interface for servers that are started later.

A port that the kernel picks (port 0) is one of those that it also gives to outgoing connections: in
the seconds until the server listens another program may get it. Those below that range belong to
whoever names them, so two programs meet there only if both pick the same of thousands.
"""

import random
import socket
from pathlib import Path

HOST = "127.0.0.1"
_LOWEST = 10_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES = 100


def free_port(wished: int = 0) -> int:
    """``wished`` if nothing listens there, else a port that is free now."""
    return wished if wished and _is_free(wished, again=True) else free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Different ports that are free now. Raises ``OSError`` where there are none."""
    found: list[int] = []
    for port in _candidates(_first_of_the_kernel()):
        if len(found) == count:
            break
        if _is_free(port, again=False):
            found.append(port)
    return found + _picked_by_the_kernel(count - len(found))


def _candidates(end: int) -> list[int]:
    below = range(_LOWEST, max(_LOWEST, end))
    # Not the seeded generator: processes that share a seed would pick the same.
    return random.SystemRandom().sample(below, min(_TRIES, len(below)))


def _first_of_the_kernel() -> int:
    try:
        return int(_RANGE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def _is_free(port: int, *, again: bool) -> bool:
    """``again``: connections of the server that was there last may still be ending. A new port is
    also not one that another server holds and does not listen on yet."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(again))
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def _picked_by_the_kernel(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((HOST, 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
