"""Port of an engine for the reconcilers that all engines share.

An engine manages the topics: Tidemark's own brokers (:mod:`tidemark_operator.engines.own`) or an
existing Apache Kafka (:mod:`tidemark_operator.engines.kafka`). Neither imports the other. Each
maintains the core's state (:mod:`tidemark_operator.controller.state`: rows, brokers with their
racks, acknowledgements of a disablement) and has reconcilers of its own that bring topics to their
spec. Decisions and statuses from that state are common code, and so is what uses this port.
"""

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from tidemark.wire.deletions import (
    DeletionPoint,
    DeletionPointQuery,
    PartitionDeletion,
    PartitionDeletionResult,
)


class EngineUnavailable(RuntimeError):
    """The broker is unreachable, timed out or could not answer.

    The effect of the request is unknown: send it again.
    """


class Engine(Protocol):
    """Resolution and deletion of records by the brokers that lead."""

    async def close(self) -> None:
        """Close at the end of the term: no broker receives anything afterwards."""

    async def deletion_points(
        self, node_id: int, topic_id: UUID, queries: Sequence[DeletionPointQuery]
    ) -> Sequence[DeletionPoint]:
        """Resolve the offsets of a record deletion at the leader of some partitions.

        Raises :class:`EngineUnavailable`.
        """

    async def delete_records(
        self,
        node_id: int,
        topic_id: UUID,
        deletions: Sequence[PartitionDeletion],
        timeout_ms: int,
    ) -> Sequence[PartitionDeletionResult]:
        """Delete on the leader of some partitions; wait up to ``timeout_ms`` for low watermarks.

        Raises :class:`EngineUnavailable`.
        """
