"""Queue of markers that have not been written, and their destinations.

A decided transaction ends in every partition that it wrote to. Attempts stop only with success:
leaders move, replicas are offline for hours, answers are lost, and a repeated marker is harmless.
Each pair of transaction and partition waits separately. A partition without a leader delays only
its own transaction, and an unresponsive broker only the partitions that it leads. One request is in
flight to each broker, with all markers that have accumulated.

A partition needs no marker once its deletion is recorded. An unknown partition, or one without a
leader, keeps its marker indefinitely: after a restored backup a partition may be unknown until its
broker returns. If the marker were dropped, the transaction would never end there.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from tidemark.backoff import Backoff
from tidemark_broker.replication.types import TopicPartition

#: Instead of a leader's id: the leader is unknown at present, or the deletion is recorded.
UNKNOWN = -1
DELETED = -2
#: Markers of one request.
BATCH_MAX = 1000
#: Markers whose leader is looked up at one time.
_PLACED_AT_ONCE = 2000
_BACKOFF = Backoff(first_s=0.02, most_s=5.0)

#: Nothing is left to write: the marker is written, or the log has a higher epoch of the producer,
#: which only a later end can have caused.
_DONE = frozenset({ErrorCode.none, ErrorCode.invalid_producer_epoch})

#: Partition of ``__transaction_state``, and the transactional id.
TransactionKey = tuple[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """End of a transaction, for its partitions.

    ``coordinator_epoch`` is the leader epoch of the ``__transaction_state`` partition. Partitions
    reject a lower one than they have seen of the producer.
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    version: int


@dataclass(slots=True, eq=False)
class MarkerWrite:
    """One marker for one partition."""

    key: TransactionKey
    marker: Marker
    tp: TopicPartition
    backoff: Backoff = _BACKOFF


@dataclass(slots=True)
class _Unfinished:
    marker: Marker
    left: dict[TopicPartition, MarkerWrite] = field(default_factory=dict)


