"""Port of Tidemark's own brokers, in addition to the common one of all engines.

It hides command connections, snapshots and deltas. Every implementation follows three rules:
requests are level-based and idempotent, they are sent only for what is already stored, and an
answer stands only for what the broker reported.
"""

from collections.abc import Iterable
from typing import Protocol

from tidemark.wire.control import (
    DeleteRemoteTopicRequest,
    DeleteRemoteTopicResponse,
    DisableRemoteTopicRequest,
    DisableRemoteTopicResponse,
    ReplicaLogInfoResponse,
)
from tidemark_operator.controller.state.commit import SliceWrite
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.model import RowKey
from tidemark_operator.engines.base import Engine


class OwnEngine(Engine, Protocol):
    """Transport of stored decisions to the brokers."""

    def slice_stored(self, state: ControllerState, write: SliceWrite) -> None:
        """Note a slice's write that took effect, before the state advances; ``flush`` sends it."""

    def flush(self) -> None:
        """Send everything noted since the last call, with the brokers' states."""

    def publish(self, *, rows: Iterable[RowKey] = (), topics: Iterable[str] = ()) -> None:
        """Send changed rows and Topics (by object key) to every broker until it has acknowledged
        them.

        If both are empty, only the brokers' states are sent.
        """

    def publish_users(self) -> None:
        """Send the present users and authorization to every broker until it has acknowledged
        them.
        """

    def users_behind(self, version: int) -> list[int]:
        """Return the connected brokers that have not acknowledged a version of the users, by id."""

    def connected(self, node_id: int) -> bool:
        """Return whether requests can be sent to a broker now."""

    async def disable_tiering(
        self, node_id: int, request: DisableRemoteTopicRequest
    ) -> DisableRemoteTopicResponse:
        """Send KIP-950's request. Raises :class:`EngineUnavailable`."""

    async def empty_tier(
        self, node_id: int, request: DeleteRemoteTopicRequest
    ) -> DeleteRemoteTopicResponse:
        """Remove a deleted topic's data from the tier. Raises :class:`EngineUnavailable`."""

    async def replica_logs(self, node_id: int, keys: Iterable[RowKey]) -> ReplicaLogInfoResponse:
        """Query the log ends of a broker's replicas (KIP-966).

        Raises :class:`EngineUnavailable`.
        """
