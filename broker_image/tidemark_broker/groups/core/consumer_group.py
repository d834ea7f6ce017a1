"""One group of KIP-848's protocol: who is in it, where each is, and where each is to be.

All that is kept stands on record, and comes into force by :meth:`ConsumerGroup.apply`, the same way
when it is decided and when another coordinator reads it. Counts and sets that depend on all members
are kept as these change, since a group may have thousands of them.
"""

import hashlib
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from tidemark_broker.groups.core import consumer_records as records
from tidemark_broker.groups.core.assignors import Assignment, Spec, Subscriber
from tidemark_broker.groups.core.consumer_effects import (
    UNKNOWN,
    Described,
    Effect,
    ResolvedRegex,
    Subscription,
    names_weigh,
    partitions_weigh,
)
from tidemark_broker.groups.core.consumer_values import ConsumerGroupState, Topic
from tidemark_broker.groups.core.reconciliation import NOWHERE, Held, Position
from tidemark_broker.groups.core.steps import AT_ONCE_MAX

#: The type of the classic protocol that consumers speak.
CONSUMER = "consumer"
_GROUP_BYTES = 1500
_NO_ASSIGNMENT: Assignment = {}


@dataclass(slots=True)
class ConsumerMember:
    """What it says of itself, and where it is."""

    member_id: str
    described: Described
    subscription: Subscription = UNKNOWN.subscription
    position: Position = NOWHERE

    @property
    def metadata(self) -> records.ConsumerGroupMemberMetadataValue:
        """As it stands on record."""
        return self.described.metadata

    @property
    def instance_id(self) -> str | None:
        """Its name, where it has one that outlives its process."""
        return self.metadata.instance_id


class TopicsSeen(NamedTuple):
    """In which version of the cluster's topics, -1 in none since the group was loaded, and after so
    many changes of what its members want."""

    version: int
    changes: int


