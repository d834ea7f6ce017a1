"""Fetch sessions of clients (KIP-227): incremental requests, and answers that contain only news.

The rules are those of Kafka's ``FetchManager`` and ``FetchSessionCache``. A full request ends the
session with its id, if that exists. Any other request continues its session or gets an error, after
which the client sends a full request. A session is created with its first answer, so a client that
does not wait for the answer leaves nothing behind.

A session belongs to the principal and address that created it and does not exist for others. One
client has at most half of all sessions and half of the partitions in them. Kafka has neither limit.

Pure: the time is an argument. (Followers have sessions of another kind, see
:mod:`tidemark_broker.replication.following.follower_fetch_session`.)
"""

import random
import uuid
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from tidemark_broker.replication.types import (
    FINAL_EPOCH,
    IDLE_S,
    INITIAL_EPOCH,
    NO_SESSION,
    SESSION_ID_MAX,
    FetchResult,
    after,
    is_full,
)

#: Partitions of all sessions together: about 400 bytes each.
PARTITIONS_MAX = 100_000

#: A partition as a request identifies it: by topic id, or by name in versions without ids.
Key: TypeAlias = tuple[uuid.UUID | str | None, int]


class PartitionRequest(NamedTuple):
    """One partition of a request.

    ``topic`` is "" for an unknown id. ``error`` is set if the partition fails before it is looked
    up.
    """

    topic: str
    partition: int
    offset: int
    max_bytes: int
    topic_id: uuid.UUID | None = None
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    error: ErrorCode = ErrorCode.none

    @property
    def key(self) -> Key:
        """Identification of the partition in the session."""
        return self.topic_id or self.topic, self.partition


class FetchMetadata(NamedTuple):
    """Session id and epoch of a request, and its client."""

    session_id: int
    epoch: int
    by_id: bool
    who: Hashable


class CachedPartition:
    """One partition of a session (Kafka's name): last request and last answer."""

    __slots__ = ("high_watermark", "log_start_offset", "requested")

    def __init__(self, requested: PartitionRequest, result: FetchResult | None = None) -> None:
        self.requested = requested
        self.high_watermark = self.log_start_offset = -1
        if result is not None:
            self.high_watermark = result.high_watermark
            self.log_start_offset = result.log_start_offset

    def is_news(self, result: FetchResult) -> bool:
        """Return whether the result must be sent, and record it as sent."""
        is_news = (
            bool(result.data)
            or result.error is not ErrorCode.none
            or result.diverging is not None
            or result.preferred_read_replica >= 0
            or result.high_watermark != self.high_watermark
            or result.log_start_offset != self.log_start_offset
        )
        failed = result.error is not ErrorCode.none
        self.high_watermark = -1 if failed else result.high_watermark  # sent again after an error
        self.log_start_offset = result.log_start_offset
        return is_news


class FetchSession:
    """Session of one client; ``epoch`` is that of its next request."""

    def __init__(
        self,
        session_id: int,
        metadata: FetchMetadata,
        cached: dict[Key, CachedPartition],
        now: float,
    ) -> None:
        """Create a session whose first response is sent now (``now`` in seconds)."""
        self.session_id = session_id
        # Kafka forbids switching between names and ids within a session.
        self.by_id = metadata.by_id
        self.who = metadata.who
        self.epoch = after(INITIAL_EPOCH)
        self.created_s = self.used_s = now
        #: In the order of the next read.
        self.cached = cached

    def update(self, named: Mapping[Key, PartitionRequest], forgotten: Iterable[Key]) -> None:
        """Apply a request. A partition that is both named and forgotten is forgotten."""
        for key, requested in named.items():
            known = self.cached.get(key)
            if known is None:
                self.cached[key] = CachedPartition(requested)
            else:
                known.requested = _named_as_before(requested, known.requested.topic)
        for key in forgotten:
            self.cached.pop(key, None)


def _named_as_before(requested: PartitionRequest, topic: str) -> PartitionRequest:
    """Keep the first name of an id.

    A deleted topic is then distinct from an unknown id, and from another topic of the same name
    (INCONSISTENT_TOPIC_ID).
    """
    if not topic or requested.topic == topic:
        return requested
    return requested._replace(topic=topic)


