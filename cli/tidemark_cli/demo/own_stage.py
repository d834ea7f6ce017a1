"""The demo on Tidemark brokers: placement from partition slices, segments from manifests."""

import functools
from collections.abc import Callable, Mapping

from tidemark.tier.layout import topic_data_prefix
from tidemark.tier.open import Tier, open_tier
from tidemark.tier.queries import SegmentRange
from tidemark_cli.demo import manifests
from tidemark_cli.demo.stage import PARTITIONS, TOPIC, PartitionPlacement
from tidemark_cli.inspection import topic_rows
from tidemark_devcluster.cluster import LocalCluster
from tidemark_devcluster.tier import read_options, storage
from tidemark_kube.client import KubeClient


class OwnStage:
    """Local cluster of Tidemark brokers."""

    name = "Tidemark"
    cannot: Mapping[str, str] = {}

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster

    def start(self, say: Callable[[str], None]) -> None:
        cluster = self._cluster
        cluster.start_control_plane()
        cluster.install_crds()
        say(manifests.apply(cluster, manifests.cluster_manifest(cluster.start_tier())))
        cluster.start_operator()
        cluster.start_brokers((1, 2))

    def read_options(self) -> dict[str, str]:
        return read_options(self._cluster, TOPIC)

    def spark_settings(self) -> dict[str, str]:
        return {}

    def partitions(self) -> list[PartitionPlacement]:
        return [
            PartitionPlacement(row.partition, row.replicas, row.isr, row.leader, row.leader_epoch)
            for row in self._topic().rows
        ]

    def placeholders(self) -> int:
        return self._topic().placeholders()

    def objects(self) -> list[str]:
        """Return the keys of every object under the topic's prefix."""
        prefix = topic_data_prefix(TOPIC, self._topic().rows[0].topic_id)
        return [info.key for info in self._tier().store.list(prefix)]

    def segments(self) -> int:
        return sum(key.endswith(".log") for key in self.objects())

    def segments_below(self, _starts: Mapping[int, int]) -> int:
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

    @functools.cached_property
    def _kube(self) -> KubeClient:
        return self._cluster.kube()

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
