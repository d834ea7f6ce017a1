"""Template of a broker's pod, for a ``Broker`` with ``workload: Pod`` and for a ``Cluster``.

Names and defaults are Kubernetes' where it has one. The operator's own decisions (names, its ports,
the first keys of the configuration, the security context) have no field here.
"""

import enum
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from tidemark_operator.resources.config_rules import cel_list
from tidemark_operator.resources.external_listener import ExternalListener, Port
from tidemark_operator.resources.references import SecretRef
from tidemark_operator.resources.scalars import Quantity, int_or_string, text_of_number
from tidemark_operator.resources.schema import (
    ATOMIC,
    Int64,
    KubernetesSchema,
    ObjectName,
    Rule,
    SpecModel,
    keyed_by,
)

#: Keys of the broker's configuration that the operator sets itself.
OWN_KEYS = (
    "node.id",
    "cluster.id",
    "broker.rack",
    "rack",
    "log.dir",
    "listeners",
    "advertised.listeners",
    "listener.security.protocol.map",
    "controller.addresses",
    "tidemark.tls.directory",
    "metrics.host",
    "metrics.port",
)
#: Prefix of annotations that loosen a container like a field of the pod would.
APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
REPLICATION_PORT = 9094
METRICS_PORT = 8080
#: More than a controlled shutdown waits for (``controlled.shutdown.max.ms``, 15 s), plus the time
#: for the store and the files after it.
GRACE_S = 60

_REPLICATION = f"self.?replicationPort.orValue({REPLICATION_PORT})"
_METRICS = f"self.?metricsPort.orValue({METRICS_PORT})"
PRESERVED: Mapping[str, object] = {"x-kubernetes-preserve-unknown-fields": True}
#: Value of a label; names with their prefix have a limit of their own.
LabelValue = Annotated[str, Field(max_length=63)]
Labels = Annotated[dict[str, LabelValue], Field(max_length=32)]
Annotations = Annotated[dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=32)]
#: A quantity of Kubernetes such as ``500m`` or ``2Gi``, which the API server checks.
Amount = Annotated[
    str,
    BeforeValidator(text_of_number),
    int_or_string(
        Rule(
            rule="string(self).size() <= 32 && isQuantity(string(self))",
            message="must be a quantity such as 500m, 2 or 1Gi",
        )
    ),
]
Amounts = Annotated[dict[str, Amount], Field(max_length=8)]
ImageName = Annotated[str, Field(min_length=1, max_length=512, pattern=r"^\S+$")]
ImagePullSecrets = Annotated[tuple[SecretRef, ...], Field(max_length=8), KubernetesSchema(**ATOMIC)]
PodAnnotations = Annotated[
    Annotations,
    KubernetesSchema(
        Rule(
            # Such an annotation could switch off what the security context enforces.
            rule=f"!self.exists(k, k.startsWith('{APPARMOR}'))",
            message="the operator sets the security context of the pod. Remove the "
            "AppArmor annotation.",
        )
    ),
]


class ListenerProtocol(enum.StrEnum):
    """Security protocol of a listener, by Kafka's names."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"


class PullPolicy(enum.StrEnum):
    """When a node pulls the image."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class PodListener(SpecModel):
    """Listener for clients."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="!self.protocol.endsWith('SSL') || has(self.tlsSecretRef)",
            message="a listener with TLS requires tlsSecretRef",
            field_path=".tlsSecretRef",
        ),
        Rule(
            rule="self.name != 'REPLICATION'",
            message="the name REPLICATION is reserved for traffic between brokers. Use "
            "another name.",
            field_path=".name",
        ),
    )

    name: Annotated[str, Field(min_length=1, max_length=13, pattern="^[A-Z][A-Z0-9]{0,12}$")]
    port: Port
    protocol: ListenerProtocol
    tls_secret_ref: SecretRef | None = None
    """Secret with the keys tls.crt and tls.key. With the key ca.crt, the broker also verifies
    client certificates."""
    external: ExternalListener | None = None
    """Expose the listener outside the Kubernetes cluster. Clients of this listener receive external
    addresses. Unset: the listener is internal."""


class PodStorage(SpecModel):
    """Volume of the broker's log directory. It is not deleted with the pod or the Broker."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule=(
                # An invalid quantity is reported by the field's own rule, not as a shrunk volume.
                "quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) >= 0 || "
                "!isQuantity(string(self.size))"
            ),
            message="a volume cannot shrink. Create another Broker with a smaller "
            "volume and drain this one.",
            field_path=".size",
        ),
        Rule(
            rule=(
                "has(self.storageClassName) == has(oldSelf.storageClassName) && "
                "(!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)"
            ),
            message="storageClassName is immutable. Create another Broker and drain this one.",
            field_path=".storageClassName",
        ),
    )

    size: Quantity
    storage_class_name: ObjectName | None = None
    """StorageClass of the volume. Default: the default class of the Kubernetes cluster."""