class MarkerQueue:
    """The queue.

    ``leader_of`` returns the leader of a partition, :data:`UNKNOWN` or :data:`DELETED`.
    """

    def __init__(self, leader_of: Callable[[TopicPartition], int]) -> None:
        self._leader_of = leader_of
        self._unfinished: dict[TransactionKey, _Unfinished] = {}
        self._ready: dict[MarkerWrite, None] = {}
        self._waiting: list[tuple[float, int, MarkerWrite]] = []
        self._numbers = itertools.count()
        #: Queues by broker, none of them empty.
        self._for_broker: dict[int, deque[MarkerWrite]] = {}
        self._busy: set[int] = set()
        self._finished: list[tuple[TransactionKey, Marker]] = []

    @property
    def unfinished(self) -> int:
        """Number of transactions with missing markers."""
        return len(self._unfinished)

    def add(
        self, key: TransactionKey, marker: Marker, partitions: Iterable[TopicPartition]
    ) -> None:
        """Queue a marker for partitions; it replaces an earlier one of the same id."""
        self._forget(key)
        unfinished = _Unfinished(marker)
        self._unfinished[key] = unfinished
        for tp in partitions:
            write = MarkerWrite(key, marker, tp)
            unfinished.left[tp] = write
            self._ready[write] = None
        self._look(key)

    def drop(self, partition: int) -> None:
        """Drop markers of a ``__transaction_state`` partition that this broker no longer
        coordinates.
        """
        for key in [key for key in self._unfinished if key[0] == partition]:
            self._forget(key)

    def left(self, key: TransactionKey) -> AbstractSet[TopicPartition]:
        """Partitions of the transaction without a marker."""
        unfinished = self._unfinished.get(key)
        return frozenset() if unfinished is None else unfinished.left.keys()

    def finished(self) -> Sequence[tuple[TransactionKey, Marker]]:
        """Return transactions whose markers are all written, once each."""
        finished, self._finished = self._finished, []
        return finished

    # ------------------------------------------------------------ sending

    def next_s(self) -> float | None:
        """Return the time of the next batches without other events, None for never."""
        if self._ready or not self._busy.issuperset(self._for_broker):
            return float("-inf")  # more was ready than one pass handles, or leaders moved
        return self._waiting[0][0] if self._waiting else None

    def batches(self, now_s: float) -> Mapping[int, Sequence[MarkerWrite]]:
        """Return the markers to send now: a batch for each broker without a request in flight.

        The result of each batch must be reported by :meth:`answered`, also if the request failed.
        """
        # Retries whose back-off is over become ready.
        while self._waiting and self._waiting[0][0] <= now_s:
            self._ready[heapq.heappop(self._waiting)[2]] = None
        # Look up the leaders of ready markers. A bounded number per pass, since a restart may make
        # a hundred thousand ready at once.
        for write in list(itertools.islice(self._ready, _PLACED_AT_ONCE)):
            del self._ready[write]
            if self._is_current(write):
                self._place(write, now_s)
        batches = {}
        # One request per broker in flight, so a slow broker accumulates a larger batch.
        for broker in [node for node in self._for_broker if node not in self._busy]:
            batch = self._take(broker, now_s)
            if batch:
                batches[broker] = batch
                self._busy.add(broker)
        return batches

    def answered(
        self,
        broker: int,
        batch: Sequence[MarkerWrite],
        errors: Callable[[MarkerWrite], ErrorCode],
        now_s: float,
    ) -> None:
        """Handle the error codes of a batch, or the failure of its request.

        ``errors`` returns the code for a marker. Everything except :data:`_DONE` is retried with
        back-off, at the leader that the partition has then.
        """
        self._busy.discard(broker)
        for write in batch:
            # The transaction may have been dropped or replaced while the request was in flight.
            if not self._is_current(write):
                continue
            if errors(write) in _DONE:
                self._done(write)
            else:
                self._later(write, now_s)

    # ------------------------------------------------------------ internal

    def _place(self, write: MarkerWrite, now_s: float) -> None:
        """Queue a marker for the current leader."""
        leader = self._leader_of(write.tp)
        # Deleted partitions count as written, unknown ones wait.
        if leader >= 0:
            self._for_broker.setdefault(leader, deque()).append(write)
        elif leader == DELETED:
            self._done(write)
        else:
            self._later(write, now_s)

    def _take(self, broker: int, now_s: float) -> Sequence[MarkerWrite]:
        """Take up to ``BATCH_MAX`` markers for the broker from its queue.

        Markers whose partition has another leader meanwhile are queued for that one. Those of
        transactions that ended meanwhile are dropped.
        """
        queue = self._for_broker.pop(broker)
        batch: list[MarkerWrite] = []
        for _ in range(min(len(queue), BATCH_MAX)):
            write = queue.popleft()
            if not self._is_current(write):
                continue
            if self._leader_of(write.tp) == broker:
                batch.append(write)
            else:
                self._place(write, now_s)
        if queue:
            self._for_broker[broker] = queue
        return batch

    def _is_current(self, write: MarkerWrite) -> bool:
        unfinished = self._unfinished.get(write.key)
        return unfinished is not None and unfinished.left.get(write.tp) is write

    def _done(self, write: MarkerWrite) -> None:
        del self._unfinished[write.key].left[write.tp]
        self._look(write.key)

    def _look(self, key: TransactionKey) -> None:
        unfinished = self._unfinished[key]
        if not unfinished.left:
            del self._unfinished[key]
            self._finished.append((key, unfinished.marker))

    def _later(self, write: MarkerWrite, now_s: float) -> None:
        # Each marker backs off separately, up to 5 s.
        write.backoff = write.backoff.failed(now_s)
        heapq.heappush(self._waiting, (write.backoff.until_s, next(self._numbers), write))

    def _forget(self, key: TransactionKey) -> None:
        """Drop a transaction. Its queued markers are skipped when their turn comes."""
        self._unfinished.pop(key, None)
        self._finished = [entry for entry in self._finished if entry[0] != key]