class FetchContext:
    """One Fetch request: its partitions, and which results are sent (Kafka's ``FetchContext``).

    ``session`` is None for a full request, which names all its partitions. ``begins``: the response
    may create a session.
    """

    def __init__(
        self,
        cache: "FetchSessionCache",
        metadata: FetchMetadata,
        named: Mapping[Key, PartitionRequest],
        session: FetchSession | None = None,
        *,
        begins: bool = False,
    ) -> None:
        self._cache = cache
        self._metadata = metadata
        self._named = named
        self._session = session
        self._begins = begins

    @property
    def requests(self) -> list[PartitionRequest]:
        """All partitions to fetch, in the order of reading."""
        if self._session is None:
            return list(self._named.values())
        return [partition.requested for partition in self._session.cached.values()]

    @property
    def session_id(self) -> int:
        """Session id of an answer without partitions."""
        return NO_SESSION if self._session is None else self._session.session_id

    def answered(
        self, results: Sequence[tuple[PartitionRequest, FetchResult]], now_s: float
    ) -> tuple[int, Sequence[bool]] | ErrorCode:
        """Return the session id of the response, and for each result whether it is sent.

        An incremental response omits partitions without news. An error code means that another
        request has advanced the session, because the client did not wait for this response.
        """
        if self._session is not None:
            return self._incremental(self._session, results)
        # A full request sends every result and may create a session.
        session_id = NO_SESSION
        if self._begins:
            session_id = self._cache.begin(self._metadata, self._named, results, now_s)
        return session_id, [True] * len(results)

    def _incremental(
        self, session: FetchSession, results: Sequence[tuple[PartitionRequest, FetchResult]]
    ) -> tuple[int, Sequence[bool]] | ErrorCode:
        """Select the results with news, and record them as sent in the session.

        Returns as :meth:`answered`. News are records, errors, redirections and changed offsets.
        """
        # The client has sent its next request before this answer, so the session has advanced.
        if session.epoch != after(self._metadata.epoch):
            return ErrorCode.invalid_fetch_session_epoch
        sent = []
        for request, result in results:
            cached = session.cached.get(request.key)
            is_news = cached is not None and cached.is_news(result)
            sent.append(is_news)
            if cached is not None and result.data:  # read last from now on, to avoid starvation
                del session.cached[request.key]
                session.cached[request.key] = cached
        return session.session_id, sent


