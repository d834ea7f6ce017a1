"""The groups of one partition of ``__consumer_offsets``: what stands on record, and who waits."""

import asyncio
import logging
from collections.abc import Callable, Hashable, Sequence

from tidemark_broker.coordinators.deadlines import Deadlines
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.coordinators.log import (
    CoordinatorLog,
    CoordinatorRecord,
    TransactionalProducer,
)
from tidemark_broker.groups.core.classic_group import ClassicGroup
from tidemark_broker.groups.core.group_offsets import GroupOffsets
from tidemark_broker.groups.core.journal import Room
from tidemark_broker.groups.core.offsets import CommittedOffset, Offsets, TopicPartition
from tidemark_broker.groups.core.rebalancing import CheckDeadline, Rebalancing
from tidemark_broker.groups.core.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    read_record,
)
from tidemark_broker.groups.core.settings import GroupSettings, Now
from tidemark_broker.groups.core.values import shown

logger = logging.getLogger(__name__)


class GroupShard:
    """See :class:`~tidemark_broker.coordinators.coordinators.Shard`. ``clock``: this moment;
    ``room`` is the broker's."""

    def __init__(
        self,
        log: CoordinatorLog,
        deadlines: "Deadlines[Hashable]",
        *,
        settings: GroupSettings,
        room: Room,
        clock: Callable[[], Now],
    ) -> None:
        self.log = log
        self._clock = clock
        self._room = room
        self._journal = _Journal(log, clock)
        self.groups: dict[str, ClassicGroup] = {}
        self.offsets = Offsets()
        self.rebalancing = Rebalancing(self.groups, self._journal, deadlines, settings, room)
        self.group_offsets = GroupOffsets(
            self.groups, self.offsets, self.rebalancing, self._journal, settings, room
        )

    # ------------------------------------------------------------ while it loads

    def replay(
        self, record: CoordinatorRecord, producer: TransactionalProducer | None, offset: int
    ) -> None:
        """One record of the log."""
        read = read_record(record)
        if read is None:
            return
        key, value = read
        if isinstance(key, OffsetCommitKey):
            of = TopicPartition(key.topic, key.partition)
            if value is None:
                self.offsets.remove(key.group, of)
            elif not isinstance(value, GroupMetadataValue):
                committed = CommittedOffset.of(value, offset)
                self.offsets.put(key.group, of, committed, producer)
        elif isinstance(key, GroupMetadataKey):
            if value is None:
                self.groups.pop(key.group, None)
            elif isinstance(value, GroupMetadataValue):
                self.groups[key.group] = ClassicGroup.of(key.group, value)

    def replay_marker(self, producer: TransactionalProducer, *, committed: bool) -> None:
        """The end of a transaction."""
        self.offsets.end_transaction(producer, committed=committed)

    # ------------------------------------------------------------ while it is active

    def loaded(self, now_s: float) -> None:
        """It answers from now on."""
        now = self._clock()
        for group_id in self.offsets.groups():
            if group_id not in self.groups:
                self.groups[group_id] = ClassicGroup(group_id)
        self._room.used_bytes += self.offsets.weight_bytes
        for group in self.groups.values():
            self._room.weigh(group)
        self.rebalancing.loaded(Now(now_s, now.ms))

    def expired(self, key: Hashable, now_s: float) -> None:
        """Something that it waited for has not come, or is to be looked at."""
        now = Now(now_s, self._clock().ms)
        if not isinstance(key, CheckDeadline):
            self.rebalancing.expired(key, now)
            return
        more = False
        try:
            more = self.group_offsets.check(key.group_id, now)
        except CoordinatorError as error:
            logger.warning("group %s: what has expired stays: %s", shown(key.group_id), error)
        if key.group_id in self.groups:
            self.rebalancing.check_later(key.group_id, now, soon=more)

    def resigned(self) -> None:
        """Another broker answers."""
        self.rebalancing.resigned()
        self._room.used_bytes -= self.offsets.weight_bytes
        for group in self.groups.values():
            self._room.forget(group)


class _Journal:
    """See :class:`~tidemark_broker.groups.core.journal.Journal`."""

    def __init__(self, log: CoordinatorLog, clock: Callable[[], Now]) -> None:
        self._log = log
        self._clock = clock

    def append(
        self, records: Sequence[CoordinatorRecord], producer: TransactionalProducer | None = None
    ) -> int:
        return self._log.append(records, producer)

    def when_committed(self, end_offset: int, then: Callable[[Now], None]) -> None:
        def done(committed: "asyncio.Future[None]") -> None:
            if not committed.cancelled() and committed.exception() is None:
                then(self._clock())

        self._log.committed(end_offset).add_done_callback(done)
