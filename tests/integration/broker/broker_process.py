"""Brokers as processes for tests: started on free ports, stopped by their process id."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests import forked_processes
from tests.certificates import folder_of
from tidemark.tls.identity import TlsIdentity
from tidemark_devcluster.ports import free_port

DEFAULTS = {
    "cluster.id": "test-cluster",
    "metrics.port": 0,
    "replica.lag.time.max.ms": 3000,
    "replica.fetch.wait.max.ms": 200,
    "log.level": "INFO",
}


class BrokerProcess:
    # Benchmarks execute the program; other tests fork, which starts faster.
    #: Is it executed, though a fork would start sooner? For who measures one.
    executed = False

    def __init__(self, node_id: int, folder: Path, controller_ports: list[int], **config: Any):
        self.node_id = node_id
        self.folder = folder
        self.log_dir = folder / f"broker-{node_id}"
        self.config_path = folder / f"broker-{node_id}.json"
        self.log_path = folder / f"broker-{node_id}.log"
        self.entries = DEFAULTS | {
            "node.id": node_id,
            # It stays where it is when it starts again: clients remember addresses.
            "listeners": f"127.0.0.1:{free_port()}",
            "log.dir": str(self.log_dir),
            "controller.addresses": ",".join(f"127.0.0.1:{port}" for port in controller_ports),
            "tidemark.tls.directory": str(folder / f"broker-{node_id}-tls"),
        }
        self.entries |= {
            key if "." in key else key.replace("_", "."): value for key, value in config.items()
        }
        self.process: asyncio.subprocess.Process | forked_processes.Forked | None = None
        self.ready: dict[str, Any] = {}

    def command(self) -> list[str]:
        """Return the start command; other kinds of start change it."""
        return [sys.executable, "-m", "tidemark_broker", "--config", str(self.config_path)]

    def certify(self) -> None:
        """Write the certificate that an operator would issue."""
        who = TlsIdentity(str(self.entries["cluster.id"]), self.node_id)
        folder_of(who, Path(str(self.entries["tidemark.tls.directory"])))

    async def launch(self) -> "BrokerProcess":
        self.config_path.write_text(json.dumps(self.entries))
        self.certify()
        with self.log_path.open("ab") as log:
            self.process = await self._begin(log.fileno())
        return self

    async def _begin(self, log: int) -> asyncio.subprocess.Process | forked_processes.Forked:
        command = self.command()
        if command[0] == sys.executable and not self.executed:
            return await forked_processes.start("tidemark_broker.main", command, log)
        return await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=log
        )

    async def wait_ready(self, timeout_s: float = 60.0) -> "BrokerProcess":
        assert self.process is not None
        assert self.process.stdout is not None
        async with asyncio.timeout(timeout_s):
            line = await self.process.stdout.readline()
        # The log explains an early end better than an empty line.
        assert line, f"broker {self.node_id} ended early:\n{self.log_text()}"
        self.ready = json.loads(line)
        return self

    async def start(self) -> "BrokerProcess":
        return await (await self.launch()).wait_ready()

    @property
    def listener(self) -> str:
        return str(self.ready["listener"])

    def listener_of(self, name: str) -> str:
        return str(self.ready["listeners"][name])

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def log_text(self) -> str:
        return self.log_path.read_text()

    async def kill(self) -> None:
        assert self.process is not None
        # By pid: the process may be a fork that asyncio does not know.
        os.kill(self.pid, signal.SIGKILL)
        await self.process.wait()

    async def stop(self) -> int:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            return await self.process.wait()


StartBrokers = Callable[..., Awaitable[list[BrokerProcess]]]
