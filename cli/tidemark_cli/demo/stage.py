"""What the demo needs of a cluster, whichever engine has the topic: the same story is told on both.

What an engine cannot show is a sentence, which the closing table has as *skipped*.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

TOPIC = "flights"
PARTITIONS = 3
#: Checks that not every engine can show.
WAITS = "Disabling; the broker that is down is named"
NO_GAPS = "no gap and no overlap in the tier"


@dataclass(frozen=True, slots=True)
class Placed:
    """A partition and its replicas; ``leader`` -1: none leads."""

    partition: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int


class Stage(Protocol):
    """An engine with one topic, seen from outside."""

    #: What the closing table calls the engine.
    name: str
    #: What it cannot show, by what is shown elsewhere: why.
    cannot: Mapping[str, str]

    def start(self, say: Callable[[str], None]) -> None:
        """Control plane, operator, a Cluster and brokers 1 and 2."""

    def read_options(self) -> dict[str, str]:
        """For ``tidemark_pipeline.topic_source.read_topic``."""

    def spark_settings(self) -> dict[str, str]:
        """Of the Spark session that reads. Raises ToolchainError."""

    def partitions(self) -> list[Placed]:
        """In order; none before the topic is there."""

    def placeholders(self) -> int:
        """Replicas that no broker could take yet (KIP-409), over all partitions."""

    def objects(self) -> list[str]:
        """All that the tier has of the topic."""

    def segments(self) -> int:
        """Of these, segments of the log."""

    def segments_below(self, _starts: Mapping[int, int]) -> int:
        """Segments of which every record is below the log start of its partition."""

    def gaps(self, _starts: Mapping[int, int]) -> list[str] | None:
        """Offsets that the tier has not, or more than once; None where it ``cannot`` tell."""
