"""Operations that the demo needs of a cluster, independent of the engine that has the topic.

A check that an engine cannot show has a reason in ``cannot``, and is *skipped* in the final table.
"""

import asyncio
import functools
import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import yaml

from tidemark.export_job import ENGINE
from tidemark.kafka_client.access import KafkaAccess
from tidemark.kafka_client.admin import Admin
from tidemark.kafka_client.client import KafkaClient
from tidemark.kafka_client.values import PartitionView, TopicView
from tidemark.tier.metadata.layout import topic_data_prefix
from tidemark.tier.metadata.queries import SegmentRange
from tidemark.tier.open import Tier, open_tier
from tidemark_cli.inspection import topic_rows
from tidemark_devcluster.cluster import LocalCluster
from tidemark_devcluster.controlplane.programs import run_kubectl
from tidemark_devcluster.tier import read_options, session_settings, storage
from tidemark_kube.client import KubeClient
from tidemark_operator.controller.state.rows import PartitionRow

TOPIC = "flights"
PARTITIONS = 3
#: Checks that only some engines can show.
WAITS = "disablement is in progress and names the stopped broker"
NO_GAPS = "no gap and no overlap in the tier"


#: Partition with ``replicas``, ``isr``, ``leader`` and ``leader_epoch``, as the engine shows it.
StagePartition = PartitionRow | PartitionView


class Stage(ABC):
    """Local cluster with one topic, observed from outside."""

    #: Name of the engine in the final table.
    name: str
    #: Checks that the engine cannot show, each with the reason.
    cannot: ClassVar[Mapping[str, str]] = {}

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster

    @functools.cached_property
    def _kube(self) -> KubeClient:
        return self._cluster.kube()

    @abstractmethod
    def start(self, say: Callable[[str], None]) -> None:
        """Start the control plane, the operator, a Cluster and brokers 1 and 2."""

    def read_options(self) -> dict[str, str]:
        """Return options for ``tidemark_pipeline.read.topic_source.read_topic``."""
        return read_options(self._cluster, TOPIC)

    def spark_settings(self) -> dict[str, str]:
        """Return settings of the Spark session that reads. Raises ToolchainError.

        Spark starts before the tier runs, so these depend on the engine alone.
        """
        return session_settings({ENGINE: self._cluster.settings.engine})

    @abstractmethod
    def partitions(self) -> Sequence[StagePartition]:
        """Return the partitions in order; empty before the topic exists."""

    @abstractmethod
    def placeholders(self) -> int:
        """Return the number of replicas without a broker (KIP-409), over all partitions."""

    @abstractmethod
    def objects(self) -> list[str]:
        """Return all objects of the topic in the tier."""

    @abstractmethod
    def segments(self) -> int:
        """Return the number of log segments among the objects."""

    @abstractmethod
    def segments_below(self, starts: Mapping[int, int]) -> int:
        """Return the number of segments whose records are all below their partition's log start."""

    @abstractmethod
    def gaps(self, starts: Mapping[int, int]) -> list[str] | None:
        """Return the offsets that the tier lacks or has twice; None if the engine ``cannot``
        tell.
        """


EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
TIERED_TOPIC = "02-tiering-on-and-off/on.yaml"
DELETION = "03-record-deletion/deletion.yaml"


class KubectlError(RuntimeError):
    """Error of kubectl; the text is its output."""


def load_manifests(name: str) -> list[dict[str, Any]]:
    """Return the documents of one example."""
    path = EXAMPLES / name
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: the demo runs from a checkout (git clone)")
    return [doc for doc in yaml.safe_load_all(path.read_text(encoding="utf-8")) if doc]


def cluster_manifest(storage: dict[str, Any]) -> dict[str, Any]:
    """Return examples/00-cluster/cluster.yaml with this machine's tier and a short delete delay."""
    manifest = load_manifests("00-cluster/cluster.yaml")[0]
    manifest["spec"]["remoteStorage"] = storage
    manifest["spec"]["config"]["remote.delete.delay.ms"] = "1000"
    return manifest


