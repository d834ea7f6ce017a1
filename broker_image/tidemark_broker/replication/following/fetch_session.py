"""A follower's fetch session on its leader (KIP-227): only what changed is named, only news
answered.

The session keeps what the follower last asked of each partition and what it was last told. A round
looks at the partitions that the request names and at those that are *due*: something of them has
changed here (a :class:`Watch` notes it), or the follower is not done with them. All others are at
rest: the follower has the leader's whole log, all of it is committed, and the follower is in the
ISR; a fetch of them changes nothing but the time at which it was last caught up (see
:mod:`leader`).

A session belongs to one registration of one follower. A request that is not its next one (an answer
or a request was lost) and one under another broker epoch end it; the follower then names everything
again.
"""

import random
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from tidemark_broker.purgatory import Change, Purgatory, Watch
from tidemark_broker.replication.fetch_metadata import (
    FINAL_EPOCH,
    IDLE_S,
    INITIAL_EPOCH,
    NO_SESSION,
    SESSION_ID_MAX,
    after,
    is_full,
)
from tidemark_broker.replication.following.wire import ReplicaFetchPartition, ReplicaFetchRequest
from tidemark_broker.replication.partition.leader import FetchRounds
from tidemark_broker.replication.types import TopicIdPartition, TopicPartition

#: There is one session for each follower.
SESSIONS_MAX = 1000
PARTITIONS_MAX = 200_000
_WATCHED = (Change.LOG_END, Change.HIGH_WATERMARK, Change.LOW_WATERMARK)


class LeaderState(NamedTuple):
    """What a leader reports of a partition beside records; as in :class:`ReplicaFetchResult`."""

    leader_epoch: int
    high_watermark: int
    log_start_offset: int
    head_tiered_epoch: int
    remote_end_offset: int
    remote_end_epoch: int
    head_version: int
    tier_damaged: bool


class CachedPartition:
    """One partition of a session (Kafka's name): what its follower last asked and was last told."""

    __slots__ = ("is_forgotten", "key", "reported", "requested", "tp")

    def __init__(self, key: TopicIdPartition, requested: ReplicaFetchPartition) -> None:
        self.key = key
        self.requested = requested
        self.reported: LeaderState | None = None
        #: Under which name it is watched; None while it is not hosted here.
        self.tp: TopicPartition | None = None
        self.is_forgotten = False


class FetchSession:
    """One follower's; ``session_id`` 0 for a single fetch that wants no session."""

    def __init__(
        self, session_id: int, request: ReplicaFetchRequest, purgatory: Purgatory, now_s: float
    ) -> None:
        self.session_id = session_id
        self.broker_epoch = request.broker_epoch
        self.epoch = INITIAL_EPOCH
        self.used_s = self.checked_s = now_s
        self.rounds = FetchRounds()
        #: A round that waits for the disk meanwhile has nobody left to answer.
        self.ended = False
        self.watch = Watch[CachedPartition]()
        self.cached: dict[TopicIdPartition, CachedPartition] = {}
        #: To be looked at in the next round; who has waited longest comes first.
        self.due: dict[CachedPartition, None] = {}
        self._purgatory = purgatory

    def name(self, requested: ReplicaFetchPartition) -> CachedPartition:
        """The follower adds or changes a partition."""
        key = (requested.topic_id, requested.partition)
        cached = self.cached.get(key)
        if cached is None:
            cached = self.cached[key] = CachedPartition(key, requested)
        cached.requested = requested
        self.due[cached] = None
        return cached

    def watch_over(self, cached: CachedPartition, tp: TopicPartition) -> None:
        """It is hosted here: whatever changes of it makes it due."""
        cached.tp = tp
        for change in _WATCHED:
            self._purgatory.watch(self.watch, (change, tp), cached)

    def forget(self, key: TopicIdPartition) -> None:
        """The follower fetches it no more."""
        cached = self.cached.pop(key, None)
        if cached is None:
            return
        cached.is_forgotten = True
        self.due.pop(cached, None)
        if cached.tp is not None:
            for change in _WATCHED:
                self._purgatory.unwatch(self.watch, (change, cached.tp))

    def changes(self) -> list[CachedPartition]:
        """Partitions of which something has changed since this was last asked; they are due."""
        if not self.watch.changed:
            return []
        changed = [cached for cached in self.watch.changed if not cached.is_forgotten]
        self.watch.changed.clear()
        self.due.update(dict.fromkeys(changed))
        return changed

    def additions(self, request: ReplicaFetchRequest) -> int:
        """How many partitions a request adds."""
        return sum(
            (each.topic_id, each.partition) not in self.cached for each in request.partitions
        )

    def close(self) -> None:
        """Watch nothing any more."""
        self.ended = True
        for key in tuple(self.cached):
            self.forget(key)


class FetchSessionCache:
    """All sessions of a leader: one for each follower, so many partitions together."""

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
        self._by_replica: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._by_replica)

    @property
    def partitions(self) -> int:
        """Partitions of all sessions."""
        return sum(len(session.cached) for session in self._by_replica.values())

    def of(self, request: ReplicaFetchRequest, now_s: float) -> FetchSession | ErrorCode:
        """The session that a request goes on with or begins, or why it must name everything
        again."""
        if is_full(request.session_epoch):
            self._end(request.replica_id)
            return self._begun(request, now_s)
        session = self._by_replica.get(request.replica_id)
        if session is None or session.session_id != request.session_id:
            return ErrorCode.fetch_session_id_not_found
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
        session.epoch = after(session.epoch)
        session.used_s = now_s
        return session

    def _begun(self, request: ReplicaFetchRequest, now_s: float) -> FetchSession:
        if request.session_epoch == FINAL_EPOCH or not self._has_room(request, now_s):
            return FetchSession(NO_SESSION, request, self._purgatory, now_s)
        session_id = random.randint(1, SESSION_ID_MAX)
        session = FetchSession(session_id, request, self._purgatory, now_s)
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
