"""The coordinators of one internal topic: which partitions this broker answers for, and since when.

Whoever leads a partition of the topic coordinates what hashes to it. With a new leader epoch all of
it is loaded anew; with a lost one it is given up at once, and whoever waits is told to look for
the coordinator. While it loads, and until what its epoch began with is committed, the answer is
COORDINATOR_LOAD_IN_PROGRESS: nobody is told what a later leader might not know.
"""

import asyncio
import enum
import logging
import time
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, Protocol, TypeVar

from kio.schema.errors import ErrorCode

from tidemark.records.batch import CorruptBatch
from tidemark_broker.coordinators.coordinator_lookup import Finder
from tidemark_broker.coordinators.deadlines import Deadlines
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.coordinators.log import CoordinatorLog
from tidemark_broker.coordinators.partition_loading import Loaded, Replayed, in_loading_thread, load
from tidemark_broker.log import LogError
from tidemark_broker.purgatory import Change, Purgatory, Watch
from tidemark_broker.replication.metadata import MetadataCache
from tidemark_broker.replication.partition import Partition

logger = logging.getLogger(__name__)

#: How long to wait before a log that could not be read is read again.
_LOAD_RETRY_S = 5.0
#: For so long what is due is worked on before others have the loop.
_SLICE_S = 0.005
#: A timer may fire a millisecond early: nothing is slept shorter.
_SLEEP_MIN_S = 0.001
_SLEEP_MAX_S = 3600.0
_NO_ROOM_S = 0.05


class Shard(Replayed, Protocol):
    """What is kept in one partition. The loop's, but for what :class:`Replayed` says."""

    def loaded(self, now_s: float) -> None:
        """It is active from now on, and may set deadlines."""

    def expired(self, key: Hashable, now_s: float) -> None:
        """A deadline that it has set is over."""

    def resigned(self) -> None:
        """It is not used any more: fail what waits; what was set is forgotten."""


S = TypeVar("S", bound=Shard)


class State(enum.Enum):
    """Of a coordinator on one partition."""

    LOADING = enum.auto()
    ACTIVE = enum.auto()


class _Seat(Generic[S]):
    """One partition in one leader epoch."""

    def __init__(self, log: CoordinatorLog, shard: S, deadlines: Deadlines[Hashable]) -> None:
        self.log = log
        self.shard = shard
        self.deadlines = deadlines
        self.state = State.LOADING


