"""Unit tests open no sockets: tests that need one are in tests/integration.

Pairs of local sockets, by which event loops and threads wake one another, are allowed.
"""

import socket
import threading
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse sockets, except in threads of servers that the session shares."""
    initialise = socket.socket.__init__
    others = set(threading.enumerate()) - {threading.main_thread()}

    def refuse(self: socket.socket, family: int = -1, *args: Any, **kwargs: Any) -> None:
        if family != socket.AF_UNIX and threading.current_thread() not in others:
            pytest.fail("a unit test opens a socket: it belongs into tests/integration")
        initialise(self, family, *args, **kwargs)

    monkeypatch.setattr(socket.socket, "__init__", refuse)
