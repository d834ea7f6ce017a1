"""Leader's side of replica fetches: selects the partitions of a response and records the fetches.

A fetch with a successful result means that the follower has everything below its fetch offset. Only
that moves the high watermark and the ISR. An error or a divergence changes nothing that is known of
the follower. A fetch counts once: when it arrives, or when this broker starts to lead the
partition. In a session (see :mod:`fetch_session`) it also counts for the partitions that it does
not name. :mod:`fetch_responses` decides the result of one partition.
"""

import uuid
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeAlias

from kio.schema.errors import ErrorCode

from tidemark.tls.identity import TlsIdentity
from tidemark.wire.framing import FrameError
from tidemark_broker.admission.response_memory import ResponseMemory
from tidemark_broker.log import NotCached
from tidemark_broker.purgatory import Signal
from tidemark_broker.replication.following import fetch_responses
from tidemark_broker.replication.following.follower_fetch_session import (
    LeaderState,
    ReplicaCachedPartition,
    ReplicaFetchSession,
    ReplicaFetchSessionCache,
)
from tidemark_broker.replication.following.wire import (
    ReplicaFetchPartition,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaFetchResult,
)
from tidemark_broker.replication.partition import (
    Partition,
    ReplicaContext,
    consumer_reads,
    isr_and_high_watermark,
)
from tidemark_broker.replication.partition.isr_decisions import FollowerFetch
from tidemark_broker.replication.partition.partition import Role
from tidemark_broker.replication.types import NO_SESSION
from tidemark_broker.tasks import Deferred

#: Look-up of a hosted partition by topic id and number.
Find = Callable[[uuid.UUID, int], Partition | None]

#: Partition (None if not hosted) and result, by requested partition. A result of None has nothing
#: but the partition's present offsets: most are never sent.
Results = dict[ReplicaCachedPartition, tuple[Partition | None, ReplicaFetchResult | None]]

#: Response, or what delivers it later.
Begun: TypeAlias = ReplicaFetchResponse | Deferred[ReplicaFetchResponse]

MAX_WAIT_MS = 30_000
#: Limit of records in one response, whatever the follower accepts (except for a larger first
#: batch); as Kafka's ``fetch.max.bytes``.
RESPONSE_BYTES_MAX = 55 * 1024 * 1024
#: Time after the start of a leadership in which followers add the partition to their sessions.
#: Meanwhile their requests wait only briefly, because a request in progress delays the one that
#: names the partition.
NEW_LEADER_S = 2.0
NEW_LEADER_WAIT_S = 0.05
#: Purgatory key notified when this broker starts to lead, after ``NEW_LEADER_S`` without a start.
_NEW_LEADER = Signal()
#: Interval of the check for changes without a watch (the end of the tier).
CHECK_INTERVAL_S = 2.0


