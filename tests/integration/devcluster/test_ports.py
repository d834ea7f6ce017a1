"""Ports for servers that start later do not collide with ports of outgoing connections."""

import collections
import random
import socket
from pathlib import Path

import pytest

from tidemark_devcluster import ports
from tidemark_devcluster.ports import HOST, free_port, free_ports


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file in which the kernel publishes its range of ephemeral ports."""
    path = tmp_path / "ip_local_port_range"
    monkeypatch.setattr(ports, "_RANGE", path)
    return path


def listening(port: int) -> socket.socket:
    return socket.create_server((HOST, port))


def test_free_ports_are_outside_the_ephemeral_range(kernels: Path) -> None:
    kernels.write_text("20000\t60999\n")
    found = free_ports(50)
    assert len(set(found)) == 50
    # Below the kernel's range, and above the well-known ports.
    assert all(10_000 <= port < 20_000 for port in found)
    for port in found:
        listening(port).close()


def test_port_in_use_is_not_returned(kernels: Path) -> None:
    first = free_port()
    kernels.write_text("10002 60999")
    with listening(first):
        assert free_port(first) != first
    assert free_port(first) == first


def test_picked_port_is_not_picked_again_before_its_server_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = free_port()
    monkeypatch.setattr(ports, "_candidates", lambda _: [first])
    assert free_port() != first
    # Nor by another process, which binds it without SO_REUSEADDR.
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((HOST, first))
    # The server itself can listen, and listen again after a restart.
    for _ in range(2):
        listening(first).close()


def test_reserved_ports_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_reserved", collections.deque(maxlen=2))
    first, second, third = free_ports(3)
    assert [held.getsockname()[1] for held in ports._reserved] == [second, third]
    # The first one was closed.
    with socket.socket() as other:
        other.bind((HOST, first))
    ports._release()


@pytest.mark.parametrize("text", ["10000 60999", "1024 65535", "nothing", ""])
def test_kernel_picks_ports_if_none_is_left_below_its_range(kernels: Path, text: str) -> None:
    kernels.write_text(text)
    assert len(set(free_ports(3))) == 3


def test_processes_with_the_same_seed_pick_different_ports() -> None:
    picked = set()
    # The same seed in each process must not lead to the same ports.
    for _ in range(3):
        random.seed(1)
        picked.add(tuple(free_ports(3)))
    assert len(picked) > 1
