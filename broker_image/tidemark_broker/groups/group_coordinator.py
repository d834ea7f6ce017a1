"""Coordinator of this broker's groups, called by the request handlers.

It finds the group's partition, calls the decision logic (:mod:`.core`), and answers once the
records behind the answer are committed.
"""

import asyncio
import collections
import logging
import math
import uuid
from collections.abc import (
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from dataclasses import replace
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from tidemark.logfiles.names import GROUP_OFFSETS_TOPIC
from tidemark.lru import Lru
from tidemark_broker.coordinators.coordinators import Coordinators
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.coordinators.log import CoordinatorLog, TransactionalProducer
from tidemark_broker.groups.core.classic_group import ClassicGroup
from tidemark_broker.groups.core.consumer_group import ConsumerGroup
from tidemark_broker.groups.core.consumer_targets import Offload
from tidemark_broker.groups.core.group_offsets import Group, NewOffset, OffsetCommitter
from tidemark_broker.groups.core.journal import GroupMemory
from tidemark_broker.groups.core.offsets import CommittedOffset, OffsetKey
from tidemark_broker.groups.core.settings import GroupSettings, Now
from tidemark_broker.groups.core.steps import Steps
from tidemark_broker.groups.core.topic_patterns import BadPattern, compiled
from tidemark_broker.groups.core.values import (
    HeartbeatAnswer,
    HeartbeatRequest,
    JoinAnswer,
    JoinRequest,
    MemberIdentity,
    SubscribedTopic,
    SyncAnswer,
    SyncRequest,
    shown,
)
from tidemark_broker.groups.shard import GroupShard
from tidemark_broker.purgatory import Purgatory
from tidemark_broker.replication.metadata import MetadataCache, TopicMetadata
from tidemark_broker.replication.threads import ThreadPool
from tidemark_broker.tasks import cancel, start_in

logger = logging.getLogger(__name__)
A = TypeVar("A")

#: Offsets in one batch, which is a slice of the loop's time.
COMMITTED_AT_ONCE = 250
#: Yields the loop if the request's time slice is used up.
Pause = Callable[[], Awaitable[None]]
#: Returns those topics that a client may not describe.
Denied = Callable[[Iterable[str]], Awaitable[Set[str]]]
#: Number of compiled expressions in the cache.
_PATTERNS_MAX = 50
#: Runs long steps of heartbeats.
_in_heartbeat_thread = ThreadPool("heartbeats", threads=1)
#: Computes the targets of large groups.
_in_assignor_thread = ThreadPool("assignors", threads=1)
#: Topics that are matched with all expressions of a group before the loop is yielded.
_TOPICS_AT_ONCE = 20


class GroupCoordinator:
    """Coordinator of all groups.

    Used from the loop thread only. Raises :class:`CoordinatorError`.
    """

    def __init__(
        self,
        settings: GroupSettings,
        *,
        cluster: MetadataCache,
        purgatory: Purgatory,
        request_topic: Callable[[str], None],
        clock: Callable[[], Now],
    ) -> None:
        """Create the coordinator without partitions; it gets them as this broker becomes leader.

        ``request_topic``: requests the creation of ``__consumer_offsets``. ``clock``: monotonic and
        wall-clock time.
        """
        self.settings = settings
        #: Memory of all groups of this broker, with its limit.
        self.room = GroupMemory(settings.bytes_max)
        self._clock = clock
        # One shard per led partition; room and clock are shared by all of them.
        self.coordinators: Coordinators[GroupShard] = Coordinators(
            GROUP_OFFSETS_TOPIC,
            lambda log, deadlines: GroupShard(
                log,
                deadlines,
                settings=settings,
                room=self.room,
                clock=clock,
                topic=self._topic,
                name=self._name,
                config_of=cluster.group_config,
                offload=self._offload,
                due=self._due,
            ),
            cluster=cluster,
            purgatory=purgatory,
            request_topic=request_topic,
            now=lambda: clock().s,
        )
        self._cluster = cluster
        #: Tasks that compute targets of large groups outside the loop.
        self._assigning: set[asyncio.Task[None]] = set()
        #: Compiled regular expressions of subscriptions.
        self._patterns: Lru[str, Callable[[str], bool]] = Lru(_PATTERNS_MAX)
        self._answers = Answers()
        #: Deleted topics whose offsets are still to be removed; ``_news`` is set when there are
        #: any.
        self._gone: list[TopicMetadata] = []
        self._news = asyncio.Event()
        # Offsets of a deleted topic must not apply to a later topic of the same name.
        cluster.deleted.append(self._deleted)

    # ------------------------------------------------------------ members

    async def join(
        self, request: Callable[[Callable[[JoinAnswer], None]], JoinRequest], timeout_s: float
    ) -> JoinAnswer:
        """Handle JoinGroup: answer when the next generation starts.

        ``request`` builds the request, given the callback that receives its answer. After
        ``timeout_s`` the answer is REBALANCE_IN_PROGRESS, and the member must retry.
        """
        answer: asyncio.Future[JoinAnswer] = asyncio.get_running_loop().create_future()
        joining = request(self._answers.into(answer))
        shard = self.coordinators.shard_of(joining.group_id)
        joined = await self._in_turn(
            shard,
            joining.group_id,
            lambda: shard.join(joining, self._cluster.topics_version, self._clock()),
        )
        if joined is not None:
            return joined
        # A classic group answers through the callback when the rebalance proceeds.
        late = JoinAnswer(error=ErrorCode.rebalance_in_progress, member_id=joining.who.member_id)
        return await _answer(answer, timeout_s, late)

    async def sync(
        self, request: Callable[[Callable[[SyncAnswer], None]], SyncRequest], timeout_s: float
    ) -> SyncAnswer:
        """Handle SyncGroup: answer when the leader has sent the assignments.

        ``request`` builds the request, given the callback that receives its answer. After
        ``timeout_s`` the answer is REBALANCE_IN_PROGRESS.
        """
        answer: asyncio.Future[SyncAnswer] = asyncio.get_running_loop().create_future()
        syncing = request(self._answers.into(answer))
        shard = self.coordinators.shard_of(syncing.group_id)
        synced = await self._in_turn(
            shard, syncing.group_id, lambda: shard.sync(syncing, self._clock())
        )
        # None: a classic group, which answers through the callback.
        if synced is not None:
            return synced
        return await _answer(answer, timeout_s, SyncAnswer(error=ErrorCode.rebalance_in_progress))

    async def _in_turn(
        self, shard: GroupShard, group_id: str, steps: Callable[[], Steps[A | None]]
    ) -> A | None:
        """Drive a request of a classic member; return its answer, None if it arrives later."""
        # Nearly all groups are classic ones, and thousands of members may join together.
        if shard.takes_one_step(group_id):
            return await _driven(steps())
        # One request of a group at a time, in their order, since it may take several steps.
        async with shard.turn(group_id):
            answer = await _driven(steps())
            end_offset = shard.recorded_below(group_id)
        # A consumer-protocol group answers at once, but only after its records are committed.
        if answer is not None:
            await self._committed(shard, end_offset)
        return answer

    async def heartbeat(self, group_id: str, who: MemberIdentity, generation_id: int) -> ErrorCode:
        """Handle a classic heartbeat. See :meth:`Rebalancing.heartbeat`."""
        shard = self.coordinators.shard_of(group_id)
        async with shard.turn(group_id):
            steps = shard.classic_heartbeat(group_id, who, generation_id, self._clock())
            return await _driven(steps)

    async def leave(self, group_id: str, members: Sequence[MemberIdentity]) -> list[ErrorCode]:
        """Remove members. See :meth:`Rebalancing.leave`."""
        shard = self.coordinators.shard_of(group_id)
        async with shard.turn(group_id):
            return shard.leave(group_id, members, self._clock())

    # ------------------------------------------------------------ KIP-848's protocol

    async def consumer_heartbeat(
        self, request: HeartbeatRequest, denied: Denied, pause: Pause
    ) -> HeartbeatAnswer:
        """Handle ConsumerGroupHeartbeat, and answer once its records are committed.

        ``denied`` returns the topics that the member may not describe; the group's expressions do
        not match them. ``pause`` yields the loop.
        """
        topics_version = self._cluster.topics_version
        shard = self.coordinators.shard_of(request.group_id)
        unresolved = shard.consumers.unresolved(
            request.group_id, request.regex, topics_version, self._clock()
        )
        # Expressions are resolved before the request takes the group's lock, since matching all
        # topics takes long.
        if unresolved:
            resolved = await self._resolve(unresolved, request.regex, denied, pause)
            request = replace(request, resolved=resolved)
            # The partition may have moved while the expressions were resolved.
            shard = self.coordinators.shard_of(request.group_id)
        request = replace(request, topics_version=topics_version)
        async with shard.turn(request.group_id):
            answer = await _driven(shard.heartbeat(request, self._clock()))
        await self._committed(shard, answer.recorded_below)
        return answer

    async def _resolve(
        self, regexes: Sequence[str], requested: str | None, denied: Denied, pause: Pause
    ) -> Mapping[str, frozenset[str]]:
        """Match regular expressions against all topics; return the matching names by expression.

        ``requested``: the expression of this heartbeat. An invalid one raises CoordinatorError;
        invalid ones of other members match nothing.
        """
        patterns: list[tuple[str, Callable[[str], bool]]] = []
        for regex in regexes:
            try:
                patterns.append((regex, await self._pattern(regex)))
            except BadPattern as error:
                # Only the member's own expression may fail its heartbeat.
                if regex == requested:
                    wrong = (
                        f"SubscribedTopicRegex `{shown(regex)}` is not a valid expression: {error}"
                    )
                    raise CoordinatorError(ErrorCode.invalid_regular_expression, wrong) from error
        # Matching all topics may take seconds, so the loop is yielded regularly.
        found: dict[str, set[str]] = {regex: set() for regex in regexes}
        for number, name in enumerate(tuple(self._cluster.topics)):
            for regex, matches in patterns:
                if matches(name):
                    found[regex].add(name)
            if not number % _TOPICS_AT_ONCE:
                await pause()
        # Topics that the member may not describe are removed, as in Kafka.
        refused = await denied(set().union(*found.values()))
        return {regex: frozenset(names - refused) for regex, names in found.items()}

    async def _pattern(self, regex: str) -> Callable[[str], bool]:
        known = self._patterns.get(regex)
        if known is None:
            # The first call imports pydantic, which takes a while.
            known = await asyncio.to_thread(compiled, regex)
            self._patterns.put(regex, known)
            self._patterns.evict()
        return known

    def _topic(self, name: str) -> SubscribedTopic | None:
        view = self._cluster.topics.get(name)
        return None if view is None else SubscribedTopic(view.topic_id, len(view.partitions))

    def _name(self, topic_id: uuid.UUID) -> str | None:
        view = self._cluster.by_id(topic_id)
        return None if view is None else view.name

    def _offload(self, shard: GroupShard, made: Offload) -> None:
        start_in(self._assigning, self._assign(shard, made))

    def _due(self, shard: GroupShard, group_id: str) -> None:
        start_in(self._assigning, self._due_in_turn(shard, group_id))

    async def _due_in_turn(self, shard: GroupShard, group_id: str) -> None:
        async with shard.turn(group_id):
            await _driven(shard.due(group_id, self._clock()))

    async def _assign(self, shard: GroupShard, made: Offload) -> None:
        """Compute the targets of a large group in a thread while its members continue."""
        try:
            targets = await _in_assignor_thread(made.compute)
            await _driven(shard.consumers.targets.bring_into_force(made, targets, self._clock()))
        except CoordinatorError as error:
            logger.warning(
                "group %s: targets were not recorded: %s", shown(made.group.group_id), error
            )
        finally:
            shard.consumers.targets.gave_up(made.group, self._clock())

    def may_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Check that the member may read the group's offsets.

        Only consumer-protocol groups check that.
        """
        group = self.consumer_group(group_id)
        if group is None or (member_id is None and member_epoch < 0):
            return ErrorCode.none
        return group.validate(member_id or "", member_epoch)

    def consumer_group(self, group_id: str) -> ConsumerGroup | None:
        """Return a consumer-protocol group, None if there is none."""
        return self.coordinators.shard_of(group_id).consumer_groups.get(group_id)

    # ------------------------------------------------------------ offsets

    async def commit(
        self, by: OffsetCommitter, new: Sequence[NewOffset], pause: Pause
    ) -> list[ErrorCode]:
        """Commit offsets; return an error code for each, once the stored ones are committed.

        For a commit in a transaction, the caller has queried its coordinator first
        (:meth:`log_of`).
        """
        shard = self.coordinators.shard_of(by.group_id)
        errors: list[ErrorCode] = []
        end_offset = 0
        # An empty commit is handled too, since it checks the member.
        for start in range(0, max(len(new), 1), COMMITTED_AT_ONCE):
            part = new[start : start + COMMITTED_AT_ONCE]
            # The group's lock is taken for each part, so that its heartbeats are served in between.
            async with shard.turn(by.group_id):
                changed = shard.group_offsets.commit(by, part, self._clock())
            errors += changed.errors
            end_offset = max(end_offset, changed.end_offset)
            await pause()
        await self._committed(shard, end_offset)
        return errors

    async def offsets(
        self, group_id: str
    ) -> tuple[dict[OffsetKey, CommittedOffset], frozenset[OffsetKey]]:
        """Return the group's committed offsets, and the partitions whose offset a transaction
        may change.
        """
        shard = self.coordinators.shard_of(group_id)
        known = dict(shard.offsets.of_group(group_id))
        pending = frozenset(shard.offsets.of_transactions(group_id))
        group = shard.group_offsets.find(group_id)
        # A missing group may have been deleted just now, and its tombstones are not committed yet.
        below = shard.log.end_offset if group is None else group.recorded_below
        await self._committed(shard, below)
        return known, pending

    async def delete_offsets(
        self, group_id: str, of: Sequence[OffsetKey]
    ) -> "list[ErrorCode] | ErrorCode":
        """Delete offsets. Return one error each, or the error of the group."""
        shard = self.coordinators.shard_of(group_id)
        changed = shard.group_offsets.delete_offsets(group_id, of)
        if isinstance(changed, ErrorCode):
            return changed
        await self._committed(shard, changed.end_offset)
        return changed.errors

    async def delete_group(self, group_id: str, pause: Pause) -> ErrorCode:
        """Delete a group and its offsets."""
        more, end_offset = True, 0
        while more:
            # Looked up again for each part, since the partition may move in between.
            shard = self.coordinators.shard_of(group_id)
            async with shard.turn(group_id):
                error, more, end_offset = shard.group_offsets.delete_some_of_group(group_id)
            if error is not ErrorCode.none:
                return error
            await pause()
        await self._committed(shard, end_offset)
        return ErrorCode.none

    async def _committed(self, shard: GroupShard, end_offset: int) -> None:
        try:
            async with asyncio.timeout(self.settings.commit_timeout_ms / 1000):
                await shard.log.committed(end_offset)
        except TimeoutError:
            raise CoordinatorError(
                ErrorCode.coordinator_not_available,
                "the records were not replicated within offsets.commit.timeout.ms",
            ) from None

    # ------------------------------------------------------------ transactions

    def log_of(self, group_id: str) -> CoordinatorLog:
        """Return the log of the group's offsets."""
        return self.coordinators.shard_of(group_id).log

    def ready_for_marker(self, partition: int) -> None:
        """Check that this broker may append a marker to that partition of ``__consumer_offsets``.

        Raises unless the partition is loaded: a marker that arrives during the load would not be
        applied.
        """
        self.coordinators.shard_at(partition)

    def marker_appended(
        self, partition: int, producer: TransactionalProducer, *, committed: bool
    ) -> None:
        """Apply a marker, in the same step of the loop as its append."""
        shard = self.coordinators.shard_at(partition)
        shard.group_offsets.end_transaction(
            producer, committed=committed, end_offset=shard.log.partition.next_offset
        )

    # ------------------------------------------------------------ what there is

    def group(self, group_id: str) -> ClassicGroup | None:
        """Return a classic group, None if there is none."""
        return self.coordinators.shard_of(group_id).groups.get(group_id)

    @property
    def count(self) -> int:
        shards = self.coordinators.active()
        return sum(len(shard.groups) + len(shard.consumer_groups) for shard in shards)

    def groups(self) -> Iterator[Group]:
        """Yield all groups. Raises while partitions are loading."""
        if self.coordinators.loading:
            raise CoordinatorError(ErrorCode.coordinator_load_in_progress)
        for shard in self.coordinators.active():
            yield from shard.all_groups()

    # ------------------------------------------------------------ background work

    async def run(self) -> None:
        """Run the background work until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.coordinators.run())
            group.create_task(self._follow_topics())

    def _deleted(self, topic: TopicMetadata) -> None:
        self._gone.append(topic)
        self._news.set()

    async def _follow_topics(self) -> None:
        """Delete offsets of deleted topics."""
        while True:
            await self._news.wait()
            self._news.clear()
            gone, self._gone = self._gone, []
            for topic in gone:
                await self._topic_deleted(topic.name, topic.topic_id)

    async def _topic_deleted(self, topic: str, topic_id: uuid.UUID) -> None:
        for shard in tuple(self.coordinators.active()):
            for group_id in shard.offsets.groups():
                more = True
                while more:
                    try:
                        more = shard.group_offsets.forget_some_of_topic(group_id, topic, topic_id)
                    except CoordinatorError:
                        more = False  # the remaining offsets expire later
                    await asyncio.sleep(0)

    async def close(self) -> None:
        """Cancel computations and give up all partitions."""
        await cancel(self._assigning)
        await self.coordinators.close()


async def _answer(answer: "asyncio.Future[A]", timeout_s: float, late: A) -> A:
    """Wait for an answer; return ``late`` after ``timeout_s`` seconds without one."""
    # Without a limit there is no timer, which takes a tenth of the time of such a request.
    if timeout_s == math.inf:
        return await answer
    try:
        async with asyncio.timeout(timeout_s):
            return await answer
    except TimeoutError:
        return late


async def _driven(steps: Steps[A]) -> A:
    """Drive the steps; their work runs in a thread. Return the result."""
    try:
        work = next(steps)
        while True:
            work = steps.send(await _in_heartbeat_thread(work.do))
    except StopIteration as ended:
        made: A = ended.value
        return made
    # A cancelled request must run the steps' finally blocks at once.
    finally:
        steps.close()


# ------------------------------------------------------------ answers

# Delivery of answers to waiting members, a few in each turn of the loop.
#
# A generation starts for all members at once, which may be thousands. Each answer wakes a
# connection that writes it. Delivered in one turn of the loop they would block all other clients.

#: Answers in one turn of the loop.
AT_ONCE = 100


class Answers:
    """Answers of one broker's groups. Used from its loop only."""

    def __init__(self) -> None:
        self._due: collections.deque[tuple[asyncio.Future[Any], Any]] = collections.deque()

    def into(self, answer: "asyncio.Future[A]") -> Callable[[A], None]:
        """Return a callback that delivers the answer soon.

        The client may have disconnected by then.
        """

        def deliver(value: A) -> None:
            # The first answer schedules the delivery of all that follow in this turn.
            if not self._due:
                asyncio.get_running_loop().call_soon(self._some)
            self._due.append((answer, value))

        return deliver

    def _some(self) -> None:
        for _ in range(min(AT_ONCE, len(self._due))):
            answer, value = self._due.popleft()
            # The request may have timed out or been cancelled.
            if not answer.done():
                answer.set_result(value)
        if self._due:
            asyncio.get_running_loop().call_soon(self._some)
