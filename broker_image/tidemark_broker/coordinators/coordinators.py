"""Coordinators of one internal topic: partitions that this broker coordinates, and their lifecycle.

The leader of a partition coordinates the keys that hash to it. With a new leader epoch the
partition is loaded completely. With a lost one it is given up at once, and waiting requests fail
with NOT_COORDINATOR. While it loads, and until the log is committed up to the start of its epoch,
the answer is COORDINATOR_LOAD_IN_PROGRESS: a client must not see state that a later leader might
not have.
"""

import asyncio
import logging
import struct
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from kio.schema.errors import ErrorCode

from tidemark.records.batch import BatchHeader, CorruptBatch, check_crc, iter_headers
from tidemark.records.decode import decode_records
from tidemark_broker.coordinators.coordinator_lookup import CoordinatorFinder
from tidemark_broker.coordinators.deadlines import Deadlines
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.coordinators.log import (
    CoordinatorLog,
    CoordinatorRecord,
    TransactionalProducer,
)
from tidemark_broker.log import LogError, PartitionLog, reading
from tidemark_broker.purgatory import PartitionChange, Purgatory, Watch
from tidemark_broker.replication.metadata import MetadataCache
from tidemark_broker.replication.partition import Partition
from tidemark_broker.replication.threads import ThreadPool
from tidemark_broker.tasks import cancel, set_within, start_in

logger = logging.getLogger(__name__)

#: Pause before an unreadable log is loaded again.
_LOAD_RETRY_S = 5.0
#: Time for expired deadlines before the loop is yielded.
_SLICE_S = 0.005
#: Shortest sleep, because a timer may fire a millisecond early.
_SLEEP_MIN_S = 0.001
_SLEEP_MAX_S = 3600.0
_NO_ROOM_S = 0.05


# ------------------------------------------------------------ replay of a partition

# A partition is replayed from its first record to the start of the epoch. This runs in a thread,
# since a log may be long; nothing else uses the state until then. The tier is not involved:
# internal topics are compacted, and compacted topics are not tiered.

READ_BYTES = 1024 * 1024
#: A control record's key: version, and abort (0) or commit (1).
_MARKER = struct.Struct(">hh")
_COMMIT = 1

in_loading_thread = ThreadPool("coordinators that load", threads=2)


class Replayed(Protocol):
    """Target of the replay, called in a thread."""

    def replay(
        self, record: CoordinatorRecord, producer: TransactionalProducer | None, offset: int
    ) -> None:
        """Apply one record, of ``producer``'s transaction if set.

        Raises ``ValueError`` for an unreadable record; the coordinator then does not become active.
        """

    def replay_marker(self, producer: TransactionalProducer, *, committed: bool) -> None:
        """Apply the end of a transaction."""


class Loaded(NamedTuple):
    """Amount that was read."""

    records: int
    bytes_read: int


def load(
    log: PartitionLog, into: Replayed, end_offset: int, given_up: Callable[[], bool]
) -> Loaded:
    """Replay all records below ``end_offset`` of a log into ``into``. Blocks.

    Stops early once ``given_up`` returns True. Raises :class:`CorruptBatch` and errors of the log.
    """
    records = bytes_read = 0
    offset = log.log_start_offset
    while offset < end_offset and not given_up():
        # Reading stops at the epoch's start: later records are applied as they are appended.
        read = reading.read(
            log, offset, max_bytes=READ_BYTES, up_to_offset=end_offset, min_one=True
        )
        if not read.data:
            break
        view = memoryview(read.data)
        for position, header in iter_headers(view):
            # The checksum is verified, since a damaged record would change the state silently.
            check_crc(view, position, header)
            records += _replay(view[position : position + header.size_bytes], header, into)
        offset = read.next_offset
        bytes_read += len(read.data)
    return Loaded(records, bytes_read)


def _replay(batch: memoryview, header: BatchHeader, into: Replayed) -> int:
    producer = None
    if header.is_transactional:
        producer = TransactionalProducer(header.producer_id, header.producer_epoch)
    for record in decode_records(batch):
        # Compaction needs keys, so a record without one is damage.
        if record.key is None:
            raise CorruptBatch(f"the record at offset {record.offset} has no key")
        if not header.is_control:
            into.replay(CoordinatorRecord(record.key, record.value), producer, record.offset)
        elif producer is not None and len(record.key) >= _MARKER.size:
            _, kind = _MARKER.unpack_from(record.key)
            into.replay_marker(producer, committed=kind == _COMMIT)
    return header.count


# ------------------------------------------------------------ life of a partition


class Shard(Replayed, Protocol):
    """State of one partition. Used from the loop, except for the methods of :class:`Replayed`."""

    def loaded(self, now_s: float) -> None:
        """Become active. From now on deadlines may be set."""

    def expired(self, key: Hashable, now_s: float) -> None:
        """Handle an expired deadline."""

    def resigned(self) -> None:
        """Stop: fail waiting requests. Deadlines are dropped."""


S = TypeVar("S", bound=Shard)


