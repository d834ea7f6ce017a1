"""Fetcher of all partitions that follow one leader: one task, one connection.

The task requests all partitions that are not backing off, in one request that names only changed
ones (KIP-227). It applies the response before the next request. A lost connection, an unknown
address or an error leads to a retry with a growing delay and a full request.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from tidemark.backoff import Backoff
from tidemark.error_text import error_text
from tidemark.tls.dialing import Dialer
from tidemark.wire.connection import KafkaConnection
from tidemark.wire.framing import FrameError
from tidemark_broker.config_entries import key_field, seconds_field
from tidemark_broker.replication.following.follower import (
    FetchOutcome,
    apply_answer,
    is_unchanged_since,
    next_request,
)
from tidemark_broker.replication.following.follower_fetch_session import FetchSessionHandler
from tidemark_broker.replication.following.tier_bootstrap import FromTier
from tidemark_broker.replication.following.wire import (
    ReplicaFetchPartition,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaFetchResult,
)
from tidemark_broker.replication.partition import Partition, ReplicaContext
from tidemark_broker.replication.partition.leader import FetchRounds
from tidemark_broker.replication.types import TopicIdPartition, TopicPartition
from tidemark_broker.tasks import set_within

logger = logging.getLogger(__name__)

#: Time that the next fetch waits for raised log starts to become durable, so that it reports them.
_CHECKPOINT_WAIT_S = 1.0
#: Interval of the check for changes other than fetches (retention, a late checkpoint).
CHECK_INTERVAL_S = 5.0
#: Time beyond the wait of a fetch after which its response is overdue. With the wait and two
#: heartbeats it is less than the controller's default suspect timeout.
_OVERDUE_S = 0.25
#: First pause while a leader has not taken its role: it usually does so within milliseconds.
_LEADER_READY_S = 0.05
_SESSION_ERRORS = frozenset(
    int(item.value)
    for item in (ErrorCode.fetch_session_id_not_found, ErrorCode.invalid_fetch_session_epoch)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """Kafka's ``replica.fetch.*``; ``timeout_s`` bounds one request on top of its wait."""

    wait_max_ms: int = key_field("replica.fetch.wait.max.ms")
    min_bytes: int = key_field("replica.fetch.min.bytes")
    response_max_bytes: int = key_field("replica.fetch.response.max.bytes")
    partition_max_bytes: int = key_field("replica.fetch.max.bytes")
    backoff_s: float = seconds_field("replica.fetch.backoff.ms")
    backoff_max_s: float = 5.0
    timeout_s: float = seconds_field("replica.socket.timeout.ms")


@dataclass(frozen=True, slots=True)
class FetcherContext:
    """State that all fetchers of a broker share."""

    replicas: ReplicaContext
    limits: FetchLimits
    #: Returns the connection factory for a broker id.
    dialer_of: Callable[[int], Dialer]
    #: Returns the epoch of this broker's registration.
    broker_epoch: Callable[[], int]
    #: Replicas that start their log from the tier instead of fetching.
    from_tier: FromTier = field(default_factory=FromTier)


