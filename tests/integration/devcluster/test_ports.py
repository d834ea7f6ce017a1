"""Ports for servers that start later do not collide with ports of outgoing connections."""

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


def test_bound_port_without_a_listener_is_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = free_ports(2)
    monkeypatch.setattr(ports, "_candidates", lambda _: [first, second])
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Bound, but not listened on: another process has reserved it.
        reserved.bind((HOST, first))
        assert free_port() == second


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
