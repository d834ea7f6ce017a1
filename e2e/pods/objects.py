"""The objects of a run beside the charts' own: a store, a client, topics; and its values."""

import base64
import json
from collections.abc import Mapping
from typing import Any

from e2e.pods import readme
from e2e.pods.images import BROKER, CLIENT, MINIO, OPERATOR, SPARK

NAMESPACE = "tidemark"
STORE = "store"
#: As `kubectl label namespace` sets it: https://kubernetes.io/docs/concepts/security/pod-security-admission/
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
KEYS = {"accessKeyId": "e2e-access", "secretAccessKey": "e2e-secret-of-one-run"}
STORE_PORT = 9000
#: Security settings that a restricted namespace requires of each container.
CONTAINER = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
STORE_ENDPOINT = f"http://minio.{STORE}.svc:{STORE_PORT}"
BUCKET = "tier"


def namespace(name: str) -> dict[str, Any]:
    """One that lets in only pods of the standard `restricted`."""
    metadata = {"name": name, "labels": RESTRICTED}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


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
        # The cluster health is green once the store takes writes.
        "readinessProbe": {
            "httpGet": {"path": "/minio/health/cluster", "port": STORE_PORT},
            "periodSeconds": 1,
        },
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "securityContext": CONTAINER,
    }
    made = pod("minio", STORE, container, labels)
    made["spec"]["volumes"] = [{"name": "data", "emptyDir": {}}]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "minio", "namespace": STORE},
        "spec": {"selector": labels, "ports": [{"port": STORE_PORT}]},
    }
    return [made, service]


def client(name: str = "client", where: str = NAMESPACE) -> dict[str, Any]:
    """A pod that waits for `kubectl exec`."""
    container = {"name": "client", "image": CLIENT, "securityContext": CONTAINER}
    return pod(name, where, container, {"app": name})


def secret(name: str, data: Mapping[str, bytes]) -> dict[str, Any]:
    """One of the brokers' namespace."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }


def impostor(name: str, secrets: Mapping[str, str]) -> dict[str, Any]:
    """A pod with the labels of a cluster's brokers, their image and, by folder, Secrets. It is
    never Ready, so that no client is led to it."""
    labels = {"app.kubernetes.io/name": "tidemark-broker", "app.kubernetes.io/instance": "tidemark"}
    volumes = {path.rpartition("/")[2]: (path, kept) for path, kept in secrets.items()}
    container = {
        "name": name,
        "image": BROKER,
        # It only waits. The impostor's program is run in it with exec.
        "command": ["python3", "-c", "import signal; signal.pause()"],
        # A probe on a closed port keeps it out of the Services' endpoints.
        "readinessProbe": {"tcpSocket": {"port": 1}},
        "securityContext": CONTAINER,
        "volumeMounts": [
            {"name": volume, "mountPath": path, "readOnly": True}
            for volume, (path, _) in volumes.items()
        ],
    }
    made = pod(name, NAMESPACE, container, labels)
    made["spec"]["volumes"] = [
        {"name": volume, "secret": {"secretName": kept}} for volume, (_, kept) in volumes.items()
    ]
    return made


def pod(name: str, where: str, container: dict[str, Any], labels: dict[str, str]) -> dict[str, Any]:
    """Return a Pod with one container, for a restricted namespace."""
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


def claim(name: str, size: str = "1Gi") -> dict[str, Any]:
    """A volume of the brokers' namespace."""
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    metadata = {"name": name, "namespace": NAMESPACE}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata,
        "spec": spec,
    }


def mounted(body: dict[str, Any], claimed: str, path: str) -> dict[str, Any]:
    """A pod, or a Job, with a volume."""
    spec = body["spec"] if body["kind"] == "Pod" else body["spec"]["template"]["spec"]
    volume = {"name": claimed, "persistentVolumeClaim": {"claimName": claimed}}
    spec["volumes"] = [*spec.get("volumes", ()), volume]
    (container,) = spec["containers"]
    mount = {"name": claimed, "mountPath": path}
    container["volumeMounts"] = [*container.get("volumeMounts", ()), mount]
    return body