class FetchSessionCache:
    """All sessions of clients, least recently used first."""

    def __init__(self, *, slots: int, partitions_max: int = PARTITIONS_MAX) -> None:
        #: Maximum number of sessions (``max.incremental.fetch.session.cache.slots``).
        self._slots = slots
        self._partitions_max = partitions_max
        self._sessions: dict[int, FetchSession] = {}
        #: Number of partitions of all sessions.
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """Number of partitions of all sessions."""
        return self._partitions

    def context(
        self,
        metadata: FetchMetadata,
        named: Mapping[Key, PartitionRequest],
        forgotten: Sequence[Key],
        now_s: float,
    ) -> FetchContext | ErrorCode:
        """Return the context of a request, or the error after which a full request is needed.

        ``named`` contains the partitions that an incremental request adds or changes, ``forgotten``
        those that it removes.
        """
        session = self._sessions.get(metadata.session_id)
        # A foreign session does not exist for this client, so guessing ids reveals nothing.
        if session is not None and session.who != metadata.who:
            session = None
        # A full request ends the previous session. Its response may create a new one.
        if is_full(metadata.epoch):
            if session is not None:
                self._end(session)
            return FetchContext(self, metadata, named, begins=metadata.epoch != FINAL_EPOCH)
        if session is None:
            return ErrorCode.fetch_session_id_not_found
        # An epoch that is not the next one: a request was lost or repeated.
        if session.epoch != metadata.epoch:
            return ErrorCode.invalid_fetch_session_epoch
        if session.by_id is not metadata.by_id:
            return ErrorCode.fetch_session_topic_id_error
        # Limits of memory: the client starts again with a session of fewer partitions, or without
        # one.
        added = sum(key not in session.cached for key in named)
        if not self._may_grow(session, added):
            self._end(session)
            return ErrorCode.invalid_fetch_session_epoch
        return self._continued(session, metadata, named, forgotten, now_s)

    def _continued(
        self,
        session: FetchSession,
        metadata: FetchMetadata,
        named: Mapping[Key, PartitionRequest],
        forgotten: Sequence[Key],
        now_s: float,
    ) -> FetchContext:
        """Apply an incremental request to its session, and return the context."""
        before = len(session.cached)
        session.update(named, forgotten)
        self._partitions += len(session.cached) - before
        # A session without partitions is useless, and Kafka ends it as well.
        if not session.cached:
            self._end(session)
            return FetchContext(self, metadata, named)
        session.used_s = now_s
        session.epoch = after(session.epoch)
        # Moving the session to the end keeps the dict in order of last use.
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        return FetchContext(self, metadata, named, session)

    def begin(
        self,
        metadata: FetchMetadata,
        named: Mapping[Key, PartitionRequest],
        results: Sequence[tuple[PartitionRequest, FetchResult]],
        now_s: float,
    ) -> int:
        """Create a session for a full request. Return its id, or NO_SESSION if there is no room.

        ``results`` are what the response sends, which the session remembers as known to the client.
        """
        if not self._make_room(metadata.who, len(results), now_s):
            return NO_SESSION
        # Random ids make those of other clients hard to guess.
        session_id = random.randint(1, SESSION_ID_MAX)
        while session_id in self._sessions:
            session_id = random.randint(1, SESSION_ID_MAX)
        # In the order in which the partitions were read.
        cached = {
            request.key: CachedPartition(named[request.key], result) for request, result in results
        }
        self._sessions[session_id] = FetchSession(session_id, metadata, cached, now_s)
        self._partitions += len(cached)
        return session_id

    def _may_grow(self, session: FetchSession, added: int) -> bool:
        return (
            self._partitions + added <= self._partitions_max
            and len(session.cached) + added <= self._partitions_max // 2
        )

    # Room for partitions first, then for the slot. Only idle sessions are evicted for partitions.
    def _make_room(self, who: Hashable, size: int, now_s: float) -> bool:
        if size > self._partitions_max // 2:
            return False
        self._enforce_client_share(who, size)
        while self._partitions + size > self._partitions_max:
            if not self._evict_stale(now_s):
                return False
        return (
            len(self._sessions) < self._slots
            or self._evict_stale(now_s)
            or self._evict_smaller(size, now_s)
        )

    def _enforce_client_share(self, who: Hashable, size: int) -> None:
        """End the client's own oldest sessions until it has less than half of everything."""
        # Below half of the limits in total, no client can exceed its share.
        if len(self._sessions) < self._slots // 2 and (
            self._partitions + size <= self._partitions_max // 2
        ):
            return
        own_sessions = [session for session in self._sessions.values() if session.who == who]
        count, partitions = len(own_sessions), sum(len(session.cached) for session in own_sessions)
        for session in own_sessions:
            if count < max(1, self._slots // 2) and partitions + size <= self._partitions_max // 2:
                return
            count, partitions = count - 1, partitions - len(session.cached)
            self._end(session)

    def _evict_stale(self, now_s: float) -> bool:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or now_s - oldest.used_s <= IDLE_S:
            return False
        self._end(oldest)
        return True

    def _evict_smaller(self, size: int, now_s: float) -> bool:
        """Evict the smallest session that is not young, if the new one has more partitions.

        A larger session saves more work, as in Kafka's ``FetchSessionCache``.
        """
        old = [session for session in self._sessions.values() if now_s - session.created_s > IDLE_S]
        smallest = min(old, key=lambda session: len(session.cached), default=None)
        if smallest is None or len(smallest.cached) >= size:
            return False
        self._end(smallest)
        return True

    def _end(self, session: FetchSession) -> None:
        if self._sessions.pop(session.session_id, None) is not None:
            self._partitions -= len(session.cached)
