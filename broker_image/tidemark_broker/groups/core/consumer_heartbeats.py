"""The rules of KIP-848 (Kafka's GroupMetadataManager), all of them about heartbeats.

Whoever joins, goes or wants other topics raises the group's epoch; then targets are made for all
members (:mod:`.assignors`), and each gets there by itself (:mod:`.reconciliation`). Nobody waits
for anybody. A heartbeat that changes nothing costs the same in a group of thousands.
Targets of a large group are made elsewhere, and come into force in parts.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from tidemark_broker.coordinators.deadlines import Deadlines
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.coordinators.log import CoordinatorRecord
from tidemark_broker.groups.core import consumer_records as records
from tidemark_broker.groups.core.assignors import ASSIGNORS, Assignment, Spec
from tidemark_broker.groups.core.consumer_group import (
    UNKNOWN,
    ConsumerGroup,
    ConsumerMember,
    position_value,
    target_value,
    weight_of,
)
from tidemark_broker.groups.core.consumer_records import UNREVOKED_PARTITIONS
from tidemark_broker.groups.core.consumer_values import (
    JOIN,
    LEAVE,
    LEAVE_FOR_NOW,
    NO_TIMEOUT,
    HeartbeatAnswer,
    HeartbeatRequest,
    Topic,
)
from tidemark_broker.groups.core.journal import Journal, Room
from tidemark_broker.groups.core.reconciliation import (
    Position,
    Target,
    advance,
)
from tidemark_broker.groups.core.records import record_of
from tidemark_broker.groups.core.settings import GroupSettings, Now
from tidemark_broker.groups.core.values import shown

logger = logging.getLogger(__name__)

#: Members whose targets come into force at a time: a slice of the loop's time.
TARGETS_AT_ONCE = 250
#: The size of a group whose targets are made at once; those of a larger one elsewhere.
ASSIGNED_INLINE_MAX = 4000
#: Different expressions in one group: each is looked up in all topics.
REGEXES_MAX = 50
#: Expressions are looked up again this long after the last time where topics have changed (Kafka's
#: REGEX_BATCH_REFRESH_MIN_INTERVAL_MS).
_REGEXES_PAUSE_MS = 10_000
_LATER_S, _AGAIN_S = 0.05, 1.0

_Entry = tuple[records.Key, records.Value | None]


@dataclass(frozen=True, slots=True)
class ConsumerSessionDeadline:
    """A member that was not heard of is gone."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class RevocationDeadline:
    """A member that has not given up what is no longer its own is gone."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class AssignmentDeadline:
    """Targets are to be made anew."""

    group_id: str


class Offload(NamedTuple):
    """Targets to be made elsewhere: ``compute`` looks at nothing that changes."""

    group: ConsumerGroup
    epoch: int
    assignor: str
    spec: Spec

    def compute(self) -> dict[str, Assignment]:
        """All of them, by member."""
        return ASSIGNORS[self.assignor](self.spec) if self.spec.members else {}


class ConsumerGroups:
    """All groups of KIP-848's protocol of one partition of ``__consumer_offsets``. ``topic``: by
    its name, None where there is none; ``offload`` takes what is to be made elsewhere. What goes
    wrong is a :class:`CoordinatorError`, with which nothing has changed. Pure."""

    def __init__(
        self,
        groups: dict[str, ConsumerGroup],
        journal: Journal,
        deadlines: "Deadlines[object]",
        settings: GroupSettings,
        room: Room,
        *,
        topic: Callable[[str], Topic | None],
        offload: Callable[[Offload], None],
    ) -> None:
        self._groups = groups
        self._journal = journal
        self._deadlines = deadlines
        self._settings = settings
        self._room = room
        self._topic = topic
        self._offload = offload

    # ------------------------------------------------------------ a life of its own

    def loaded(self, now: Now) -> None:
        """Every member that is on record is heard of anew."""
        for group in self._groups.values():
            for member in group.members.values():
                self._hear_of(group, member.member_id, now)
                if member.position.state == UNREVOKED_PARTITIONS:
                    self._await_revocation(group, member, now)
            self._assign_later(group, now)

    def expired(self, key: object, now: Now) -> bool:
        """What was due is; is it one of these?"""
        if not isinstance(key, ConsumerSessionDeadline | RevocationDeadline | AssignmentDeadline):
            return False
        group = self._groups.get(key.group_id)
        if group is None:
            return True
        try:
            if isinstance(key, AssignmentDeadline):
                self._assign_if_due(group, now)
            else:
                self._overdue(group, key, now)
        except CoordinatorError as error:
            logger.warning("group %s: nothing is on record: %s", shown(key.group_id), error)
            self._deadlines.schedule(key, now.s + _AGAIN_S)
        return True

    def _overdue(
        self, group: ConsumerGroup, key: ConsumerSessionDeadline | RevocationDeadline, now: Now
    ) -> None:
        member = group.members.get(key.member_id)
        if member is None:
            return
        logger.info(
            "group %s: %s is gone, for %s",
            shown(key.group_id),
            shown(key.member_id),
            "it was not heard of in time"
            if isinstance(key, ConsumerSessionDeadline)
            else "it did not give up its partitions in time",
        )
        self._fence(group, member, now)

    def forget(self, group: ConsumerGroup) -> int:
        """Take an empty group off the record; the offset behind that."""
        entries: list[_Entry] = [
            (self._regex_key(group, regex), None) for regex in tuple(group.regexes)
        ]
        entries += [(self._target_key(group, each), None) for each in tuple(group.targets)]
        end_offset = self._journal.append(
            _records(
                [
                    *entries,
                    (
                        records.ConsumerGroupTargetAssignmentMetadataKey(group_id=group.group_id),
                        None,
                    ),
                    (records.ConsumerGroupMetadataKey(group_id=group.group_id), None),
                ]
            )
        )
        del self._groups[group.group_id]
        self._room.forget(group)
        self._deadlines.cancel(AssignmentDeadline(group.group_id))
        return end_offset

    # ------------------------------------------------------------ expressions

    def unresolved(
        self, group_id: str, regex: str | None, topics_version: int, now: Now
    ) -> Sequence[str]:
        """Expressions whose topics are to be looked up before the heartbeat that brings ``regex``:
        those that nobody has looked up, and all of the group's where topics may have changed."""
        group = self._groups.get(group_id)
        if group is None:
            return [regex] if regex else []
        wanted = dict.fromkeys(group.wanted_regexes)
        if regex:
            wanted[regex] = None
        if not wanted:
            return []
        changed = group.regexes_version != topics_version
        pause_ms = _REGEXES_PAUSE_MS if changed else self._settings.regex_refresh_ms
        if now.ms - group.regexes_checked_ms >= pause_ms:
            group.regexes_checked_ms = now.ms  # by this member, not by all that are heard of now
            return list(wanted)
        return [each for each in wanted if each not in group.regexes]

    def _resolved(self, group: ConsumerGroup, request: HeartbeatRequest, now: Now) -> list[_Entry]:
        """Those of the group whose topics are others than on record."""
        found = request.resolved or {}
        if not found:
            return []
        if all(each in found for each in group.wanted_regexes):
            group.regexes_version = request.topics_version
            group.regexes_checked_ms = now.ms
        return [
            (
                self._regex_key(group, regex),
                records.ConsumerGroupRegularExpressionValue(
                    topics=tuple(sorted(topics)),
                    version=request.topics_version,
                    timestamp=now.ms,
                ),
            )
            for regex, topics in found.items()
            if (regex == request.regex or group.wants_regex(regex))
            and (regex not in group.regexes or group.regexes[regex].topics != topics)
        ]

    def _no_longer_used(
        self, group: ConsumerGroup, member: ConsumerMember | None, regex: str | None
    ) -> list[_Entry]:
        """The expression that the member had until now, where it was the only one."""
        former = None if member is None else member.subscription.regex
        if former is None or former == regex or group.users_of(former) > 1:
            return []
        return [(self._regex_key(group, former), None)] if former in group.regexes else []

    # ------------------------------------------------------------ ConsumerGroupHeartbeat

    def heartbeat(self, request: HeartbeatRequest, now: Now) -> HeartbeatAnswer:
        """A member is there, or goes."""
        self.check(request)
        if request.member_epoch in (LEAVE, LEAVE_FOR_NOW):
            return self._leave(request, now)
        group = self._group(request)
        member = self._known_member(group, request)
        takes_over = member is not None and member.position.epoch == LEAVE_FOR_NOW
        metadata = _described(request, None if member is None else member.metadata)
        self._check_room(group, request, member, metadata)
        regex = metadata.subscribed_topic_regex
        entries = self._no_longer_used(group, member, regex)
        if member is not None and takes_over:
            entries += self._replacement(group, member, request.member_id, metadata)
        elif member is None or metadata is not member.metadata:
            entries.append((self._member_key(group, request.member_id), metadata))
        resolved = self._resolved(group, request, now)
        before = None if member is None else member.subscription
        wants_others = (
            before is not None
            and request.says_more
            and (
                before.regex != regex or before.names != frozenset(metadata.subscribed_topic_names)
            )
        )
        bump = member is None or wants_others or bool(resolved)
        self._change(group, [*entries, *resolved], request.topics_version, bump=bump)
        if takes_over and member is not None and member.member_id != request.member_id:
            self._forget_deadlines(group, member.member_id)
        self._assign_if_due(group, now)
        return self._moved(group, request, now, wants_others=wants_others)

    def _moved(
        self, group: ConsumerGroup, request: HeartbeatRequest, now: Now, *, wants_others: bool
    ) -> HeartbeatAnswer:
        member = group.members[request.member_id]
        before = member.position
        self._reconcile(group, member, request, now, wants_others=wants_others)
        after = member.position
        self._hear_of(group, member.member_id, now)
        self._room.weigh(group)
        tells = request.is_full or before.assigned != after.assigned
        return HeartbeatAnswer(
            member_id=member.member_id,
            member_epoch=after.epoch,
            heartbeat_interval_ms=self._settings.consumer_heartbeat_interval_ms,
            assignment=_assignment(after) if tells else None,
            recorded_below=group.recorded_below,
        )

    def check(self, request: HeartbeatRequest) -> None:
        """Is it a request at all? As Kafka's throwIfConsumerGroupHeartbeatRequestIsInvalid."""
        for name, value in (
            ("MemberId", request.member_id),
            ("GroupId", request.group_id),
            ("InstanceId", request.instance_id),
            ("RackId", request.rack_id),
        ):
            if value is not None and not value.strip():
                raise _refused(ErrorCode.invalid_request, f"{name} can't be empty.")
        if request.member_epoch == JOIN:
            if request.rebalance_timeout_ms == NO_TIMEOUT:
                wrong = "RebalanceTimeoutMs must be provided in first request."
                raise _refused(ErrorCode.invalid_request, wrong)
            if request.owned is None or request.owned:
                wrong = "TopicPartitions must be empty when (re-)joining."
                raise _refused(ErrorCode.invalid_request, wrong)
            if request.topic_names is None and request.regex is None:
                wrong = (
                    "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
                    "(re-)joining."
                )
                raise _refused(ErrorCode.invalid_request, wrong)
        elif request.member_epoch == LEAVE_FOR_NOW:
            if request.instance_id is None:
                raise _refused(ErrorCode.invalid_request, "InstanceId can't be null.")
        elif request.member_epoch < LEAVE_FOR_NOW:
            raise _refused(ErrorCode.invalid_request, "MemberEpoch is invalid.")
        assignor = request.server_assignor
        if assignor is not None and assignor not in self._settings.consumer_assignors:
            known = ", ".join(self._settings.consumer_assignors)
            wrong = (
                f"ServerAssignor {shown(assignor)} is not supported. Supported assignors: {known}."
            )
            raise _refused(ErrorCode.unsupported_assignor, wrong)

    def _group(self, request: HeartbeatRequest) -> ConsumerGroup:
        group = self._groups.get(request.group_id)
        if group is None and request.member_epoch != JOIN:
            raise _refused(
                ErrorCode.group_id_not_found, f"Group {shown(request.group_id)} not found."
            )
        return ConsumerGroup(request.group_id) if group is None else group

    def _known_member(
        self, group: ConsumerGroup, request: HeartbeatRequest
    ) -> ConsumerMember | None:
        """The member that asks, or the static one whose place it takes; None: a new one."""
        member = group.members.get(request.member_id)
        if request.instance_id is not None:
            named = group.static_member(request.instance_id)
            if request.member_epoch == JOIN:
                if named is None:
                    return member
                is_free = named.position.epoch == LEAVE_FOR_NOW
                if is_free or named.member_id == request.member_id:
                    return named
                owner = shown(named.member_id)
                wrong = f"{_named(request)} cannot join the group: it is owned by {owner}."
                raise _refused(ErrorCode.unreleased_instance_id, wrong)
            member = self._static(group, request)
        elif member is None and request.member_epoch != JOIN:
            raise _unknown(group, request)
        if member is not None:
            _check_epoch(member, request)
        return member

    def _static(self, group: ConsumerGroup, request: HeartbeatRequest) -> ConsumerMember:
        member = group.static_member(request.instance_id or "")
        if member is None:
            wrong = f"Instance id {shown(request.instance_id or '')} is unknown."
            raise _refused(ErrorCode.unknown_member_id, wrong)
        if member.member_id != request.member_id:
            wrong = f"{_named(request)} was fenced by member {shown(member.member_id)}."
            raise _refused(ErrorCode.fenced_instance_id, wrong)
        return member

    def _check_room(
        self,
        group: ConsumerGroup,
        request: HeartbeatRequest,
        member: ConsumerMember | None,
        metadata: records.ConsumerGroupMemberMetadataValue,
    ) -> None:
        size_max = self._settings.consumer_size_max
        if member is None and len(group.members) >= size_max:
            wrong = f"The group has reached its maximum capacity of {size_max} members."
            raise _refused(ErrorCode.group_max_size_reached, wrong)
        is_new = member is None or metadata is not member.metadata
        if is_new and self._room.lacks(weight_of(metadata)):
            wrong = "The groups of this broker have reached tidemark.groups.bytes.max."
            raise _refused(ErrorCode.group_max_size_reached, wrong)
        regex = request.regex
        if regex and not group.wants_regex(regex) and len(group.wanted_regexes) >= REGEXES_MAX:
            wrong = f"The group has {REGEXES_MAX} different expressions already."
            raise _refused(ErrorCode.invalid_regular_expression, wrong)

    def _replacement(
        self,
        group: ConsumerGroup,
        former: ConsumerMember,
        member_id: str,
        metadata: records.ConsumerGroupMemberMetadataValue,
    ) -> list[_Entry]:
        """A static member is back as another process: what the former one had is its own."""
        position = replace(former.position, epoch=JOIN, previous_epoch=JOIN)
        return [
            *self._tombstones(group, former.member_id),
            (self._member_key(group, member_id), metadata),
            (
                self._target_key(group, member_id),
                target_value(group.target_of(former.member_id)),
            ),
            (self._position_key(group, member_id), position_value(position)),
        ]

    # ------------------------------------------------------------ who goes

    def _leave(self, request: HeartbeatRequest, now: Now) -> HeartbeatAnswer:
        group = self._group(request)
        if request.instance_id is not None:
            member = self._static(group, request)
        elif request.member_id in group.members:
            member = group.members[request.member_id]
        else:
            raise _unknown(group, request)
        if request.member_epoch == LEAVE_FOR_NOW:
            position = replace(member.position, epoch=LEAVE_FOR_NOW, revoking={})
            key = self._position_key(group, member.member_id)
            self._record(group, [(key, position_value(position))])
            self._deadlines.cancel(RevocationDeadline(group.group_id, member.member_id))
        else:
            self._fence(group, member, now)
        return HeartbeatAnswer(
            member_id=member.member_id,
            member_epoch=request.member_epoch,
            recorded_below=group.recorded_below,
        )

    def _fence(self, group: ConsumerGroup, member: ConsumerMember, now: Now) -> None:
        """It is a member no more."""
        entries = [
            *self._no_longer_used(group, member, None),
            *self._tombstones(group, member.member_id),
        ]
        self._change(group, entries, group.topics_version, bump=True)
        self._forget_deadlines(group, member.member_id)
        self._room.weigh(group)
        self._assign_later(group, now)

    def _tombstones(self, group: ConsumerGroup, member_id: str) -> list[_Entry]:
        return [
            (self._position_key(group, member_id), None),
            (self._target_key(group, member_id), None),
            (self._member_key(group, member_id), None),
        ]

    def _forget_deadlines(self, group: ConsumerGroup, member_id: str) -> None:
        self._deadlines.cancel(ConsumerSessionDeadline(group.group_id, member_id))
        self._deadlines.cancel(RevocationDeadline(group.group_id, member_id))

    # ------------------------------------------------------------ epochs and targets

    def _change(
        self, group: ConsumerGroup, entries: list[_Entry], topics_version: int, *, bump: bool
    ) -> None:
        """Put changes of members on record, with the next epoch where targets are to be made
        anew: also where topics are others than in the epoch before."""
        before = group.topic_changes
        if bump:
            entries.append(self._epoch(group, group.epoch + 1, group.metadata_hash))
        if entries:
            self._record(group, entries)
        if topics_version == group.topics_version and group.topic_changes == before:
            return
        metadata_hash = group.hash_of(self._topic)
        if metadata_hash != group.metadata_hash:
            self._record(group, [self._epoch(group, group.epoch + (not bump), metadata_hash)])
        group.topics_version = topics_version

    def _assign_if_due(self, group: ConsumerGroup, now: Now) -> None:
        """Make targets for the group's epoch, unless that was done a moment ago."""
        if group.epoch <= group.assignment_epoch or group.is_being_assigned or group.is_empty:
            return
        if not self._is_due(group, now):
            self._assign_later(group, now)
            return
        spec = group.spec(self._topic)
        is_large = spec.size > ASSIGNED_INLINE_MAX
        if is_large and not group.assignment_epoch:
            # The first member is told an epoch at once, and gets its partitions later.
            first = self._assigned(group, group.epoch, 0)
            self._record(group, [first, self._epoch(group, group.epoch + 1, group.metadata_hash)])
        assignor = group.preferred_assignor(self._settings.consumer_assignors[0])
        made = Offload(group, group.epoch, assignor, spec)
        group.is_being_assigned = True
        if is_large:
            self._offload(made)
            return
        for _ in self.bring_into_force(made, made.compute(), now):
            pass

    def bring_into_force(
        self, made: Offload, targets: Mapping[str, Assignment], now: Now
    ) -> Iterable[None]:
        """Part by part; in between others may have their turn."""
        group = made.group
        try:
            others = [
                each for each in group.members if targets.get(each, {}) != group.target_of(each)
            ]
            for start in range(0, len(others), TARGETS_AT_ONCE):
                if self._groups.get(group.group_id) is not group:
                    return
                part = [
                    each
                    for each in others[start : start + TARGETS_AT_ONCE]
                    if each in group.members
                ]
                entries: list[_Entry] = [
                    (self._target_key(group, each), target_value(targets.get(each, {})))
                    for each in part
                ]
                if entries:
                    self._record(group, entries)
                yield
            if self._groups.get(group.group_id) is group:
                self._record(group, [self._assigned(group, made.epoch, now.ms)])
                logger.info(
                    "group %s: targets of epoch %d for %d members, made by %s",
                    shown(group.group_id),
                    made.epoch,
                    len(targets),
                    made.assignor,
                )
        finally:
            if self._groups.get(group.group_id) is group:
                self._room.weigh(group)
            self.gave_up(made, now)

    def gave_up(self, made: Offload, now: Now) -> None:
        """It is under way no more; what is left to be done is done later."""
        made.group.is_being_assigned = False
        if self._groups.get(made.group.group_id) is made.group:
            self._assign_later(made.group, now)

    def _is_due(self, group: ConsumerGroup, now: Now) -> bool:
        """The first targets are due at once; clocks of brokers may differ."""
        since_ms = now.ms - group.assignment_timestamp_ms
        return not 0 <= since_ms < self._settings.consumer_assignment_interval_ms

    def _assign_later(self, group: ConsumerGroup, now: Now) -> None:
        if group.epoch <= group.assignment_epoch or group.is_empty:
            return
        wait_s = _LATER_S
        if not self._is_due(group, now):
            due_ms = group.assignment_timestamp_ms + self._settings.consumer_assignment_interval_ms
            wait_s = max(wait_s, (due_ms - now.ms) / 1000)
        self._deadlines.schedule(AssignmentDeadline(group.group_id), now.s + wait_s)

    # ------------------------------------------------------------ where a member is

    def _reconcile(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        request: HeartbeatRequest,
        now: Now,
        *,
        wants_others: bool,
    ) -> None:
        if member.position.is_at(group.assignment_epoch) and not wants_others:
            return
        target = Target(group.assignment_epoch, group.target_of(member.member_id), group.is_held)
        subscribed = None
        if wants_others:
            found = map(self._topic, group.topics_of(member.subscription))
            ids = {each.topic_id for each in found if each is not None}
            subscribed = ids.__contains__
        after = advance(member.position, target, request.owned, subscribed)
        if after is member.position:
            return
        was_revoking = member.position.state == UNREVOKED_PARTITIONS
        key = self._position_key(group, member.member_id)
        self._record(group, [(key, position_value(after))])
        if after.state != UNREVOKED_PARTITIONS:
            self._deadlines.cancel(RevocationDeadline(group.group_id, member.member_id))
        elif not was_revoking or after.revoking:
            self._await_revocation(group, member, now)

    def _await_revocation(self, group: ConsumerGroup, member: ConsumerMember, now: Now) -> None:
        self._deadlines.schedule(
            RevocationDeadline(group.group_id, member.member_id),
            now.s + max(member.metadata.rebalance_timeout_ms, 0) / 1000,
        )

    def _hear_of(self, group: ConsumerGroup, member_id: str, now: Now) -> None:
        self._deadlines.schedule(
            ConsumerSessionDeadline(group.group_id, member_id),
            now.s + self._settings.consumer_session_timeout_ms / 1000,
        )

    # ------------------------------------------------------------ the record

    def _record(self, group: ConsumerGroup, entries: Sequence[_Entry]) -> None:
        group.recorded_below = self._journal.append(_records(entries))
        self._groups.setdefault(group.group_id, group)
        for key, value in entries:
            group.apply(key, value)

    @staticmethod
    def _epoch(group: ConsumerGroup, epoch: int, metadata_hash: int) -> _Entry:
        return (
            records.ConsumerGroupMetadataKey(group_id=group.group_id),
            records.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash),
        )

    @staticmethod
    def _assigned(group: ConsumerGroup, epoch: int, timestamp_ms: int) -> _Entry:
        return (
            records.ConsumerGroupTargetAssignmentMetadataKey(group_id=group.group_id),
            records.ConsumerGroupTargetAssignmentMetadataValue(
                assignment_epoch=epoch, assignment_timestamp=timestamp_ms
            ),
        )

    @staticmethod
    def _member_key(group: ConsumerGroup, member_id: str) -> records.Key:
        return records.ConsumerGroupMemberMetadataKey(group_id=group.group_id, member_id=member_id)

    @staticmethod
    def _target_key(group: ConsumerGroup, member_id: str) -> records.Key:
        return records.ConsumerGroupTargetAssignmentMemberKey(
            group_id=group.group_id, member_id=member_id
        )

    @staticmethod
    def _position_key(group: ConsumerGroup, member_id: str) -> records.Key:
        return records.ConsumerGroupCurrentMemberAssignmentKey(
            group_id=group.group_id, member_id=member_id
        )

    @staticmethod
    def _regex_key(group: ConsumerGroup, regex: str) -> records.Key:
        return records.ConsumerGroupRegularExpressionKey(
            group_id=group.group_id, regular_expression=regex
        )