class ConsumerGroup:
    """``recorded_below``: behind its last record, or that of its offsets. ``topics_seen``: when
    its topics were looked at last."""

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
        self.topics_seen = TopicsSeen(-1, 0)
        self.regexes_version = -1
        self.regexes_checked_ms = 0
        #: Raised with each topic that is wanted for the first time, or no longer.
        self.topic_changes = 0
        self.is_being_assigned = False
        #: By topic and partition, as of before ``_moves``: members, with where each was and is.
        self._holders: dict[uuid.UUID, dict[int, str]] = {}
        self._moves: list[tuple[str, Position, Position]] = []
        self.moves_size = 0
        self._subscriptions: dict[Subscription, Subscription] = {}
        self._counts: Counter[Subscription] = Counter()
        self._regex_counts: Counter[str] = Counter()
        self._assignors: Counter[str] = Counter()
        #: Of members of the classic protocol: how many there are, and can do which protocol.
        self.classic_count = 0
        self._classic_protocols: Counter[str] = Counter()
        #: In how many different subscriptions a topic is named.
        self._names: dict[str, int] = {}

    # ------------------------------------------------------------ what it is

    @property
    def state(self) -> ConsumerGroupState:
        """Goes through the members, as long as these are where they are to be."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        epoch = self.assignment_epoch
        if all(each.position.is_at(epoch) for each in tuple(self.members.values())):
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

    @property
    def topics_size(self) -> int:
        """About how many topics :attr:`subscribed` has, counted and not looked at."""
        return len(self._names) + sum(len(each.topics) for each in self.regexes.values())

    @property
    def spec_size(self) -> int:
        """About how long :meth:`spec` takes, in names."""
        topics = sum(len(each.names) + self._regex_size(each.regex) for each in self._subscriptions)
        return len(self.members) + topics

    def _regex_size(self, regex: str | None) -> int:
        resolved = None if regex is None else self.regexes.get(regex)
        return 0 if resolved is None else len(resolved.topics)

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

    @property
    def is_all_classic(self) -> bool:
        """Has it members, and none of KIP-848's protocol?"""
        return bool(self.members) and self.classic_count == len(self.members)

    def supports(self, protocol_type: str, protocols: Iterable[str]) -> bool:
        """Has a member of the classic protocol one of ``protocols`` in common with all others?"""
        return protocol_type == CONSUMER and any(
            self._classic_protocols[name] == self.classic_count for name in protocols
        )

    def preferred_assignor(self, default: str) -> str:
        """The one that most members ask for, of those that ask."""
        if not self._assignors:
            return default
        return max(self._assignors, key=lambda name: (self._assignors[name], name))

    def is_held(self, topic_id: uuid.UUID, partition: int) -> bool:
        """Does any member have it, or not say yet that it has not any more?"""
        if self._moves:
            self.follow_moves()
        return partition in self._holders.get(topic_id, ())

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
        """Is it a member, and in that epoch? One of the classic protocol: in that generation?"""
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.unknown_member_id
        if epoch == member.position.epoch:
            return ErrorCode.none
        return (
            ErrorCode.stale_member_epoch
            if member.metadata.classic is None
            else ErrorCode.illegal_generation
        )

    def may_commit(self, member_id: str, epoch: int, topic_id: uuid.UUID | None, of: int) -> bool:
        """Is the partition the member's, and was it already in the epoch in which that commits
        (KIP-1251)? A commit may be under way while the member gets to another epoch."""
        member = self.members.get(member_id)
        if member is None or epoch > member.position.epoch:
            return False
        if epoch == member.position.epoch:
            return True
        if topic_id is None or member.metadata.classic is not None:
            return False
        for held in (member.position.assigned, member.position.revoking):
            since = held.get(topic_id, {}).get(of)
            if since is not None:
                return epoch >= since
        return False

    # ------------------------------------------------------------ what comes into force

    def apply(self, key: records.Key, effect: Effect | None) -> None:
        """A record of the group; None, or what does not fit its key, is nothing."""
        if isinstance(key, records.ConsumerGroupMetadataKey):
            if isinstance(effect, records.ConsumerGroupMetadataValue):
                self.epoch, self.metadata_hash = effect.epoch, effect.metadata_hash
        elif isinstance(key, records.ConsumerGroupMemberMetadataKey):
            if isinstance(effect, Described):
                self._put_member(key.member_id, effect)
            else:
                self._remove_member(key.member_id)
        elif isinstance(key, records.ConsumerGroupTargetAssignmentMetadataKey):
            if isinstance(effect, records.ConsumerGroupTargetAssignmentMetadataValue):
                self.assignment_epoch = effect.assignment_epoch
                self.assignment_timestamp_ms = effect.assignment_timestamp
        elif isinstance(key, records.ConsumerGroupTargetAssignmentMemberKey):
            self._put_target(key.member_id, effect if isinstance(effect, Mapping) else None)
        elif isinstance(key, records.ConsumerGroupCurrentMemberAssignmentKey):
            position = effect if isinstance(effect, Position) else NOWHERE
            self._put_position(key.member_id, position)
        else:
            resolved = effect if isinstance(effect, ResolvedRegex) else None
            self._put_regex(key.regular_expression, resolved)

    def _put_member(self, member_id: str, described: Described) -> None:
        member = self.members.get(member_id)
        if member is None:
            member = self.members[member_id] = ConsumerMember(member_id, described)
        else:
            self._count(member, -1)
            member.described = described
        wanted = described.subscription
        member.subscription = self._subscriptions.setdefault(wanted, wanted)
        self._count(member, 1)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member_id

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
        self.weight_bytes += sign * (member.described.weight_bytes + len(member.member_id))
        self._counts[subscription] += sign
        if self._counts[subscription] == max(sign, 0):
            self._count_names(subscription.names, sign)
        if not self._counts[subscription]:
            del self._counts[subscription], self._subscriptions[subscription]
        if regex is not None:
            _add(self._regex_counts, regex, sign)
        if member.metadata.server_assignor is not None:
            _add(self._assignors, member.metadata.server_assignor, sign)
        if member.metadata.classic is not None:
            self.classic_count += sign
            for name in {each.name for each in member.metadata.classic.supported_protocols}:
                _add(self._classic_protocols, name, sign)

    def _count_names(self, names: frozenset[str], sign: int) -> None:
        counts, before = self._names, len(self._names)
        for name in names:
            count = counts.get(name, 0) + sign
            if count:
                counts[name] = count
            else:
                del counts[name]
        self.topic_changes += abs(len(counts) - before)

    def _put_target(self, member_id: str, target: Assignment | None) -> None:
        before = self.targets.pop(member_id, None)
        if before is not None:
            self.weight_bytes -= partitions_weigh(before)
        if target is not None:
            self.targets[member_id] = target
            self.weight_bytes += partitions_weigh(target)

    def _put_position(self, member_id: str, position: Position) -> None:
        member = self.members.get(member_id)
        if member is None:
            if position is NOWHERE:
                return
            # Compaction keeps the latest record of each kind: what it says of itself comes later.
            self._put_member(member_id, UNKNOWN)
            member = self.members[member_id]
        before, member.position = member.position, position
        self.weight_bytes += _weight(position) - _weight(before)
        self._moves.append((member_id, before, position))
        self.moves_size += before.size + position.size
        if self.moves_size <= AT_ONCE_MAX:
            self.follow_moves()

    @property
    def moves_pending(self) -> int:
        """How many members' moves are not followed yet."""
        return len(self._moves)

    def follow_moves(self) -> None:
        """Who holds what since members have moved. Where that is much it is left to whoever asks,
        since it takes a while (:attr:`moves_size`, in partitions)."""
        moves, self._moves, self.moves_size = self._moves, [], 0
        for member_id, before, after in moves:
            self._let_go(member_id, before.assigned, after.assigned)
            self._let_go(member_id, before.revoking, after.revoking)
            self._take_hold(member_id, before.assigned, after.assigned)
            self._take_hold(member_id, before.revoking, after.revoking)

    def _let_go(self, member_id: str, held: Held, new: Held) -> None:
        for topic, numbers in held.items():
            if new.get(topic) is numbers:
                continue
            holders = self._holders.get(topic, {})
            for number in numbers:
                if holders.get(number) == member_id:
                    del holders[number]
            if not holders:
                self._holders.pop(topic, None)

    def _take_hold(self, member_id: str, held: Held, new: Held) -> None:
        for topic, numbers in new.items():
            if held.get(topic) is not numbers:
                self._holders.setdefault(topic, {}).update(dict.fromkeys(numbers, member_id))

    def _put_regex(self, regex: str, resolved: ResolvedRegex | None) -> None:
        before = self.regexes.pop(regex, None)
        if before is not None:
            self.weight_bytes -= names_weigh(before.topics)
        if resolved is not None:
            self.regexes[regex] = resolved
            self.weight_bytes += names_weigh(resolved.topics)
        self.topic_changes += 1


def _weight(position: Position) -> int:
    return partitions_weigh(position.assigned) + partitions_weigh(position.revoking)


def _add(counts: Counter[str], name: str, sign: int) -> None:
    counts[name] += sign
    if not counts[name]:
        del counts[name]
