"""Groups of one partition of ``__consumer_offsets``: state from the log, and waiting members."""

import asyncio
import logging
import uuid
import weakref
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from tidemark_broker.coordinators.deadlines import Deadlines
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.coordinators.log import (
    CoordinatorLog,
    CoordinatorRecord,
    TransactionalProducer,
)
from tidemark_broker.groups.core import consumer_records as records
from tidemark_broker.groups.core import migration
from tidemark_broker.groups.core.classic_group import ClassicGroup
from tidemark_broker.groups.core.classic_members import ClassicMembers
from tidemark_broker.groups.core.classic_rebalances import CheckDeadline, Rebalancing
from tidemark_broker.groups.core.consumer_effects import effect_of, records_of, size_of
from tidemark_broker.groups.core.consumer_group import ConsumerGroup
from tidemark_broker.groups.core.consumer_heartbeats import ConsumerGroups
from tidemark_broker.groups.core.consumer_targets import Offload
from tidemark_broker.groups.core.group_offsets import Group, GroupOffsets
from tidemark_broker.groups.core.journal import GroupContext, GroupMemory
from tidemark_broker.groups.core.offsets import CommittedOffset, OffsetKey
from tidemark_broker.groups.core.records import (
    ExpiringOffsetCommitValue,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    Value,
    read_record,
    record_of,
)
from tidemark_broker.groups.core.settings import GroupConfigOf, GroupConfigs, GroupSettings, Now
from tidemark_broker.groups.core.steps import Steps, off_loop
from tidemark_broker.groups.core.values import (
    JOIN,
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

logger = logging.getLogger(__name__)

#: Delay of a deadline whose group is being changed by a request.
_BUSY_S = 0.05


class GroupShard:
    """Groups of one partition, see :class:`~tidemark_broker.coordinators.coordinators.Shard`.

    ``clock`` returns the current time. ``room`` is shared by all partitions of the broker.
    """

    def __init__(
        self,
        log: CoordinatorLog,
        deadlines: "Deadlines[Hashable]",
        *,
        settings: GroupSettings,
        room: GroupMemory,
        clock: Callable[[], Now],
        topic: Callable[[str], SubscribedTopic | None],
        name: Callable[[uuid.UUID], str | None],
        config_of: GroupConfigOf,
        offload: Callable[["GroupShard", Offload], None],
        due: Callable[["GroupShard", str], None],
    ) -> None:
        """Create an empty shard; the log is replayed into it, and :meth:`loaded` activates it.

        - ``topic``, ``name``: return a topic by name and a name by topic id, None if unknown
        - ``config_of``: returns a group's own configuration
        - ``offload``: receives targets to compute outside the loop
        - ``due``: receives a group id whose targets are due, or that may be downgraded
        """
        self.log = log
        self._clock = clock
        # Both protocols share the journal and the deadlines, since a group may change between them.
        self._context = context = GroupContext(
            journal=_Journal(log, clock),
            deadlines=deadlines,
            settings=settings,
            room=room,
            configs=GroupConfigs(settings, config_of),
            topic=topic,
            name=name,
        )
        self.groups, self.consumer_groups = context.groups, context.consumer_groups
        self.offsets = context.offsets
        # Weak values: a lock disappears with the last request that holds or awaits it.
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self.rebalancing = Rebalancing(context)
        self.consumers = ConsumerGroups(
            context,
            offload=lambda made: offload(self, made),
            due=lambda group_id: due(self, group_id),
        )
        self._classic_members = ClassicMembers(context, self.consumers)
        self.group_offsets = GroupOffsets(context, self.rebalancing, self.consumers)

    def all_groups(self) -> Iterator[Group]:
        """Groups of both protocols, as a snapshot."""
        yield from tuple(self.groups.values())
        yield from tuple(self.consumer_groups.values())

    def recorded_below(self, group_id: str) -> int:
        """End offset of the last record of the group or of its offsets."""
        group = self.group_offsets.find(group_id)
        return 0 if group is None else group.recorded_below

    @asynccontextmanager
    async def turn(self, group_id: str) -> AsyncIterator[None]:
        """Wait for the group's lock, and hold it while the group is changed in several steps.

        Requests for a group acquire it in the order of their arrival.
        """
        async with self._turns.setdefault(group_id, asyncio.Lock()):
            yield

    def takes_one_step(self, group_id: str) -> bool:
        """Return whether a classic member's request is one step, and no other request is served.

        Then it needs no lock. A lock exists only while a request holds or awaits it.
        """
        return group_id not in self.consumer_groups and group_id not in self._turns

    def _is_busy(self, group_id: str) -> bool:
        turn = self._turns.get(group_id)
        return turn is not None and turn.locked()

    # ------------------------------------------------------------ loading

    def replay(
        self, record: CoordinatorRecord, producer: TransactionalProducer | None, offset: int
    ) -> None:
        """Apply one record of the log; ``offset`` is that of the record.

        ``producer``: the transaction that contains the record, None for none.
        """
        read = read_record(record)
        # A record type of a later release, which Kafka ignores as well.
        if read is None:
            return
        key, value = read
        # A committed offset, pending if it is part of a transaction.
        if isinstance(key, OffsetCommitKey):
            of = OffsetKey(key.topic, key.partition)
            if value is None:
                self.offsets.remove(key.group, of)
            elif isinstance(value, OffsetCommitValue | ExpiringOffsetCommitValue):
                committed = CommittedOffset.of(value, offset)
                self.offsets.put(key.group, of, committed, producer)
        # A record of the one protocol replaces a group of the other one: the group was migrated.
        elif isinstance(key, GroupMetadataKey):
            if value is None:
                self.groups.pop(key.group, None)
            elif isinstance(value, GroupMetadataValue):
                self.groups[key.group] = ClassicGroup.of(key.group, value)
                self.consumer_groups.pop(key.group, None)
        else:
            self._replay_consumer_group(key, value)

    def _replay_consumer_group(self, key: records.Key, value: Value | None) -> None:
        """Apply a record of the consumer protocol; the first one creates the group."""
        group = self.consumer_groups.get(key.group_id)
        if group is None:
            # A tombstone of an unknown group: its other records were compacted away.
            if value is None:
                return
            group = self.consumer_groups[key.group_id] = ConsumerGroup(key.group_id)
            self.groups.pop(key.group_id, None)
        if value is None and isinstance(key, records.ConsumerGroupMetadataKey):
            del self.consumer_groups[key.group_id]
        else:
            group.apply(key, effect_of(value) if isinstance(value, records.Value) else None)
            group.follow_moves()

    def replay_marker(self, producer: TransactionalProducer, *, committed: bool) -> None:
        """Apply a marker of a transaction with offsets."""
        self.offsets.end_transaction(producer, committed=committed)

    # ------------------------------------------------------------ active state

    def loaded(self, now_s: float) -> None:
        """Become active after the log was replayed: account for memory and start the timers."""
        now = self._clock()
        # Offsets without a group record belong to standalone consumers. They need a group to
        # expire.
        for group_id in self.offsets.groups():
            if self.group_offsets.find(group_id) is None:
                self.groups[group_id] = ClassicGroup(group_id)
        self._context.room.used_bytes += self.offsets.weight_bytes
        for group in self.all_groups():
            self._context.room.weigh(group)
        at = Now(now_s, now.ms)
        # Sessions restart, since heartbeats before the change of coordinators are not in the log.
        self.rebalancing.loaded(at)
        for group_id in self.consumer_groups:
            self.rebalancing.check_later(group_id, at)
        self.consumers.loaded(at)

    def expired(self, key: Hashable, now_s: float) -> None:
        """Handle a deadline, or postpone it while a request changes the group."""
        now = Now(now_s, self._clock().ms)
        if self._is_busy(getattr(key, "group_id", "")):
            self._context.deadlines.schedule(key, now_s + _BUSY_S)
        elif isinstance(key, CheckDeadline):
            self._check(key.group_id, now)
        elif not self.consumers.expired(key, now):
            self.rebalancing.expired(key, now)

    def _check(self, group_id: str, now: Now) -> None:
        more = False
        try:
            more = self.group_offsets.check(group_id, now)
        except CoordinatorError as error:
            logger.warning("group %s: expired offsets were not deleted: %s", shown(group_id), error)
        if self.group_offsets.find(group_id) is not None:
            self.rebalancing.check_later(group_id, now, soon=more)

    def resigned(self) -> None:
        """Give up the partition: fail waiting members and release the memory."""
        self.rebalancing.resigned()
        self._context.room.used_bytes -= self.offsets.weight_bytes
        for group in self.all_groups():
            self._context.room.forget(group)
            self._context.room.forget_owner(group.group_id)

    # ------------------------------------------------------------ members of both protocols

    def join(self, request: JoinRequest, topics_version: int, now: Now) -> Steps[JoinAnswer | None]:
        """Handle JoinGroup of a member of the classic protocol.

        None: the answer goes to ``request.answer`` later. An empty group of the consumer protocol
        is replaced by a classic one.
        """
        group = self.consumer_groups.get(request.group_id)
        if group is not None and not group.is_empty:
            return (yield from self._classic_members.join(group, request, topics_version, now))
        # A classic member may replace a consumer-protocol group that has no members.
        if group is not None:
            end_offset = self.consumers.forget(group)
            classic = self.groups[request.group_id] = ClassicGroup(request.group_id, now.ms)
            classic.recorded_below = end_offset
        self.rebalancing.join(request, now)
        return None

    def sync(self, request: SyncRequest, now: Now) -> Steps[SyncAnswer | None]:
        """Return the assignment of a classic member; None as in :meth:`join`."""
        group = self.consumer_groups.get(request.group_id)
        if group is not None:
            return (yield from self._classic_members.sync(group, request, now))
        self.rebalancing.sync(request, now)
        return None

    def classic_heartbeat(
        self, group_id: str, who: MemberIdentity, generation_id: int, now: Now
    ) -> Steps[ErrorCode]:
        """Handle the heartbeat of a classic member."""
        group = self.consumer_groups.get(group_id)
        if group is not None:
            beat = self._classic_members.heartbeat(group, who, generation_id, now)
            return (yield from beat)
        return self.rebalancing.heartbeat(group_id, who, generation_id, now)

    def leave(self, group_id: str, members: Sequence[MemberIdentity], now: Now) -> list[ErrorCode]:
        """Remove members. Return the error of each."""
        group = self.consumer_groups.get(group_id)
        if group is not None:
            return self._classic_members.leave(group, members, now)
        return self.rebalancing.leave(group_id, members, now)

    def heartbeat(self, request: HeartbeatRequest, now: Now) -> Steps[HeartbeatAnswer]:
        """Handle ConsumerGroupHeartbeat. The first one in a classic group converts the group.

        An empty classic group is replaced, and one with members is upgraded. Raises
        :class:`CoordinatorError`.
        """
        group_id = request.group_id
        is_known, end_offset = group_id in self.consumer_groups, 0
        classic = self.groups.get(group_id)
        if classic is not None:
            end_offset = yield from self._make_way(classic, request, now)
        try:
            answer = yield from self.consumers.heartbeat(request, now)
        finally:
            # The join may fail after the classic group was replaced, so the outcome decides what
            # exists.
            if not is_known and group_id in self.consumer_groups:
                self.rebalancing.check_later(group_id, now)
                self.consumers.downgrade_later(self.consumer_groups[group_id], now)
            elif end_offset and group_id not in self.consumer_groups:  # replaced by nothing
                classic = self.groups[group_id] = ClassicGroup(group_id, now.ms)
                classic.recorded_below = end_offset
                self._context.room.weigh(classic)
                self.rebalancing.check_later(group_id, now)
        return answer

    def _make_way(self, classic: ClassicGroup, request: HeartbeatRequest, now: Now) -> Steps[int]:
        """Replace a classic group by a consumer-protocol group for a member that joins.

        An empty group is only deleted; the join then creates the new one. Returns the end offset of
        the records. Raises CoordinatorError if the group may not be upgraded.
        """
        if request.member_epoch != JOIN:
            wrong = f"Group {shown(request.group_id)} is not a consumer group."
            raise CoordinatorError(ErrorCode.group_id_not_found, wrong)
        self.consumers.check(request)
        tombstone = record_of(GroupMetadataKey(group=classic.group_id), None)
        # An empty group has nothing to convert.
        if classic.is_empty:
            end_offset = self._context.journal.append([tombstone])
            self.rebalancing.forget(classic)
            return end_offset
        # Conversion may run in a thread, and changes nothing until its records are appended.
        migration.check_upgrade(classic, self._context.settings)
        made = yield from off_loop(100 * len(classic.members), partial(self._upgraded, classic))
        # Tombstone and new records are one batch, so that no reader sees the group twice.
        end_offset = self._context.journal.append([tombstone, *made.records])
        made.group.recorded_below = end_offset
        self.rebalancing.forget(classic)
        self.consumers.adopt(made.group, now)
        logger.info("group %s: upgraded to the consumer protocol", shown(classic.group_id))
        return end_offset

    def _upgraded(self, classic: ClassicGroup) -> "_Upgraded":
        entries = migration.upgraded(classic, self._context.topic)
        group = ConsumerGroup(classic.group_id)
        for key, effect in entries:
            group.apply(key, effect)
        return _Upgraded(group, records_of(entries))

    def due(self, group_id: str, now: Now) -> Steps[None]:
        """Downgrade the group, or compute its targets if they are due."""
        group = self.consumer_groups.get(group_id)
        if group is None:
            return
        if migration.may_downgrade(group, self._context.settings):
            try:
                yield from self._downgrade(group, now)
            except CoordinatorError as error:
                logger.warning("group %s: downgrade failed: %s", shown(group_id), error)
            else:
                return
        yield from self.consumers.assign(group, now)

    def _downgrade(self, group: ConsumerGroup, now: Now) -> Steps[None]:
        """Convert a consumer-protocol group, whose members are all classic, to a classic group."""

        def made() -> tuple[list[CoordinatorRecord], GroupMetadataValue]:
            value = migration.downgraded(group, self._context.name, now.ms)
            key = GroupMetadataKey(group=group.group_id)
            return [*records_of(migration.tombstones(group)), record_of(key, value)], value

        size = sum(size_of(target) for target in group.targets.values()) + 100 * len(group.members)
        written, value = yield from off_loop(size, made)
        end_offset = self._context.journal.append(written)
        self.consumers.forgotten(group)
        classic = ClassicGroup.of(group.group_id, value)
        classic.recorded_below = end_offset
        self.rebalancing.adopt(classic, now)
        logger.info("group %s: downgraded to the classic protocol", shown(group.group_id))


class _Upgraded(NamedTuple):
    group: ConsumerGroup
    records: list[CoordinatorRecord]


class _Journal:
    """A :class:`~tidemark_broker.groups.core.journal.Journal` in a coordinator's log."""

    def __init__(self, log: CoordinatorLog, clock: Callable[[], Now]) -> None:
        self._log = log
        self._clock = clock

    def append(
        self, records: Sequence[CoordinatorRecord], producer: TransactionalProducer | None = None
    ) -> int:
        return self._log.append(records, producer)

    def when_committed(self, end_offset: int, then: Callable[[Now], None]) -> None:
        # A failed future means that this broker lost the partition, so nothing is reported.
        def done(committed: "asyncio.Future[None]") -> None:
            if not committed.cancelled() and committed.exception() is None:
                then(self._clock())

        self._log.committed(end_offset).add_done_callback(done)