def kafka_cluster_manifest(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the same Cluster with Apache Kafka as its engine."""
    return {**load_manifests("00-cluster/cluster.yaml")[0], "spec": spec}


def topic_manifest(*, enabled: bool, policy: str | None = None) -> dict[str, Any]:
    """Return the topic of flights with another ``spec.tiering``."""
    manifest = load_manifests(TIERED_TOPIC)[0]
    manifest["spec"]["tiering"]["enabled"] = enabled
    if policy is not None:
        manifest["spec"]["tiering"]["disablePolicy"] = policy
    return manifest


def apply_manifest(cluster: LocalCluster, manifest: dict[str, Any]) -> str:
    """Run ``kubectl apply -f -`` and return its output; raises :class:`KubectlError`."""
    done = run_kubectl(
        ["apply", "-f", "-"], kubeconfig=cluster.kubeconfig, stdin=yaml.safe_dump(manifest)
    )
    if done.returncode != 0:
        raise KubectlError(done.stderr.strip())
    return done.stdout.strip()


class OwnStage(Stage):
    """Local cluster of Tidemark brokers."""

    name = "Tidemark"

    def start(self, say: Callable[[str], None]) -> None:
        cluster = self._cluster
        cluster.start_control_plane()
        cluster.install_crds()
        say(apply_manifest(cluster, cluster_manifest(cluster.start_tier())))
        cluster.start_operator()
        cluster.start_brokers((1, 2))

    def partitions(self) -> Sequence[StagePartition]:
        return self._topic().rows

    def placeholders(self) -> int:
        return self._topic().placeholders()

    def objects(self) -> list[str]:
        """Return the keys of every object under the topic's prefix."""
        prefix = topic_data_prefix(TOPIC, self._topic().rows[0].topic_id)
        return [info.key for info in self._tier().store.list(prefix)]

    def segments(self) -> int:
        return sum(key.endswith(".log") for key in self.objects())

    def segments_below(self, starts: Mapping[int, int]) -> int:
        """Count the segments in the store that the manifests no longer name."""
        live = {part.entry.log_key for parts in self._ranges().values() for part in parts}
        return sum(1 for key in self.objects() if key.endswith(".log") and key not in live)

    def gaps(self, starts: Mapping[int, int]) -> list[str]:
        """Return the places where the manifests do not cover every offset exactly once."""
        gaps: list[str] = []
        for partition, ranges in self._ranges().items():
            expected = ranges[0].from_offset if ranges else starts[partition]
            for part in ranges:
                if part.from_offset != expected:
                    gaps.append(f"{partition}: offset {part.from_offset}, expected {expected}")
                expected = part.to_offset_inclusive + 1
        return gaps

    def _topic(self) -> topic_rows.TopicRows:
        return topic_rows.topic(self._kube, TOPIC)

    def _tier(self) -> Tier:
        return open_tier(storage(self._cluster))

    def _ranges(self) -> dict[int, tuple[SegmentRange, ...]]:
        """Return the segment ranges of the manifests, by partition."""
        tier, topic_id = self._tier(), self._topic().rows[0].topic_id
        ranges = {}
        for partition in range(PARTITIONS):
            start = tier.reader.snapshot(topic_id, partition).head.log_start_offset
            ranges[partition] = tier.reader.plan(topic_id, partition, start, 2**62)[1]
        return ranges


#: ``<topic>-<partition>-<topic id>/<first offset>-<segment id>.log``
_SEGMENT = re.compile(rf"{TOPIC}-(\d+)-[\w-]{{22}}/(\d{{20}})-[\w-]{{22}}\.log")


class KafkaStage(Stage):
    """Local cluster whose engine is Apache Kafka."""

    name = "Apache Kafka"
    cannot: ClassVar = {
        WAITS: "Kafka does not have KIP-950's acknowledgements: offline brokers are not awaited",
        NO_GAPS: "Kafka does not expose which segment contains which offset",
    }

    def start(self, say: Callable[[str], None]) -> None:
        cluster = self._cluster
        cluster.check_engine()
        cluster.start_control_plane()
        cluster.install_crds()
        say(apply_manifest(cluster, kafka_cluster_manifest(cluster.start_engine(2))))
        cluster.start_operator()

    def partitions(self) -> Sequence[StagePartition]:
        view = asyncio.run(self._look())
        return view.partitions if view else ()

    def placeholders(self) -> int:
        replicas = topic_rows.topic(self._kube, TOPIC).status.get("replicas") or {}
        return int(replicas.get("placeholders", -1))

    def objects(self) -> list[str]:
        tier = self._cluster.layout.tier
        return [
            str(file.relative_to(tier)) for file in tier.glob(f"*/{TOPIC}-*/*") if file.is_file()
        ]

    def segments(self) -> int:
        return sum(map(len, self._firsts().values()))

    def segments_below(self, starts: Mapping[int, int]) -> int:
        """Count the segments whose successor starts at or below the log start: a segment ends
        there.
        """
        return sum(
            following <= starts[partition]
            for partition, firsts in self._firsts().items()
            for following in firsts[1:]
        )

    def gaps(self, starts: Mapping[int, int]) -> None:
        """Return None, see ``cannot``."""

    def _firsts(self) -> dict[int, list[int]]:
        """Return the first offsets of segments, ascending, by partition."""
        first_offsets = defaultdict(list)
        for match in filter(None, map(_SEGMENT.search, self.objects())):
            first_offsets[int(match[1])].append(int(match[2]))
        return {partition: sorted(firsts) for partition, firsts in first_offsets.items()}

    async def _look(self) -> TopicView | None:
        access = KafkaAccess(tuple(self._cluster.addresses().bootstrap.split(",")))
        async with KafkaClient(access) as client:
            return (await Admin(client).topics([TOPIC])).get(TOPIC)