class Coordinators(Generic[S]):
    """The loop thread owns it. ``make`` makes the state of a partition, its deadlines in seconds of
    ``now``; ``want``: asks for the topic where it is not there, and may be asked often."""

    def __init__(
        self,
        topic: str,
        make: Callable[[CoordinatorLog, Deadlines[Hashable]], S],
        *,
        cluster: MetadataCache,
        purgatory: Purgatory,
        want: Callable[[str], None],
        now: Callable[[], float],
    ) -> None:
        self.topic = topic
        self._make = make
        self._finder = Finder(cluster, want)
        self._purgatory = purgatory
        self._now = now
        self._seats: dict[int, _Seat[S]] = {}
        self._loads: set[asyncio.Task[None]] = set()
        self._watch: Watch[int] = Watch()
        self._earlier = asyncio.Event()
        #: The partition whose deadlines are looked at first, in turn.
        self._first_due = 0

    # ------------------------------------------------------------ who coordinates what

    def partition_of(self, key: str) -> int:
        """See :meth:`Finder.partition_of`."""
        return self._finder.partition_of(self.topic, key)

    def shard_of(self, key: str) -> S:
        """The state in which ``key`` is; raises :class:`CoordinatorError` where another broker
        coordinates it (NOT_COORDINATOR), or this one cannot yet, or its partition is in doubt
        (COORDINATOR_LOAD_IN_PROGRESS)."""
        return self.shard_at(self.partition_of(key))

    def shard_at(self, number: int) -> S:
        """The same of one partition."""
        seat = self._seats.get(number)
        if seat is None:
            # The leader of a partition in doubt is not known, so the client must not look for
            # another coordinator.
            in_doubt = self._finder.is_in_doubt(self.topic, number)
            raise CoordinatorError(
                ErrorCode.coordinator_load_in_progress if in_doubt else ErrorCode.not_coordinator
            )
        seat.log.check()
        if seat.state is State.LOADING:
            raise CoordinatorError(ErrorCode.coordinator_load_in_progress)
        return seat.shard

    def held_at(self, number: int) -> S | None:
        """The state of a partition that this broker coordinates, though it may have to be silent at
        this moment (its loop stood still for longer than its session): for what is true all the
        same, and will not be told again. None: it does not, or not yet."""
        seat = self._seats.get(number)
        return seat.shard if seat is not None and _is_in_use(seat) else None

    def active(self) -> Iterator[S]:
        """All that can be asked at present."""
        for seat in tuple(self._seats.values()):
            if _is_in_use(seat):
                yield seat.shard

    @property
    def loading(self) -> bool:
        """Is any partition of those led here still being read?"""
        return any(seat.state is State.LOADING for seat in self._seats.values())

    # ------------------------------------------------------------ roles

    def role_changed(self, partition: Partition) -> None:
        """A replica leads, in another epoch than before, or does not lead any more."""
        if partition.topic != self.topic:
            return
        seat = self._seats.get(partition.partition)
        leads = partition.is_leader and not partition.removed
        if seat is not None:
            same = seat.log.partition is partition
            if leads and same and seat.log.leader_epoch == partition.leader_epoch:
                return
            if same or leads:
                self._resign(seat)
        if leads:
            self._begin(partition)

    def _begin(self, partition: Partition) -> None:
        seat = self._new_seat(partition)
        self._seats[partition.partition] = seat
        key = (Change.HIGH_WATERMARK, partition.tp)
        self._purgatory.watch(self._watch, key, partition.partition)
        task = asyncio.get_running_loop().create_task(self._load(seat))
        self._loads.add(task)
        task.add_done_callback(self._loads.discard)

    def _new_seat(self, partition: Partition) -> _Seat[S]:
        log, deadlines = CoordinatorLog(partition), Deadlines[Hashable](self._earlier.set)
        return _Seat(log, self._make(log, deadlines), deadlines)

    def _resign(self, seat: _Seat[S]) -> None:
        partition = seat.log.partition
        del self._seats[partition.partition]
        self._purgatory.unwatch(self._watch, (Change.HIGH_WATERMARK, partition.tp))
        seat.log.end()
        if seat.state is State.ACTIVE:
            seat.shard.resigned()
        logger.info("%s: coordinates no more in epoch %d", partition.tp, seat.log.leader_epoch)

    # ------------------------------------------------------------ loading

    async def _load(self, seat: _Seat[S]) -> None:
        began_s = self._now()
        loaded = await self._load_until_read(seat)
        if loaded is None or seat.log.ended:
            return
        seat.state = State.ACTIVE
        seat.shard.loaded(self._now())
        logger.info(
            "%s: coordinates in epoch %d; %d records (%d bytes) in %.3f s",
            seat.log.partition.tp,
            seat.log.leader_epoch,
            loaded.records,
            loaded.bytes_read,
            self._now() - began_s,
        )

    async def _load_until_read(self, seat: _Seat[S]) -> Loaded | None:
        """None once another leads."""
        partition, end_offset = seat.log.partition, seat.log.loaded_below
        while not seat.log.ended:
            try:
                loaded = await in_loading_thread(
                    load, partition.log, seat.shard, end_offset, lambda: seat.log.ended
                )
                await seat.log.committed(end_offset)
            except CoordinatorError:
                return None
            except (CorruptBatch, LogError, ValueError) as error:
                logger.error(  # noqa: TRY400 - what is wrong is in the log, not in the program
                    "%s: cannot coordinate, for its records cannot be read: %s; trying again in "
                    "%.0f s",
                    partition.tp,
                    error,
                    _LOAD_RETRY_S,
                )
                await asyncio.sleep(_LOAD_RETRY_S)
                seat.shard = self._make(seat.log, seat.deadlines)
            else:
                return loaded
        return None

    # ------------------------------------------------------------ what happens by itself

    async def run(self) -> None:
        """Tell who waits what is committed, and what is due; until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_high_watermarks())
            group.create_task(self._keep_deadlines())

    async def _follow_high_watermarks(self) -> None:
        watch = self._watch
        while True:
            if not await self._purgatory.wait([watch], lambda: bool(watch.changed), _SLEEP_MAX_S):
                await asyncio.sleep(_NO_ROOM_S)  # else a full purgatory would be asked without end
            changed, watch.changed = watch.changed, {}
            for number in changed:
                seat = self._seats.get(number)
                if seat is not None:
                    seat.log.high_watermark_moved()

    async def _keep_deadlines(self) -> None:
        while True:
            self._earlier.clear()
            wait_s = self._expire()
            try:
                async with asyncio.timeout(wait_s):
                    await self._earlier.wait()
            except TimeoutError:
                pass

    def _expire(self) -> float:
        """Work on some of what is due, for a slice of the loop's time; in how many seconds there is
        more. What is due of many groups may be so at once, and one may take long."""
        now_s, wait_s = self._now(), _SLEEP_MAX_S
        until_s = time.perf_counter() + _SLICE_S
        seats = tuple(self._seats.values())
        self._first_due += 1
        for number in range(len(seats)):
            seat = seats[(self._first_due + number) % len(seats)]
            if seat.state is not State.ACTIVE:
                continue
            while time.perf_counter() < until_s and (keys := seat.deadlines.due(now_s, 1)):
                self._expire_one(seat, keys[0], now_s)
            next_s = seat.deadlines.next_s()
            if next_s is not None:
                wait_s = min(wait_s, next_s - now_s)
        return max(wait_s, _SLEEP_MIN_S)

    def _expire_one(self, seat: _Seat[S], key: Hashable, now_s: float) -> None:
        """What goes wrong with one must not keep the others waiting."""
        try:
            seat.shard.expired(key, now_s)
        except Exception:
            logger.exception("%s: what was due of %s failed", seat.log.partition.tp, key)

    async def close(self) -> None:
        """Coordinate nothing any more."""
        for seat in tuple(self._seats.values()):
            self._resign(seat)
        for task in self._loads:
            task.cancel()
        await asyncio.gather(*self._loads, return_exceptions=True)


def _is_in_use(seat: _Seat[S]) -> bool:
    return seat.state is State.ACTIVE and not seat.log.ended
