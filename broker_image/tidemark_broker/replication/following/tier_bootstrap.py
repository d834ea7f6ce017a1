"""Start of followers' logs from the tier, if their leader's local log starts above their end.

The store may be slow or unreachable. So each such replica has its own task, which the fetch round
of the others never waits for. It queries the tier without the replica's lock. The result is void if
role, epoch or log end have changed meanwhile.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from tidemark_broker.log import StorageError
from tidemark_broker.replication.following.follower import FetchOutcome, start_at, still_applies
from tidemark_broker.replication.following.wire import ReplicaFetchPartition, ReplicaFetchResult
from tidemark_broker.replication.partition import Partition, remote_end
from tidemark_broker.replication.remote import (
    BootstrapPoint,
    RemoteOffsetOutOfRange,
    RemoteUnavailable,
)
from tidemark_broker.replication.types import TopicPartition
from tidemark_broker.tasks import cancel

logger = logging.getLogger(__name__)

AT_ONCE = 8
_TIMEOUT_S = 30.0


class FromTier:
    """Starts in progress, owned by the loop thread.

    At most :data:`AT_ONCE` replicas query the store at a time.
    """

    def __init__(self) -> None:
        self._tasks: dict[TopicPartition, tuple[int, asyncio.Task[None]]] = {}
        self._limit = asyncio.Semaphore(AT_ONCE)

    def __contains__(self, tp: TopicPartition) -> bool:
        return tp in self._tasks

    @property
    def running(self) -> Iterable[asyncio.Task[None]]:
        """Tasks of the starts in progress."""
        return [task for _, task in self._tasks.values()]

    def begin(
        self,
        partition: Partition,
        requested: ReplicaFetchPartition,
        leader: ReplicaFetchResult,
        ended: Callable[[FetchOutcome], None],
    ) -> None:
        """Start a task that starts one replica's log from the tier.

        ``requested`` and ``leader``: the fetch and its result OFFSET_MOVED_TO_TIERED_STORAGE.
        ``ended`` receives the outcome, unless the start is given up first.
        """
        tp = partition.tp

        async def run() -> None:
            try:
                async with self._limit:
                    outcome = await start_from_tier(partition, requested, leader)
            except Exception:
                logger.exception("%s: the start from the tier failed", tp)
                outcome = FetchOutcome.BACK_OFF
            finally:
                # A newer start of the same partition may have replaced this one.
                if self._tasks.get(tp, (0, None))[1] is asyncio.current_task():
                    del self._tasks[tp]
            ended(outcome)

        # A start in an older leader epoch is cancelled by give_up.
        task = asyncio.get_running_loop().create_task(run(), name=f"start of {tp} from the tier")
        self._tasks[tp] = requested.current_leader_epoch, task

    def give_up(self, tp: TopicPartition, *, unless_epoch: int = -1) -> None:
        """Cancel the start of a replica that no longer follows, or follows in another epoch
        than ``unless_epoch``.
        """
        epoch, task = self._tasks.get(tp, (unless_epoch, None))
        if task is not None and epoch != unless_epoch:
            del self._tasks[tp]
            task.cancel()

    async def close(self) -> None:
        """Cancel all starts and wait for them."""
        await cancel(self.running)


async def start_from_tier(
    partition: Partition, requested: ReplicaFetchPartition, leader: ReplicaFetchResult
) -> FetchOutcome:
    """Restart a follower's log after what the tier has, so that it can fetch the rest (KIP-405).

    ``leader``: the leader's result OFFSET_MOVED_TO_TIERED_STORAGE for the fetch ``requested``.
    Return the follower's next step; an unavailable tier is ``BACK_OFF``.
    """
    # The tier is queried without the lock, so that role changes do not wait for the store.
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            point = await _bootstrap_point(partition, leader)
    except (RemoteUnavailable, RemoteOffsetOutOfRange) as error:
        logger.warning("%s: the start from the tier failed: %s", partition.tp, error)
        return FetchOutcome.BACK_OFF
    except TimeoutError:
        logger.warning("%s: the tier did not answer within %.0f s", partition.tp, _TIMEOUT_S)
        return FetchOutcome.BACK_OFF
    # The state may have changed during the query, which voids its result.
    async with partition.lock:
        if not still_applies(partition, requested):
            return FetchOutcome.IDLE
        try:
            await _start(partition, leader, point)
        except StorageError as error:
            partition.storage_failed(error)
            return FetchOutcome.BACK_OFF
    return FetchOutcome.PROGRESS


async def _bootstrap_point(partition: Partition, leader: ReplicaFetchResult) -> BootstrapPoint:
    remote = partition.context.remote
    if remote is None:
        raise RemoteUnavailable(
            "this broker has no remote storage, but its leader's log starts in the tier"
        )
    return await remote.bootstrap(partition, leader.local_log_start_offset)


async def _start(partition: Partition, leader: ReplicaFetchResult, point: BootstrapPoint) -> None:
    """Restart the log at the point that the tier returned, and record the tier's end.

    The caller holds ``lock``, and nothing has changed since the query.
    """
    # The leader may have deleted more than the manifest says.
    log_start = max(leader.log_start_offset, point.log_start_offset)
    await start_at(
        partition,
        point.next_offset,
        log_start,
        tuple(point.epochs),
        point.producer_snapshot,
        point.recent_batches,
    )
    remote_end.note(
        partition, point.next_offset - 1, point.epochs[-1].epoch if point.epochs else -1
    )
