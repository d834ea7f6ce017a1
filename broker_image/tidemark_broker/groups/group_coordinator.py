"""The groups that this broker coordinates, for the handlers of Kafka's requests.

It finds the group's partition, hands the request to the rules (:mod:`.core`), and answers once what
the answer tells of is committed.
"""

import asyncio
import logging
import uuid
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from dataclasses import replace
from typing import TypeVar

from kio.schema.errors import ErrorCode

from tidemark.logfiles.names import GROUP_OFFSETS_TOPIC
from tidemark.lru import Lru
from tidemark_broker.coordinators.coordinators import Coordinators
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.coordinators.log import CoordinatorLog, TransactionalProducer
from tidemark_broker.groups.core.classic_group import ClassicGroup
from tidemark_broker.groups.core.consumer_group import ConsumerGroup
from tidemark_broker.groups.core.consumer_targets import Offload
from tidemark_broker.groups.core.consumer_values import (
    HeartbeatAnswer,
    HeartbeatRequest,
    Topic,
)
from tidemark_broker.groups.core.group_offsets import Committer, Group, NewOffset
from tidemark_broker.groups.core.journal import Room
from tidemark_broker.groups.core.offsets import CommittedOffset, TopicPartition
from tidemark_broker.groups.core.settings import GroupSettings, Now
from tidemark_broker.groups.core.steps import Steps
from tidemark_broker.groups.core.topic_patterns import BadPattern, compiled
from tidemark_broker.groups.core.values import (
    Identity,
    JoinAnswer,
    JoinRequest,
    SyncAnswer,
    SyncRequest,
    shown,
)
from tidemark_broker.groups.group_responses import Answers
from tidemark_broker.groups.shard import GroupShard
from tidemark_broker.purgatory import Purgatory
from tidemark_broker.replication.metadata import MetadataCache, TopicMetadata
from tidemark_broker.replication.threads import Threads

logger = logging.getLogger(__name__)
A = TypeVar("A")

#: Offsets that are put on record at a time: one batch of them is a slice of the loop's time.
COMMITTED_AT_ONCE = 250
#: Gives the loop away where it is somebody else's turn.
Pause = Callable[[], Awaitable[None]]
#: Those of some topics that a client may not describe.
Denied = Callable[[Iterable[str]], Awaitable[Set[str]]]
#: Expressions that are kept as what they were made into.
_PATTERNS_MAX = 50
#: What heartbeats of members of thousands of topics go through.
_in_heartbeat_thread = Threads("heartbeats", threads=1)
#: What is assigned to the members of large groups.
_in_assignor_thread = Threads("assignors", threads=1)
#: Topics that all expressions of a group are held against, before others have their turn.
_TOPICS_AT_ONCE = 20


