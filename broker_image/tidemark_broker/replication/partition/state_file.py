"""State file of a replica: the controller's last row for it, as JSON in the replica's directory.

It is written before the replica starts to lead (persist before acting), and after a change of only
the ISR or to another leader. It survives the broker. So a controller that lost its slices can
restore leaders and epochs from reports, and a leader knows the last reported end of the tier
(prefix rule) without a query to the store.
"""

import asyncio
import logging
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol, cast

from tidemark.leader_recovery import LeaderRecoveryState
from tidemark.tier.metadata.head import HeadPosition
from tidemark.tiering import DisablePolicy, Tiering, TieringState
from tidemark.wire import control
from tidemark_broker.log import StorageError
from tidemark_broker.replication.metadata import TopicMetadata
from tidemark_broker.replication.remote import RemoteEnd
from tidemark_broker.replication.types import TopicPartition

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    """Content of one replica's state file.

    ``row`` is None if no controller ever sent one. ``head_tiered_epoch``: of the head that named
    ``remote_end``, -1 for none. ``tier_position``: the newest head that was seen. ``tier_damaged``:
    the head went back and was not repaired.
    """

    topic: str
    topic_id: uuid.UUID
    controller_epoch: int
    tiering: Tiering
    row: control.PartitionState | None
    remote_end: RemoteEnd | None = None
    head_tiered_epoch: int = -1
    tier_position: HeadPosition | None = None
    tier_damaged: bool = False

    @classmethod
    def of(
        cls, view: TopicMetadata, row: control.PartitionState, controller_epoch: int
    ) -> "StoredState":
        """Return the state sent by a controller of that epoch."""
        return cls(
            topic=view.name,
            topic_id=view.topic_id,
            controller_epoch=controller_epoch,
            tiering=view.tiering,
            row=row,
        )

    def with_row(self, row: control.PartitionState) -> "StoredState":
        """Return a copy with another row."""
        return replace(self, row=row)


def to_json(state: StoredState) -> dict[str, object]:
    """Return the state file's content as a JSON object."""
    # The names are part of the on-disk format, which other versions read.
    return {
        "version": VERSION,
        "topic": state.topic,
        "topicId": str(state.topic_id),
        "controllerEpoch": state.controller_epoch,
        "tieredEpoch": state.tiering.epoch,
        "tieringState": state.tiering.state.name,
        "disablePolicy": state.tiering.disable_policy.name,
        # Partition state that the controller has sent last.
        "row": None if state.row is None else _row_to_json(state.row),
        "remoteEnd": None
        if state.remote_end is None
        else {"offset": state.remote_end.offset, "epoch": state.remote_end.epoch},
        "headTieredEpoch": state.head_tiered_epoch,
        # Version of the newest manifest head that was seen; an older one is damage.
        "head": None
        if state.tier_position is None
        else {
            "version": state.tier_position.version,
            "commitId": state.tier_position.commit_id,
            "floorEpoch": state.tier_position.floor_epoch,
        },
        **({"tierDamaged": True} if state.tier_damaged else {}),
    }


def from_json(data: Mapping[str, object]) -> StoredState:
    """Parse the content of a replica's state file.

    Raises ValueError, with the cause, for a damaged file or another version.
    """
    if data.get("version") != VERSION:
        raise ValueError(f"partition.state has version {data.get('version')!r}, not {VERSION}")
    row = data.get("row")
    # Optional fields are missing in files of earlier versions.
    end, head = data.get("remoteEnd"), data.get("head")
    try:
        return StoredState(
            topic=str(data["topic"]),
            topic_id=uuid.UUID(str(data["topicId"])),
            controller_epoch=_integer(data["controllerEpoch"]),
            tiering=Tiering(
                TieringState[str(data["tieringState"])],
                _integer(data["tieredEpoch"]),
                DisablePolicy[str(data["disablePolicy"])],
            ),
            row=None if row is None else _row_from_json(cast("Mapping[str, object]", row)),
            remote_end=None if end is None else _end_from_json(cast("Mapping[str, object]", end)),
            head_tiered_epoch=_integer(data.get("headTieredEpoch", -1)),
            tier_position=None
            if head is None
            else _position_from_json(cast("Mapping[str, object]", head)),
            tier_damaged=data.get("tierDamaged") is True,
        )
    # A damaged file is one kind of error for callers, whatever is wrong in it.
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"partition.state cannot be read: {error!r}") from error


def _row_to_json(row: control.PartitionState) -> dict[str, object]:
    """Return a partition state as a JSON object; :func:`_row_from_json` is the inverse."""
    return {
        "partition": row.partition,
        "leader": row.leader,
        "leaderEpoch": row.leader_epoch,
        "partitionEpoch": row.partition_epoch,
        "replicas": list(row.replicas),
        "isr": list(row.isr),
        "manifest": row.manifest,
        "leaderRecoveryState": row.leader_recovery_state,
        **{name: list(ids) for name, ids in _places(row).items() if ids},
    }


