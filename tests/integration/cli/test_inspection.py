"""``tidemark status``, ``why``, ``check`` and ``report`` on an API server without an operator."""

import json
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tidemark_cli.inspection.support_bundle import FILE_BYTES_MAX, write_bundle
from tidemark_cli.main import app
from tidemark_devcluster.controlplane.launcher import ControlPlane
from tidemark_devcluster.controlplane.programs import run_kubectl
from tidemark_kube.client import KubeClient
from tidemark_operator.resources.crdgen import custom_resource_definition
from tidemark_operator.resources.kinds import KINDS

#: Twenty secrets, none of which has the form of a credential: only the Secrets reveal them.
PLANTED = [f"planted-{number:02}-{uuid.uuid4()}" for number in range(20)]
TOPIC = {"clusterRef": {"name": "tidemark"}, "partitions": 1, "replicationFactor": 1}


@pytest.fixture(scope="module")
def kube(control_plane: ControlPlane) -> Iterator[KubeClient]:
    """Return a client for a namespace of its own that has a Topic and a Secret of 20 values."""
    namespace = f"inspection-{uuid.uuid4().hex[:8]}"
    made = run_kubectl(["create", "namespace", namespace], kubeconfig=control_plane.kubeconfig)
    assert made.returncode == 0, made.stderr
    client = KubeClient(control_plane.kubeconfig, namespace)
    for kind in KINDS:
        client.apply_crd(custom_resource_definition(kind))
    for kind in KINDS:
        client.await_served(kind.kind)
    client.apply_secret("planted", {f"key-{at}": secret for at, secret in enumerate(PLANTED)})
    # Careless owners copy credentials into annotations, where kubectl repeats whole manifests.
    client.apply("Topic", "orders", TOPIC, annotations={"note": " ".join(PLANTED[:10])})
    yield client
    client.close()


def run(kube: KubeClient, control_plane: ControlPlane, *command: str) -> Result:
    where = ["--kubeconfig", str(control_plane.kubeconfig), "--namespace", kube.namespace]
    return CliRunner().invoke(app, [*command, *where])


def test_a_cluster_without_an_operator_is_not_healthy(
    kube: KubeClient, control_plane: ControlPlane
) -> None:
    done = run(kube, control_plane, "status", "--exit-code")
    assert done.exit_code == 3
    assert done.stdout.startswith("NOT HEALTHY: no operator has started")
    assert "orders" in done.stdout
    read = json.loads(run(kube, control_plane, "status", "--output", "json").stdout)
    assert not read["healthy"]
    assert [topic["name"] for topic in read["topics"]] == ["orders"]


def test_why_names_the_missing_operator_as_the_cause(
    kube: KubeClient, control_plane: ControlPlane
) -> None:
    done = run(kube, control_plane, "why", "topic/orders")
    assert done.exit_code == 0
    assert "topic/orders Pending" in done.stdout
    assert "What to do about operator/tidemark-operator" in done.stdout
    done = run(kube, control_plane, "why", "topic/missing")
    assert done.exit_code == 1
    assert "there is no topic 'missing'" in done.stderr


def test_check_says_what_is_missing_and_fails_after_its_wait(
    kube: KubeClient, control_plane: ControlPlane
) -> None:
    done = run(kube, control_plane, "check", "topic/orders", "--wait", "1s")
    assert done.exit_code == 3
    assert done.stdout.startswith("waiting: NOT HEALTHY: topic/orders: No operator")
    done = run(kube, control_plane, "check", "--wait", "soon")
    assert done.exit_code == 1
    assert "write for example 90s, 2m or 1h30m" in done.stderr


def test_report_contains_the_objects_and_none_of_the_planted_secrets(
    kube: KubeClient, control_plane: ControlPlane, tmp_path: Path
) -> None:
    log = tmp_path / "operator.log"
    log.write_text("".join(f"login with {secret} failed\n" for secret in PLANTED))
    path = tmp_path / "report.tar.gz"
    metrics = {"operator": "127.0.0.1:1", "broker-1": ""}
    index = write_bundle(path, kube, logs={"operator": log}, metrics=metrics)
    texts = contents(path)
    assert "orders" in texts["objects/Topic.json"]
    assert texts["logs/operator.log"].count("[redacted]") == len(PLANTED)
    collected, _, screen = texts["screen.txt"].partition("\n")
    assert collected.startswith("Collected at 20")
    assert screen.startswith("NOT HEALTHY: no operator has started")
    whole = "".join(texts.values())
    assert not [secret for secret in PLANTED if secret in whole]
    # What could not be read is named with the reason.
    assert index["metrics/operator.txt"].startswith("left out: 127.0.0.1:1 does not respond")
    assert index["metrics/broker-1.txt"] == "left out: its process has ended"
    assert json.loads(texts["index.json"]) == index
    # Redaction leaves JSON readable, whatever the annotations contain.
    assert all(json.loads(text) is not None for name, text in texts.items() if ".json" in name)


def test_a_long_log_keeps_its_end(kube: KubeClient, tmp_path: Path) -> None:
    log = tmp_path / "operator.log"
    log.write_text("first line\n" + "x" * FILE_BYTES_MAX + "\nlast line\n")
    path = tmp_path / "report.tar.gz"
    write_bundle(path, kube, logs={"operator": log}, metrics={})
    text = contents(path)["logs/operator.log"]
    assert text == "last line\n"


def test_report_command_writes_a_private_file_and_refuses_to_replace_one(
    kube: KubeClient, control_plane: ControlPlane, tmp_path: Path
) -> None:
    path = tmp_path / "report.tar.gz"
    done = run(kube, control_plane, "report", "--output", str(path))
    assert done.exit_code == 0, done.stderr
    assert path.stat().st_mode & 0o777 == 0o600
    assert "Read it before you share it" in done.stdout
    done = run(kube, control_plane, "report", "--output", str(path))
    assert done.exit_code == 1
    assert "choose another file with --output" in done.stderr


def contents(path: Path) -> dict[str, str]:
    """Return the texts of a bundle by their names below its folder."""
    with tarfile.open(path) as archive:
        read = {member.name: archive.extractfile(member) for member in archive.getmembers()}
        return {
            name.partition("/")[2]: stream.read().decode()
            for name, stream in read.items()
            if stream is not None
        }


def test_the_lease_of_a_killed_operator_is_freed(
    kube: KubeClient, control_plane: ControlPlane
) -> None:
    """The next operator takes a Lease without a holder at once."""
    kube.free_lease("killed")  # there is none yet
    spec = {"holderIdentity": "operator-0", "leaseDurationSeconds": 15, "leaseTransitions": 3}
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "killed", "namespace": kube.namespace},
        "spec": spec,
    }
    made = run_kubectl(
        ["create", "-f", "-"], kubeconfig=control_plane.kubeconfig, stdin=json.dumps(lease)
    )
    assert made.returncode == 0, made.stderr
    kube.free_lease("killed")
    freed = kube.lease("killed")
    assert freed is not None
    assert freed["spec"] == {**spec, "holderIdentity": ""}
    kube.free_lease("killed")
    assert kube.lease("killed") == freed