@dataclass(slots=True, eq=False)
class _PartitionCoordinator(Generic[S]):
    """Coordinator of one partition in one leader epoch. It is loading until it is active."""

    log: CoordinatorLog
    shard: S
    deadlines: Deadlines[Hashable]
    is_active: bool = False

    @property
    def is_in_use(self) -> bool:
        return self.is_active and not self.log.ended


class Coordinators(Generic[S]):
    """Coordination of one internal topic by this broker. Used from the loop thread only.

    ``topic`` is ``__consumer_offsets`` or ``__transaction_state``. ``make`` creates the in-memory
    state (shard) of a partition, with deadlines in seconds of ``now``. ``request_topic`` requests
    the creation of a missing topic. It may be called any number of times.
    """

    def __init__(
        self,
        topic: str,
        make: Callable[[CoordinatorLog, Deadlines[Hashable]], S],
        *,
        cluster: MetadataCache,
        purgatory: Purgatory,
        request_topic: Callable[[str], None],
        now: Callable[[], float],
    ) -> None:
        """Create the coordination of ``topic``, without any partition yet.

        Partitions are added by :meth:`role_changed` when this broker becomes their leader.
        """
        self.topic = topic
        self._make = make
        self._finder = CoordinatorFinder(cluster, request_topic)
        self._purgatory = purgatory
        self._now = now
        #: Coordinated partitions by number, including those that are loading.
        self._coordinators: dict[int, _PartitionCoordinator[S]] = {}
        #: Tasks that load partitions.
        self._loads: set[asyncio.Task[None]] = set()
        #: Collects the numbers of partitions whose high watermark has moved.
        self._watch: Watch[int] = Watch()
        #: Set when a deadline is added that expires before the one that is waited for.
        self._earlier = asyncio.Event()
        #: Partition whose deadlines come first, in rotation.
        self._first_due = 0

    # ------------------------------------------------------------ lookup

    def partition_of(self, key: str) -> int:
        """Return the partition of a key. See :meth:`CoordinatorFinder.partition_of`."""
        return self._finder.partition_of(self.topic, key)

    def shard_of(self, key: str) -> S:
        """Return the state that contains ``key``.

        Raises :class:`CoordinatorError`: NOT_COORDINATOR if another broker coordinates it,
        COORDINATOR_LOAD_IN_PROGRESS if this one is loading or the partition is in doubt.
        """
        return self.shard_at(self.partition_of(key))

    def shard_at(self, number: int) -> S:
        """Return the state of a partition. Raises as :meth:`shard_of`."""
        coordinator = self._coordinators.get(number)
        if coordinator is None:
            # The leader of a partition in doubt is not known, so the client must not look for
            # another coordinator.
            in_doubt = self._finder.is_in_doubt(self.topic, number)
            raise CoordinatorError(
                ErrorCode.coordinator_load_in_progress if in_doubt else ErrorCode.not_coordinator
            )
        coordinator.log.check()
        if not coordinator.is_active:
            raise CoordinatorError(ErrorCode.coordinator_load_in_progress)
        return coordinator.shard

    def loaded_shard_at(self, number: int) -> S | None:
        """Return the state of a partition even if this broker must not answer at the moment.

        The loop may have stalled for longer than the session. For events that will not be repeated.
        None if this broker does not coordinate the partition, or is still loading it.
        """
        coordinator = self._coordinators.get(number)
        return coordinator.shard if coordinator is not None and coordinator.is_in_use else None

    def active(self) -> Iterator[S]:
        """Yield all active states."""
        for coordinator in tuple(self._coordinators.values()):
            if coordinator.is_in_use:
                yield coordinator.shard

    @property
    def loading(self) -> bool:
        """True while any partition is loading."""
        return not all(coordinator.is_active for coordinator in self._coordinators.values())

    # ------------------------------------------------------------ roles

    def role_changed(self, partition: Partition) -> None:
        """Start, keep or end the coordination of a partition after a change of its leadership.

        Called for every replica whose leader or leader epoch has changed.
        """
        if partition.topic != self.topic:
            return
        coordinator = self._coordinators.get(partition.partition)
        leads = partition.is_leader and not partition.removed
        if coordinator is not None:
            # Another partition object means that the replica was recreated, so its log must be read
            # again.
            same = coordinator.log.partition is partition
            if leads and same and coordinator.log.leader_epoch == partition.leader_epoch:
                return
            # A late change of a removed partition object must not end its successor's coordination.
            if same or leads:
                self._resign(coordinator)
        if leads:
            self._begin(partition)

    def _begin(self, partition: Partition) -> None:
        log, deadlines = CoordinatorLog(partition), Deadlines[Hashable](self._earlier.set)
        coordinator = _PartitionCoordinator(log, self._make(log, deadlines), deadlines)
        self._coordinators[partition.partition] = coordinator
        # Watched before loading, because the load waits for commits of its own partition.
        key = (PartitionChange.HIGH_WATERMARK, partition.tp)
        self._purgatory.watch(self._watch, key, partition.partition)
        start_in(self._loads, self._load(coordinator))

    def _resign(self, coordinator: _PartitionCoordinator[S]) -> None:
        partition = coordinator.log.partition
        del self._coordinators[partition.partition]
        self._purgatory.unwatch(self._watch, (PartitionChange.HIGH_WATERMARK, partition.tp))
        coordinator.log.end()
        # A state that never became active has no waiters.
        if coordinator.is_active:
            coordinator.shard.resigned()
        logger.info(
            "%s: stopped coordinating in epoch %d", partition.tp, coordinator.log.leader_epoch
        )

    # ------------------------------------------------------------ loading

    async def _load(self, coordinator: _PartitionCoordinator[S]) -> None:
        """Load one partition's state from its log, then let it serve clients.

        Does nothing further if this broker lost the leadership meanwhile.
        """
        began_s = self._now()
        loaded = await self._load_until_read(coordinator)
        if loaded is None or coordinator.log.ended:
            return
        # No await from the check to here, so the leadership cannot change in between.
        coordinator.is_active = True
        coordinator.shard.loaded(self._now())
        logger.info(
            "%s: coordinates in epoch %d; %d records (%d bytes) in %.3f s",
            coordinator.log.partition.tp,
            coordinator.log.leader_epoch,
            loaded.records,
            loaded.bytes_read,
            self._now() - began_s,
        )

    async def _load_until_read(self, coordinator: _PartitionCoordinator[S]) -> Loaded | None:
        """Replay the partition's log into the shard, with retries.

        Return how much was read, or None if this broker lost the leadership first. A damaged log is
        retried without end, since it may be repaired while the broker runs.
        """
        partition, end_offset = coordinator.log.partition, coordinator.log.loaded_below
        while not coordinator.log.ended:
            try:
                loaded = await in_loading_thread(
                    load,
                    partition.log,
                    coordinator.shard,
                    end_offset,
                    lambda: coordinator.log.ended,
                )
                # Records before the epoch are only reliable once this leader has committed them.
                await coordinator.log.committed(end_offset)
            except CoordinatorError:
                return None
            except (CorruptBatch, LogError, ValueError) as error:
                logger.error(  # noqa: TRY400 - the log is damaged, so a traceback does not help
                    "%s: the coordinator's records are not readable: %s; next attempt in %.0f s",
                    partition.tp,
                    error,
                    _LOAD_RETRY_S,
                )
                await asyncio.sleep(_LOAD_RETRY_S)
                # The failed attempt has filled the state partly.
                coordinator.shard = self._make(coordinator.log, coordinator.deadlines)
            else:
                return loaded
        return None

    # ------------------------------------------------------------ background work

    async def run(self) -> None:
        """Notify waiters of commits and handle deadlines until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_high_watermarks())
            group.create_task(self._keep_deadlines())

    async def _follow_high_watermarks(self) -> None:
        watch = self._watch
        while True:
            if not await self._purgatory.wait([watch], lambda: bool(watch.changed), _SLEEP_MAX_S):
                await asyncio.sleep(_NO_ROOM_S)  # a full purgatory returns at once
            # Swapped first, since a notification may arrive while waiters run.
            changed, watch.changed = watch.changed, {}
            for number in changed:
                coordinator = self._coordinators.get(number)
                if coordinator is not None:
                    coordinator.log.high_watermark_moved()

    async def _keep_deadlines(self) -> None:
        while True:
            self._earlier.clear()
            wait_s = self._expire()
            await set_within(self._earlier, wait_s)

    def _expire(self) -> float:
        """Handle expired deadlines for one time slice. Return the seconds until the next call.

        Deadlines of many groups may expire together, and one may take long. The rest is handled in
        the next slice, so that requests are served between.
        """
        now_s, wait_s = self._now(), _SLEEP_MAX_S
        until_s = time.perf_counter() + _SLICE_S
        coordinators = tuple(self._coordinators.values())
        # The first partition rotates, so that one with many deadlines does not delay the others.
        self._first_due += 1
        for number in range(len(coordinators)):
            coordinator = coordinators[(self._first_due + number) % len(coordinators)]
            if not coordinator.is_active:
                continue
            # One deadline at a time, because its handler may remove others.
            while time.perf_counter() < until_s and (keys := coordinator.deadlines.due(now_s, 1)):
                self._expire_one(coordinator, keys[0], now_s)
            # In the past if the slice ended before all expired deadlines were handled.
            next_s = coordinator.deadlines.next_s()
            if next_s is not None:
                wait_s = min(wait_s, next_s - now_s)
        return max(wait_s, _SLEEP_MIN_S)

    def _expire_one(
        self, coordinator: _PartitionCoordinator[S], key: Hashable, now_s: float
    ) -> None:
        """Handle one deadline. An error must not affect the others."""
        try:
            coordinator.shard.expired(key, now_s)
        except Exception:
            logger.exception("%s: the deadline %s failed", coordinator.log.partition.tp, key)

    async def close(self) -> None:
        """Give up all partitions and cancel loading."""
        for coordinator in tuple(self._coordinators.values()):
            self._resign(coordinator)
        await cancel(self._loads)
