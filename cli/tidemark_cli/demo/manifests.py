"""Manifests of the demo: those of ``examples/``, changed only as far as the machine requires."""

from pathlib import Path
from typing import Any

import yaml

from tidemark_devcluster.cluster import LocalCluster
from tidemark_devcluster.controlplane.client import run_kubectl

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
TIERED_TOPIC = "02-tiering-on-and-off/on.yaml"
DELETION = "03-record-deletion/deletion.yaml"


class KubectlError(RuntimeError):
    """Error of kubectl; the text is its output."""


def load(name: str) -> list[dict[str, Any]]:
    """Return the documents of one example."""
    path = EXAMPLES / name
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: the demo runs from a checkout (git clone)")
    return [doc for doc in yaml.safe_load_all(path.read_text(encoding="utf-8")) if doc]


def cluster_manifest(storage: dict[str, Any]) -> dict[str, Any]:
    """Return examples/00-cluster/cluster.yaml with this machine's tier and a short delete delay."""
    manifest = load("00-cluster/cluster.yaml")[0]
    manifest["spec"]["remoteStorage"] = storage
    manifest["spec"]["config"]["remote.delete.delay.ms"] = "1000"
    return manifest


def kafka_cluster_manifest(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the same Cluster with Apache Kafka as its engine."""
    return {**load("00-cluster/cluster.yaml")[0], "spec": spec}


def topic_manifest(*, enabled: bool, policy: str | None = None) -> dict[str, Any]:
    """Return the topic of flights with another ``spec.tiering``."""
    manifest = load(TIERED_TOPIC)[0]
    manifest["spec"]["tiering"]["enabled"] = enabled
    if policy is not None:
        manifest["spec"]["tiering"]["disablePolicy"] = policy
    return manifest


def apply(cluster: LocalCluster, manifest: dict[str, Any]) -> str:
    """Run ``kubectl apply -f -`` and return its output; raises :class:`KubectlError`."""
    done = run_kubectl(
        ["apply", "-f", "-"], kubeconfig=cluster.kubeconfig, stdin=yaml.safe_dump(manifest)
    )
    if done.returncode != 0:
        raise KubectlError(done.stderr.strip())
    return done.stdout.strip()
