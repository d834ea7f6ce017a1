"""The demo on Apache Kafka.

Placement is read from metadata. Segments are read from the folder of LocalTieredStorage, whose file
names contain the first offset.
"""

import asyncio
import functools
import re
from collections import defaultdict
from collections.abc import Callable, Mapping

from tidemark.kafka_client.access import KafkaAccess
from tidemark.kafka_client.admin import Admin
from tidemark.kafka_client.client import KafkaClient
from tidemark.kafka_client.values import TopicView
from tidemark_cli.demo import manifests
from tidemark_cli.demo.stage import NO_GAPS, TOPIC, WAITS, PartitionPlacement
from tidemark_cli.inspection import topic_rows
from tidemark_devcluster.cluster import LocalCluster
from tidemark_devcluster.tier import read_options, session_settings
from tidemark_kube.client import KubeClient

#: ``<topic>-<partition>-<topic id>/<first offset>-<segment id>.log``
_SEGMENT = re.compile(rf"{TOPIC}-(\d+)-[\w-]{{22}}/(\d{{20}})-[\w-]{{22}}\.log")


class KafkaStage:
    """Local cluster whose engine is Apache Kafka."""

    name = "Apache Kafka"
    cannot: Mapping[str, str] = {
        WAITS: "Kafka does not have KIP-950's acknowledgements: offline brokers are not awaited",
        NO_GAPS: "Kafka does not expose which segment contains which offset",
    }

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster

    def start(self, say: Callable[[str], None]) -> None:
        cluster = self._cluster
        cluster.check_engine()
        cluster.start_control_plane()
        cluster.install_crds()
        say(manifests.apply(cluster, manifests.kafka_cluster_manifest(cluster.start_engine(2))))
        cluster.start_operator()

    def read_options(self) -> dict[str, str]:
        return read_options(self._cluster, TOPIC)

    def spark_settings(self) -> dict[str, str]:
        return session_settings(self.read_options())

    def partitions(self) -> list[PartitionPlacement]:
        view = asyncio.run(_look(self._access()))
        return [
            PartitionPlacement(
                partition.partition,
                partition.replicas,
                partition.isr,
                partition.leader,
                partition.leader_epoch,
            )
            for partition in (view.partitions if view else ())
        ]

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

    def gaps(self, _starts: Mapping[int, int]) -> None:
        """Return None, see ``cannot``."""

    def _firsts(self) -> dict[int, list[int]]:
        """Return the first offsets of segments, ascending, by partition."""
        first_offsets = defaultdict(list)
        for match in filter(None, map(_SEGMENT.search, self.objects())):
            first_offsets[int(match[1])].append(int(match[2]))
        return {partition: sorted(firsts) for partition, firsts in first_offsets.items()}

    @functools.cached_property
    def _kube(self) -> KubeClient:
        return self._cluster.kube()

    def _access(self) -> KafkaAccess:
        return KafkaAccess(tuple(self._cluster.addresses().bootstrap.split(",")))


async def _look(access: KafkaAccess) -> TopicView | None:
    async with KafkaClient(access) as client:
        return (await Admin(client).topics([TOPIC])).get(TOPIC)
