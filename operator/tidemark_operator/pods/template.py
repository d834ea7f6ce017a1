"""Pod template of a broker, which the Pod Security Standard ``restricted`` admits."""

from collections.abc import Mapping

from tidemark_operator.pods import configuration
from tidemark_operator.pods.identity import Json, PodBroker, cluster_selector
from tidemark_operator.resources.broker_pod import BrokerPod, PodListener
from tidemark_operator.resources.export_pod import ExportJob
from tidemark_operator.resources.names import CONFIG_DIGEST_ANNOTATION

#: User id of the image's user.
USER_ID = 65532
#: Security contexts that the Pod Security Standard ``restricted`` requires.
POD_SECURITY: Json = {
    "runAsNonRoot": True,
    "runAsUser": USER_ID,
    "runAsGroup": USER_ID,
    "fsGroup": USER_ID,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: Json = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
CONTAINER = "broker"
#: Volume of the cache of remote chunks.
CHUNK_CACHE = "chunk-cache"
#: Secrets are readable for the user's group only.
SECRET_MODE = 0o440
#: After a crash the broker first reads its logs, for up to an hour. The next broker's restart waits
#: until this one is ready, so it is probed often.
STARTUP_PERIOD_S = 2
STARTUP_TRIES = 1800
READINESS_PERIOD_S = 2


def port_name(listener: PodListener) -> str:
    """Return the name of a listener's port in pod and Service, at most 15 characters."""
    return f"l-{listener.name.lower()}"


def pod_template(pod: BrokerPod, broker: PodBroker) -> Json:
    """Return ``spec.template`` (the pod) of a broker's StatefulSet."""
    content = configuration.text(pod, broker)
    return {
        "metadata": {
            # The operator's labels take precedence: they select the pod.
            "labels": {**pod.pod_labels, **broker.labels},
            "annotations": {
                **pod.pod_annotations,
                # A changed configuration replaces the pod, which reads it at its start.
                CONFIG_DIGEST_ANNOTATION: configuration.digest(content),
            },
        },
        # Only what differs from the pod of an export is passed on.
        "spec": pod_spec(
            pod,
            _container(pod, broker),
            _volumes(pod, broker),
            {
                "terminationGracePeriodSeconds": pod.termination_grace_period_seconds,
                "nodeSelector": _node_selector(pod, broker),
                "affinity": _apart(broker) if pod.affinity is None else pod.affinity,
            },
        ),
    }


def pod_spec(pod: BrokerPod | ExportJob, container: Json, volumes: list[Json], own: Json) -> Json:
    """Return the spec of a pod with one container; ``own`` are fields that differ among pods."""
    # Optional fields are left out when empty: a null is not the same as a default.
    optional: Json = {
        "nodeSelector": dict(pod.node_selector),
        "tolerations": [toleration.dump() for toleration in pod.tolerations],
        "affinity": pod.affinity,
        "priorityClassName": pod.priority_class_name,
        "serviceAccountName": pod.service_account_name,
        **own,
    }
    return {
        # Neither brokers nor jobs use the Kubernetes API.
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # Process 1 would ignore a signal that arrives before it has a handler.
        "shareProcessNamespace": True,
        "imagePullSecrets": [{"name": ref.name} for ref in pod.image_pull_secrets],
        "securityContext": POD_SECURITY,
        "containers": [container],
        "volumes": volumes,
        **{name: value for name, value in optional.items() if value},
    }


def container_head(pod: BrokerPod | ExportJob, name: str) -> Json:
    """Return the fields that follow from a pod's manifest, and the security context."""
    return {
        "name": name,
        "image": pod.image,
        **({"imagePullPolicy": str(pod.image_pull_policy)} if pod.image_pull_policy else {}),
        "securityContext": CONTAINER_SECURITY,
        "resources": pod.resources.dump() if pod.resources is not None else {},
    }


def _container(pod: BrokerPod, broker: PodBroker) -> Json:
    """Return the broker's container."""
    # Any client listener shows readiness; the first by name keeps the template stable.
    first = min(pod.listeners, key=lambda listener: listener.name)
    healthy = {"httpGet": {"path": "/healthz", "port": "metrics"}}
    return {
        **container_head(pod, CONTAINER),
        **_environment(pod, broker),
        "args": ["--config", f"{configuration.CONFIG_FOLDER}/{configuration.FILE}"],
        "ports": [
            {"name": name, "containerPort": port, "protocol": "TCP"}
            for name, port in ports_of(pod).items()
        ],
        "startupProbe": {
            **healthy,
            "periodSeconds": STARTUP_PERIOD_S,
            "failureThreshold": STARTUP_TRIES,
        },
        # Checks the event loop only: an unreachable controller is no reason to restart.
        "livenessProbe": {
            **healthy,
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
        # The broker listens to clients once it knows the cluster.
        "readinessProbe": {
            "tcpSocket": {"port": port_name(first)},
            "periodSeconds": READINESS_PERIOD_S,
        },
        "volumeMounts": [
            {"name": "data", "mountPath": configuration.DATA_FOLDER},
            {"name": "tmp", "mountPath": "/tmp"},
            *_chunk_cache_mounts(pod),
            read_only_mount("config", configuration.CONFIG_FOLDER),
            read_only_mount("certificate", configuration.CERTIFICATE_FOLDER),
            *(
                read_only_mount(port_name(listener), configuration.listener_folder(listener))
                for listener in _with_tls(pod)
            ),
        ],
    }


def _environment(pod: BrokerPod, broker: PodBroker) -> Json:
    """Return the environment, only if needed: an unchanged pod must not be replaced.

    The order counts: a variable can refer to earlier ones.
    """
    given = [variable.dump() for variable in pod.env]
    if not configuration.knows_node(pod):
        return {"env": given} if given else {}
    address = {"valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.hostIP"}}}
    listeners = {"name": configuration.ADVERTISED, "value": configuration.advertised(pod, broker)}
    return {"env": [{"name": configuration.NODE_ADDRESS, **address}, listeners, *given]}


