"""An operator as a process: started with short times, killed or stopped by the test."""

import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tests import forked_processes
from tests.benchmarks.pod_limits import Cgroup


class OperatorProcess:
    """One ``python -m tidemark_operator`` on a namespace; its log goes to a file."""

    #: Is it executed, though a fork would start sooner? For who measures one.
    executed = False
    #: Then, in these limits, if they are any pod's.
    cgroup: Cgroup | None = None

    def __init__(
        self,
        kubeconfig: Path,
        namespace: str,
        log: Path,
        control: str,
        *,
        session_timeout_s: float = 2,
        certificates: Path | None,
        lease_duration_s: float = 5,
        log_level: str = "DEBUG",
        profile: Path | None = None,
        controller_addresses: str = "",
        export_image: str = "",
        exports: Path | None = None,
        spark_applications: bool = False,
        # A fork of this process would start faster, but share its imports and environment.
    ) -> None:
        """``certificates`` None: in Secrets. ``controller_addresses``: of the operators, for
        brokers in pods. ``export_image``, ``exports``: of the jobs of Exports. ``profile``: where
        cProfile leaves what it saw of the main thread, after a clean stop."""
        # cProfile writes its file only at a clean exit.
        seen = () if profile is None else ("-m", "cProfile", "-o", str(profile))
        self._program = (sys.executable, *seen, "-m", "tidemark_operator")
        self._arguments = [
            *("--kubeconfig", str(kubeconfig), "--namespace", namespace, "--control", control),
            *("--lease-duration-s", str(lease_duration_s), "--log-level", log_level),
            *("--session-timeout-s", str(session_timeout_s)),
            *(("--certificates", str(certificates)) if certificates else ()),
            *(("--controller-addresses", controller_addresses) if controller_addresses else ()),
            *(("--export-image", export_image) if export_image else ()),
            *(("--exports", str(exports)) if exports else ()),
            *(("--spark-applications", "true") if spark_applications else ()),
        ]
        self._log = log
        self._process: asyncio.subprocess.Process | forked_processes.Forked | None = None
        self.control = control
        self.metrics = ""

    @property
    def pid(self) -> int:
        """Process id of the running operator."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8")

    async def launch(self) -> None:
        """Start the process; it need not become the leader."""
        with self._log.open("ab") as log:
            self._process = await self._begin((*self._program, *self._arguments), log.fileno())

    async def _begin(
        self, command: Sequence[str], log: int
    ) -> asyncio.subprocess.Process | forked_processes.Forked:
        if not self.executed:
            return await forked_processes.start("tidemark_operator.process", command, log)
        if self.cgroup is not None:
            command = self.cgroup.command(command)
        return await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=log
        )

    async def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Wait for the ready line."""
        assert self._process is not None
        assert self._process.stdout is not None
        # The line is printed once the operator leads and its listeners are bound.
        async with asyncio.timeout(timeout_s):
            line = await self._process.stdout.readline()
        if not line:  # it ended: its log says why, an empty line would not
            status = await self._process.wait()
            raise AssertionError(f"the operator ended with status {status}:\n{self.log[-5000:]}")
        ready = json.loads(line)
        assert ready["ready"] is True
        self.control, self.metrics = ready["control"], ready["metrics"]

    async def start(self) -> None:
        """Start and wait until it leads."""
        await self.launch()
        await self.wait_ready()

    async def stop(self) -> int:
        """SIGTERM; the exit status."""
        return await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """Kill the operator with SIGKILL."""
        await self._end(signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP: the process hangs, its connections stay open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the operator with SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    async def _end(self, number: signal.Signals) -> int:
        # A test may already have ended it.
        if self._process is None or self._process.returncode is not None:
            return 0
        self._process.send_signal(number)
        async with asyncio.timeout(20):
            return await self._process.wait()

    async def get(self, path: str) -> tuple[int, str]:
        """(status, body) of a page on the metrics address."""
        host, _, port = self.metrics.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        # HTTP/1.1 by hand: no client library has to run in the loop that plays the brokers.
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        answer = (await reader.read()).decode()
        writer.close()
        head, _, body = answer.partition("\r\n\r\n")
        return int(head.split(" ")[1]), body

    async def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        _, page = await self.get("/metrics")
        lines = [line for line in page.splitlines() if line.split("{")[0].split(" ")[0] == name]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)
