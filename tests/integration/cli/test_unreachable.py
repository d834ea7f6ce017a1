"""Output of the command line if a cluster does not respond: one line, no traceback."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidemark_cli.main import app
from tidemark_devcluster import settings as local_settings
from tidemark_devcluster.layout import Layout
from tidemark_devcluster.ports import free_ports
from tidemark_kube.client import KubeClient, KubeRequestError


def kubeconfig(folder: Path, port: int) -> Path:
    path = folder / "kubeconfig"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "ns"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(content))
    return path


def test_unreachable_api_server_is_a_typed_error(tmp_path: Path) -> None:
    # Nothing listens on this port.
    (port,) = free_ports(1)
    kube = KubeClient(kubeconfig(tmp_path, port), "ns")
    with pytest.raises(KubeRequestError, match=f"127.0.0.1:{port} is unreachable") as caught:
        kube.objects("Cluster")
    kube.close()
    # Status 0 means that no response was received.
    assert caught.value.status == 0


@pytest.mark.parametrize(
    "command",
    [["status"], ["top"], ["broker", "add"], ["up"], ["up", "--kubeconfig", "{kubeconfig}"]],
)
@pytest.mark.parametrize("has_kubeconfig", [True, False])
def test_every_command_reports_an_unreachable_cluster_in_one_line(
    tmp_path: Path, command: list[str], has_kubeconfig: bool
) -> None:
    (port,) = free_ports(1)
    path = kubeconfig(tmp_path, port)
    layout = Layout(tmp_path / "cluster")
    layout.create()
    # Settings of an earlier session that lead to the unreachable API server.
    local_settings.choose(
        layout, cluster="tidemark", tier=None, kubeconfig=str(path), namespace="ns"
    )
    layout.broker_config(1).write_text("{}")
    # A kubeconfig that has disappeared is another kind of unreachable.
    if not has_kubeconfig:
        path.unlink()
    arguments = [item.format(kubeconfig=path) for item in command]
    result = CliRunner().invoke(app, [*arguments, "--dir", str(layout.root)])
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit), "no traceback"
    assert result.output.startswith("error: ")


def test_only_an_unreachable_local_cluster_is_to_be_started(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    path = kubeconfig(tmp_path, port)
    layout = Layout(tmp_path / "cluster")
    layout.create()
    local_settings.choose(
        layout, cluster="tidemark", tier=None, kubeconfig=str(path), namespace="ns"
    )
    for options, is_local in (
        (["--dir", str(layout.root)], True),
        (["--kubeconfig", str(path)], False),
    ):
        output = CliRunner().invoke(app, ["status", *options]).output
        assert ("start it with: tidemark up" in " ".join(output.split())) == is_local