def ports_of(pod: BrokerPod) -> dict[str, int]:
    """Return the numbers of all ports by name."""
    return {
        **{port_name(listener): listener.port for listener in pod.listeners},
        "replication": pod.replication_port,
        "metrics": pod.metrics_port,
    }


def read_only_mount(name: str, folder: str) -> Json:
    return {"name": name, "mountPath": folder, "readOnly": True}


def _with_tls(pod: BrokerPod) -> list[PodListener]:
    return [listener for listener in pod.listeners if listener.tls_secret_ref is not None]


def _volumes(pod: BrokerPod, broker: PodBroker) -> list[Json]:
    return [
        {"name": "data", **_data_volume(pod, broker)},
        {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
        *_chunk_cache_volumes(pod),
        {"name": "config", "configMap": {"name": broker.name}},
        # The operator creates it for the Broker of this name; the pod waits for it.
        secret_volume("certificate", broker.certificate),
        *(
            secret_volume(port_name(listener), listener.tls_secret_ref.name)
            for listener in _with_tls(pod)
            if listener.tls_secret_ref is not None
        ),
    ]


def _data_volume(pod: BrokerPod, broker: PodBroker) -> Json:
    """Return the volume of the log directory. A Reader stores nothing that it needs again."""
    if broker.is_reader:
        return {"emptyDir": {"sizeLimit": pod.storage.size}}
    return {"persistentVolumeClaim": {"claimName": broker.claim}}


def _chunk_cache_mounts(pod: BrokerPod) -> list[Json]:
    if pod.chunk_cache is None:
        return []
    return [{"name": CHUNK_CACHE, "mountPath": configuration.CHUNK_CACHE_FOLDER}]


def _chunk_cache_volumes(pod: BrokerPod) -> list[Json]:
    if pod.chunk_cache is None:
        return []
    return [{"name": CHUNK_CACHE, "emptyDir": {"sizeLimit": pod.chunk_cache.size}}]


def secret_volume(name: str, secret: str) -> Json:
    return {"name": name, "secret": {"secretName": secret, "defaultMode": SECRET_MODE}}


def _node_selector(pod: BrokerPod, broker: PodBroker) -> Mapping[str, str]:
    """Return the labels that the node must have, with the Broker's rack if the pod names a key."""
    if pod.rack_topology_key is None or broker.rack is None:
        return pod.node_selector
    return {**pod.node_selector, pod.rack_topology_key: broker.rack}


def _apart(broker: PodBroker) -> Json:
    """Return the default affinity: brokers avoid each other's nodes, and then zones.

    It is a preference only: a broker that cannot start would serve no client.
    """
    selector = {"matchLabels": cluster_selector(broker.cluster)}
    return {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": weight,
                    "podAffinityTerm": {"topologyKey": key, "labelSelector": selector},
                }
                for key, weight in (
                    ("kubernetes.io/hostname", 100),
                    ("topology.kubernetes.io/zone", 50),
                )
            ]
        }
    }