class ReplicaFetchService:
    """Handler of :data:`wire.REPLICA_FETCH` on the leader."""

    def __init__(self, context: ReplicaContext, find: Find) -> None:
        self._context = context
        self._find = find
        self._sessions = ReplicaFetchSessionCache(context.purgatory)
        #: When this broker last started to lead a partition, in monotonic seconds.
        self._new_leader_s = float("-inf")
        context.role_changed.append(self._role_changed)

    def _role_changed(self, partition: Partition) -> None:
        """End the waits of followers' requests when this broker starts to lead."""
        if not partition.is_leader:
            return
        now_s = self._context.monotonic()
        # Many leaderships start together: one notification is enough, because later requests
        # wait only briefly.
        if now_s - self._new_leader_s > NEW_LEADER_S:
            self._context.purgatory.notify(_NEW_LEADER)
        self._new_leader_s = now_s

    async def handle(
        self, request: ReplicaFetchRequest, peer: TlsIdentity, memory: ResponseMemory
    ) -> ReplicaFetchResponse:
        """Answer a follower's fetch as :meth:`begin` does, in a task."""
        begun = self.begin(request, peer, memory)
        return begun if isinstance(begun, ReplicaFetchResponse) else await begun

    def begin(
        self, request: ReplicaFetchRequest, peer: TlsIdentity, memory: ResponseMemory
    ) -> Begun:
        """Answer a follower's fetch: at once if there is something to send, otherwise after a wait.

        The wait ends with new records, a raised log start, an error, the start of a leadership
        here, or ``max_wait_ms``. Within ``NEW_LEADER_S`` after such a start it lasts at most
        ``NEW_LEADER_WAIT_S``. The response is no larger than ``memory`` permits. Raises FrameError
        if the peer's certificate is not that of the follower's broker id.

        Each record causes a fetch of each follower. So there is a task only if records must be
        read from the disk. Otherwise the answer is written in the turn that has it.
        """
        # The certificate names the broker, so one broker cannot advance another one's offsets.
        if request.replica_id != peer.node_id:
            raise FrameError(f"{peer} fetches as broker {request.replica_id}")
        if not self._known(request):
            return _refused(ErrorCode.stale_broker_epoch)
        now_s = self._context.monotonic()
        session = self._sessions.of(request, now_s)
        # The follower answers a session error with a full request.
        if isinstance(session, ErrorCode):
            return _refused(session)
        fetch = _Round(
            self._find, request, session, memory, now_s, new_leader_s=lambda: self._new_leader_s
        )
        try:
            fetch.take()
            fetch.collect(arrived=True)
            if fetch.reads_disk:
                return _by_task(self._from_disk(fetch), fetch, Deferred())
            return fetch.response() if fetch.is_enough else self._wait(fetch)
        except BaseException:
            fetch.close()
            raise

    def _wait(self, fetch: "_Round") -> Begun:
        """Wait until there is something to send to the follower."""
        # Nothing to report yet: release the memory.
        fetch.release()
        wait_s = min(max(fetch.request.max_wait_ms, 0), MAX_WAIT_MS) / 1000
        if fetch.now_s - self._new_leader_s <= NEW_LEADER_S:
            wait_s = min(wait_s, NEW_LEADER_WAIT_S)
        if wait_s <= 0 or fetch.must_answer():
            return self._again(fetch, Deferred())
        later: Deferred[ReplicaFetchResponse] = Deferred()

        def failed(error: BaseException) -> None:
            fetch.close()
            later.fail(error)

        def ended(_: bool) -> None:
            """Answer in the turn of the notification."""
            try:
                again = self._again(fetch, later)
            except Exception as error:  # noqa: BLE001 - ends the connection
                failed(error)
                return
            if isinstance(again, ReplicaFetchResponse):
                later.deliver(again)

        purgatory = self._context.purgatory
        keys = (fetch.session.watch, _NEW_LEADER)
        operation = purgatory.when(keys, fetch.must_answer, wait_s, ended, failed)
        # The purgatory is full.
        if operation is None:
            return self._again(fetch, later)

        def give_up() -> None:
            purgatory.give_up(operation)
            fetch.close()

        later.given_up_by(give_up)
        return later

    def _again(self, fetch: "_Round", later: Deferred[ReplicaFetchResponse]) -> Begun:
        """Answer a follower's fetch after a wait, whatever there is to send.

        If the disk must be read, ``later`` delivers the response.
        """
        fetch.collect(arrived=False)
        if fetch.reads_disk:
            return _by_task(self._last_from_disk(fetch), fetch, later)
        return fetch.response()

    async def _last_from_disk(self, fetch: "_Round") -> ReplicaFetchResponse:
        """Answer with records from the disk."""
        await fetch.read_disk()
        return fetch.response()

    async def _from_disk(self, fetch: "_Round") -> ReplicaFetchResponse:
        """Answer with records from the disk, or wait if they are too few."""
        await fetch.read_disk()
        begun = fetch.response() if fetch.is_enough else self._wait(fetch)
        return begun if isinstance(begun, ReplicaFetchResponse) else await begun

    def _known(self, request: ReplicaFetchRequest) -> bool:
        """Return whether the follower's registration is the current one.

        With an unknown or an older one nothing counts, and the follower retries.
        """
        row = self._context.metadata.brokers.get(request.replica_id)
        return row is not None and row.broker_epoch == request.broker_epoch


