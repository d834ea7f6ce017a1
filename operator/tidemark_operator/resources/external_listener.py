"""External access to a listener of a broker's pod, through Services.

One Service leads to each broker, because a client has to reach the leader of a partition. Another
one leads to any broker, for the bootstrap. Advertised addresses that differ (a DNS name, the port
of a proxy) are configured here too, for one broker in ``brokers``.
"""

import enum
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from tidemark.configuration.values import INT32_MAX
from tidemark_operator.resources.schema import ATOMIC, KubernetesSchema, Rule, SpecModel, keyed_by

NODE_ID = "{nodeId}"
EXTERNAL_BROKERS_MAX = 256

Port = Annotated[int, Field(ge=1, le=65535), KubernetesSchema(format="int32")]
_NO_PORT = KubernetesSchema(
    Rule(
        rule="!self.matches('^[^:]*:[^:]*$')",
        message="host must not contain a port. Set the field port instead.",
    )
)
#: A name, or an address (IPv6 without brackets). Other characters are rejected, because the value
#: becomes part of the addresses that all clients receive.
Host = Annotated[str, Field(min_length=1, max_length=253, pattern="^[A-Za-z0-9.:_-]+$"), _NO_PORT]
HostTemplate = Annotated[
    str,
    Field(
        min_length=1,
        max_length=253,
        pattern=r"^([A-Za-z0-9.:_-]|\{nodeId\})+$",
        description="Advertised host. {nodeId} is replaced with the node id of the broker. "
        "Default: the address of the load balancer or node.",
    ),
    _NO_PORT,
]
ServiceAnnotations = Annotated[
    dict[str, Annotated[str, Field(max_length=4096)]],
    Field(
        max_length=32,
        description="Annotations of the Services, for example for the load balancer controller.",
    ),
]
NodePort = Annotated[
    Port | None, Field(description="Node port. Default: a free port, which then stays the same.")
]


class ExternalType(enum.StrEnum):
    """Type of a Service for external clients."""

    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class NodeAddress(enum.StrEnum):
    """Type of a node address."""

    INTERNAL_IP = "InternalIP"
    EXTERNAL_IP = "ExternalIP"


class ExternalBroker(SpecModel):
    """Settings of an external listener for one broker."""

    node_id: Annotated[int, Field(ge=0, le=INT32_MAX), KubernetesSchema(format="int32")]
    """Node id of the broker."""
    node_port: NodePort = None
    host: Host | None = None
    """Advertised to clients."""
    port: Port | None = None
    """Advertised to clients."""
    annotations: ServiceAnnotations = Field(default_factory=dict)


class ExternalBootstrap(SpecModel):
    """Service that routes to any broker."""

    node_port: NodePort = None
    host: Host | None = None
    """Shown in status.externalListeners of the Cluster."""
    port: Port | None = None
    """Shown in status.externalListeners of the Cluster."""
    annotations: ServiceAnnotations = Field(default_factory=dict)


class ExternalListener(SpecModel):
    """External access to a listener."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="self.type == 'NodePort' || !has(self.nodeAddress)",
            message="nodeAddress is supported only with type NodePort",
            field_path=".nodeAddress",
        ),
        Rule(
            rule=(
                "self.type == 'LoadBalancer' || "
                "(!has(self.loadBalancerClass) && !has(self.loadBalancerSourceRanges))"
            ),
            message="loadBalancerClass and loadBalancerSourceRanges are supported only "
            "with type LoadBalancer",
        ),
        Rule(
            # A port alone would belong to a host that the operator chooses.
            rule="!has(self.port) || has(self.host)",
            message="port requires host. Set both, or set port of individual brokers.",
            field_path=".port",
        ),
        Rule(
            # Clients must reach each broker at an address of its own.
            rule=(
                f"!has(self.host) || self.host.contains('{NODE_ID}') || "
                "(self.type == 'NodePort' && !has(self.port))"
            ),
            message=(
                f"the brokers share one advertised address. Put {NODE_ID} into "
                f"host, for example broker-{NODE_ID}.example.com."
            ),
            field_path=".host",
        ),
    )

    type: ExternalType
    node_address: NodeAddress | None = None
    """Type of the node address to advertise. ExternalIP needs permission to list Nodes, and falls
    back to InternalIP on nodes without one. Default: InternalIP."""
    host: HostTemplate | None = None
    port: Port | None = None
    """Advertised port, used with host. Default: the port of the Service."""
    annotations: ServiceAnnotations = Field(default_factory=dict)
    external_traffic_policy: Literal["Cluster", "Local"] | None = None
    """externalTrafficPolicy of the brokers' Services. Local preserves client addresses and routes
    only to brokers on the same node."""
    load_balancer_class: Annotated[str | None, Field(min_length=1, max_length=317)] = None
    """As in a Service spec."""
    load_balancer_source_ranges: Annotated[
        tuple[Annotated[str, Field(max_length=64)], ...] | None,
        Field(max_length=64),
        KubernetesSchema(**ATOMIC),
    ] = None
    """As in a Service spec."""
    bootstrap: ExternalBootstrap | None = None
    brokers: Annotated[
        tuple[ExternalBroker, ...],
        Field(max_length=EXTERNAL_BROKERS_MAX),
        KubernetesSchema(**keyed_by("nodeId")),
    ] = ()
    """Overrides for individual brokers, by node id."""

    def of_broker(self, node_id: int) -> ExternalBroker:
        """Return the settings for one broker; its own take precedence over those of all."""
        found = next((entry for entry in self.brokers if entry.node_id == node_id), None)
        own = found or ExternalBroker(node_id=node_id)
        host = self.host and self.host.replace(NODE_ID, str(node_id))
        return own.model_copy(
            update={
                "host": own.host or host,
                "port": own.port or self.port,
                "annotations": {**self.annotations, **own.annotations},
            }
        )

    def of_bootstrap(self) -> ExternalBootstrap:
        """Return the settings of the Service that leads to any broker."""
        own = self.bootstrap or ExternalBootstrap()
        return own.model_copy(update={"annotations": {**self.annotations, **own.annotations}})
