"""The objects of a run beside the charts' own: a store, a client, topics; and its values."""

from typing import Any

from e2e.pods.images import BROKER, CLIENT, MINIO, OPERATOR

NAMESPACE = "tidemark"
STORE = "store"
#: As `kubectl label namespace` sets it: https://kubernetes.io/docs/concepts/security/pod-security-admission/
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
KEYS = {"accessKeyId": "e2e-access", "secretAccessKey": "e2e-secret-of-one-run"}
STORE_PORT = 9000
_CONTAINER = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def namespace(name: str) -> dict[str, Any]:
    """One that lets in only pods of the standard `restricted`."""
    metadata = {"name": name, "labels": RESTRICTED}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def credentials() -> dict[str, Any]:
    """What the Cluster names as its tier's credentials."""
    metadata = {"name": "tier", "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": KEYS}


def store() -> list[dict[str, Any]]:
    """MinIO in a pod, and the Service that leads to it."""
    labels = {"app": "minio"}
    container = {
        "name": "minio",
        "image": MINIO,
        "args": [
            *("server", "--quiet", "--address", f":{STORE_PORT}"),
            *("--certs-dir", "/data/.certs", "/data/store"),
        ],
        "env": [
            {"name": "MINIO_ROOT_USER", "value": KEYS["accessKeyId"]},
            {"name": "MINIO_ROOT_PASSWORD", "value": KEYS["secretAccessKey"]},
            {"name": "MINIO_BROWSER", "value": "off"},
            {"name": "MINIO_UPDATE", "value": "off"},
        ],
        "readinessProbe": {"httpGet": {"path": "/minio/health/cluster", "port": STORE_PORT}},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "securityContext": _CONTAINER,
    }
    pod = _pod("minio", STORE, container, labels)
    pod["spec"]["volumes"] = [{"name": "data", "emptyDir": {}}]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "minio", "namespace": STORE},
        "spec": {"selector": labels, "ports": [{"port": STORE_PORT}]},
    }
    return [pod, service]


def client() -> dict[str, Any]:
    """A pod that waits for `kubectl exec`."""
    container = {"name": "client", "image": CLIENT, "securityContext": _CONTAINER}
    return _pod("client", NAMESPACE, container, {"app": "client"})


def _pod(
    name: str, where: str, container: dict[str, Any], labels: dict[str, str]
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": where, "labels": labels},
        "spec": {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "runAsGroup": 65532,
                "fsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [{**container, "imagePullPolicy": "IfNotPresent"}],
        },
    }


def topic(name: str, **spec: Any) -> dict[str, Any]:
    """A Topic."""
    return {
        "apiVersion": "tidemark.dev/v1alpha1",
        "kind": "Topic",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"clusterRef": {"name": "tidemark"}, **spec},
    }


def values(brokers: int) -> dict[str, Any]:
    """The chart's values: as docs/install.md has them, and small enough for one node."""
    s3 = {
        "endpoint": f"http://minio.{STORE}.svc:{STORE_PORT}",
        "region": "us-east-1",
        "buckets": ["tier"],
        "createBuckets": True,
        "credentialsSecretRef": {"name": "tier"},
    }
    config = {
        "remote.log.storage.system.enable": "true",
        "enable.under.replicated.topic.creation": "true",
    }
    return {
        "image": _image(OPERATOR),
        "operator": {"resources": {"requests": {"cpu": "50m", "memory": "128Mi"}}},
        "cluster": {"spec": {"config": config, "remoteStorage": {"s3": s3}}},
        "brokerPods": {
            "replicas": brokers,
            "racks": ["a", "b", "c"],
            "image": _image(BROKER),
            "config": {
                "remote.log.manager.task.interval.ms": "1000",
                "log.retention.check.interval.ms": "2000",
            },
            "storage": {"size": "1Gi"},
            "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
        },
    }


def _image(name: str) -> dict[str, str]:
    repository, _, tag = name.rpartition(":")
    return {"repository": repository, "tag": tag}
