"""The namespaces that a node lives in, so that nothing of it is left and nothing else is touched.

Mounts, network, processes, host name: all are namespaces of one ``unshare``, and its first process
is :func:`first_process`. When that one ends, however it ends, the kernel kills every other process
and takes network and mounts away. What outlives it are the run's folder and its containers'
cgroups (:mod:`e2e.pods.node.leftovers`).
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from e2e.pods.commands import run
from e2e.pods.node.addresses import DOMAIN, NODE, NODE_NAME, POLICY_QUEUE
from e2e.pods.node.layout import Layout

#: How long the run inside may take to report its outcome after a stop signal.
STOP_TIMEOUT_S = 30
#: Settings of the whole kernel that a kubelet changes where they are others. It is shown files that
#: say what it wants to read, so that it changes none.
SHOWN_SETTINGS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
UNSHARE = (
    "unshare",
    "--mount",
    "--net",
    "--pid",
    "--uts",
    "--ipc",
    "--fork",
    "--kill-child",
    "--mount-proc",
)


# ------------------------------------------------------------ outside


def run_inside(commands: Sequence[Sequence[str]]) -> list[int]:
    """Run each of ``commands`` in namespaces of its own, all at the same time; their exit statuses.

    A standard input that ends, as it does when this process dies, ends everything inside.
    """
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            words = [*UNSHARE, sys.executable, "-m", "e2e.pods.node.sandbox", *command]
            processes.append(subprocess.Popen(words, stdin=subprocess.PIPE))
        return [process.wait() for process in processes]
    except BaseException:
        _stop(processes)
        raise


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Stop the processes.

    A terminal signals the whole process group; a signal to this process alone has to be passed on.
    A second signal ends the wait for their output.
    """
    try:
        # After Ctrl-C on a terminal everything inside has the signal already.
        _wait(processes, 2)
        for process in processes:
            if process.poll() is None and process.stdin is not None:
                process.stdin.close()
        _wait(processes, STOP_TIMEOUT_S)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _wait(processes: Sequence[subprocess.Popen[bytes]], timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline_s - time.monotonic()))


# ------------------------------------------------------------ inside


def first_process(command: Sequence[str]) -> int:
    """Run as process 1 of the namespace: start ``command``, wait for it, and reap orphans such
    as the shims of containers.
    """
    child = subprocess.Popen([sys.executable, *command], stdin=subprocess.DEVNULL)
    # The child ends by itself and reports. This process must stay until then.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_stdin, args=(child.pid,), daemon=True).start()
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            return os.waitstatus_to_exitcode(status) & 0xFF


def _end_with_stdin(child: int) -> None:
    while os.read(0, 1024):
        pass
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGINT)
    time.sleep(STOP_TIMEOUT_S / 2)
    os._exit(1)


def prepare(layout: Layout) -> None:
    """Prepare the namespaces before the first program starts.

    Raises CommandFailed.
    """
    run(["hostname", NODE_NAME])
    _mounts(layout)
    for command in (
        ["ip", "link", "set", "lo", "up"],
        # Not every kernel has dummy devices, and pods reach an address of any device.
        ["ip", "address", "add", f"{NODE}/32", "dev", "lo"],
        # A way to the addresses of Services, which become those of pods on it.
        ["ip", "route", "add", "default", "dev", "lo", "src", NODE],
        # By iptables, because not every kernel has nftables' statement. While no program reads the
        # queue, no pod reaches another, so missing enforcement is not mistaken for policies that
        # work.
        [
            *("iptables", "--wait", "--append", "FORWARD"),
            *("--match", "conntrack", "--ctstate", "NEW"),
            *("--jump", "NFQUEUE", "--queue-num", str(POLICY_QUEUE)),
        ],
    ):
        run(command)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="ascii")


def _mounts(layout: Layout) -> None:
    """A /run and a /var of the node's own, and nothing that changes the whole kernel's settings."""
    upper, work = layout.data("var"), layout.data("var-work")
    for path in (upper, work, layout.logs):
        path.mkdir(parents=True, exist_ok=True)
    for command in (
        ["mount", "--make-rshared", "/"],
        ["mount", "-t", "tmpfs", "tmpfs", "/run"],
        [
            *("mount", "-t", "overlay", "overlay"),
            *("-o", f"lowerdir=/var,upperdir={upper},workdir={work}", "/var"),
        ],
    ):
        run(command)
    # Names of Services, for a client that runs on the node beside the pods.
    names = layout.data("resolv.conf")
    names.write_text(f"nameserver {NODE}\nsearch {DOMAIN}\noptions ndots:5\n", encoding="ascii")
    run(["mount", "--bind", names, "/etc/resolv.conf"])
    for name, value in SHOWN_SETTINGS.items():
        shown = layout.data(name.replace("/", "."))
        shown.write_text(f"{value}\n", encoding="ascii")
        run(["mount", "--bind", shown, f"/proc/sys/{name}"])


if __name__ == "__main__":
    sys.exit(first_process(sys.argv[1:]))
