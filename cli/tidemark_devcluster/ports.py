"""Pick loopback ports for servers that start later.

The kernel also gives the ports of its ephemeral range (port 0) to outgoing connections, so another
program may take one before the server listens. Ports below that range are only taken by programs
that name them. A picked port stays bound, without listening, so that nothing else picks it until
its server listens there: servers bind with SO_REUSEADDR, which a port without a listener permits.
"""

import atexit
import collections
import random
import socket
from pathlib import Path

HOST = "127.0.0.1"
_LOWEST = 10_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES = 100
#: Sockets that reserve picked ports. Old ones are closed: their servers listen by then.
_reserved: collections.deque[socket.socket] = collections.deque(maxlen=64)


def free_port(preferred: int = 0) -> int:
    """Return ``preferred`` if nothing listens there, else a port that is free now."""
    if preferred and _is_free(preferred):
        return preferred
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return distinct ports that are free now; raises ``OSError`` if there are too few."""
    ports: list[int] = []
    for port in _candidates(_first_of_the_kernel()):
        if len(ports) == count:
            break
        if _reserve(port):
            ports.append(port)
    return ports + _picked_by_the_kernel(count - len(ports))


def _candidates(end: int) -> list[int]:
    below = range(_LOWEST, max(_LOWEST, end))
    # Not the seeded generator: processes that share a seed would pick the same.
    return random.SystemRandom().sample(below, min(_TRIES, len(below)))


def _first_of_the_kernel() -> int:
    try:
        return int(_RANGE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def _is_free(port: int) -> bool:
    """Return whether a server could bind the port, although connections may still be closing."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def _reserve(port: int) -> bool:
    """Bind the port if no other socket is bound to it, listening or not; return whether it was."""
    held = socket.socket()
    try:
        held.bind((HOST, port))
    except OSError:
        held.close()
        return False
    # Set after the binding, which would share a reserved port otherwise.
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if len(_reserved) == _reserved.maxlen:
        _reserved.popleft().close()
    _reserved.append(held)
    return True


@atexit.register
def _release() -> None:
    while _reserved:
        _reserved.pop().close()


def _picked_by_the_kernel(count: int) -> list[int]:
    # All sockets are open at the same time, so that the kernel gives each another port.
    sockets = [socket.socket() for _ in range(count)]
    try:
        for bound in sockets:
            bound.bind((HOST, 0))
        return [int(bound.getsockname()[1]) for bound in sockets]
    finally:
        for bound in sockets:
            bound.close()
