"""Start and stop the local control plane in a folder.

The folder contains everything (store, keys, port), so that a second start finds its objects under
the same kubeconfig. The process creates the credentials and reports in ``controlplane.json`` that
it is ready.
"""

import fcntl
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tidemark_devcluster.controlplane.process import (
    POLL_S,
    Server,
    ServerProcess,
    ServerStartError,
)
from tidemark_devcluster.controlplane.programs import find_programs
from tidemark_devcluster.layout import private_dir

READY_FILE = "controlplane.json"
LOG_FOLDER = "log"
START_TIMEOUT_S = 120.0
#: Time for a killed control plane, or its programs, to end.
ENDING_TIMEOUT_S = 60.0
_LOCK = "lock"


@dataclass(slots=True, kw_only=True)
class ControlPlane(Server):
    """Running control plane.

    ``server`` is its URL, ``kubeconfig`` the file (mode 0600) with the administrator's token.
    """

    kubeconfig: Path
    server: str

    @classmethod
    def start(
        cls,
        data_dir: Path,
        *,
        fsync: bool = True,
        detached: bool = False,
        timeout_s: float = START_TIMEOUT_S,
    ) -> Self:
        """Start a control plane in ``data_dir`` and wait until ``/readyz`` is ok.

        It ends with this process, unless ``detached``. Without ``fsync`` (tests only) a crash of
        the machine loses data. Raises ServerStartError, and ToolchainError if there is no program.
        """
        programs = find_programs()
        folder = private_dir(data_dir)
        logs = private_dir(folder / LOG_FOLDER)
        await_end_of_killed(folder)
        # The same arguments for both kinds of programs, see :mod:`.programs`.
        command = [*programs.serve, "--data-dir", str(folder)]
        command += ["--log-file", str(logs / "controlplane.log")]
        command += [] if fsync else ["--no-fsync"]
        command += [] if detached else ["--exit-with-stdin"]
        process = ServerProcess.spawn(
            "control plane", command, errors=logs / "errors.log", detached=detached
        )
        # The report of an earlier process may still be in the folder, so its process ID is
        # compared.
        ready: dict[str, str] = {}

        def is_ready() -> bool:
            ready.update(_read_ready(folder / READY_FILE, process.pid))
            return bool(ready)

        process.await_ready(is_ready, timeout_s=timeout_s)
        return cls(
            data_dir=folder,
            kubeconfig=Path(ready["kubeconfig"]),
            server=ready["server"],
            process=process,
        )


def await_end_of_killed(folder: Path, timeout_s: float = ENDING_TIMEOUT_S) -> None:
    """Wait while a control plane that was killed still has the lock of its folder.

    The lock is free when its process and programs have ended. On a busy machine they need seconds
    for that after a SIGKILL, for example while etcd waits for the disk. A new control plane does
    not wait that long, as it cannot know whether another one still runs. Returns at once if one
    does: the new one names it. Raises ServerStartError.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            with (folder / _LOCK).open(encoding="utf-8") as file:
                holder = file.read().strip()
                # Closing the file frees the lock again.
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
        except FileNotFoundError:
            return
        except BlockingIOError:
            if _is_running(holder):
                return
        if time.monotonic() > deadline_s:
            raise ServerStartError(
                f"a killed control plane (process {holder}) still uses {folder} after "
                f"{timeout_s:.0f} s: end its programs etcd and kube-apiserver"
            )
        time.sleep(POLL_S)


def _is_running(holder: str) -> bool:
    """Return whether a process runs. One that was killed may be a zombie while it ends."""
    try:
        stat = Path(f"/proc/{int(holder)}/stat").read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return False
    # The command's name before ")" may contain spaces and parentheses.
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def _read_ready(path: Path, pid: int) -> Mapping[str, str]:
    """Return the report of process ``pid``; empty if there is none, or only that of a killed
    process.
    """
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    if report["pid"] != pid:
        return {}
    return {key: str(value) for key, value in report.items()}