class GroupCoordinator:
    """The loop thread owns it. What it raises is :class:`CoordinatorError`."""

    def __init__(
        self,
        settings: GroupSettings,
        *,
        cluster: MetadataCache,
        purgatory: Purgatory,
        want: Callable[[str], None],
        clock: Callable[[], Now],
    ) -> None:
        self.settings = settings
        self.room = Room(settings.bytes_max)
        self._clock = clock
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
            want=want,
            now=lambda: clock().s,
        )
        self._cluster = cluster
        self._assigning: set[asyncio.Task[None]] = set()
        self._patterns: Lru[str, Callable[[str], bool]] = Lru(_PATTERNS_MAX)
        self._answers = Answers()
        self._gone: list[TopicMetadata] = []
        self._news = asyncio.Event()
        cluster.deleted.append(self._deleted)

    # ------------------------------------------------------------ members

    async def join(
        self, request: Callable[[Callable[[JoinAnswer], None]], JoinRequest], timeout_s: float
    ) -> JoinAnswer:
        """Once the next generation begins; who waits longer than ``timeout_s`` is to ask again.
        ``request`` is given where the answer goes."""
        answer: asyncio.Future[JoinAnswer] = asyncio.get_running_loop().create_future()
        asked = request(self._answers.into(answer))
        shard = self.coordinators.shard_of(asked.group_id)
        async with shard.turn(asked.group_id):
            steps = shard.join(asked, self._cluster.topics_version, self._clock())
            joined = await _driven(steps)
            end_offset = shard.recorded_below(asked.group_id)
        if joined is not None:
            await self._committed(shard, end_offset)
            return joined
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            return JoinAnswer(error=ErrorCode.rebalance_in_progress, member_id=asked.who.member_id)

    async def sync(
        self, request: Callable[[Callable[[SyncAnswer], None]], SyncRequest], timeout_s: float
    ) -> SyncAnswer:
        """Once the leader has said what everybody does."""
        answer: asyncio.Future[SyncAnswer] = asyncio.get_running_loop().create_future()
        asked = request(self._answers.into(answer))
        shard = self.coordinators.shard_of(asked.group_id)
        async with shard.turn(asked.group_id):
            synced = await _driven(shard.sync(asked, self._clock()))
            end_offset = shard.recorded_below(asked.group_id)
        if synced is not None:
            await self._committed(shard, end_offset)
            return synced
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            return SyncAnswer(error=ErrorCode.rebalance_in_progress)

    async def heartbeat(self, group_id: str, who: Identity, generation_id: int) -> ErrorCode:
        """See :meth:`Rebalancing.heartbeat`."""
        shard = self.coordinators.shard_of(group_id)
        async with shard.turn(group_id):
            steps = shard.classic_heartbeat(group_id, who, generation_id, self._clock())
            return await _driven(steps)

    async def leave(self, group_id: str, members: Sequence[Identity]) -> list[ErrorCode]:
        """See :meth:`Rebalancing.leave`."""
        shard = self.coordinators.shard_of(group_id)
        async with shard.turn(group_id):
            return shard.leave(group_id, members, self._clock())

    # ------------------------------------------------------------ KIP-848's protocol

    async def consumer_heartbeat(
        self, request: HeartbeatRequest, denied: Denied, pause: Pause
    ) -> HeartbeatAnswer:
        """A member of a consumer group is there; ``denied``: topics that it may not describe, which
        no expression of the group stands for."""
        topics_version, shard = self._cluster.topics_version, self._shard_of(request)
        unresolved = shard.consumers.unresolved(
            request.group_id, request.regex, topics_version, self._clock()
        )
        if unresolved:
            resolved = await self._resolve(unresolved, request.regex, denied, pause)
            request = replace(request, resolved=resolved)
            shard = self._shard_of(request)
        request = replace(request, topics_version=topics_version)
        async with shard.turn(request.group_id):
            answer = await _driven(shard.heartbeat(request, self._clock()))
        await self._committed(shard, answer.recorded_below)
        return answer

    def _shard_of(self, request: HeartbeatRequest) -> GroupShard:
        return self.coordinators.shard_of(request.group_id)

    async def _resolve(
        self, regexes: Sequence[str], asked: str | None, denied: Denied, pause: Pause
    ) -> Mapping[str, frozenset[str]]:
        patterns: list[tuple[str, Callable[[str], bool]]] = []
        for regex in regexes:
            try:
                patterns.append((regex, await self._pattern(regex)))
            except BadPattern as error:
                if regex == asked:
                    wrong = (
                        f"SubscribedTopicRegex `{shown(regex)}` is not a valid expression: {error}"
                    )
                    raise CoordinatorError(ErrorCode.invalid_regular_expression, wrong) from error
        found: dict[str, set[str]] = {regex: set() for regex in regexes}
        for number, name in enumerate(tuple(self._cluster.topics)):
            for regex, matches in patterns:
                if matches(name):
                    found[regex].add(name)
            if not number % _TOPICS_AT_ONCE:
                await pause()
        refused = await denied(set().union(*found.values()))
        return {regex: frozenset(names - refused) for regex, names in found.items()}

    async def _pattern(self, regex: str) -> Callable[[str], bool]:
        known = self._patterns.get(regex)
        if known is None:
            # What reads them is loaded with the first one, which takes a while.
            known = await asyncio.to_thread(compiled, regex)
            self._patterns.put(regex, known)
            self._patterns.evict()
        return known

    def _topic(self, name: str) -> Topic | None:
        view = self._cluster.topics.get(name)
        return None if view is None else Topic(view.topic_id, len(view.partitions))

    def _name(self, topic_id: uuid.UUID) -> str | None:
        view = self._cluster.by_id(topic_id)
        return None if view is None else view.name

    def _offload(self, shard: GroupShard, made: Offload) -> None:
        self._begin(self._assign(shard, made))

    def _due(self, shard: GroupShard, group_id: str) -> None:
        self._begin(self._due_in_turn(shard, group_id))

    def _begin(self, assigning: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(assigning)
        self._assigning.add(task)
        task.add_done_callback(self._assigning.discard)

    async def _due_in_turn(self, shard: GroupShard, group_id: str) -> None:
        async with shard.turn(group_id):
            await _driven(shard.due(group_id, self._clock()))

    async def _assign(self, shard: GroupShard, made: Offload) -> None:
        """Make the targets of a large group, one after another, while its members go on."""
        try:
            targets = await _in_assignor_thread(made.compute)
            await _driven(shard.consumers.targets.bring_into_force(made, targets, self._clock()))
        except CoordinatorError as error:
            logger.warning(
                "group %s: its targets are not on record: %s", shown(made.group.group_id), error
            )
        finally:
            shard.consumers.targets.gave_up(made.group, self._clock())

    def may_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> ErrorCode:
        """May a client that says to be that member hear of the group's offsets? Only of groups of
        KIP-848's protocol that is asked."""
        group = self.consumer_group(group_id)
        if group is None or (member_id is None and member_epoch < 0):
            return ErrorCode.none
        return group.validate(member_id or "", member_epoch)

    def consumer_group(self, group_id: str) -> ConsumerGroup | None:
        """A group of KIP-848's protocol as it is; None: there is none."""
        return self.coordinators.shard_of(group_id).consumer_groups.get(group_id)

    # ------------------------------------------------------------ offsets

    async def commit(
        self, by: Committer, new: Sequence[NewOffset], pause: Pause
    ) -> list[ErrorCode]:
        """One error each, once those that are kept are committed. In a transaction its coordinator
        is to be asked first (:meth:`log_of`)."""
        shard = self.coordinators.shard_of(by.group_id)
        errors: list[ErrorCode] = []
        end_offset = 0
        for start in range(0, max(len(new), 1), COMMITTED_AT_ONCE):
            part = new[start : start + COMMITTED_AT_ONCE]
            async with shard.turn(by.group_id):
                changed = shard.group_offsets.commit(by, part, self._clock())
            errors += changed.errors
            end_offset = max(end_offset, changed.end_offset)
            await pause()
        await self._committed(shard, end_offset)
        return errors

    async def offsets(
        self, group_id: str
    ) -> tuple[dict[TopicPartition, CommittedOffset], frozenset[TopicPartition]]:
        """What a group has committed, and the partitions of which a transaction may still change
        that."""
        shard = self.coordinators.shard_of(group_id)
        known = dict(shard.offsets.of_group(group_id))
        pending = frozenset(shard.offsets.of_transactions(group_id))
        group = shard.group_offsets.find(group_id)
        # A group that is not there may have been deleted a moment ago.
        below = shard.log.end_offset if group is None else group.recorded_below
        await self._committed(shard, below)
        return known, pending

    async def delete_offsets(
        self, group_id: str, of: Sequence[TopicPartition]
    ) -> "list[ErrorCode] | ErrorCode":
        """One error each, or one for all."""
        shard = self.coordinators.shard_of(group_id)
        changed = shard.group_offsets.delete_offsets(group_id, of)
        if isinstance(changed, ErrorCode):
            return changed
        await self._committed(shard, changed.end_offset)
        return changed.errors

    async def delete_group(self, group_id: str, pause: Pause) -> ErrorCode:
        """Its offsets and itself."""
        more, end_offset = True, 0
        while more:
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
                "what was recorded is not replicated within offsets.commit.timeout.ms",
            ) from None

    # ------------------------------------------------------------ transactions

    def log_of(self, group_id: str) -> CoordinatorLog:
        """Where its offsets are recorded."""
        return self.coordinators.shard_of(group_id).log

    def ready_for_marker(self, partition: int) -> None:
        """Before the end of a transaction is appended to that partition of
        ``__consumer_offsets``: raises unless this broker coordinates it by now (a marker that comes
        while it loads would pass unseen)."""
        self.coordinators.shard_at(partition)

    def marker_appended(
        self, partition: int, producer: TransactionalProducer, *, committed: bool
    ) -> None:
        """In the same step of the loop as the append: offsets of that transaction count now, or
        never will."""
        shard = self.coordinators.shard_at(partition)
        shard.group_offsets.end_transaction(
            producer, committed=committed, end_offset=shard.log.partition.next_offset
        )

    # ------------------------------------------------------------ what there is

    def group(self, group_id: str) -> ClassicGroup | None:
        """A group of the classic protocol as it is; None: there is none."""
        return self.coordinators.shard_of(group_id).groups.get(group_id)

    @property
    def count(self) -> int:
        """How many groups there are."""
        shards = self.coordinators.active()
        return sum(len(shard.groups) + len(shard.consumer_groups) for shard in shards)

    def groups(self) -> Iterator[Group]:
        """All of them; raises while some are not known yet."""
        if self.coordinators.loading:
            raise CoordinatorError(ErrorCode.coordinator_load_in_progress)
        for shard in self.coordinators.active():
            yield from shard.all_groups()

    # ------------------------------------------------------------ by itself

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.coordinators.run())
            group.create_task(self._follow_topics())

    def _deleted(self, topic: TopicMetadata) -> None:
        self._gone.append(topic)
        self._news.set()

    async def _follow_topics(self) -> None:
        """Offsets of deleted topics go."""
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
                        more = False  # what stays expires
                    await asyncio.sleep(0)

    async def close(self) -> None:
        """Coordinate nothing any more."""
        for task in tuple(self._assigning):
            task.cancel()
        await asyncio.gather(*self._assigning, return_exceptions=True)
        await self.coordinators.close()


async def _driven(steps: Steps[A]) -> A:
    """What comes of them; their work is done in a thread."""
    try:
        work = next(steps)
        while True:
            work = steps.send(await _in_heartbeat_thread(work.do))
    except StopIteration as ended:
        made: A = ended.value
        return made
    finally:
        steps.close()
