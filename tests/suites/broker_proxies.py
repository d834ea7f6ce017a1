"""Environment of sarama's functional tests: a proxy before each broker that they can cut, and
``docker compose`` to stop and start brokers.

The proxies are toxiproxy's, on the loopback only. ``docker`` is a program of ours that comes first
on the PATH, supports only ``compose stop|start|logs kafka-N``, and sends a request to the process
that runs the suite.
"""

import json
import os
import socket
import socketserver
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.suites.child_processes import Child
from tests.suites.packages import Missing
from tests.suites.targets import SuiteTarget
from tidemark_devcluster.ports import HOST, free_port
from tidemark_devcluster.toolchain import ToolchainError
from tidemark_devcluster.toolchain.build import GoProgram, ensure_program
from tidemark_devcluster.toolchain.golang import GoVersion

TOXIPROXY = GoProgram(
    name="toxiproxy",
    version="v2.5.0",
    needs_go=GoVersion(1, 24, 0),
    packages=120,
    package="github.com/Shopify/toxiproxy/v2/cmd/server",
)
_START_S = 10.0
_DOCKER = """#!{python}
import json, socket, sys
with socket.socket(socket.AF_UNIX) as peer:
    peer.connect({path!r})
    peer.sendall(json.dumps(sys.argv[1:]).encode() + b"\\n")
    status, said = json.loads(peer.makefile().readline())
print(said)
sys.exit(status)
"""


@contextmanager
def proxied(target: SuiteTarget, folder: Path, ports: Sequence[int]) -> Iterator[Mapping[str, str]]:
    """The environment of such tests: proxies on these ports of the loopback, one for each broker.
    Raises :class:`Missing`."""
    try:
        program = ensure_program(TOXIPROXY)
    except ToolchainError as error:
        raise Missing(str(error)) from error
    # A proxy for each broker, at the port that the broker advertises.
    config = folder / "toxiproxy.json"
    config.write_text(json.dumps(proxies(target.listeners, ports)), encoding="utf-8")
    port = free_port()
    command = [str(program), "-host", HOST, "-port", str(port), "-config", str(config)]
    log = folder / "toxiproxy.log"
    with (
        Child(command, folder=folder, environ={}, errors=log, output=log) as child,
        docker(target, folder) as programs,
    ):
        # The suite must not start before all proxies listen.
        for item in (port, *ports):
            _await_port(child, item)
        yield {
            "TOXIPROXY_ADDR": f"http://{HOST}:{port}",
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        }


def proxies(listeners: Sequence[str], ports: Sequence[int]) -> list[dict[str, object]]:
    """As toxiproxy's configuration has them; ``kafka1`` is before broker 1."""
    return [
        {"name": f"kafka{node}", "listen": f"{HOST}:{port}", "upstream": upstream, "enabled": True}
        for node, (upstream, port) in enumerate(zip(listeners, ports, strict=True), 1)
    ]


def _await_port(child: Child, port: int) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            socket.create_connection((HOST, port), timeout=1).close()
            return
        except OSError as error:
            if not child.alive or time.monotonic() > deadline:
                raise Missing(f"nothing listens on port {port} of the loopback") from error
        time.sleep(0.05)


# ---------------------------------------------------------------- docker


def obey(target: SuiteTarget, arguments: Sequence[str]) -> tuple[int, str]:
    """(status, what it prints) of one command."""
    match list(arguments):
        case ["compose", "stop", service] if node := _node(service):
            target.stop_broker(node)
        case ["compose", "start", service] if node := _node(service):
            target.start_broker(node)
        case ["compose", "logs", *_, service] if node := _node(service):
            return 0, target.log_file(node).read_text("utf-8", errors="replace")
        case _:
            return 1, f"there is no docker here: {' '.join(arguments)}"
    return 0, ""


def _node(service: str) -> int:
    """Return the node id of ``kafka-N``; 0: none."""
    name, _, number = service.partition("-")
    return int(number) if name == "kafka" and number.isdecimal() else 0


@contextmanager
def docker(target: SuiteTarget, folder: Path) -> Iterator[Path]:
    """Return the folder of the program while its server runs."""
    programs = folder / "bin"
    programs.mkdir()

    class Answer(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            try:
                answer = obey(target, json.loads(self.rfile.readline()))
            except Exception as error:  # noqa: BLE001  every failure is passed to the test
                answer = (1, repr(error))
            self.wfile.write(json.dumps(answer).encode() + b"\n")

    # The path of a socket may have some hundred characters.
    with tempfile.TemporaryDirectory(prefix="tidemark-docker-") as short:
        path = f"{short}/socket"
        program = programs / "docker"
        program.write_text(_DOCKER.format(python=sys.executable, path=path), encoding="utf-8")
        program.chmod(0o755)
        with socketserver.ThreadingUnixStreamServer(path, Answer) as server:
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            try:
                yield programs
            finally:
                server.shutdown()
                thread.join()
