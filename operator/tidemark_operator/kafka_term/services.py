"""Services of the reconcilers of one term over an Apache Kafka."""

import dataclasses
import time
from collections.abc import Mapping

from tidemark.kafka_client.values import ClusterView, Reassignment, TopicPartition
from tidemark_operator.engines.kafka.cluster import FoundTopic, KafkaCluster
from tidemark_operator.engines.kafka.records import ApacheKafka
from tidemark_operator.reconcile.services import TermServices


@dataclasses.dataclass(slots=True)
class ObservedCluster:
    """Last observation of the cluster.

    ``cluster`` None: none in this term. ``problem``: why it does not answer; ``refused``: a person
    has to fix that. ``missing_since_s`` (monotonic): topics that have disappeared.
    """

    cluster: ClusterView | None = None
    topics: dict[str, FoundTopic] = dataclasses.field(default_factory=dict)
    moves: Mapping[TopicPartition, Reassignment] = dataclasses.field(default_factory=dict)
    missing_since_s: dict[str, float] = dataclasses.field(default_factory=dict)
    problem: str = ""
    refused: bool = False
    #: Why no topic can be tiered, and the interval of copying.
    not_tiered: str = ""
    copy_interval_s: float = 30.0

    def missing_for_s(self, name: str) -> float:
        """Return how long a topic has been missing."""
        since_s = self.missing_since_s.setdefault(name, time.monotonic())
        return time.monotonic() - since_s


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KafkaServices(TermServices):
    """Services of one term; ``state`` is observed from Kafka and from API objects."""

    engine: ApacheKafka
    seen: ObservedCluster

    @property
    def kafka(self) -> KafkaCluster:
        """Return the client for requests."""
        return self.engine.cluster
