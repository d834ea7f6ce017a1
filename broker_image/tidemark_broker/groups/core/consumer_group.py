"""One group of KIP-848's protocol: who is in it, where each is, and where each is to be.

All that is kept stands on record, and comes into force by :meth:`ConsumerGroup.apply`, the same way
when it is decided and when another coordinator reads it. Counts and sets that depend on all members
are kept as these change, since a group may have thousands of them.
"""

import hashlib
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from tidemark_broker.groups.core import consumer_records as records
from tidemark_broker.groups.core.assignors import Assignment, Spec, Subscriber
from tidemark_broker.groups.core.consumer_values import ConsumerGroupState, Topic
from tidemark_broker.groups.core.reconciliation import NOWHERE, Held, Position

_GROUP_BYTES, _MEMBER_BYTES, _PARTITION_BYTES, _NAME_BYTES = 1500, 1500, 120, 60
_NO_ASSIGNMENT: Assignment = {}
#: Nothing is known of a member.
UNKNOWN = records.ConsumerGroupMemberMetadataValue(
    instance_id=None,
    rack_id=None,
    client_id="",
    client_host="",
    subscribed_topic_names=(),
    subscribed_topic_regex=None,
    server_assignor=None,
)


class Subscription(NamedTuple):
    """What a member wants; members that want the same share it."""

    names: frozenset[str]
    regex: str | None


class ResolvedRegex(NamedTuple):
    """Which topics an expression stood for, as of when, in milliseconds since the epoch."""

    topics: frozenset[str]
    timestamp_ms: int


@dataclass(slots=True)
class ConsumerMember:
    """What it says of itself, and where it is."""

    member_id: str
    metadata: records.ConsumerGroupMemberMetadataValue
    subscription: Subscription
    position: Position = NOWHERE

    @property
    def instance_id(self) -> str | None:
        """Its name, where it has one that outlives its process."""
        return self.metadata.instance_id


