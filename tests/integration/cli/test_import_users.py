"""The Users and the commands that ``tidemark import`` prints, on a real API server."""

import asyncio
import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tests.integration.operator.conftest import install_crds
from tidemark_cli.main import app
from tidemark_devcluster.controlplane.launcher import ControlPlane
from tidemark_devcluster.controlplane.programs import find_programs

pytestmark = pytest.mark.full

#: With a character that a shell, a template or base64 could change.
PASSWORD = "p'\"$(x) ä {{.}}"
ACLS = [
    {"resource": {"type": "topic", "name": "orders"}, "operations": ["Read", "Describe"]},
    {"resource": {"type": "topic", "name": "a-", "patternType": "prefix"}, "operations": ["All"]},
    {"resource": {"type": "topic", "name": "*", "patternType": "prefix"}, "operations": ["Read"]},
    {"resource": {"type": "group", "name": "*"}, "operations": ["Read", "Write"]},
    {"resource": {"type": "cluster"}, "operations": ["IdempotentWrite"], "host": "fd00:0::7"},
    {"resource": {"type": "cluster"}, "operations": ["IdempotentWrite"], "host": "fd00::7"},
    {"resource": {"type": "transactionalId", "name": "t x"}, "operation": "Write", "type": "deny"},
]


def kafka_user(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "kafka.strimzi.io/v1",
        "kind": "KafkaUser",
        "metadata": {"name": name, "namespace": "strimzi-kafka"},
        "spec": spec,
    }


@pytest.fixture
def kubectl(control_plane: ControlPlane, tmp_path: Path) -> Path:
    """Return a folder with a ``kubectl`` for the control plane, which serves Tidemark's kinds."""
    asyncio.run(install_crds(control_plane.kubeconfig))
    program = tmp_path / "kubectl"
    command = " ".join(find_programs().kubectl)
    program.write_text(
        f'#!/bin/sh\nexport KUBECONFIG={control_plane.kubeconfig}\nexec {command} "$@"\n'
    )
    program.chmod(0o755)
    return tmp_path


def shell(folder: Path, command: str, stdin: str = "") -> str:
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        env={"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder)},
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert PASSWORD not in done.stdout + done.stderr
    return done.stdout


def test_printed_commands_copy_passwords_and_the_users_are_admitted(kubectl: Path) -> None:
    for namespace in ("strimzi-kafka", "moved"):
        shell(kubectl, f"kubectl create namespace {namespace}")
    secrets = {"alice": "password", "vault": "bob.secret"}
    for name, key in secrets.items():
        body = {
            "metadata": {"name": name},
            "data": {key: base64.b64encode(PASSWORD.encode()).decode()},
        }
        shell(
            kubectl,
            "kubectl --namespace strimzi-kafka create --filename -",
            json.dumps({"apiVersion": "v1", "kind": "Secret", **body}),
        )
    own = {"valueFrom": {"secretKeyRef": {"name": "vault", "key": "bob.secret"}}}
    quotas = {"producerByteRate": 0, "requestPercentage": 55, "controllerMutationRate": 0.1}
    users = [
        kafka_user(
            "alice",
            authentication={"type": "scram-sha-512"},
            authorization={"type": "simple", "acls": ACLS},
            quotas=quotas,
        ),
        kafka_user("bob", authentication={"type": "scram-sha-512", "password": own}),
        kafka_user("carol", authentication={"type": "tls"}),
        kafka_user("dave", authentication={"type": "tls-external"}),
        kafka_user("erin"),
    ]
    done = CliRunner().invoke(
        app, ["import", "--strimzi", "-", "--namespace", "moved"], input=yaml.safe_dump_all(users)
    )
    assert done.exit_code == 0, done.stderr

    # The commands on standard error, as they are printed.
    commands = [line.strip() for line in done.stderr.splitlines() if line.startswith("  kubectl")]
    assert len(commands) == 4
    for command in commands:
        shell(kubectl, command)
    # The server's schemas and rules accept every User.
    shell(kubectl, "kubectl apply --filename -", done.stdout)

    listed = json.loads(shell(kubectl, "kubectl -n moved get users.tidemark.dev -o json"))
    specs = {item["metadata"]["name"]: item["spec"] for item in listed["items"]}
    assert specs.keys() == {"alice", "bob", "carol", "dave", "erin"}
    for name in ("alice", "bob"):
        reference = specs[name]["authentication"]["password"]["valueFrom"]["secretKeyRef"]
        copied = json.loads(
            shell(kubectl, f"kubectl -n moved get secret {reference['name']} -o json")
        )
        assert base64.b64decode(copied["data"][reference["key"]]).decode() == PASSWORD
        assert copied["metadata"]["annotations"] == {"tidemark.dev/offered-to": "User"}
