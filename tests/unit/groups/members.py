"""Groups without a broker: the rules alone, a log that is a list, and immediate answers."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kio.schema.errors import ErrorCode

from tidemark.configuration.table import GROUP as GROUP_KEYS
from tidemark_broker.coordinators.deadlines import Deadlines
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.coordinators.log import CoordinatorRecord, TransactionalProducer
from tidemark_broker.groups.core.classic_group import ClassicGroup
from tidemark_broker.groups.core.classic_rebalances import Rebalancing
from tidemark_broker.groups.core.consumer_heartbeats import ConsumerGroups
from tidemark_broker.groups.core.group_offsets import GroupOffsets, NewOffset, OffsetCommitter
from tidemark_broker.groups.core.journal import GroupContext, GroupMemory
from tidemark_broker.groups.core.offsets import CommittedOffset, OffsetKey
from tidemark_broker.groups.core.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    read_record,
)
from tidemark_broker.groups.core.settings import GroupConfigs, GroupSettings, Migration, Now
from tidemark_broker.groups.core.values import (
    GroupState,
    JoinAnswer,
    JoinRequest,
    MemberIdentity,
    MemberProtocol,
    SyncAnswer,
    SyncRequest,
)

GROUP = "g"
DELAY_MS, SESSION_MS, REBALANCE_MS = 3000, 10_000, 60_000
T0_MS = 1_700_000_000_000
RANGE, STICKY = MemberProtocol("range", b"r"), MemberProtocol("sticky", b"s")

# Kafka's defaults, or smaller values where a test has to exceed a limit.
SETTINGS = GroupSettings(
    initial_rebalance_delay_ms=DELAY_MS,
    session_timeout_min_ms=6000,
    session_timeout_max_ms=1_800_000,
    size_max=2**31 - 1,
    bytes_max=1 << 30,
    offset_metadata_max=20,
    offsets_retention_ms=1_000_000,
    retention_check_ms=100_000,
    commit_timeout_ms=5000,
    consumer_session_timeout_ms=45_000,
    consumer_heartbeat_interval_ms=5000,
    consumer_size_max=2**31 - 1,
    consumer_assignment_interval_ms=1000,
    group_bounds=dict.fromkeys(GROUP_KEYS, (100, 600000)),
    migration=Migration.BIDIRECTIONAL,
    consumer_assignors=("uniform", "range"),
    regex_refresh_ms=600_000,
)


class ListJournal:
    """Journal that commits each append at once while ``commits`` is true."""

    def __init__(self) -> None:
        self.records: list[tuple[CoordinatorRecord, TransactionalProducer | None]] = []
        self.commits = True
        #: Number of records that no coordinator can lose.
        self.committed = 0
        self.refuses: ErrorCode | None = None
        self._waiting: list[Callable[[Now], None]] = []
        self.now = Now(0, T0_MS)

    def append(
        self, records: Sequence[CoordinatorRecord], producer: TransactionalProducer | None = None
    ) -> int:
        if self.refuses is not None:
            raise CoordinatorError(self.refuses)
        self.records += [(record, producer) for record in records]
        return len(self.records)

    def when_committed(self, end_offset: int, then: Callable[[Now], None]) -> None:
        self._waiting.append(then)
        if self.commits:
            self.commit()

    def commit(self) -> None:
        """Replicate everything that was appended."""
        self.committed = len(self.records)
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then(self.now)

    @property
    def groups(self) -> list[GroupMetadataValue | None]:
        """Return the recorded group metadata."""
        read = [read_record(record) for record, _ in self.records]
        return [
            value  # type: ignore[misc]
            for key, value in (item for item in read if item is not None)
            if isinstance(key, GroupMetadataKey)
        ]


@dataclass
class MemberAnswers:
    """Answers that a client has received."""

    joins: list[JoinAnswer] = field(default_factory=list)
    syncs: list[SyncAnswer] = field(default_factory=list)

    @property
    def join(self) -> JoinAnswer:
        (answer,) = self.joins
        return answer

    @property
    def sync(self) -> SyncAnswer:
        (answer,) = self.syncs
        return answer


class ClassicWorld:
    """One coordinator and its time."""

    def __init__(self, log: ListJournal | None = None, first_id: int = 1, **settings: Any) -> None:
        self.settings = GroupSettings(**({**_fields(SETTINGS)} | settings))
        self.log = log or ListJournal()
        self.deadlines: Deadlines[Any] = Deadlines()
        self.room = GroupMemory(self.settings.bytes_max)
        context = GroupContext(
            journal=self.log,
            deadlines=self.deadlines,
            settings=self.settings,
            room=self.room,
            configs=GroupConfigs(self.settings, lambda _: {}),
            topic=lambda _: None,
            name=lambda _: None,
        )
        self.groups, self.offsets = context.groups, context.offsets
        self.rebalancing = Rebalancing(context)
        # Only classic groups are under test. Offsets look for a group among both kinds.
        consumers = ConsumerGroups(context, offload=lambda _: None, due=lambda _: None)
        self.group_offsets = GroupOffsets(context, self.rebalancing, consumers)
        self._ids = itertools.count(first_id)

    # ------------------------------------------------------------ time

    @property
    def now(self) -> Now:
        return self.log.now

    def after(self, ms: float) -> None:
        """Let time pass, and everything happen that is due meanwhile."""
        until_s = self.now.s + ms / 1000
        while (next_s := self.deadlines.next_s()) is not None and next_s <= until_s:
            self._at(next_s)
            for key in self.deadlines.due(next_s, 1000):
                # The shard dispatches its deadlines in the same way: to the check of offsets, or to
                # rebalancing.
                if type(key).__name__ == "CheckDeadline":
                    more = self.group_offsets.check(key.group_id, self.now)
                    if key.group_id in self.groups:
                        self.rebalancing.check_later(key.group_id, self.now, soon=more)
                else:
                    self.rebalancing.expired(key, self.now)
        self._at(until_s)

    def _at(self, now_s: float) -> None:
        self.log.now = Now(now_s, T0_MS + round(now_s * 1000))

    # ------------------------------------------------------------ requests

    def join(
        self,
        member_id: str = "",
        *,
        group_id: str = GROUP,
        instance_id: str | None = None,
        protocols: tuple[MemberProtocol, ...] = (RANGE,),
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        version: int = 3,
        answers: MemberAnswers | None = None,
    ) -> MemberAnswers:
        answers = answers or MemberAnswers()
        self.rebalancing.join(
            JoinRequest(
                group_id=group_id,
                who=MemberIdentity(member_id, instance_id),
                client_id="c",
                client_host="/h",
                rebalance_timeout_ms=rebalance_ms,
                session_timeout_ms=session_ms,
                protocol_type=protocol_type,
                protocols=protocols,
                needs_member_id=version >= 4,
                may_skip_assignment=version >= 9,
                # Kafka appends a UUID. A counter makes the ids of a simulation reproducible.
                new_id=f"{instance_id or 'm'}{next(self._ids)}",
                answer=answers.joins.append,
            ),
            self.now,
        )
        return answers

    def sync(
        self,
        member_id: str,
        generation_id: int,
        assignments: dict[str, bytes] | None = None,
        *,
        instance_id: str | None = None,
        protocol_name: str | None = None,
    ) -> MemberAnswers:
        answers = MemberAnswers()
        self.rebalancing.sync(
            SyncRequest(
                group_id=GROUP,
                who=MemberIdentity(member_id, instance_id),
                generation_id=generation_id,
                protocol_type=None,
                protocol_name=protocol_name,
                assignments=tuple((assignments or {}).items()),
                answer=answers.syncs.append,
            ),
            self.now,
        )
        return answers

    def heartbeat(
        self, member_id: str, generation_id: int = 1, instance_id: str | None = None
    ) -> ErrorCode:
        who = MemberIdentity(member_id, instance_id)
        return self.rebalancing.heartbeat(GROUP, who, generation_id, self.now)

    def leave(self, *who: MemberIdentity | str) -> list[ErrorCode]:
        members = [MemberIdentity(item) if isinstance(item, str) else item for item in who]
        return self.rebalancing.leave(GROUP, members, self.now)

    def commit(
        self,
        member_id: str = "",
        generation_id: int = -1,
        offsets: dict[tuple[str, int], int] | None = None,
        *,
        metadata: str | None = None,
        **by: Any,
    ) -> list[ErrorCode]:
        committer = OffsetCommitter(
            group_id=GROUP, who=MemberIdentity(member_id), generation_id=generation_id, **by
        )
        new = [
            NewOffset(OffsetKey(*of), offset, 0, metadata, None)
            for of, offset in ({("t", 0): 5} if offsets is None else offsets).items()
        ]
        return self.group_offsets.commit(committer, new, self.now).errors

    # ------------------------------------------------------------ results

    @property
    def group(self) -> ClassicGroup:
        return self.groups[GROUP]

    @property
    def state(self) -> GroupState:
        return self.group.state

    def committed(self, group_id: str = GROUP) -> dict[tuple[str, int], int]:
        return {tuple(of): v.offset for of, v in self.offsets.of_group(group_id).items()}

    def begin(self) -> None:
        """Complete the first generation, of all members that have joined at once."""
        # Joins within the initial delay extend it once, by another delay (KIP-134).
        self.after(2 * DELAY_MS)

    def stable(self, count: int = 2, **join: Any) -> list[str]:
        """Return the ids of ``count`` members of a group in generation 1; the first one leads."""
        answers = [self.join(**join) for _ in range(count)]
        self.begin()
        ids = [item.join.member_id for item in answers]
        # The followers wait with their syncs for the leader, whose assignment completes them all.
        for member_id in reversed(ids):
            given = {id_: id_.encode() for id_ in ids} if member_id == ids[0] else None
            self.sync(member_id, 1, given)
        assert self.state is GroupState.STABLE
        return ids

    def failover(self, kept: int | None = None) -> "ClassicWorld":
        """Let another coordinator take over with the first ``kept`` records, or all of them."""
        log = ListJournal()
        log.records, log.now = self.log.records[:kept], self.log.now
        log.committed = len(log.records)
        other = ClassicWorld(log, next(self._ids), **_fields(self.settings))
        # Replay as the loader of the partition does: a later record replaces an earlier one.
        for offset, (record, producer) in enumerate(log.records):
            read = read_record(record)
            assert read is not None
            key, value = read
            if isinstance(key, OffsetCommitKey):
                of = OffsetKey(key.topic, key.partition)
                if value is None:
                    other.offsets.remove(key.group, of)
                elif not isinstance(value, GroupMetadataValue):
                    committed = CommittedOffset.of(value, offset)
                    other.offsets.put(key.group, of, committed, producer)
            elif isinstance(value, GroupMetadataValue):
                other.groups[key.group] = ClassicGroup.of(key.group, value)
            else:
                other.groups.pop(key.group, None)
        # The counter of memory starts at zero: what has been loaded is weighed again.
        other.room.used_bytes = other.offsets.weight_bytes
        for group in other.groups.values():
            other.room.weigh(group)
        other.rebalancing.loaded(other.now)
        # The former coordinator answers its waiting requests last, when the other has already
        # loaded.
        self.rebalancing.resigned()
        return other


def _fields(settings: GroupSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.__dataclass_fields__}