class ConsumerGroup:
    """``recorded_below``: behind its last record, or that of its offsets. ``topics_version``: of
    the cluster, when its topics were looked at last; -1 never here."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.assignment_timestamp_ms = 0
        self.members: dict[str, ConsumerMember] = {}
        self.static_members: dict[str, str] = {}
        self.targets: dict[str, Assignment] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self.weight_bytes = _GROUP_BYTES + len(group_id)
        self.weighed_bytes = 0
        self.recorded_below = 0
        self.topics_version = self.regexes_version = -1
        self.regexes_checked_ms = 0
        #: Raised with each topic that is wanted for the first time, or no longer.
        self.topic_changes = 0
        self.is_being_assigned = False
        self._holders: dict[tuple[uuid.UUID, int], str] = {}
        self._subscriptions: dict[Subscription, Subscription] = {}
        self._counts: Counter[Subscription] = Counter()
        self._regex_counts: Counter[str] = Counter()
        self._assignors: Counter[str] = Counter()
        #: In how many different subscriptions a topic is named.
        self._names: Counter[str] = Counter()

    # ------------------------------------------------------------ what it is

    @property
    def state(self) -> ConsumerGroupState:
        """Goes through the members, as long as these are where they are to be."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        epoch = self.assignment_epoch
        if all(each.position.is_at(epoch) for each in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def is_empty(self) -> bool:
        """Is nobody a member?"""
        return not self.members

    @property
    def subscribed(self) -> set[str]:
        """All topics that any member wants, whether they exist or not."""
        return set(self._names).union(*(each.topics for each in self.regexes.values()))

    def topics_of(self, subscription: Subscription) -> frozenset[str]:
        """Those that it names, and those that its expression stands for."""
        if subscription.regex is None:
            return subscription.names
        resolved = self.regexes.get(subscription.regex)
        return subscription.names if resolved is None else subscription.names | resolved.topics

    def is_subscribed_to(self, topic: str) -> bool:
        """Does any member want it?"""
        return topic in self._names or any(topic in each.topics for each in self.regexes.values())

    @property
    def wanted_regexes(self) -> Collection[str]:
        """The expressions of all members."""
        return self._regex_counts.keys()

    def wants_regex(self, regex: str) -> bool:
        """Has any member that expression?"""
        return regex in self._regex_counts

    def users_of(self, regex: str) -> int:
        """How many members have that expression."""
        return self._regex_counts[regex]

    def preferred_assignor(self, default: str) -> str:
        """The one that most members ask for, of those that ask."""
        if not self._assignors:
            return default
        return max(self._assignors, key=lambda name: (self._assignors[name], name))

    def is_held(self, topic_id: uuid.UUID, partition: int) -> bool:
        """Does any member have it, or not say yet that it has not any more?"""
        return (topic_id, partition) in self._holders

    def target_of(self, member_id: str) -> Assignment:
        """Where it is to be."""
        return self.targets.get(member_id, _NO_ASSIGNMENT)

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        """The one of that name."""
        member_id = self.static_members.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def hash_of(self, topic: Callable[[str], Topic | None]) -> int:
        """Of the topics that it consumes: another one where any came, went or grew."""
        digest = hashlib.blake2b(digest_size=8)
        for name in sorted(self.subscribed):
            found = topic(name)
            if found is not None:
                digest.update(f"{name} {found.topic_id} {found.partitions};".encode())
        return int.from_bytes(digest.digest(), "big", signed=True)

    def spec(self, topic: Callable[[str], Topic | None]) -> Spec:
        """What is to be assigned to whom; nothing of it changes any more."""
        partitions: dict[uuid.UUID, int] = {}
        topics: dict[Subscription, frozenset[uuid.UUID]] = {}
        shared: dict[frozenset[uuid.UUID], frozenset[uuid.UUID]] = {}
        for subscription in self._subscriptions:
            found = [topic(name) for name in self.topics_of(subscription)]
            existing = [each for each in found if each is not None]
            partitions.update(existing)
            ids = frozenset(each.topic_id for each in existing)
            topics[subscription] = shared.setdefault(ids, ids)
        members = {
            each.member_id: Subscriber(
                instance_id=each.instance_id,
                topics=topics[each.subscription],
                target=self.target_of(each.member_id),
            )
            for each in self.members.values()
        }
        return Spec(members=members, partitions=partitions)

    # ------------------------------------------------------------ who may commit and fetch

    def validate(self, member_id: str, epoch: int) -> ErrorCode:
        """Is it a member, and in that epoch?"""
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.unknown_member_id
        return ErrorCode.none if epoch == member.position.epoch else ErrorCode.stale_member_epoch

    def may_commit(self, member_id: str, epoch: int, topic_id: uuid.UUID | None, of: int) -> bool:
        """Is the partition the member's, and was it already in the epoch in which that commits
        (KIP-1251)? A commit may be under way while the member gets to another epoch."""
        member = self.members.get(member_id)
        if member is None or epoch > member.position.epoch:
            return False
        if epoch == member.position.epoch:
            return True
        if topic_id is None:
            return False
        for held in (member.position.assigned, member.position.revoking):
            since = held.get(topic_id, {}).get(of)
            if since is not None:
                return epoch >= since
        return False

    # ------------------------------------------------------------ what comes into force

    def apply(self, key: records.Key, value: object) -> None:
        """A record of the group; None, or a value that does not fit its key, is nothing."""
        if isinstance(key, records.ConsumerGroupMetadataKey):
            if isinstance(value, records.ConsumerGroupMetadataValue):
                self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
        elif isinstance(key, records.ConsumerGroupMemberMetadataKey):
            if isinstance(value, records.ConsumerGroupMemberMetadataValue):
                self._put_member(key.member_id, value)
            else:
                self._remove_member(key.member_id)
        elif isinstance(key, records.ConsumerGroupTargetAssignmentMetadataKey):
            if isinstance(value, records.ConsumerGroupTargetAssignmentMetadataValue):
                self.assignment_epoch = value.assignment_epoch
                self.assignment_timestamp_ms = value.assignment_timestamp
        elif isinstance(key, records.ConsumerGroupTargetAssignmentMemberKey):
            self._put_target(
                key.member_id,
                value
                if isinstance(value, records.ConsumerGroupTargetAssignmentMemberValue)
                else None,
            )
        elif isinstance(key, records.ConsumerGroupCurrentMemberAssignmentKey):
            self._put_position(
                key.member_id,
                position_of(value)
                if isinstance(value, records.ConsumerGroupCurrentMemberAssignmentValue)
                else NOWHERE,
            )
        else:
            self._put_regex(
                key.regular_expression,
                value if isinstance(value, records.ConsumerGroupRegularExpressionValue) else None,
            )

    def _put_member(
        self, member_id: str, metadata: records.ConsumerGroupMemberMetadataValue
    ) -> None:
        member = self.members.get(member_id)
        wanted = Subscription(
            frozenset(metadata.subscribed_topic_names), metadata.subscribed_topic_regex
        )
        subscription = self._subscriptions.setdefault(wanted, wanted)
        if member is None:
            member = ConsumerMember(member_id, metadata, subscription)
            self.members[member_id] = member
        else:
            self._count(member, -1)
            member.metadata, member.subscription = metadata, subscription
        self._subscriptions.setdefault(subscription, subscription)
        self._count(member, 1)
        if metadata.instance_id is not None:
            self.static_members[metadata.instance_id] = member_id

    def _remove_member(self, member_id: str) -> None:
        self._put_position(member_id, NOWHERE)
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._count(member, -1)
        instance_id = member.instance_id
        if instance_id is not None and self.static_members.get(instance_id) == member_id:
            del self.static_members[instance_id]

    def _count(self, member: ConsumerMember, sign: int) -> None:
        subscription, regex = member.subscription, member.subscription.regex
        self.weight_bytes += sign * (weight_of(member.metadata) + len(member.member_id))
        self._counts[subscription] += sign
        if self._counts[subscription] == max(sign, 0):
            self._count_names(subscription.names, sign)
        if not self._counts[subscription]:
            del self._counts[subscription], self._subscriptions[subscription]
        if regex is not None:
            _add(self._regex_counts, regex, sign)
        if member.metadata.server_assignor is not None:
            _add(self._assignors, member.metadata.server_assignor, sign)

    def _count_names(self, names: frozenset[str], sign: int) -> None:
        for name in names:
            _add(self._names, name, sign)
            self.topic_changes += self._names[name] == max(sign, 0)

    def _put_target(
        self, member_id: str, value: records.ConsumerGroupTargetAssignmentMemberValue | None
    ) -> None:
        before = self.targets.pop(member_id, None)
        if before is not None:
            self.weight_bytes -= _partitions_weigh(before)
        if value is not None:
            target: Assignment = {
                each.topic_id: frozenset(each.partitions)
                for each in value.topic_partitions
                if each.topic_id is not None
            }
            self.targets[member_id] = target
            self.weight_bytes += _partitions_weigh(target)

    def _put_position(self, member_id: str, position: Position) -> None:
        member = self.members.get(member_id)
        if member is None:
            if position is NOWHERE:
                return
            # Compaction keeps the latest record of each kind: what it says of itself comes later.
            self._put_member(member_id, UNKNOWN)
            member = self.members[member_id]
        for held in (member.position.assigned, member.position.revoking):
            self.weight_bytes -= _partitions_weigh(held)
            for topic, numbers in held.items():
                for number in numbers:
                    if self._holders.get((topic, number)) == member_id:
                        del self._holders[topic, number]
        for held in (position.assigned, position.revoking):
            self.weight_bytes += _partitions_weigh(held)
            for topic, numbers in held.items():
                for number in numbers:
                    self._holders[topic, number] = member_id
        member.position = position

    def _put_regex(
        self, regex: str, value: records.ConsumerGroupRegularExpressionValue | None
    ) -> None:
        before = self.regexes.pop(regex, None)
        if before is not None:
            self.weight_bytes -= _names_weigh(before.topics)
        if value is not None:
            topics = frozenset(value.topics)
            self.regexes[regex] = ResolvedRegex(topics, value.timestamp)
            self.weight_bytes += _names_weigh(topics)
        self.topic_changes += 1


def position_of(value: records.ConsumerGroupCurrentMemberAssignmentValue) -> Position:
    """As it stands on record."""
    return Position(
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=value.state,
        assigned=_held(value.assigned_partitions, value.member_epoch),
        revoking=_held(value.partitions_pending_revocation, value.member_epoch),
    )


def _held(topics: tuple[records.CurrentTopicPartitions, ...], epoch: int) -> Held:
    return {
        each.topic_id: dict(
            zip(
                each.partitions,
                each.assignment_epochs or (epoch,) * len(each.partitions),
                strict=False,
            )
        )
        for each in topics
        if each.topic_id is not None
    }


def position_value(position: Position) -> records.ConsumerGroupCurrentMemberAssignmentValue:
    """As it is to stand on record."""
    return records.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=position.epoch,
        previous_member_epoch=position.previous_epoch,
        state=position.state,
        assigned_partitions=_current(position.assigned),
        partitions_pending_revocation=_current(position.revoking),
    )


