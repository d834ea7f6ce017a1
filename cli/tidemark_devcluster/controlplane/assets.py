"""Control plane from separate programs (``KUBEBUILDER_ASSETS``), with the interface of the own
binary.

It has the same flags, the same files in the data folder, and one process to signal. kube-apiserver
signs its own certificate (``--cert-dir``), and its key also signs service account tokens. The
administrator's token is created here.
"""

import argparse
import contextlib
import fcntl
import json
import os
import secrets
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from tidemark.tls.trust import trusting_context
from tidemark_devcluster.controlplane.process import POLL_S
from tidemark_devcluster.controlplane.supervisor import Supervisor
from tidemark_devcluster.layout import private_dir, write_private
from tidemark_devcluster.ports import HOST, free_port

ADMIN = "tidemark-admin"
ETCD_SOCKET = "unix://etcd.sock"
# Advertised but never bound: the member is the only one, and its one client uses the socket.
ETCD_IDENTITY = "http://127.0.0.1:2380"
REQUEST_TIMEOUT_S = 5.0
LOCK_TIMEOUT_S = 3.0


class Folder:
    """Data folder, with the same file names as the own binary's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.certificate = root / "pki" / "apiserver.crt"
        self.key = root / "pki" / "apiserver.key"
        self.tokens = root / "pki" / "tokens.csv"
        self.kubeconfig = root / "kubeconfig"
        self.ready = root / "controlplane.json"


def etcd_command(assets: Path, *, fsync: bool) -> list[str]:
    """Return the etcd command; it runs in the data folder, as a socket's path must be short."""
    command = [str(assets / "etcd"), "--name=tidemark", "--data-dir=etcd"]
    command += [f"--listen-client-urls={ETCD_SOCKET}", f"--advertise-client-urls={ETCD_IDENTITY}"]
    command += ["--listen-peer-urls=unix://etcd-peer.sock"]
    command += [f"--initial-advertise-peer-urls={ETCD_IDENTITY}"]
    command += [f"--initial-cluster=tidemark={ETCD_IDENTITY}", "--log-level=warn"]
    command += ["--heartbeat-interval=10", "--election-timeout=100"]
    return command if fsync else [*command, "--unsafe-no-fsync"]


def apiserver_command(assets: Path, folder: Folder, port: int) -> list[str]:
    """Return the command line of kube-apiserver, which listens on the loopback address only.

    The flags are those of the own binary.
    """
    return [
        str(assets / "kube-apiserver"),
        f"--etcd-servers={ETCD_SOCKET}",
        f"--bind-address={HOST}",
        f"--secure-port={port}",
        f"--advertise-address={HOST}",
        # A single API server needs no endpoints of the Service ``kubernetes``.
        "--endpoint-reconciler-type=none",
        "--service-cluster-ip-range=10.0.0.0/24",
        f"--cert-dir={folder.certificate.parent}",
        f"--token-auth-file={folder.tokens}",
        "--anonymous-auth=false",
        "--authorization-mode=RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={folder.key}",
        f"--service-account-signing-key-file={folder.key}",
        "--profiling=false",
    ]


def kubeconfig(server: str, certificate: Path, token: str) -> str:
    """Return a kubeconfig as JSON, which is also YAML."""
    name = "tidemark"
    # JSON needs no quoting rules of YAML and no library.
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "clusters": [
                {
                    "name": name,
                    "cluster": {"server": server, "certificate-authority": str(certificate)},
                }
            ],
            "users": [{"name": ADMIN, "user": {"token": token}}],
            "contexts": [
                {"name": name, "context": {"cluster": name, "user": ADMIN, "namespace": "default"}}
            ],
        },
        indent=2,
    )


def load_token(path: Path) -> str:
    """Return the administrator's token, created if missing."""
    with contextlib.suppress(FileNotFoundError):
        return path.read_text(encoding="utf-8").partition(",")[0]
    token = secrets.token_hex(32)
    write_private(path, f'{token},{ADMIN},{ADMIN},"system:masters"\n')
    return token


def choose_port(remembered: Path) -> int:
    """Return the previous port if it is free, else a free one, and store it for the next start."""
    last = 0
    with contextlib.suppress(FileNotFoundError, ValueError):
        last = int(remembered.read_text(encoding="utf-8"))
    port = free_port(last)
    write_private(remembered, f"{port}\n")
    return port


def is_ready(server: str, certificate: Path, token: str) -> bool:
    """Return whether ``/readyz`` answers 200."""
    if not certificate.exists():
        return False
    request = urllib.request.Request(
        f"{server}/readyz", headers={"Authorization": f"Bearer {token}"}
    )
    try:
        trust = trusting_context(cafile=str(certificate))
        with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S, context=trust) as response:
            return int(response.status) == 200
    except (OSError, urllib.error.URLError):
        return False


def lock(root: Path) -> IO[str]:
    """Lock the data folder against a second control plane; return the open lock file.

    The child programs inherit the lock, so it is held until all have ended. After a kill they need
    a moment to end, for which this call waits. Exits if the lock is still held then.
    """
    # Opened for appending, so that the current holder's process id is not truncated.
    file = (root / "lock").open("a+", encoding="utf-8")
    deadline_s = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # The holder wrote its process id into the file.
            if time.monotonic() > deadline_s:
                file.seek(0)
                holder = file.read().strip()
                sys.exit(f"{root} is in use by another control plane (process {holder})")
            time.sleep(POLL_S)
        else:
            # Truncated only under the lock.
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            return file


def main(arguments: Sequence[str]) -> int:
    """Run etcd and kube-apiserver until a signal or the end of standard input.

    Returns the exit status: 0 after a requested stop, 1 if a program ended by itself.
    """
    options = _parser().parse_args(arguments)
    os.umask(0o077)
    folder = Folder(private_dir(options.data_dir))
    logs = private_dir(options.log_file.parent if options.log_file else folder.root / "log")
    private_dir(folder.certificate.parent)
    # Nothing in the folder changes before the lock is held.
    with lock(folder.root) as lock_file:
        folder.ready.unlink(missing_ok=True)
        token = load_token(folder.tokens)
        port = choose_port(folder.root / "port")
        server = f"https://{HOST}:{port}"
        # The files are complete before the programs start, as kube-apiserver reads the token file.
        write_private(folder.kubeconfig, kubeconfig(server, folder.certificate, token))
        supervisor = Supervisor(watch_stdin=options.exit_with_stdin)
        for name, command in (
            ("etcd", etcd_command(options.assets, fsync=not options.no_fsync)),
            ("kube-apiserver", apiserver_command(options.assets, folder, port)),
        ):
            log = logs / f"{name}.log"
            supervisor.start(command, folder=folder.root, log=log, keep_open=[lock_file.fileno()])
        status = _run(supervisor, folder, server, token)
    if status:
        sys.stderr.write(f"a control plane program ended unexpectedly; see {logs}\n")
    return status


def _run(supervisor: Supervisor, folder: Folder, server: str, token: str) -> int:
    """Report when the server is ready, and run until there is a reason to stop."""
    while not is_ready(server, folder.certificate, token):
        if supervisor.should_stop(POLL_S):
            return supervisor.stop()
    report = {"pid": os.getpid(), "server": server, "kubeconfig": str(folder.kubeconfig)}
    write_private(folder.ready, json.dumps(report) + "\n")
    status = supervisor.run()
    folder.ready.unlink(missing_ok=True)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tidemark_devcluster.controlplane.assets")
    parser.add_argument("--assets", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--log-file", type=Path)
    parser.add_argument("--no-fsync", action="store_true")
    parser.add_argument("--exit-with-stdin", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
