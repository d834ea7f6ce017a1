"""Prometheus' pod and what it needs: an account that may look for targets, and its two files."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from e2e.pods import objects
from e2e.pods.images import PROMETHEUS
from e2e.pods.objects import NAMESPACE

MONITORING = "monitoring"
NAME = "prometheus"
PORT = 9090
_API = "rbac.authorization.k8s.io"
#: Permissions that Prometheus' discovery requires.
_FOUND = (
    {"apiGroups": [""], "resources": ["services", "pods"]},
    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"]},
)


def needed(
    jobs: Sequence[Mapping[str, Any]], rules: Sequence[Mapping[str, Any]], interval_s: int
) -> list[dict[str, Any]]:
    """All but the namespace, in the order in which they are made; ``rules``: groups of them."""
    seconds = f"{interval_s}s"
    configuration = {
        "global": {"scrape_interval": seconds, "evaluation_interval": "1s"},
        "rule_files": ["/etc/prometheus/rules.yml"],
        "scrape_configs": list(jobs),
    }
    # JSON is YAML.
    files = {
        "prometheus.yml": json.dumps(configuration),
        "rules.yml": json.dumps({"groups": list(rules)}),
    }
    return [
        _named("v1", "ServiceAccount", MONITORING),
        {
            **_named(f"{_API}/v1", "Role", NAMESPACE),
            "rules": [{**what, "verbs": ["get", "list", "watch"]} for what in _FOUND],
        },
        {
            **_named(f"{_API}/v1", "RoleBinding", NAMESPACE),
            "roleRef": {"apiGroup": _API, "kind": "Role", "name": NAME},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": MONITORING}],
        },
        {**_named("v1", "ConfigMap", MONITORING), "data": files},
        _pod(),
    ]


def _named(version: str, kind: str, namespace: str) -> dict[str, Any]:
    metadata = {"name": NAME, "namespace": namespace}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def _pod() -> dict[str, Any]:
    # Data in an emptyDir: a run's metrics are not needed afterwards.
    container = {
        "name": NAME,
        "image": PROMETHEUS,
        "args": [
            "--config.file=/etc/prometheus/prometheus.yml",
            "--storage.tsdb.path=/data",
            f"--web.listen-address=:{PORT}",
        ],
        "readinessProbe": {"httpGet": {"path": "/-/ready", "port": PORT}, "periodSeconds": 1},
        "volumeMounts": [
            {"name": "files", "mountPath": "/etc/prometheus"},
            {"name": "data", "mountPath": "/data"},
        ],
        "securityContext": objects.CONTAINER,
    }
    pod = objects.pod(NAME, MONITORING, container, {"app": NAME})
    pod["spec"] |= {
        "serviceAccountName": NAME,
        "automountServiceAccountToken": True,
        "volumes": [
            {"name": "files", "configMap": {"name": NAME}},
            {"name": "data", "emptyDir": {}},
        ],
    }
    return pod