def _current(held: Held) -> tuple[records.CurrentTopicPartitions, ...]:
    return tuple(
        records.CurrentTopicPartitions(
            topic_id=topic,
            partitions=tuple(numbers),
            assignment_epochs=tuple(numbers.values()),
        )
        for topic, numbers in held.items()
    )


def target_value(target: Assignment) -> records.ConsumerGroupTargetAssignmentMemberValue:
    """As it is to stand on record."""
    return records.ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=tuple(
            records.TargetTopicPartition(topic_id=topic, partitions=tuple(sorted(numbers)))
            for topic, numbers in target.items()
            if numbers
        )
    )


def weight_of(metadata: records.ConsumerGroupMemberMetadataValue) -> int:
    """About what a member takes of memory that says so of itself."""
    texts = len(metadata.client_id) + len(metadata.client_host)
    regex = len(metadata.subscribed_topic_regex or "")
    return _MEMBER_BYTES + texts + regex + _names_weigh(metadata.subscribed_topic_names)


def _names_weigh(names: Iterable[str]) -> int:
    return sum(_NAME_BYTES + len(name) for name in names)


def _partitions_weigh(topics: Assignment | Held) -> int:
    return sum(_NAME_BYTES + _PARTITION_BYTES * len(numbers) for numbers in topics.values())


def _add(counts: Counter[str], name: str, sign: int) -> None:
    counts[name] += sign
    if not counts[name]:
        del counts[name]
