"""What any engine does for the reconcilers that all engines share.

An engine is what keeps the topics: our own brokers (:mod:`tidemark_operator.engines.own`) or an
existing Apache Kafka (:mod:`tidemark_operator.engines.kafka`); neither knows of the other. Each
keeps the core's picture (:class:`~tidemark_operator.controller.controller_state.ControllerState`:
rows, brokers with their racks, what was acknowledged of a disablement) as things are with it, and
has reconcilers of its own for what it takes to make a topic so. What is decided and told from that
picture is one code, and so is what goes through this port.
"""

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from tidemark_operator.controller.deletion_values import (
    DeleteCommand,
    DeletionAnswer,
    PointAnswer,
    PointQuery,
)


class EngineUnavailable(RuntimeError):
    """The broker cannot be reached, did not answer in time or could not say; the effect is unknown:
    ask again."""


class Engine(Protocol):
    """Records are resolved and deleted through it, by the brokers that lead."""

    async def close(self) -> None:
        """The term is over: nobody is told anything any more."""

    async def deletion_points(
        self, node_id: int, topic_id: UUID, queries: Sequence[PointQuery]
    ) -> dict[int, PointAnswer]:
        """Which offsets a record deletion means, by partition. Raises
        :class:`EngineUnavailable`."""

    async def delete_records(
        self, command: DeleteCommand, timeout_ms: int
    ) -> dict[int, DeletionAnswer]:
        """Delete, and wait so long for the low watermarks; by partition. Raises
        :class:`EngineUnavailable`."""
