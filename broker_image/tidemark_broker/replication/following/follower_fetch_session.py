"""Fetch session of a follower on its leader (KIP-227): requests and responses name only changes.

The session stores the follower's last request for each partition and the last reported values. A
round examines the partitions that the request names and those that are *due*: they changed here (a
:class:`Watch` records it), or the follower is not done with them. All others are at rest: the
follower has the leader's complete log, all of it is committed, and the follower is in the ISR. A
fetch of them changes only the time at which it was last caught up (see :mod:`leader`).

A session belongs to one registration of one follower. A request that is not the next one (a request
or response was lost), or one with another broker epoch, ends it. The follower then sends a full
request.
"""

import random
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from tidemark_broker.purgatory import PartitionChange, Purgatory, Watch
from tidemark_broker.replication.following.wire import (
    ForgottenPartition,
    ReplicaFetchPartition,
    ReplicaFetchRequest,
)
from tidemark_broker.replication.partition.leader import FetchRounds
from tidemark_broker.replication.types import (
    FINAL_EPOCH,
    IDLE_S,
    INITIAL_EPOCH,
    NO_SESSION,
    SESSION_ID_MAX,
    TopicIdPartition,
    TopicPartition,
    after,
    is_full,
)

#: Limit of sessions; each follower has one.
SESSIONS_MAX = 1000
PARTITIONS_MAX = 200_000
_WATCHED = (PartitionChange.LOG_END, PartitionChange.HIGH_WATERMARK, PartitionChange.LOW_WATERMARK)


class LeaderState(NamedTuple):
    """Values that a leader reports for a partition in addition to records, as in
    :class:`ReplicaFetchResult`.
    """

    leader_epoch: int
    high_watermark: int
    log_start_offset: int
    head_tiered_epoch: int
    remote_end_offset: int
    remote_end_epoch: int
    head_version: int
    tier_damaged: bool


class ReplicaCachedPartition:
    """Partition of a session (Kafka's name), with the last request and the last report."""

    __slots__ = ("is_forgotten", "key", "reported", "requested", "tp")

    def __init__(self, key: TopicIdPartition, requested: ReplicaFetchPartition) -> None:
        self.key = key
        self.requested = requested
        self.reported: LeaderState | None = None
        #: Name under which it is watched; None while it is not hosted here.
        self.tp: TopicPartition | None = None
        self.is_forgotten = False


class ReplicaFetchSession:
    """Session of one follower; ``session_id`` is 0 for a single fetch without a session."""

    def __init__(
        self, session_id: int, request: ReplicaFetchRequest, purgatory: Purgatory, now_s: float
    ) -> None:
        """Start the session that ``request`` opens; its partitions are added by :meth:`name`."""
        self.session_id = session_id
        self.broker_epoch = request.broker_epoch
        #: Epoch that the next request must have.
        self.epoch = INITIAL_EPOCH
        #: Times of the last request and of the last check of all partitions, monotonic seconds.
        self.used_s = self.checked_s = now_s
        #: Time of the last fetch, which counts for partitions that no request names.
        self.rounds = FetchRounds()
        #: Set when the session ends, so that a round that waits for the disk is dropped.
        self.ended = False
        #: Collects the partitions that changed on the leader since the last request.
        self.watch = Watch[ReplicaCachedPartition]()
        self.cached: dict[TopicIdPartition, ReplicaCachedPartition] = {}
        #: Partitions to examine in the next round; the longest waiting one comes first.
        self.due: dict[ReplicaCachedPartition, None] = {}
        self._purgatory = purgatory

    def name(self, requested: ReplicaFetchPartition) -> ReplicaCachedPartition:
        """Add or change a partition that the request names."""
        key = (requested.topic_id, requested.partition)
        cached = self.cached.get(key)
        if cached is None:
            cached = self.cached[key] = ReplicaCachedPartition(key, requested)
        cached.requested = requested
        self.due[cached] = None
        return cached

    def watch_over(self, cached: ReplicaCachedPartition, tp: TopicPartition) -> None:
        """Watch a hosted partition, so that each change makes it due."""
        cached.tp = tp
        # The high watermark travels with the next records: no follower waits for it.
        for change in _WATCHED:
            wakes = change is not PartitionChange.HIGH_WATERMARK
            self._purgatory.watch(self.watch, (change, tp), cached, wakes=wakes)

    def forget(self, key: TopicIdPartition) -> None:
        """Remove a partition that the follower no longer fetches."""
        cached = self.cached.pop(key, None)
        if cached is None:
            return
        cached.is_forgotten = True
        self.due.pop(cached, None)
        if cached.tp is not None:
            for change in _WATCHED:
                self._purgatory.unwatch(self.watch, (change, cached.tp))

    def changes(self) -> list[ReplicaCachedPartition]:
        """Return the partitions that changed since the last call, and mark them as due."""
        if not self.watch.changed:
            return []
        changed = [cached for cached in self.watch.changed if not cached.is_forgotten]
        self.watch.changed.clear()
        self.due.update(dict.fromkeys(changed))
        return changed

    def additions(self, request: ReplicaFetchRequest) -> int:
        """Return the number of partitions that a request adds."""
        return sum(
            (partition.topic_id, partition.partition) not in self.cached
            for partition in request.partitions
        )

    def close(self) -> None:
        """End the session and its watches."""
        self.ended = True
        for key in tuple(self.cached):
            self.forget(key)