def _records(entries: Iterable[_Entry]) -> list[CoordinatorRecord]:
    return [record_of(key, value) for key, value in entries]


def _refused(error: ErrorCode, message: str) -> CoordinatorError:
    return CoordinatorError(error, message)


def _named(request: HeartbeatRequest) -> str:
    instance_id = shown(request.instance_id or "")
    return f"Static member {shown(request.member_id)} with instance id {instance_id}"


def _unknown(group: ConsumerGroup, request: HeartbeatRequest) -> CoordinatorError:
    wrong = f"Member {shown(request.member_id)} is not a member of group {shown(group.group_id)}."
    return CoordinatorError(ErrorCode.unknown_member_id, wrong)


def _check_epoch(member: ConsumerMember, request: HeartbeatRequest) -> None:
    """A lower epoch is fine where the answer with the next one may have been lost."""
    position, epoch = member.position, request.member_epoch
    if epoch in (JOIN, position.epoch):
        return
    if epoch == position.previous_epoch < position.epoch and _owns_no_more(request.owned, position):
        return
    is_greater = "greater" if epoch > position.epoch else "smaller"
    wrong = (
        f"The consumer group member has a {is_greater} member epoch ({epoch}) than the one known "
        f"by the group coordinator ({position.epoch}). The member must abandon all its partitions "
        "and rejoin."
    )
    raise _refused(ErrorCode.fenced_member_epoch, wrong)


