"""Programs of the control plane, and what stays private with separate ones."""

import json
from pathlib import Path

import pytest

from tidemark_devcluster.controlplane import assets
from tidemark_devcluster.controlplane.programs import find_programs
from tidemark_devcluster.toolchain import ToolchainError


def executable(path: Path) -> None:
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)


def test_named_programs_are_used(tmp_path: Path) -> None:
    for name in ("etcd", "kube-apiserver", "kubectl"):
        executable(tmp_path / name)
    programs = find_programs({"KUBEBUILDER_ASSETS": str(tmp_path)})
    assert programs.kubectl == (str(tmp_path / "kubectl"),)
    assert programs.serve[-2:] == ("--assets", str(tmp_path))


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    executable(tmp_path / "etcd")
    with pytest.raises(ToolchainError, match="lacks kube-apiserver, kubectl"):
        find_programs({"KUBEBUILDER_ASSETS": str(tmp_path)})


def test_separate_programs_listen_on_loopback_or_on_sockets() -> None:
    etcd = assets.etcd_command(Path("/assets"), fsync=True)
    listens = [flag.partition("=")[2] for flag in etcd if flag.startswith("--listen")]
    assert len(listens) == 2
    assert all(address.startswith("unix://") for address in listens)
    server = assets.apiserver_command(Path("/assets"), assets.Folder(Path("/data")), 6443)
    assert "--bind-address=127.0.0.1" in server
    assert "--anonymous-auth=false" in server


def test_only_tests_run_without_sync() -> None:
    assert "--unsafe-no-fsync" not in assets.etcd_command(Path("/assets"), fsync=True)
    assert "--unsafe-no-fsync" in assets.etcd_command(Path("/assets"), fsync=False)


def test_a_token_is_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "tokens.csv"
    token = assets.load_token(path)
    assert len(token) == 64
    assert assets.load_token(path) == token
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_kubeconfig_names_server_authority_and_token() -> None:
    text = assets.kubeconfig("https://127.0.0.1:6443", Path("/data/ca.crt"), "secret")
    config = json.loads(text)
    assert config["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:6443"
    assert config["users"][0]["user"]["token"] == "secret"
    assert config["current-context"] == config["contexts"][0]["name"]
