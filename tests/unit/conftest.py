"""Unit tests open no sockets: what needs one is tried in tests/integration.

The pairs of local sockets by which event loops and threads wake one another are none of that.
"""

import socket
import threading
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that were there before belong to servers that a whole session shares."""
    initialise = socket.socket.__init__
    others = set(threading.enumerate()) - {threading.main_thread()}

    def refuse(self: socket.socket, family: int = -1, *args: Any, **kwargs: Any) -> None:
        if family != socket.AF_UNIX and threading.current_thread() not in others:
            pytest.fail("a unit test opens a socket: it belongs into tests/integration")
        initialise(self, family, *args, **kwargs)

    monkeypatch.setattr(socket.socket, "__init__", refuse)