def _owns_no_more(owned: Assignment | None, position: Position) -> bool:
    return owned is not None and all(
        numbers <= position.assigned.get(topic, {}).keys() for topic, numbers in owned.items()
    )


def _described(
    request: HeartbeatRequest, known: records.ConsumerGroupMemberMetadataValue | None
) -> records.ConsumerGroupMemberMetadataValue:
    """What a member says of itself by now: the same object where that is nothing new."""
    if (
        known is not None
        and not request.says_more
        and (known.client_id, known.client_host) == (request.client_id, request.client_host)
    ):
        return known
    names = () if known is None else known.subscribed_topic_names
    if request.topic_names is not None:
        names = tuple(sorted(set(request.topic_names)))
    regex = None if known is None else known.subscribed_topic_regex
    if request.regex is not None:
        regex = request.regex or None
    timeout_ms = request.rebalance_timeout_ms
    if timeout_ms == NO_TIMEOUT and known is not None:
        timeout_ms = known.rebalance_timeout_ms
    former = UNKNOWN if known is None else known
    made = records.ConsumerGroupMemberMetadataValue(
        instance_id=request.instance_id or former.instance_id,
        rack_id=request.rack_id or former.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        subscribed_topic_names=names,
        subscribed_topic_regex=regex,
        rebalance_timeout_ms=timeout_ms,
        server_assignor=request.server_assignor or former.server_assignor,
    )
    return known if made == known and known is not None else made


def _assignment(position: Position) -> Assignment:
    return {topic: frozenset(held) for topic, held in position.assigned.items()}
