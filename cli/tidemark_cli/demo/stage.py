"""Operations that the demo needs of a cluster, independent of the engine that has the topic.

A check that an engine cannot show has a reason in ``cannot``, and is *skipped* in the final table.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

TOPIC = "flights"
PARTITIONS = 3
#: Checks that only some engines can show.
WAITS = "disablement is in progress and names the stopped broker"
NO_GAPS = "no gap and no overlap in the tier"


@dataclass(frozen=True, slots=True)
class PartitionPlacement:
    """Partition and its replicas; ``leader`` is -1 without a leader."""

    partition: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int


class Stage(Protocol):
    """Engine with one topic, observed from outside."""

    #: Name of the engine in the final table.
    name: str
    #: Checks that the engine cannot show, each with the reason.
    cannot: Mapping[str, str]

    def start(self, say: Callable[[str], None]) -> None:
        """Start the control plane, the operator, a Cluster and brokers 1 and 2."""

    def read_options(self) -> dict[str, str]:
        """Return options for ``tidemark_pipeline.read.topic_source.read_topic``."""

    def spark_settings(self) -> dict[str, str]:
        """Return settings of the Spark session that reads. Raises ToolchainError."""

    def partitions(self) -> list[PartitionPlacement]:
        """Return the partitions in order; empty before the topic exists."""

    def placeholders(self) -> int:
        """Return the number of replicas without a broker (KIP-409), over all partitions."""

    def objects(self) -> list[str]:
        """Return all objects of the topic in the tier."""

    def segments(self) -> int:
        """Return the number of log segments among the objects."""

    def segments_below(self, _starts: Mapping[int, int]) -> int:
        """Return the number of segments whose records are all below their partition's log start."""

    def gaps(self, _starts: Mapping[int, int]) -> list[str] | None:
        """Return the offsets that the tier lacks or has twice; None if the engine ``cannot``
        tell.
        """