def _by_task(
    work: Coroutine[Any, Any, ReplicaFetchResponse],
    fetch: "_Round",
    later: Deferred[ReplicaFetchResponse],
) -> Deferred[ReplicaFetchResponse]:
    """Let a task deliver the response, and close the fetch even if the task never starts."""
    later.deliver_from(work).add_done_callback(lambda _: fetch.close())
    return later


class _Round:
    """One request of a session, from its arrival to its response."""

    def __init__(
        self,
        find: Find,
        request: ReplicaFetchRequest,
        session: ReplicaFetchSession,
        memory: ResponseMemory,
        now_s: float,
        *,
        new_leader_s: Callable[[], float],
    ) -> None:
        """Create the round of one request.

        ``find``: look-up of a hosted partition. ``memory``: limit of the response's size.
        ``now_s``: arrival of the request in monotonic seconds. ``new_leader_s``: time of the last
        start of a leadership here.
        """
        self._find = find
        self.request = request
        self.session = session
        self._memory = memory
        self.now_s = now_s
        self._new_leader_s = new_leader_s
        #: Partitions that the request names, whose results are sent even without changes.
        self._named: set[ReplicaCachedPartition] = set()
        #: Partitions whose fetch did not count on arrival, because this broker did not lead yet.
        self._uncounted: set[ReplicaCachedPartition] = set()
        self._results: Results = {}
        #: Records to read from the disk, with the bytes that each partition may have.
        self._on_disk: list[tuple[ReplicaCachedPartition, Partition, ReplicaFetchPartition, int]]
        self._on_disk = []

    def response(self) -> ReplicaFetchResponse:
        """Return the response with the results that the follower does not have yet."""
        session = self.session
        results = {} if session.ended else self._results
        answered = ReplicaFetchResponse(
            error_code=0,
            partitions=tuple(self._reported(results)),
            session_id=session.session_id,
        )
        self.close()
        return answered

    def close(self) -> None:
        """End a fetch without a session, which is a session of one round."""
        if self.session.session_id == NO_SESSION:
            self.session.close()

    def release(self) -> None:
        """Drop the results, and release their memory."""
        self._results = {}
        self._memory.set_reserved(0)

    def take(self) -> None:
        """Apply the request's changes to the session: forgotten partitions, then named ones.

        Every partition that changed since the last request becomes due for this response.
        """
        session = self.session
        for item in self.request.forgotten:
            partition = self._find(item.topic_id, item.partition)
            if partition is not None:
                self._left(partition)
            session.forget((item.topic_id, item.partition))
        # Watch a partition from the first request that names it, so that no change is missed.
        for requested in self.request.partitions:
            cached = session.name(requested)
            self._named.add(cached)
            partition = None if cached.tp else self._find(*cached.key)
            if partition is not None:
                session.watch_over(cached, partition.tp)
        # This call marks what has changed before this request as due. The wait later must only
        # see changes that are newer.
        session.changes()
        # The end of the tier has no watch: compare all partitions now and then.
        if self.now_s - session.checked_s >= CHECK_INTERVAL_S:
            session.checked_s = self.now_s
            self._check_all()

    def _check_all(self) -> None:
        """Mark partitions as due that changed without a notification."""
        session = self.session
        for cached in session.cached.values():
            partition = self._find(*cached.key)
            if partition is None or fetch_responses.state_of(partition) != cached.reported:
                session.due[cached] = None

    def must_answer(self) -> bool:
        """Return whether the wait ends: there is news, or this broker has started to lead."""
        return self._has_news() or self._new_leader_s() > self.now_s

    def _has_news(self) -> bool:
        """Return whether anything changed that the follower should receive now. No disk reads."""
        return any(self._is_urgent(cached) for cached in self.session.changes())

    def _is_urgent(self, cached: ReplicaCachedPartition) -> bool:
        requested, partition = cached.requested, self._find(*cached.key)
        return not _is_about_to_lead(partition, requested) and (
            partition is None
            or partition.next_offset > requested.fetch_offset
            or partition.check_leader(requested.current_leader_epoch) is not ErrorCode.none
            or partition.log_start_offset > _known_log_start(cached)
        )

    @property
    def is_enough(self) -> bool:
        """Whether the results are worth a response."""
        # Errors, divergences and a raised log start are sent at once; records wait for min_bytes.
        size = 0
        for cached, (partition, result) in self._results.items():
            if result is not None:
                if result.error_code or result.diverging_epoch >= 0:
                    return True
                size += len(result.records)
            if partition is not None and partition.log_start_offset > _known_log_start(cached):
                return True
        return size >= max(self.request.min_bytes, 1) or not self.session.cached

    @property
    def reads_disk(self) -> bool:
        """Whether :meth:`read_disk` must complete the results."""
        return bool(self._on_disk)

    def collect(self, *, arrived: bool) -> None:
        """Collect a result for each due partition, except those that this broker is about to lead.

        ``arrived``: whether this is the first call for the request. Only that call counts as a
        fetch, which proves that the follower has everything below its fetch offsets; for a
        partition that this broker was about to lead, the call after that. For partitions without
        changes only the time of the fetch counts.
        """
        session = self.session
        # Another request has ended the session during a wait.
        if session.ended:
            self.release()
            return
        left = granted = self._memory.grant(min(self.request.max_bytes, RESPONSE_BYTES_MAX))
        results: Results = {}
        for cached in tuple(session.due):
            partition, requested = self._find(*cached.key), cached.requested
            # The partition stays due, and its fetch counts once this broker leads.
            if _is_about_to_lead(partition, requested):
                self._uncounted.add(cached)
                continue
            # Once the response is full, the other partitions report offsets without records.
            try:
                result = self._one(partition, requested, left, arrived or cached in self._uncounted)
            except NotCached:
                # Read later, so the space for it is reserved.
                size, result = min(requested.max_bytes, left), None
                if partition is not None:
                    self._on_disk.append((cached, partition, requested, size))
                left -= size
            if result is not None:
                left -= len(result.records)
            results[cached] = (partition, result)
        self._results = results
        self._memory.set_reserved(granted - left)
        # Set only now: a request that failed halfway proves nothing about the follower.
        if arrived:
            session.rounds.last_s = self.now_s

    async def read_disk(self) -> None:
        """Complete the results with the records that are on the disk only."""
        on_disk, self._on_disk = self._on_disk, []
        # Offsets are those of the leader epoch that was checked, which may end during a read.
        for cached, (partition, result) in self._results.items():
            if partition is not None and result is None:
                offsets = fetch_responses.answer(partition, ErrorCode.none)
                self._results[cached] = (partition, offsets)
        for cached, partition, requested, size in on_disk:
            # Another request may have ended the session during a disk read.
            if self.session.ended:
                self.release()
                return
            read = await fetch_responses.records_on_disk(partition, requested, size)
            self._results[cached] = (partition, read)
        found = (result for _, result in self._results.values() if result is not None)
        self._memory.set_reserved(sum(len(result.records) for result in found))

    def _one(
        self,
        partition: Partition | None,
        requested: ReplicaFetchPartition,
        left: int,
        counts: bool,
    ) -> ReplicaFetchResult | None:
        """Return the result of one partition, and record the fetch if it ``counts``.

        ``left``: bytes of records that the response may still take. ``partition``: None if this
        broker does not host it. None is returned if there is nothing but offsets. Raises
        :class:`NotCached` if the records are on the disk only.
        """
        if partition is None:
            return fetch_responses.refusal(requested, ErrorCode.unknown_topic_id)
        if fetch_responses.is_in_step(partition, self.request.replica_id, requested):
            if counts:
                self._fetched(partition, requested)
            return fetch_responses.records(partition, requested, left)
        # Divergence is checked only for a valid fetch; its result would be meaningless otherwise.
        error = fetch_responses.check(partition, self.request.replica_id, requested)
        diverging = None
        if error is ErrorCode.none:
            diverging = consumer_reads.diverging_end(
                partition.log, requested.fetch_offset, requested.last_fetched_epoch
            )
        # The follower's log does not match, so its offset is no proof of its contents.
        if error is not ErrorCode.none or diverging is not None:
            self._left(partition)
            return fetch_responses.answer(partition, error, diverging=diverging)
        if counts:
            self._fetched(partition, requested)
        return fetch_responses.records(partition, requested, left)

    def _fetched(self, partition: Partition, requested: ReplicaFetchPartition) -> None:
        """Record a follower's valid fetch: it may advance the high watermark or extend the ISR."""
        replica_id, session = self.request.replica_id, self.session
        isr_and_high_watermark.follower_fetched(
            partition,
            replica_id,
            FollowerFetch(
                fetch_offset=requested.fetch_offset,
                log_start_offset=requested.log_start_offset,
                local_log_start_offset=requested.local_log_start_offset,
                broker_epoch=self.request.broker_epoch,
                leader_next_offset=partition.next_offset,
                now_s=self.now_s,
                tiered_epoch=requested.tiered_epoch,
            ),
        )
        # From here each later request of the session counts as a fetch of this partition, even if
        # it does not name it.
        if partition.leader is not None and session.session_id != NO_SESSION:
            partition.leader.follow_session(replica_id, session.rounds)

    def _left(self, partition: Partition) -> None:
        if partition.leader is not None:
            partition.leader.left_session(self.request.replica_id)

    def _reported(self, results: Results) -> Iterable[ReplicaFetchResult]:
        """Yield the results to send: of partitions that the request names, and of those with news.

        A partition that got records moves to the end of the queue, so that a full response starves
        none. A partition with nothing left to send leaves the queue until it changes.
        """
        due = self.session.due
        for cached, (partition, result) in results.items():
            if cached.is_forgotten:
                continue  # by a concurrent request
            # Errors, a divergence and records are sent in any case.
            is_news = result is not None and bool(
                result.records or result.error_code or result.diverging_epoch >= 0
            )
            if is_news and result is not None and result.records:
                due.pop(cached, None)
                due[cached] = None
            elif not is_news and self._is_at_rest(partition, cached):
                due.pop(cached, None)
            # Unnamed partitions are reported only if a value differs from the last report.
            state = _state(partition, result)
            if is_news or cached in self._named or state != cached.reported:
                cached.reported = state
                if result is None and partition is not None:
                    result = fetch_responses.answer(partition, ErrorCode.none)
                if result is not None:
                    yield result

    def _is_at_rest(self, partition: Partition | None, cached: ReplicaCachedPartition) -> bool:
        """Return whether a repeated fetch would change only the follower's time, with a watch
        to signal the end of that state.
        """
        return (
            partition is not None
            and partition.leader is not None
            and cached.tp is not None
            and cached.requested.fetch_offset >= partition.next_offset
            and partition.high_watermark >= partition.next_offset
            and self.request.replica_id in partition.leader.row.isr
        )


