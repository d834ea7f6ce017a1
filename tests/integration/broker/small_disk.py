"""A file system of a few megabytes that only the test's brokers see: a mount namespace of its own.

A process that sleeps keeps it alive, so that a broker may be killed on it and started again.
"""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from tests.integration.broker.broker_process import BrokerProcess

_NEW = ["unshare", "--map-root-user", "--mount"]


class SmallDisk:
    """Mounted at ``path`` for the processes that :meth:`enter` starts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._holder: asyncio.subprocess.Process | None = None

    async def mount(self, size: str) -> "SmallDisk":
        """Raises ``OSError`` where this machine allows no mount namespaces."""
        self.path.mkdir(parents=True, exist_ok=True)
        # The sleeping process keeps the mount namespace alive while brokers are killed and
        # restarted.
        script = f'mount -t tmpfs -o size={size} tmpfs "$0" && echo mounted && exec sleep 600'
        self._holder = await asyncio.create_subprocess_exec(
            *_NEW, "sh", "-c", script, str(self.path),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert self._holder.stdout is not None
        if await self._holder.stdout.readline() != b"mounted\n":
            _, error_output = await self._holder.communicate()
            raise OSError(f"no mount namespace here: {error_output.decode().strip()}")
        return self

    @property
    def pid(self) -> int:
        assert self._holder is not None
        return self._holder.pid

    def enter(self) -> list[str]:
        """Return the prefix of a command that has to see the disk."""
        return ["nsenter", "--target", str(self.pid), "--user", "--mount", "--preserve-credentials"]

    async def resize(self, size: str) -> None:
        changed = await asyncio.create_subprocess_exec(
            *self.enter(), "mount", "-o", f"remount,size={size}", str(self.path)
        )
        assert await changed.wait() == 0

    @property
    def free_bytes(self) -> int:
        figures = os.statvfs(f"/proc/{self.pid}/root{self.path}")
        return figures.f_bavail * figures.f_bsize

    async def unmount(self) -> None:
        """Unmount the disk and discard its contents."""
        if self._holder is not None and self._holder.returncode is None:
            self._holder.send_signal(signal.SIGKILL)
            await self._holder.communicate()


class BrokerOnSmallDisk(BrokerProcess):
    """A broker whose log folder is on a disk that was mounted before it starts."""

    def __init__(self, *args: Any, disk: SmallDisk, **config: Any) -> None:
        super().__init__(*args, **config)
        self.disk = disk

    def command(self) -> list[str]:
        return [*self.disk.enter(), *super().command()]
