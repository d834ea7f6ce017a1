"""``Broker``: one broker, as a Node is one machine.

The object is what lets a process with that node id register; the operator never invents one. Of
Apache Kafka (``Cluster.spec.engine``) it is what shows a broker that is there.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from tidemark.configuration.values import INT32_MAX
from tidemark_operator.resources.broker_pod import BrokerPod
from tidemark_operator.resources.conditions import READY, Conditions, pending
from tidemark_operator.resources.metadata import Resource
from tidemark_operator.resources.names import CATEGORY, PLURALS, Workload
from tidemark_operator.resources.references import FixedClusterRef
from tidemark_operator.resources.schema import (
    AGE,
    ATOMIC,
    ApiModel,
    Column,
    ControllerEpoch,
    Count,
    Generation,
    Kube,
    Rack,
    ResourceKind,
    Rule,
    SpecModel,
    condition_column,
)


class BrokerSpec(SpecModel):
    """The broker as it is wanted."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="self.nodeId == oldSelf.nodeId",
            message="nodeId is immutable: delete this Broker and make one with the other id",
            field_path=".nodeId",
        ),
        Rule(
            rule="self.workload == oldSelf.workload",
            message="workload is immutable: delete this Broker and make another",
            field_path=".workload",
        ),
        Rule(
            rule="has(self.pod) == (self.workload == 'Pod')",
            message="pod is set with workload: Pod, and only there",
            field_path=".pod",
        ),
        Rule(
            rule="self.workload != 'Observed' || (!has(self.drain) && !has(self.rack))",
            message="a broker that is Observed is Apache Kafka's: drain it there, and say its rack "
            "there",
        ),
        Rule(
            rule="self.workload != 'Observed' || self == oldSelf",
            message="a broker that is Observed is Apache Kafka's: its object is only to be read",
        ),
    )

    cluster_ref: FixedClusterRef
    node_id: Annotated[
        int,
        Field(ge=0, le=INT32_MAX, description="Kafka's node id; one Broker of a Cluster has it."),
        Kube(format="int32"),
    ]
    rack: Annotated[
        Rack | None,
        Field(description="Failure zone; replicas of a partition are spread over racks."),
    ] = None
    drain: Annotated[
        bool | None,
        Field(
            description="Its replicas move to other brokers and it is given no new ones, while it "
            "serves on; as deleting it does, without removing it."
        ),
    ] = None
    workload: Annotated[
        Workload,
        Field(
            description="Who runs the process. External: it runs elsewhere and registers itself. "
            "Pod: the operator keeps a pod for it. Observed: a broker of Apache Kafka, whose "
            "object the operator makes and removes."
        ),
    ]
    pod: BrokerPod | None = None


class Endpoint(ApiModel):
    """Where a listener is reached."""

    name: Annotated[str, Field(max_length=64)]
    host: Annotated[str, Field(max_length=255)]
    port: Annotated[int, Field(ge=0, le=65535), Kube(format="int32")]


class DrainStatus(ApiModel):
    """How far the broker is that is being drained or deleted."""

    remaining: Annotated[Count, Field(description="Replicas that it still has.")]
    moving: Annotated[Count, Field(description="Those whose successors catch up.")]
    stuck: Annotated[Count, Field(description="Those that cannot move: see Draining.")]


class BrokerStatus(ApiModel):
    """The broker's registration and what it holds."""

    observed_generation: Generation | None = None
    controller_epoch: ControllerEpoch | None = None
    broker_epoch: Annotated[
        int | None,
        Field(ge=0, description="Epoch of the latest registration."),
        Kube(Rule(rule="self >= oldSelf", message="brokerEpoch never goes back"), format="int64"),
    ] = None
    incarnation_id: Annotated[
        str | None, Field(max_length=36, description="Changes with each start of the process.")
    ] = None
    directory_id: Annotated[
        str | None, Field(max_length=36, description="Identity of the log directory.")
    ] = None
    rack: Annotated[
        str | None,
        Field(max_length=255, description="Failure zone, as the broker said when it registered."),
    ] = None
    endpoints: Annotated[
        tuple[Endpoint, ...],
        Field(max_length=16, description="Listeners, as the broker said when it registered."),
        Kube(**ATOMIC),
    ] = ()
    external_endpoints: Annotated[
        tuple[Endpoint, ...] | None,
        Field(max_length=16, description="What clients of its external listeners are told."),
        Kube(**ATOMIC),
    ] = None
    leaders: Annotated[Count | None, Field(description="Partitions that it leads.")] = None
    replicas: Annotated[Count | None, Field(description="Replicas that it holds.")] = None
    drain: Annotated[
        DrainStatus | None, Field(description="How far it is; absent if it is to stay.")
    ] = None
    log_bytes: Annotated[Count | None, Field(description="Size of its logs.")] = None
    conditions: Conditions = ()


#: Of its pod's labels one is the name of its StatefulSet with a hash behind it.
POD_NAME_MAX = 52


class Broker(Resource):
    """A broker of a Tidemark cluster."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule=(
                "self.spec.workload != 'Pod' || "
                f"self.metadata.name.matches('^[a-z]([-a-z0-9]{{0,{POD_NAME_MAX - 2}}}[a-z0-9])?$')"
            ),
            message=(
                f"the name of a Broker with workload: Pod has at most {POD_NAME_MAX} lower-case "
                "letters, digits and dashes, with a letter first"
            ),
        ),
        Rule(
            rule=(
                "!has(self.spec.pod) || self.spec.pod.listeners.all(l, !has(l.external) || "
                "self.metadata.name.size() + l.name.size() <= 62)"
            ),
            message=(
                "a Service is named by the Broker and its external listener: both names have at "
                "most 62 characters together"
            ),
        ),
    )

    spec: BrokerSpec
    status: Annotated[BrokerStatus, Kube(default=pending(READY))] = Field(
        default_factory=BrokerStatus
    )


def parse_broker(obj: Mapping[str, Any]) -> Broker:
    """Read a Broker; raises InvalidResource."""
    return Broker.parse(obj)


BROKER = ResourceKind(
    kind="Broker",
    plural=PLURALS["Broker"],
    singular="broker",
    short_names=("tmb",),
    category=CATEGORY,
    model=Broker,
    columns=(
        Column(
            name="Node", type="integer", json_path=".spec.nodeId", description="Kafka's node id"
        ),
        Column(name="Rack", type="string", json_path=".spec.rack", description="Failure zone"),
        condition_column("Registered"),
        condition_column("Ready"),
        condition_column("Draining"),
        condition_column("PodUpToDate", name="Pod", priority=1),
        Column(
            name="External",
            type="string",
            json_path=".status.externalEndpoints[0].host",
            description="Where clients outside reach it",
            priority=1,
        ),
        Column(
            name="Leaders",
            type="integer",
            json_path=".status.leaders",
            description="Partitions that it leads",
        ),
        Column(
            name="Replicas",
            type="integer",
            json_path=".status.replicas",
            description="Replicas that it holds",
        ),
        Column(
            name="Epoch",
            type="integer",
            json_path=".status.brokerEpoch",
            description="Epoch of the latest registration",
            priority=1,
        ),
        AGE,
    ),
)
