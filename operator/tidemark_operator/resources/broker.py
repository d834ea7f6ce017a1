"""``Broker``: one broker, as a Node is one machine.

The object permits a process with that node id to register; the operator never invents one. With
Apache Kafka (``Cluster.spec.engine``) it mirrors an existing broker.
"""

from typing import Annotated, ClassVar

from pydantic import Field

from tidemark.configuration.values import INT32_MAX
from tidemark_operator.resources.broker_pod import BrokerPod
from tidemark_operator.resources.conditions import READY, Conditions, pending
from tidemark_operator.resources.metadata import Resource
from tidemark_operator.resources.names import BrokerRole, Workload
from tidemark_operator.resources.references import FixedClusterRef
from tidemark_operator.resources.schema import (
    AGE,
    ATOMIC,
    ApiModel,
    ControllerEpoch,
    Count,
    Generation,
    KubernetesSchema,
    PrinterColumn,
    Rack,
    ResourceKind,
    Rule,
    SpecModel,
    condition_column,
    reason_column,
)


class BrokerSpec(SpecModel):
    """Desired state of the broker."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            # A node id is part of every row of its replicas.
            rule="self.nodeId == oldSelf.nodeId",
            message="nodeId is immutable. Delete this Broker and create one with the other id.",
            field_path=".nodeId",
        ),
        Rule(
            rule="self.workload == oldSelf.workload",
            message="workload is immutable. Delete this Broker and create another one.",
            field_path=".workload",
        ),
        Rule(
            # Replicas would have to move first.
            rule="(has(self.role) && self.role == 'Reader') == "
            "(has(oldSelf.role) && oldSelf.role == 'Reader')",
            message="role is immutable. Delete this Broker and create another one.",
        ),
        Rule(
            rule="has(self.pod) == (self.workload == 'Pod')",
            message="pod is required with workload Pod and must be unset with any other workload",
            field_path=".pod",
        ),
        Rule(
            rule="self.workload != 'Observed' || "
            "(!has(self.drain) && !has(self.rack) && !has(self.role))",
            message="drain, rack and role are not supported with workload Observed. Drain "
            "the broker and set its rack in Apache Kafka.",
        ),
        Rule(
            # Transition rules must hold for an unchanged object, so status writes still pass.
            rule="self.workload != 'Observed' || self == oldSelf",
            message="the spec of a Broker with workload Observed is read-only. Change "
            "the broker in Apache Kafka.",
        ),
    )

    cluster_ref: FixedClusterRef
    node_id: Annotated[int, Field(ge=0, le=INT32_MAX), KubernetesSchema(format="int32")]
    """Kafka node id, unique in the Cluster."""
    rack: Rack | None = None
    """Failure zone of the broker. The replicas of a partition are spread over racks."""
    role: BrokerRole | None = None
    """Work of the broker. Broker: it has replicas. Reader: it has no replicas, and serves to
    consumers what only the tier has. Default: Broker."""
    drain: bool | None = None
    """Move all replicas to other brokers and place no new ones here. The broker keeps serving and
    is not removed. Default: false."""
    workload: Workload
    """Runner of the process. External: an external tool runs it and it registers itself. Pod: the
    operator manages a pod. Observed: the operator mirrors a broker of Apache Kafka."""
    pod: BrokerPod | None = None


class ListenerEndpoint(ApiModel):
    """Address of a listener."""

    name: Annotated[str, Field(max_length=64)]
    host: Annotated[str, Field(max_length=255)]
    port: Annotated[int, Field(ge=0, le=65535), KubernetesSchema(format="int32")]


class DrainStatus(ApiModel):
    """Progress of a broker that is being drained or deleted."""

    remaining: Count
    """Replicas that are still on the broker."""
    moving: Count
    """Replicas whose successors are catching up."""
    stuck: Count
    """Replicas that cannot move. The condition Draining names the cause."""


class BrokerStatus(ApiModel):
    """Registration of the broker and the replicas that it hosts."""

    observed_generation: Generation | None = None
    controller_epoch: ControllerEpoch | None = None
    broker_epoch: Annotated[
        int | None,
        Field(ge=0),
        # The epoch fences former registrations of the broker.
        KubernetesSchema(
            Rule(rule="self >= oldSelf", message="brokerEpoch never goes back"), format="int64"
        ),
    ] = None
    """Broker epoch of the latest registration."""
    incarnation_id: Annotated[str | None, Field(max_length=36)] = None
    """Id of the process incarnation. It changes at each start."""
    directory_id: Annotated[str | None, Field(max_length=36)] = None
    """Id of the log directory."""
    rack: Annotated[str | None, Field(max_length=255)] = None
    """Failure zone from the latest registration."""
    endpoints: Annotated[
        tuple[ListenerEndpoint, ...], Field(max_length=16), KubernetesSchema(**ATOMIC)
    ] = ()
    """Listeners from the latest registration."""
    external_endpoints: Annotated[
        tuple[ListenerEndpoint, ...] | None, Field(max_length=16), KubernetesSchema(**ATOMIC)
    ] = None
    """Advertised addresses of the external listeners."""
    leaders: Count | None = None
    """Number of partitions that the broker leads."""
    replicas: Count | None = None
    """Number of replicas on the broker."""
    drain: DrainStatus | None = None
    """Progress of a drain or deletion. Unset if the broker is to stay."""
    log_bytes: Count | None = None
    """Size of the broker's logs in bytes."""
    conditions: Conditions = ()


