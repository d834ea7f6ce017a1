"""Small files and ports that the servers here need."""

import os
import socket
import tempfile
from pathlib import Path

HOST = "127.0.0.1"


def write_private(path: Path, text: str) -> None:
    """Replace a file at once, readable by its owner only."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    Path(temporary).replace(path)


def free_port(wished: int = 0) -> int:
    """``wished`` if nothing listens there on loopback, else a port that is free now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, wished))
        except OSError:
            if wished == 0:
                raise
            return free_port()
        return int(probe.getsockname()[1])
