"""How a listener of a broker's pod is reached from outside the Kubernetes cluster.

By Services: one leads to each broker, for a client has to reach the very broker that leads a
partition, and one to any of them, to begin with. What clients are told beside that (a name of one's
own, the port of a proxy) stands here, too; of one broker more precisely in ``brokers``.
"""

import enum
from typing import Annotated, ClassVar

from pydantic import Field

from tidemark.configuration.values import INT32_MAX
from tidemark_operator.resources.schema import ATOMIC, Kube, Rule, SpecModel

NODE_ID = "{nodeId}"
EXTERNAL_BROKERS_MAX = 256

Port = Annotated[int, Field(ge=1, le=65535), Kube(format="int32")]
_NO_PORT = Kube(
    Rule(
        rule="!self.matches('^[^:]*:[^:]*$')",
        message="a host is written without a port, which has a field of its own",
    )
)
#: A name, or an address (IPv6 without brackets). Whatever a client would take for more is kept out:
#: it becomes part of what all clients are told.
Host = Annotated[str, Field(min_length=1, max_length=253, pattern="^[A-Za-z0-9.:_-]+$"), _NO_PORT]
HostTemplate = Annotated[
    str,
    Field(
        min_length=1,
        max_length=253,
        pattern=r"^([A-Za-z0-9.:_-]|\{nodeId\})+$",
        description="What clients are told instead of an address that is found; {nodeId} becomes "
        "the broker's node id.",
    ),
    _NO_PORT,
]
ServiceAnnotations = Annotated[
    dict[str, Annotated[str, Field(max_length=4096)]],
    Field(max_length=32, description="Of the Services, as whoever makes load balancers asks."),
]
NodePort = Annotated[
    Port | None, Field(description="Unset: one that is free, which then stays the same.")
]


class ExternalType(enum.StrEnum):
    """Kubernetes' types of a Service that is reached from outside."""

    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class NodeAddress(enum.StrEnum):
    """Kubernetes' types of a node's addresses."""

    INTERNAL_IP = "InternalIP"
    EXTERNAL_IP = "ExternalIP"


class TrafficPolicy(enum.StrEnum):
    """Kubernetes' ``externalTrafficPolicy``."""

    CLUSTER = "Cluster"
    LOCAL = "Local"


class ExternalBroker(SpecModel):
    """What is otherwise for one broker."""

    node_id: Annotated[
        int, Field(ge=0, le=INT32_MAX, description="Of the broker."), Kube(format="int32")
    ]
    node_port: NodePort = None
    host: Annotated[Host | None, Field(description="What clients are told.")] = None
    port: Annotated[Port | None, Field(description="What clients are told.")] = None
    annotations: ServiceAnnotations = Field(default_factory=dict)


class ExternalBootstrap(SpecModel):
    """The Service that leads to any broker."""

    node_port: NodePort = None
    host: Annotated[Host | None, Field(description="What stands in the Cluster's status.")] = None
    port: Annotated[Port | None, Field(description="What stands in the Cluster's status.")] = None
    annotations: ServiceAnnotations = Field(default_factory=dict)


class ExternalListener(SpecModel):
    """How a listener is reached from outside the Kubernetes cluster."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="self.type == 'NodePort' || !has(self.nodeAddress)",
            message="nodeAddress is for type NodePort: a load balancer has an address of its own",
            field_path=".nodeAddress",
        ),
        Rule(
            rule=(
                "self.type == 'LoadBalancer' || "
                "(!has(self.loadBalancerClass) && !has(self.loadBalancerSourceRanges))"
            ),
            message="loadBalancerClass and loadBalancerSourceRanges are for type LoadBalancer",
        ),
        Rule(
            rule="!has(self.port) || has(self.host)",
            message="port is told together with host: set both, or port of single brokers",
            field_path=".port",
        ),
        Rule(
            rule=(
                f"!has(self.host) || self.host.contains('{NODE_ID}') || "
                "(self.type == 'NodePort' && !has(self.port))"
            ),
            message=(
                f"a client has to tell brokers apart: put {NODE_ID} into host, as in "
                f"broker-{NODE_ID}.example.com"
            ),
            field_path=".host",
        ),
    )

    type: ExternalType
    node_address: Annotated[
        NodeAddress | None,
        Field(
            description="Which address of the node that a pod is on clients are told. Unset: "
            "InternalIP. ExternalIP needs the right to list Nodes; of a node without one it is the "
            "InternalIP."
        ),
    ] = None
    host: HostTemplate | None = None
    port: Annotated[
        Port | None, Field(description="What clients are told with host; unset: the Service's.")
    ] = None
    annotations: ServiceAnnotations = Field(default_factory=dict)
    external_traffic_policy: Annotated[
        TrafficPolicy | None,
        Field(
            description="Of the brokers' Services. Local: brokers see the addresses of clients, "
            "and a node leads to brokers on it only."
        ),
    ] = None
    load_balancer_class: Annotated[
        str | None, Field(min_length=1, max_length=317, description="As of a Service.")
    ] = None
    load_balancer_source_ranges: Annotated[
        tuple[Annotated[str, Field(max_length=64)], ...] | None,
        Field(max_length=64, description="As of a Service."),
        Kube(**ATOMIC),
    ] = None
    bootstrap: ExternalBootstrap | None = None
    brokers: Annotated[
        tuple[ExternalBroker, ...],
        Field(
            max_length=EXTERNAL_BROKERS_MAX,
            description="What is otherwise for single brokers, by their node ids.",
        ),
        Kube(**{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["nodeId"]}),
    ] = ()

    def of_broker(self, node_id: int) -> ExternalBroker:
        """What holds for one broker: its own settings before those of all."""
        found = next((each for each in self.brokers if each.node_id == node_id), None)
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
        """What holds for the Service that leads to any broker."""
        own = self.bootstrap or ExternalBootstrap()
        return own.model_copy(update={"annotations": {**self.annotations, **own.annotations}})