class ReplicaFetchSessionCache:
    """All sessions of a leader, one for each follower, with a limit on their partitions."""

    def __init__(
        self,
        purgatory: Purgatory,
        *,
        sessions_max: int = SESSIONS_MAX,
        partitions_max: int = PARTITIONS_MAX,
    ) -> None:
        self._purgatory = purgatory
        self._sessions_max = sessions_max
        self._partitions_max = partitions_max
        self._by_replica: dict[int, ReplicaFetchSession] = {}

    def __len__(self) -> int:
        return len(self._by_replica)

    @property
    def partitions(self) -> int:
        """Number of partitions of all sessions."""
        return sum(len(session.cached) for session in self._by_replica.values())

    def of(self, request: ReplicaFetchRequest, now_s: float) -> ReplicaFetchSession | ErrorCode:
        """Return the session that a request continues or starts.

        An ErrorCode is returned instead if the session is unknown or the request is out of order.
        The follower then sends a full request, which names all its partitions.
        """
        # A full request names all partitions, so it replaces the follower's former session.
        if is_full(request.session_epoch):
            self._end(request.replica_id)
            return self._begun(request, now_s)
        session = self._by_replica.get(request.replica_id)
        if session is None or session.session_id != request.session_id:
            return ErrorCode.fetch_session_id_not_found
        # A lost request or response, another registration, or too many partitions end the session.
        if (
            request.session_epoch != session.epoch
            or request.broker_epoch != session.broker_epoch
            or (
                self.partitions + len(request.partitions) > self._partitions_max
                and self.partitions + session.additions(request) > self._partitions_max
            )
        ):
            self._end(request.replica_id)
            return ErrorCode.invalid_fetch_session_epoch
        # The next request in sequence: the session continues.
        session.epoch = after(session.epoch)
        session.used_s = now_s
        return session

    def _begun(self, request: ReplicaFetchRequest, now_s: float) -> ReplicaFetchSession:
        if request.session_epoch == FINAL_EPOCH or not self._has_room(request, now_s):
            return ReplicaFetchSession(NO_SESSION, request, self._purgatory, now_s)
        session_id = random.randint(1, SESSION_ID_MAX)
        session = ReplicaFetchSession(session_id, request, self._purgatory, now_s)
        session.epoch = after(INITIAL_EPOCH)
        self._by_replica[request.replica_id] = session
        return session

    def _has_room(self, request: ReplicaFetchRequest, now_s: float) -> bool:
        for replica_id, session in tuple(self._by_replica.items()):
            if now_s - session.used_s > IDLE_S:
                self._end(replica_id)
        return (
            len(self._by_replica) < self._sessions_max
            and self.partitions + len(request.partitions) <= self._partitions_max
        )

    def _end(self, replica_id: int) -> None:
        session = self._by_replica.pop(replica_id, None)
        if session is not None:
            session.close()


# ------------------------------------------------------------ follower

# Follower's side of a fetch session (KIP-227): selects the partitions that the next request names.
#
# A partition is named if its request differs from that in the session: its state was changed, a
# response moved its log, or its log start became durable. Pure: the desired requests are the input,
# the partitions to name and to forget are the output.


class FetchSessionHandler:
    """Session contents as the leader's responses have confirmed them."""

    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self.epoch = INITIAL_EPOCH
        self._session_partitions: dict[TopicIdPartition, ReplicaFetchPartition] = {}
        self._renewed: set[TopicIdPartition] = set()

    @property
    def session_partitions(self) -> Mapping[TopicIdPartition, ReplicaFetchPartition]:
        """Requests of every partition that the next round fetches, named or not."""
        return self._session_partitions

    @property
    def is_full(self) -> bool:
        """Whether the next request must name everything."""
        return self.epoch == INITIAL_EPOCH

    def reset(self) -> None:
        """Start a new session with a full request, after a lost response or an error."""
        self.session_id = NO_SESSION
        self.epoch = INITIAL_EPOCH
        self._session_partitions = {}
        self._renewed = set()

    def renew(self, key: TopicIdPartition) -> None:
        """Name the partition in the next request even if it is unchanged, so that it is
        answered.
        """
        if key in self._session_partitions:
            self._renewed.add(key)

    def name(
        self, requested: Iterable[ReplicaFetchPartition], forgotten: Iterable[TopicIdPartition]
    ) -> tuple[tuple[ReplicaFetchPartition, ...], tuple[ForgottenPartition, ...]]:
        """Return what the next request names of ``requested`` and of ``forgotten``."""
        named = []
        for item in requested:
            key = (item.topic_id, item.partition)
            if self._session_partitions.get(key) != item or key in self._renewed:
                self._session_partitions[key] = item
                named.append(item)
        self._renewed.clear()
        gone = [key for key in forgotten if self._session_partitions.pop(key, None) is not None]
        return tuple(named), tuple(ForgottenPartition(topic_id=k[0], partition=k[1]) for k in gone)

    def answered(self, session_id: int) -> None:
        """Continue with the session of a successful response; without one the next request is
        full.
        """
        if session_id == NO_SESSION:
            self.reset()
        else:
            self.session_id, self.epoch = session_id, after(self.epoch)