class ReplicaFetcher:
    """Fetches of one leader's partitions."""

    def __init__(self, leader_id: int, context: FetcherContext) -> None:
        """Create the fetcher of one leader without partitions."""
        self.leader_id = leader_id
        self.partitions: dict[TopicPartition, Partition] = {}
        self._context = context
        self._limits = context.limits
        self._monotonic = context.replicas.monotonic
        self._from_tier = context.from_tier
        # Each partition has its own backoff: a failing disk must not delay others of this leader.
        self._backoffs: dict[TopicPartition, Backoff] = {}
        #: Set to end a pause early, because there is something new to fetch.
        self._changed = asyncio.Event()
        #: Number of full requests so far, by which their order of partitions rotates.
        self._turn = 0
        self._handler = FetchSessionHandler()
        self._by_key: dict[TopicIdPartition, Partition] = {}
        #: Partitions whose request may differ from that in the leader's session.
        self._marked: dict[TopicPartition, None] = {}
        #: Partitions to remove from the leader's session with the next request.
        self._forgotten: dict[TopicIdPartition, None] = {}
        #: Time since which the leader owes a response, in monotonic seconds; None if it owes none.
        self._waits_since_s: float | None = None
        #: Time of the last successful request, for the partitions that it included.
        self._rounds = FetchRounds()
        #: Time of the last check of all partitions, in monotonic seconds.
        self._checked_s = float("-inf")

    @property
    def is_overdue(self) -> bool:
        """Return whether the leader has not answered in time, or cannot be reached."""
        since_s = self._waits_since_s
        limit_s = self._limits.wait_max_ms / 1000 + _OVERDUE_S
        return since_s is not None and self._monotonic() - since_s > limit_s

    def add(self, partition: Partition) -> None:
        """Follow a partition.

        If it was followed already, its backoff ends and the leader must answer.
        """
        self._drop(partition.tp)
        key = partition.key
        self.partitions[partition.tp] = self._by_key[key] = partition
        self._marked[partition.tp] = None
        self._handler.renew(key)
        self._from_tier.give_up(partition.tp, unless_epoch=partition.leader_epoch)
        self._changed.set()

    def remove(self, tp: TopicPartition) -> None:
        """Stop following a partition; the role check ignores a response in flight."""
        if tp in self.partitions:
            self.partitions[tp].leader_rounds = None
        self._drop(tp)
        self._from_tier.give_up(tp)

    def _drop(self, tp: TopicPartition) -> None:
        partition = self.partitions.pop(tp, None)
        self._backoffs.pop(tp, None)
        if partition is not None:
            del self._by_key[partition.key]
            self._forgotten[partition.key] = None

    async def run(self) -> None:
        """Fetch from the leader until cancelled, with a new connection after each failure.

        The pause between connections grows with each failure.
        """
        pause = self._connection_backoff()
        while True:
            began = self._monotonic()
            try:
                await self._session()
            except (OSError, TimeoutError, FrameError) as error:
                # A connection that worked for a while starts again with the shortest pause.
                if self._monotonic() - began > self._limits.backoff_max_s:
                    pause = self._connection_backoff()
                logger.info("fetching from broker %d: %s", self.leader_id, error_text(error))
            except Exception:
                logger.exception("fetching from broker %d failed", self.leader_id)
            now = self._monotonic()
            pause = pause.failed(now)
            await self._pause(pause.until_s - now)

    def _connection_backoff(self) -> Backoff:
        return Backoff(first_s=self._limits.backoff_s, most_s=self._limits.backoff_max_s)

    def _first_backoff(self, outcome: FetchOutcome) -> Backoff:
        first_s = self._limits.backoff_s
        if outcome is FetchOutcome.LEADER_NOT_READY:
            first_s = min(_LEADER_READY_S, first_s)
        return Backoff(first_s=first_s, most_s=self._limits.backoff_max_s)

    async def _pause(self, seconds: float) -> None:
        """Sleep until the time is over or a partition is added, perhaps with a new address."""
        self._changed.clear()
        await set_within(self._changed, max(seconds, 0.01))

    async def _session(self) -> None:
        """Connect to the leader and fetch until the connection fails or its address changes.

        Raises ConnectionError, OSError, TimeoutError or FrameError.
        """
        self._begin_to_wait()
        endpoint = self._context.replicas.metadata.endpoint(self.leader_id)
        if endpoint is None:
            raise ConnectionError(f"broker {self.leader_id} has no known address")
        connection = await KafkaConnection.connect(
            endpoint.host,
            endpoint.port,
            client_id=f"broker-{self._context.replicas.node_id}-fetcher",
            dialer=self._context.dialer_of(self.leader_id),
        )
        self._handler.reset()
        try:
            # A leader that moved to another address gets a new connection and session.
            while endpoint == self._context.replicas.metadata.endpoint(self.leader_id):
                await self._round(connection)
        finally:
            await connection.close()

    async def _round(self, connection: KafkaConnection) -> None:
        """Send one fetch request to the leader and apply its response to the local logs.

        Raises ConnectionError if the leader refuses the whole request.
        """
        request = self._request()
        session_partitions = self._handler.session_partitions
        # All partitions are backing off, or are starting from the tier.
        if not session_partitions:
            self._handler.reset()
            self._waits_since_s = None
            await self._pause(self._next_attempt_s())
            return
        sent_s = self._begin_to_wait()
        answer = await connection.request(
            request,
            ReplicaFetchResponse,
            self._limits.timeout_s + self._limits.wait_max_ms / 1000,
        )
        self._waits_since_s = None
        if answer.error_code in _SESSION_ERRORS:
            logger.info("broker %d ended the fetch session; a full request follows", self.leader_id)
            self._handler.reset()
            return
        if answer.error_code:
            raise ConnectionError(f"the leader returned error {answer.error_code}")
        # Advance the session epoch before the results are applied: the leader has advanced it when
        # it sent the response, even if a result cannot be applied here.
        self._handler.answered(answer.session_id)
        await self._apply(session_partitions, answer)
        self._rounds.last_s = sent_s

    def _begin_to_wait(self) -> float:
        """Return the present time. A response that is owed already stays owed since its request."""
        now_s = self._monotonic()
        if self._waits_since_s is None:
            self._waits_since_s = now_s
        return now_s

    def _next_attempt_s(self) -> float:
        """Return the seconds until a partition's backoff ends, at most ``replica.fetch.backoff.ms``
        milliseconds.
        """
        due = (backoff.until_s - self._monotonic() for backoff in self._backoffs.values())
        return min([*due, self._limits.backoff_s])

    def _request(self) -> ReplicaFetchRequest:
        """Build the next fetch request, which names only what the session lacks (KIP-227)."""
        session_id, epoch = self._handler.session_id, self._handler.epoch
        requested = [
            next_request(candidate, self._limits.partition_max_bytes)
            for candidate in self._candidates()
        ]
        # A partition that was removed and added again must not be forgotten.
        for item in requested if self._forgotten else ():
            self._forgotten.pop((item.topic_id, item.partition), None)
        # Unchanged requests are left out; the session repeats them.
        named, forgotten = self._handler.name(requested, self._forgotten)
        self._forgotten.clear()
        return ReplicaFetchRequest(
            replica_id=self._context.replicas.node_id,
            broker_epoch=self._context.broker_epoch(),
            max_wait_ms=self._limits.wait_max_ms,
            min_bytes=self._limits.min_bytes,
            max_bytes=self._limits.response_max_bytes,
            partitions=named,
            session_id=session_id,
            session_epoch=epoch,
            forgotten=forgotten,
        )

    def _candidates(self) -> list[Partition]:
        """Return the partitions whose fetch parameters may differ from the leader's session.

        Partitions in backoff, and those that start from the tier, are left out. A full request
        names all others, each time starting with another partition.
        """
        now_s = self._monotonic()
        tps: Iterable[TopicPartition] = [*self._marked, *self._backoffs]
        # Rotation is fair when a response is full before the last partition.
        if self._handler.is_full:
            self._turn += 1
            every = tuple(self.partitions)
            first = self._turn % max(len(every), 1)
            tps = every[first:] + every[:first]
        # In a session, nothing marks partitions that retention or a checkpoint has changed.
        elif now_s - self._checked_s >= CHECK_INTERVAL_S:
            tps = [*tps, *self._moved()]
            self._checked_s = now_s
        self._marked.clear()
        # Partitions may have been removed since they were marked.
        return [
            self.partitions[tp]
            for tp in dict.fromkeys(tps)
            if tp in self.partitions
            and tp not in self._from_tier
            and (tp not in self._backoffs or self._backoffs[tp].ready(now_s))
        ]

    def _moved(self) -> list[TopicPartition]:
        """Return the partitions whose request has changed; nothing notifies of retention or
        checkpoints.
        """
        session_partitions = self._handler.session_partitions
        return [
            partition.tp
            for key, partition in self._by_key.items()
            if key not in session_partitions
            or not is_unchanged_since(partition, session_partitions[key])
        ]

    async def _apply(
        self,
        session_partitions: Mapping[TopicIdPartition, ReplicaFetchPartition],
        answer: ReplicaFetchResponse,
    ) -> None:
        """Apply a response's results to the local logs, one partition after another.

        ``session_partitions``: what was requested for each partition. If log starts were raised, it
        waits up to a second until they are durable, so that the next fetch reports them to the
        leader.
        """
        raised = []
        for result in answer.partitions:
            key = (result.topic_id, result.partition)
            partition, requested = self._by_key.get(key), session_partitions.get(key)
            if partition is None or requested is None:
                continue  # it was removed during the request
            outcome = await self._apply_one(partition, requested, result)
            if outcome is FetchOutcome.FROM_TIER:
                self._begin_from_tier(partition, requested, result)
            else:
                self._note(partition, outcome)
            # Report a raised log start in the next fetch: DeleteRecords waits for it.
            if partition.log.announced_log_start_offset > partition.durable_log_start_offset:
                raised.append(partition.context.checkpoint_log_start(partition))
        if raised:
            await asyncio.wait(raised, timeout=_CHECKPOINT_WAIT_S)

    async def _apply_one(
        self, partition: Partition, requested: ReplicaFetchPartition, result: ReplicaFetchResult
    ) -> FetchOutcome:
        """Apply one result; its failure must not stop other partitions of the same leader."""
        try:
            return await apply_answer(partition, requested, result)
        except Exception:
            logger.exception("%s: the leader's answer cannot be applied", partition.tp)
            return FetchOutcome.BACK_OFF

    def _begin_from_tier(
        self, partition: Partition, requested: ReplicaFetchPartition, result: ReplicaFetchResult
    ) -> None:
        """Start a log from the tier; the next rounds continue without it."""
        if self.partitions.get(partition.tp) is not partition:
            return

        def ended(outcome: FetchOutcome) -> None:
            self._note(partition, outcome)
            self._changed.set()

        # The leader's session must not count it as fetched meanwhile.
        self._forgotten[partition.key] = None
        partition.leader_rounds = None
        self._from_tier.begin(partition, requested, result, ended)

    def _note(self, partition: Partition, outcome: FetchOutcome) -> None:
        """Record the outcome of a fetch: the partition backs off, or is fetched again."""
        tp = partition.tp
        if self.partitions.get(tp) is not partition:
            return
        self._marked[tp] = None
        if outcome in (FetchOutcome.BACK_OFF, FetchOutcome.LEADER_NOT_READY):
            backoff = self._backoffs.get(tp) or self._first_backoff(outcome)
            self._backoffs[tp] = backoff.failed(self._monotonic())
            # A partition in backoff is not fetched, so it leaves the session until the pause is
            # over.
            self._handler.renew(partition.key)
            self._forgotten[partition.key] = None
            partition.leader_rounds = None
        else:
            self._backoffs.pop(tp, None)
            partition.leader_rounds = self._rounds
