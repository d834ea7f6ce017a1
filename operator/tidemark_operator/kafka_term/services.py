"""What the reconcilers of one term over an Apache Kafka work with."""

import dataclasses
import time
from collections.abc import Mapping

from tidemark.kafka_client.values import ClusterView, Reassignment, TopicPartition
from tidemark_operator.engines.kafka.cluster import Found, KafkaCluster
from tidemark_operator.engines.kafka.records import ApacheKafka
from tidemark_operator.reconcile.services import TermServices


@dataclasses.dataclass(slots=True)
class Seen:
    """What was seen of the cluster last. ``cluster`` None: nothing in this term. ``problem``: why
    it cannot be asked at present, and whether a person has to mend that. ``missing_since_s``
    (monotonic): topics that were there and are not."""

    cluster: ClusterView | None = None
    topics: dict[str, Found] = dataclasses.field(default_factory=dict)
    moves: Mapping[TopicPartition, Reassignment] = dataclasses.field(default_factory=dict)
    missing_since_s: dict[str, float] = dataclasses.field(default_factory=dict)
    problem: str = ""
    refused: bool = False
    #: Why no topic can be tiered, and how often segments are copied.
    not_tiered: str = ""
    copy_interval_s: float = 30.0

    def missing_for_s(self, name: str) -> float:
        """How long a topic has not been there."""
        since_s = self.missing_since_s.setdefault(name, time.monotonic())
        return time.monotonic() - since_s


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KafkaServices(TermServices):
    """``state`` is what was seen, with what the API server holds."""

    engine: ApacheKafka
    seen: Seen

    @property
    def kafka(self) -> KafkaCluster:
        """Where requests go."""
        return self.engine.cluster