def _is_about_to_lead(partition: Partition | None, requested: ReplicaFetchPartition) -> bool:
    """Return whether this broker is elected in the requested epoch, but has not taken the role.

    The follower received the new epoch first. An error would make it back off for longer than this
    broker usually needs. A query of the tier (TAKING_OVER) may take long, so it gives an error.
    """
    epoch = requested.current_leader_epoch
    if partition is None or (partition.leader is not None and partition.leader.epoch >= epoch):
        return False
    view = partition.context.metadata.by_id(partition.topic_id)
    row = None if view is None else view.partitions.get(partition.partition)
    return (
        row is not None
        and row.leader == partition.context.node_id
        and row.leader_epoch == epoch
        and not partition.removed
        and partition.role is not Role.TAKING_OVER
        and row.leader_epoch > partition.lost_in_epoch
    )


def _state(partition: Partition | None, result: ReplicaFetchResult | None) -> LeaderState | None:
    """Return the values that a response reports for a partition in addition to records."""
    if result is not None:
        return fetch_responses.state_in(result)
    return None if partition is None else fetch_responses.state_of(partition)


def _known_log_start(cached: ReplicaCachedPartition) -> int:
    """Return the leader's log start as last reported to the follower, else the follower's own."""
    state = cached.reported
    return cached.requested.log_start_offset if state is None else state.log_start_offset


def _refused(error: ErrorCode) -> ReplicaFetchResponse:
    return ReplicaFetchResponse(error_code=int(error.value), partitions=())
