"""Small disks of brokers that tests fill and free again. Needs root."""

import os
import subprocess
import threading
from pathlib import Path

SIZE_BYTES = 48 * 1024 * 1024
_BALLAST = "ballast"
#: What becomes free on a disk that is to be full is taken again so soon.
_AGAIN_S = 0.1
_STEP_BYTES = 4096


class Disk:
    """A tmpfs at ``path`` for everything on this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._full = threading.Event()
        self._left_bytes = 0
        self._filler: threading.Thread | None = None

    def mount(self) -> None:
        """Mount the disk. Raises ``CalledProcessError`` if that is not allowed."""
        self.path.mkdir(parents=True, exist_ok=True)
        options = f"size={SIZE_BYTES}"
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.path)],
            check=True,
            capture_output=True,
        )

    def unmount(self) -> None:
        """Unmount the disk and drop its contents."""
        self.give_room()
        # Lazy, because a broker that is ending may still have files open.
        subprocess.run(["umount", "--lazy", str(self.path)], check=False, capture_output=True)

    @property
    def free_bytes(self) -> int:
        """Free space in bytes."""
        figures = os.statvfs(self.path)
        return figures.f_bavail * figures.f_bsize

    def fill(self, left_bytes: int = 0) -> None:
        """Fill the disk up to that much free space, and keep it full until :meth:`give_room`."""
        self._left_bytes = left_bytes
        self._full.set()
        # The first time before the thread runs, so that the disk is full when this returns.
        self._take()
        if self._filler is None:
            self._filler = threading.Thread(target=self._keep_full, daemon=True)
            self._filler.start()

    def give_room(self) -> None:
        """Free everything that :meth:`fill` has taken."""
        self._full.clear()
        if self._filler is not None:
            self._filler.join()
            self._filler = None
        (self.path / _BALLAST).unlink(missing_ok=True)

    def _keep_full(self) -> None:
        # What brokers delete is taken again at once, so that the disk stays full.
        never = threading.Event()
        while self._full.is_set():
            self._take()
            never.wait(_AGAIN_S)

    def _take(self) -> None:
        descriptor = os.open(self.path / _BALLAST, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            while (room := self.free_bytes - self._left_bytes) >= _STEP_BYTES:
                try:
                    # Blocks are reserved and nothing is written, so it takes no time.
                    os.posix_fallocate(descriptor, os.fstat(descriptor).st_size, room)
                except OSError:  # the broker was quicker with some of it
                    return
        finally:
            os.close(descriptor)
