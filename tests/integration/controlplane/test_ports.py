"""Ports for servers that are started later are not those that connections are given meanwhile."""

import random
import socket
from pathlib import Path

import pytest

from tidemark_cli import ports
from tidemark_cli.ports import HOST, free_port, free_ports


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which the kernel says which ports it gives to connections."""
    path = tmp_path / "ip_local_port_range"
    monkeypatch.setattr(ports, "_RANGE", path)
    return path


def listening(port: int) -> socket.socket:
    return socket.create_server((HOST, port))


def test_none_is_one_that_the_kernel_gives_to_connections(kernels: Path) -> None:
    kernels.write_text("20000\t60999\n")
    found = free_ports(50)
    assert len(set(found)) == 50
    assert all(10_000 <= port < 20_000 for port in found)
    for port in found:
        listening(port).close()


def test_what_is_taken_is_not_given(kernels: Path) -> None:
    first = free_port()
    kernels.write_text("10002 60999")
    with listening(first):
        assert free_port(first) != first
    assert free_port(first) == first


def test_what_is_held_and_not_listened_on_yet_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = free_ports(2)
    monkeypatch.setattr(ports, "_candidates", lambda _: [first, second])
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((HOST, first))
        assert free_port() == second


@pytest.mark.parametrize("text", ["10000 60999", "1024 65535", "nothing", ""])
def test_where_no_port_is_left_below_the_kernel_picks(kernels: Path, text: str) -> None:
    kernels.write_text(text)
    assert len(set(free_ports(3))) == 3


def test_processes_of_one_seed_do_not_pick_the_same() -> None:
    picked = set()
    for _ in range(3):
        random.seed(1)
        picked.add(tuple(free_ports(3)))
    assert len(picked) > 1