def _places(row: control.PartitionState) -> dict[str, tuple[int, ...]]:
    """Return the replica lists that are empty in most rows."""
    return {
        "adding": row.adding,
        "removing": row.removing,
        "elr": row.elr,
        "lastKnownElr": row.last_known_elr,
    }


def _row_from_json(data: Mapping[str, object]) -> control.PartitionState:
    """Parse the partition state in a state file. Raises KeyError, TypeError or ValueError."""
    return control.PartitionState(
        partition=_integer(data["partition"]),
        leader=_integer(data["leader"]),
        leader_epoch=_integer(data["leaderEpoch"]),
        partition_epoch=_integer(data["partitionEpoch"]),
        replicas=_integers(data["replicas"]),
        isr=_integers(data["isr"]),
        manifest=bool(data["manifest"]),
        # Fields that were added later have the defaults of the time before.
        leader_recovery_state=_recovery_state(data.get("leaderRecoveryState")),
        has_eligible_leaders=bool(data.get("elr") or data.get("lastKnownElr")),
        adding=_integers(data.get("adding", [])),
        removing=_integers(data.get("removing", [])),
        elr=_integers(data.get("elr", [])),
        last_known_elr=_integers(data.get("lastKnownElr", [])),
    )


def _recovery_state(value: object) -> int:
    """Return the recovery state; files written without it mean RECOVERED."""
    if value is None:
        return int(LeaderRecoveryState.RECOVERED)
    return int(LeaderRecoveryState(_integer(value)))


def _end_from_json(data: Mapping[str, object]) -> RemoteEnd:
    return RemoteEnd(_integer(data["offset"]), _integer(data["epoch"]))


def _position_from_json(data: Mapping[str, object]) -> HeadPosition:
    version, floor_epoch = _integer(data["version"]), _integer(data.get("floorEpoch", 0))
    return HeadPosition(version, str(data["commitId"]), floor_epoch)


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _integers(value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list")
    return tuple(_integer(item) for item in value)


# ------------------------------------------------------------ writing

# Background writer of state files that follow the state in effect, a few at a time.
#
# A state is durable before it takes effect (persist before acting), with two exceptions: a row in
# which only the ISR changes or another broker leads, and the end of the tier as it advances. The
# controller has persisted the former already. Their file is written in the background, so that no
# fetch, no answer and no new leader waits for an fsync. Code that must rely on the disk uses the
# durable values. However often a replica changes, it is queued once, so the disk's speed bounds the
# writes.

logger = logging.getLogger(__name__)

_AT_ONCE = 4
_RETRY_S = 1.0


class Replica(Protocol):
    """Replica with a state file."""

    tp: TopicPartition

    async def write_changes(self) -> None:
        """Write the current state. Raises :class:`StorageError`."""

    def storage_failed(self, error: BaseException) -> None:
        """Record a failure of the replica's disk."""


class StateWriter:
    """Queue of replicas, owned by the loop thread.

    ``retry_s``: pause before a failed write is retried.
    """

    def __init__(self, retry_s: float = _RETRY_S) -> None:
        self._retry_s = retry_s
        self._waiting: dict[Replica, None] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._retries: dict[Replica, asyncio.TimerHandle] = {}
        self._closed = False
        self._held = 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Queue writes, and start none until the block ends, because its own writes come first."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            self._start()

    def soon(self, replica: Replica) -> None:
        """Queue a write of the replica's current state."""
        if self._closed:
            return
        self._waiting[replica] = None
        self._start()

    def _start(self) -> None:
        # A few fsyncs at once are as fast as a disk gets.
        busy = sum(not worker.done() for worker in self._workers)
        idle = _AT_ONCE - busy if self._may_write() else 0
        for _ in range(min(idle, len(self._waiting))):
            task = asyncio.get_running_loop().create_task(self._work(), name="state files")
            self._workers.add(task)
            task.add_done_callback(self._workers.discard)

    async def written(self) -> None:
        """Wait until every file was written, is held back, or has failed and will be retried."""
        while self._workers:
            await asyncio.wait(self._workers)

    async def close(self) -> None:
        """Write the queued states, then nothing more."""
        self._closed = True
        for timer in self._retries.values():
            timer.cancel()
        self._retries.clear()
        self._start()
        await self.written()

    def _may_write(self) -> bool:
        return not self._held or self._closed

    async def _work(self) -> None:
        while self._waiting and self._may_write():
            replica = next(iter(self._waiting))
            del self._waiting[replica]
            try:
                await replica.write_changes()
            except StorageError as error:
                replica.storage_failed(error)
                self._again_later(replica)
            except Exception:
                logger.exception("%s: its state file cannot be written", replica.tp)

    def _again_later(self, replica: Replica) -> None:
        if not self._closed and replica not in self._retries:
            loop = asyncio.get_running_loop()
            # The replica is queued once, however often it changes meanwhile.
            self._retries[replica] = loop.call_later(self._retry_s, self._retry, replica)

    def _retry(self, replica: Replica) -> None:
        del self._retries[replica]
        self.soon(replica)
