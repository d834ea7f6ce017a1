"""The control plane: it starts, keeps its data, and leaves nothing behind."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tidemark_devcluster.controlplane.launcher import ControlPlane
from tidemark_devcluster.controlplane.process import ServerStartError
from tidemark_devcluster.controlplane.programs import run_kubectl
from tidemark_devcluster.toolchain.build import controlplane_program, ensure_controlplane

# The state LISTEN and 127.0.0.1 as /proc/net/tcp writes them.
LISTEN = "0A"
LOOPBACK = "0100007F"


def kubectl(plane: ControlPlane, *arguments: str, stdin: str | None = None) -> str:
    done = run_kubectl(arguments, kubeconfig=plane.kubeconfig, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


def listened_on(pid: int) -> set[str]:
    """The local addresses (hexadecimal, with port) on which a process and its children listen."""
    # The API server runs in a child of the supervisor.
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    fds = [fd for child in (pid, *children) for fd in Path(f"/proc/{child}/fd").iterdir()]
    inodes = set()
    for fd in fds:
        try:
            target = str(fd.readlink())
        except FileNotFoundError:  # closed meanwhile
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN and fields[9] in inodes:
                found.add(fields[1])
    return found


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # A zombie remains until its adopting parent reaps it.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def wait_for(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come in time"
        time.sleep(0.02)


def test_control_plane_is_ready_and_of_the_pinned_version(control_plane: ControlPlane) -> None:
    assert kubectl(control_plane, "get", "--raw", "/readyz") == "ok"
    versions = json.loads(kubectl(control_plane, "version", "--output=json"))
    assert versions["serverVersion"]["gitVersion"] == versions["clientVersion"]["gitVersion"]
    # With other binaries the version is not the pinned one.
    if "KUBEBUILDER_ASSETS" not in os.environ:
        assert versions["serverVersion"]["gitVersion"] == controlplane_program().version


def test_credentials_are_readable_by_the_owner_only(control_plane: ControlPlane) -> None:
    assert stat.S_IMODE(control_plane.kubeconfig.stat().st_mode) == 0o600
    assert stat.S_IMODE(control_plane.data_dir.stat().st_mode) == 0o700
    for path in (control_plane.data_dir / "pki").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_control_plane_listens_on_one_loopback_port(control_plane: ControlPlane) -> None:
    port = int(control_plane.server.rpartition(":")[2])
    # One port, on loopback only: etcd has none.
    assert listened_on(control_plane.pid) == {f"{LOOPBACK}:{port:04X}"}


def test_request_without_the_token_is_refused(control_plane: ControlPlane) -> None:
    done = run_kubectl(["get", "namespaces", "--token=wrong"], kubeconfig=control_plane.kubeconfig)
    assert done.returncode != 0
    assert "Unauthorized" in done.stderr or "logged in" in done.stderr


def test_rbac_restricts_other_accounts(control_plane: ControlPlane) -> None:
    plane = control_plane
    kubectl(plane, "create", "serviceaccount", "reader")
    kubectl(plane, "create", "role", "reader", "--verb=get", "--resource=configmaps")
    kubectl(
        plane, "create", "rolebinding", "reader", "--role=reader", "--serviceaccount=default:reader"
    )
    token = kubectl(plane, "create", "token", "reader").strip()
    # RBAC rules take effect a moment after their creation.
    wait_for(lambda: can(plane, token, "get", "configmaps"))
    assert not can(plane, token, "delete", "configmaps")
    assert not can(plane, token, "get", "secrets")


def can(plane: ControlPlane, token: str, verb: str, resource: str) -> bool:
    # The kubeconfig contains the administrator's own token, which would override --token.
    bare = plane.data_dir / "bare-kubeconfig"
    config = json.loads(kubectl(plane, "config", "view", "--raw", "--output=json"))
    config["users"][0]["user"] = {"token": token}
    bare.write_text(json.dumps(config))
    done = run_kubectl(["auth", "can-i", verb, resource], kubeconfig=bare)
    return done.stdout.strip() == "yes"


@pytest.mark.full
def test_restart_keeps_objects_address_and_credentials(tmp_path: Path) -> None:
    with ControlPlane.start(tmp_path / "plane", fsync=False) as first:
        kubectl(first, "create", "configmap", "kept", "--from-literal=key=value")
        config = first.kubeconfig.read_bytes()
        assert (first.data_dir / "controlplane.json").exists()
    # Neither the process nor its record exists after a regular stop.
    assert is_gone(first.pid)
    assert not (first.data_dir / "controlplane.json").exists()

    with ControlPlane.start(tmp_path / "plane", fsync=False) as second:
        # The same address and credentials, so that clients keep their kubeconfig.
        assert second.server == first.server
        assert second.kubeconfig.read_bytes() == config
        value = kubectl(second, "get", "configmap", "kept", "--output=jsonpath={.data.key}")
        assert value == "value"


def test_objects_outlive_a_kill(tmp_path: Path) -> None:
    with ControlPlane.start(tmp_path / "plane") as first:
        kubectl(first, "create", "configmap", "kept", "--from-literal=key=value")
        # SIGKILL: the data on disk has to be complete.
        os.kill(first.pid, signal.SIGKILL)
        first.process.child.wait()
    with ControlPlane.start(tmp_path / "plane") as second:
        value = kubectl(second, "get", "configmap", "kept", "--output=jsonpath={.data.key}")
        assert value == "value"


def test_folder_in_use_is_refused(control_plane: ControlPlane) -> None:
    with pytest.raises(
        ServerStartError, match=rf"in use by another control plane.*{control_plane.pid}"
    ):
        ControlPlane.start(control_plane.data_dir, fsync=False)
    assert kubectl(control_plane, "get", "--raw", "/readyz") == "ok"


@pytest.mark.full
def test_control_plane_ends_when_its_starter_is_killed(tmp_path: Path) -> None:
    # A program that starts the control plane and is then killed.
    code = (
        "import sys, time; from pathlib import Path\n"
        "from tidemark_devcluster.controlplane.launcher import ControlPlane\n"
        f"plane = ControlPlane.start(Path({str(tmp_path / 'plane')!r}), fsync=False)\n"
        "print(plane.pid, flush=True); time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            pid = int(child.stdout.readline())
            assert not is_gone(pid)
        finally:
            child.kill()
    wait_for(lambda: is_gone(pid))


@pytest.mark.full
def test_detached_control_plane_runs_until_signalled(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path\n"
        "from tidemark_devcluster.controlplane.launcher import ControlPlane\n"
        f"plane = ControlPlane.start(Path({str(tmp_path)!r}), fsync=False, detached=True)\n"
        "print(plane.pid)\n"
    )
    # The starter has ended, and the control plane serves.
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    pid = int(done.stdout)
    try:
        listed = run_kubectl(["get", "namespaces"], kubeconfig=tmp_path / "kubeconfig")
        assert "kube-system" in listed.stdout
    finally:
        os.kill(pid, signal.SIGTERM)
    wait_for(lambda: is_gone(pid))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["serve"], "--data-dir is required"),
        (["serve", "--data-dir", "x", "--host", "0.0.0.0"], "no loopback address"),
        (["serve", "--data-dir", "x", "--port", "70000"], "out of range"),
        (["something"], "unknown command"),
    ],
)
def test_wrong_flags_are_refused(tmp_path: Path, arguments: list[str], expected: str) -> None:
    done = subprocess.run(
        [str(ensure_controlplane()), *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert expected in done.stderr
    # Nothing was written for invalid arguments.
    assert not list(tmp_path.iterdir())