def job(name: str, image: str, program: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """A Job that runs a Python program once, with the tier's keys in its environment; what it
    writes it writes to /tmp."""
    keys = {"AWS_ACCESS_KEY_ID": "accessKeyId", "AWS_SECRET_ACCESS_KEY": "secretAccessKey"}
    container = {
        "name": "job",
        "image": image,
        "args": ["-c", program, json.dumps(options)],
        "env": [
            {"name": name, "valueFrom": {"secretKeyRef": {"name": "tier", "key": key}}}
            for name, key in keys.items()
        ],
        "resources": {"requests": {"cpu": "50m", "memory": "512Mi"}},
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        # A read-only root file system, as a strict cluster requires.
        "securityContext": {**CONTAINER, "readOnlyRootFilesystem": True},
    }
    made = pod(name, NAMESPACE, container, {"app": name})
    made["spec"] |= {"restartPolicy": "Never", "volumes": [{"name": "tmp", "emptyDir": {}}]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "backoffLimit": 0,
            "template": {"metadata": {"labels": {"app": name}}, "spec": made["spec"]},
        },
    }


def topic(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "tidemark.dev/v1alpha1",
        "kind": "Topic",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"clusterRef": {"name": "tidemark"}, **spec},
    }


def user(name: str) -> dict[str, Any]:
    """A User with a password."""
    return {
        "apiVersion": "tidemark.dev/v1alpha1",
        "kind": "User",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "clusterRef": {"name": "tidemark"},
            "authentication": {"type": "scram-sha-512"},
        },
    }


def tiered(*, enabled: bool = True, **tiering: Any) -> dict[str, Any]:
    """Return the tiering part of a Topic's spec: brokers move records to the tier a megabyte at
    a time.
    """
    local = {"enabled": enabled, "localRetention": {"size": "1Mi"}}
    config = {"segment.bytes": str(1 << 20), "retention.ms": "-1"}
    return {"config": config, "tiering": {**local, **tiering}}


def record_deletion(name: str, topic: str, below: dict[int, int], **spec: Any) -> dict[str, Any]:
    """A RecordDeletion; ``below``: offsets by partition."""
    points = [{"partition": part, "beforeOffset": offset} for part, offset in below.items()]
    return {
        "apiVersion": "tidemark.dev/v1alpha1",
        "kind": "RecordDeletion",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"topicRef": {"name": topic}, "partitions": points, **spec},
    }


def export(name: str, topic: str, **spec: Any) -> dict[str, Any]:
    """Return an Export, continuous by default."""
    when = {} if "schedule" in spec else {"continuous": {}}
    table = {"name": f"db.{topic.replace('-', '_')}", "warehouse": "/lake"} | spec.pop("table", {})
    return {
        "apiVersion": "tidemark.dev/v1alpha1",
        "kind": "Export",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"topicRef": {"name": topic}, "table": table} | when | spec,
    }


def bound(user: str, role: str) -> dict[str, Any]:
    """Return a binding of a ClusterRole to a user in the brokers' namespace."""
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": f"{user}-{role}", "namespace": NAMESPACE},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    }


#: Image that no registry has: the pods of a job that names it stay pending.
UNAVAILABLE_IMAGE = "e2e.tidemark.dev/unavailable:1"
#: Images, jars and volume claims that the Exports of the chapters may name.
EXPORTS = {"images": [SPARK, UNAVAILABLE_IMAGE], "jars": ["/lake"], "claims": ["lake"]}


def values(brokers: int) -> dict[str, Any]:
    """The chart's values: as the README has them, and for one node with a store and images of its
    own."""
    s3 = {
        "endpoint": STORE_ENDPOINT,
        "region": "us-east-1",
        "buckets": [BUCKET],
        "createBuckets": True,
    }
    # Requests fit a small machine. Limits are the chart's.
    small = {"requests": {"cpu": "50m", "memory": "128Mi"}}
    config = {"enable.under.replicated.topic.creation": "true"}
    own = {
        "image": _image(OPERATOR),
        "operator": {"resources": small},
        "cluster": {"spec": {"config": config, "remoteStorage": {"s3": s3}, "exports": EXPORTS}},
        "brokerPods": {
            "replicas": brokers,
            "racks": ["a", "b", "c"],
            "image": _image(BROKER),
            # Short intervals, so that a test does not wait minutes for copies and deletions.
            "config": {
                "remote.log.manager.task.interval.ms": "1000",
                "log.retention.check.interval.ms": "2000",
                "log.cleaner.backoff.ms": "1000",
                "tidemark.remote.sweep.interval.ms": "5000",
                "remote.delete.delay.ms": "2000",
            },
            "storage": {"size": "1Gi"},
            "resources": small,
        },
    }
    return _merged(readme.values(), own)


def _merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """As Helm puts two files of values together: the second one's win, key by key."""
    found = dict(one)
    for name, value in other.items():
        inner = found.get(name)
        if isinstance(inner, dict) and isinstance(value, dict):
            value = _merged(inner, value)
        found[name] = value
    return found


def _image(name: str) -> dict[str, str]:
    repository, _, tag = name.rpartition(":")
    return {"repository": repository, "tag": tag}