class PodChunkCache(SpecModel):
    """Volume (emptyDir) of the cache of remote data. It is deleted with the pod."""

    size: Quantity
    """Size limit of the volume. The cache uses nine tenths of it."""


class PodVariable(SpecModel):
    """Environment variable with a value that is not secret."""

    name: Annotated[
        str,
        Field(min_length=1, max_length=256, pattern="^[A-Za-z_][A-Za-z0-9_]*$"),
        KubernetesSchema(
            Rule(
                # Such a variable would override a key of the configuration.
                rule="!self.startsWith('TIDEMARK_') && self != 'NODE_ADDRESS'",
                message="the variable is reserved for the operator. Set the key in config.",
            )
        ),
    ]
    value: Annotated[str, Field(max_length=4096)]


class PodResources(SpecModel):
    """Resource requests and limits of the container."""

    requests: Amounts | None = None
    limits: Amounts | None = None


class Toleration(SpecModel):
    """Toleration of the pod, as in a pod spec."""

    key: Annotated[str | None, Field(max_length=317)] = None
    operator: Annotated[str | None, Field(max_length=16)] = None
    value: LabelValue | None = None
    effect: Annotated[str | None, Field(max_length=32)] = None
    toleration_seconds: Int64 | None = None


Tolerations = Annotated[tuple[Toleration, ...], Field(max_length=32), KubernetesSchema(**ATOMIC)]


class BrokerPod(SpecModel):
    """Template of a broker's pod."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            # A port rule needs the defaults too, since unset fields have no value in CEL.
            rule=(
                f"!self.listeners.exists(l, l.port == {_REPLICATION} || l.port == {_METRICS}) && "
                f"{_REPLICATION} != {_METRICS}"
            ),
            message=(
                "listeners, replicationPort and metricsPort must not share a "
                f"port. Defaults: replicationPort {REPLICATION_PORT}, "
                f"metricsPort {METRICS_PORT}."
            ),
            field_path=".listeners",
        ),
    )

    image: ImageName
    image_pull_policy: PullPolicy | None = None
    image_pull_secrets: ImagePullSecrets = ()
    service_account_name: ObjectName | None = None
    """ServiceAccount for cloud workload identity. No API token is mounted."""
    storage: PodStorage
    chunk_cache: PodChunkCache | None = None
    """Cache on disk for data that consumers read from the remote storage. Unset: no such cache,
    unless config has one."""
    listeners: Annotated[
        tuple[PodListener, ...],
        Field(min_length=1, max_length=8),
        KubernetesSchema(
            Rule(
                rule="self.all(one, self.exists_one(other, other.port == one.port))",
                message="two listeners have the same port. Give each listener its own port.",
            ),
            **keyed_by("name"),
        ),
    ]
    replication_port: Port = REPLICATION_PORT
    """Port for replication between brokers. Default: 9094."""
    metrics_port: Port = METRICS_PORT
    """Port for metrics and probes. Default: 8080."""
    config: Annotated[
        dict[str, Annotated[str, Field(max_length=1024)]],
        Field(max_length=64),
        KubernetesSchema(
            Rule(
                rule=f"!self.exists(k, k in {cel_list(OWN_KEYS)})",
                message="a key is set by the operator. Remove it.",
                message_expression=(
                    f"self.filter(k, k in {cel_list(OWN_KEYS)})[0] + ' is set "
                    "by the operator. Remove it.'"
                ),
            ),
            Rule(
                # A line end in a value would add a key to the broker's configuration file.
                rule=r"self.all(k, k.matches('^[a-z][A-Za-z0-9._-]{0,127}$') && "
                r"!self[k].matches('[\\r\\n]'))",
                message="a key has only characters of a configuration name, and a "
                "value has no line break",
            ),
        ),
    ] = Field(default_factory=dict)
    """Broker configuration that is not dynamic, by Kafka's keys. Values are strings."""
    env: Annotated[
        tuple[PodVariable, ...], Field(max_length=32), KubernetesSchema(**keyed_by("name"))
    ] = ()
    """Environment variables, such as HTTPS_PROXY for requests to the store."""
    resources: PodResources | None = None
    termination_grace_period_seconds: Annotated[
        int, Field(ge=30, le=3600), KubernetesSchema(format="int64")
    ] = GRACE_S
    """Seconds that a controlled shutdown may take while other brokers take over leadership.
    Default: 60."""
    rack_topology_key: Annotated[str | None, Field(min_length=1, max_length=317)] = None
    """Node label such as topology.kubernetes.io/zone. The pod runs only on nodes where its value is
    the Broker's rack."""
    node_selector: Labels = Field(default_factory=dict)
    tolerations: Tolerations = ()
    affinity: Annotated[dict[str, Any] | None, KubernetesSchema(**PRESERVED)] = None
    """Affinity of the pod, as in a pod spec. Default: brokers prefer different nodes."""
    priority_class_name: ObjectName | None = None
    pod_labels: Labels = Field(default_factory=dict)
    pod_annotations: PodAnnotations = Field(default_factory=dict)
