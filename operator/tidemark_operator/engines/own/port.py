"""What the reconcilers of our own brokers ask of them, beyond what any engine does.

Everything that is particular to command connections, snapshots and deltas lies behind it. The rule
for every implementation: requests are level-based and idempotent, are sent only for what is already
stored, and their answers never stand for anything but what the broker said.
"""

from collections.abc import Iterable
from typing import Protocol

from tidemark_operator.controller.broker_calls import (
    Disablement,
    DisablementAnswer,
    ReplicaLogsAnswer,
    TierDeletion,
    TierDeletionAnswer,
)
from tidemark_operator.controller.commit import SliceWrite
from tidemark_operator.controller.controller_state import ControllerState
from tidemark_operator.controller.model import RowKey
from tidemark_operator.engines.base import Engine


class OwnEngine(Engine, Protocol):
    """Carries out what was decided and stored."""

    def landing(self, state: ControllerState, write: SliceWrite) -> None:
        """A slice's write took effect; called before the state advances, told by ``flush``."""

    def flush(self) -> None:
        """Tell what has landed since, and the brokers' states."""

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
