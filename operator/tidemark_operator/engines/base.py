"""The narrow interface between the reconcilers and the system that keeps the topics.

Everything that is particular to our own brokers (command connections, snapshots, deltas) lies
behind it. The rule for every implementation: requests are level-based and idempotent, are sent only
for what is already stored, and their answers never stand for anything but what the broker said.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol
from uuid import UUID

from tidemark_operator.controller.broker_calls import (
    Disablement,
    DisablementAnswer,
    ReplicaLogsAnswer,
    TierDeletion,
    TierDeletionAnswer,
)
from tidemark_operator.controller.commit import SliceWrite
from tidemark_operator.controller.controller_state import ControllerState
from tidemark_operator.controller.deletion_values import (
    DeleteCommand,
    DeletionAnswer,
    PointAnswer,
    PointQuery,
)
from tidemark_operator.controller.model import RowKey


class EngineUnavailable(RuntimeError):
    """The broker cannot be reached, did not answer in time or could not say; the effect is unknown:
    ask again."""


class Engine(Protocol):
    """Carries out what was decided and stored."""

    def landing(self, state: ControllerState, write: SliceWrite) -> None:
        """A slice's write took effect; called before the state advances, told by ``flush``."""

    def flush(self) -> None:
        """Tell what has landed since, and the brokers' states."""

    async def close(self) -> None:
        """The term is over: nobody is told anything any more."""

    def publish(self, *, rows: Iterable[RowKey] = (), topics: Iterable[str] = ()) -> None:
        """Rows and Topics (by object key) that changed, or brokers when both are empty: every
        broker is told the present state until it has acknowledged it."""

    def publish_users(self) -> None:
        """Users, or who is authorised, may have changed: every broker is told the present ones
        until it has acknowledged them."""

    def users_behind(self, version: int) -> list[int]:
        """The connected brokers that have not acknowledged the users of a version, by id."""

    def connected(self, node_id: int) -> bool:
        """Whether requests can be sent to a broker right now."""

    async def disable_tiering(self, node_id: int, disablement: Disablement) -> DisablementAnswer:
        """KIP-950's request. Raises :class:`EngineUnavailable`."""

    async def empty_tier(self, node_id: int, deletion: TierDeletion) -> TierDeletionAnswer:
        """Remove what a deleted topic left in the tier. Raises :class:`EngineUnavailable`."""

    async def replica_logs(self, node_id: int, keys: Iterable[RowKey]) -> ReplicaLogsAnswer:
        """How far a broker's replicas reach (KIP-966). Raises :class:`EngineUnavailable`."""

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