#: The pod's label with the name of its StatefulSet also has a hash, and 63 characters at most.
POD_NAME_MAX = 52


class Broker(Resource):
    """A broker of a Tidemark cluster."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            # The name becomes that of a StatefulSet, a Service and a claim.
            rule=(
                "self.spec.workload != 'Pod' || "
                f"self.metadata.name.matches('^[a-z]([-a-z0-9]{{0,{POD_NAME_MAX - 2}}}[a-z0-9])?$')"
            ),
            message=(
                "the name of a Broker with workload Pod has at most "
                f"{POD_NAME_MAX} lower-case letters, digits and dashes, and "
                "starts with a letter"
            ),
        ),
        Rule(
            rule=(
                "!has(self.spec.pod) || self.spec.pod.listeners.all(l, !has(l.external) || "
                "self.metadata.name.size() + l.name.size() <= 62)"
            ),
            message=(
                "the names of the Broker and of an external listener have at "
                "most 62 characters together, because they form the name of a "
                "Service. Shorten one of them."
            ),
        ),
    )

    spec: BrokerSpec
    status: Annotated[BrokerStatus, KubernetesSchema(default=pending(READY))] = Field(
        default_factory=BrokerStatus
    )


BROKER = ResourceKind(
    Broker,
    short_names=("tmb",),
    columns=(
        PrinterColumn("Node", "integer", ".spec.nodeId", "Kafka node id"),
        PrinterColumn("Rack", "string", ".spec.rack", "Failure zone"),
        PrinterColumn("Role", "string", ".spec.role", "Work of the broker", priority=1),
        condition_column("Ready"),
        reason_column("Ready"),
        condition_column("Draining"),
        condition_column("Registered", priority=1),
        condition_column("PodUpToDate", name="Pod", priority=1),
        PrinterColumn(
            "External",
            "string",
            ".status.externalEndpoints[0].host",
            "Advertised addresses of external listeners",
            priority=1,
        ),
        PrinterColumn(
            "Leaders", "integer", ".status.leaders", "Number of partitions that the broker leads"
        ),
        PrinterColumn(
            "Replicas", "integer", ".status.replicas", "Number of replicas on the broker"
        ),
        PrinterColumn(
            "Epoch",
            "integer",
            ".status.brokerEpoch",
            "Broker epoch of the latest registration",
            priority=1,
        ),
        AGE,
    ),
)
