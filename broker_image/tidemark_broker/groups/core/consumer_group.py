"""State of one group of the consumer protocol (KIP-848): members, current and target assignments.

All state is in records. :meth:`ConsumerGroup.apply` applies them both when this coordinator decides
and when another one reads the log. Counts and sets over all members are maintained incrementally,
since a group may have thousands of members.
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
    Effect,
    MemberDescription,
    ResolvedRegex,
    Subscription,
    names_weigh,
    partitions_weigh,
)
from tidemark_broker.groups.core.consumer_reconciliation import (
    NOWHERE,
    MemberPosition,
    PartitionEpochs,
)
from tidemark_broker.groups.core.steps import AT_ONCE_MAX
from tidemark_broker.groups.core.values import ConsumerGroupState, SubscribedTopic

#: Protocol type of consumers in the classic protocol.
CONSUMER = "consumer"
_GROUP_BYTES = 1500
_NO_ASSIGNMENT: Assignment = {}


@dataclass(slots=True)
class ConsumerMember:
    """One member: its description, and its current assignment."""

    member_id: str
    described: MemberDescription
    subscription: Subscription = UNKNOWN.subscription
    position: MemberPosition = NOWHERE

    @property
    def metadata(self) -> records.ConsumerGroupMemberMetadataValue:
        """Description in the form of the record."""
        return self.described.metadata

    @property
    def instance_id(self) -> str | None:
        """Instance id of a static member (KIP-345), else None."""
        return self.metadata.instance_id


class TopicsSeen(NamedTuple):
    """State at the last check for changed topics.

    ``version``: of the cluster's topics, -1 for no check since the load. ``changes``: number of
    subscription changes before it.
    """

    version: int
    changes: int


class ConsumerGroup:
    """One group.

    ``recorded_below`` is the end offset of the last record of the group or of its offsets.
    ``topics_seen``: versions of topics and subscriptions at the last check for changed topics.
    """

    def __init__(self, group_id: str) -> None:
        """Create an empty group in epoch 0, to which records are then applied."""
        self.group_id = group_id
        #: Epoch of the group; each change of members, subscriptions or topics raises it (KIP-848).
        self.epoch = 0
        #: Hash of the subscribed topics and their partitions at ``epoch``.
        self.metadata_hash = 0
        #: Epoch of the target assignments, below ``epoch`` while new targets are due.
        self.assignment_epoch = 0
        self.assignment_timestamp_ms = 0
        self.members: dict[str, ConsumerMember] = {}
        #: Member id by instance id.
        self.static_members: dict[str, str] = {}
        #: Target assignment by member id.
        self.targets: dict[str, Assignment] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        #: Approximate memory of the group, and its part that is included in the broker's total.
        self.weight_bytes = _GROUP_BYTES + len(group_id)
        self.weighed_bytes = 0
        self.recorded_below = 0
        self.topics_seen = TopicsSeen(-1, 0)
        #: Version of the broker's topics against which all regular expressions were last resolved.
        self.regexes_version = -1
        self.regexes_checked_ms = 0
        #: Incremented when a topic is subscribed for the first time, or no longer.
        self.topic_changes = 0
        #: True while targets are being computed, so that they are computed only once.
        self.is_being_assigned = False
        #: Owner by topic and partition, before ``_moves``: members with old and new positions.
        self._holders: dict[uuid.UUID, dict[int, str]] = {}
        self._moves: list[tuple[str, MemberPosition, MemberPosition]] = []
        #: Number of partitions in ``_moves``, by which a caller decides whether to use a thread.
        self.moves_size = 0
        #: Equal subscriptions share one object, with the number of members that have it.
        self._subscriptions: dict[Subscription, Subscription] = {}
        self._counts: Counter[Subscription] = Counter()
        #: Number of members with each regular expression, and with each server-side assignor.
        self._regex_counts: Counter[str] = Counter()
        self._assignors: Counter[str] = Counter()
        #: Number of members of the classic protocol, and how many support each protocol.
        self.classic_count = 0
        self._classic_protocols: Counter[str] = Counter()
        #: Number of different subscriptions that contain a topic.
        self._names: dict[str, int] = {}

    # ------------------------------------------------------------ what it is

    @property
    def state(self) -> ConsumerGroupState:
        """Current state. Iterates over the members while all of them are at their target."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        epoch = self.assignment_epoch
        if all(member.position.is_at(epoch) for member in tuple(self.members.values())):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def subscribed(self) -> set[str]:
        """All topics of any subscription, whether they exist or not."""
        return set(self._names).union(*(regex.topics for regex in self.regexes.values()))

    @property
    def topics_size(self) -> int:
        """Approximate size of :attr:`subscribed`, without iterating over it."""
        return len(self._names) + sum(len(regex.topics) for regex in self.regexes.values())

    @property
    def spec_size(self) -> int:
        """Approximate cost of :meth:`spec`, in names."""
        topics = sum(
            len(subscription.names) + self._regex_size(subscription.regex)
            for subscription in self._subscriptions
        )
        return len(self.members) + topics

    def _regex_size(self, regex: str | None) -> int:
        resolved = None if regex is None else self.regexes.get(regex)
        return 0 if resolved is None else len(resolved.topics)

    def topics_of(self, subscription: Subscription) -> frozenset[str]:
        """Topics that a subscription names, and those that match its expression."""
        if subscription.regex is None:
            return subscription.names
        resolved = self.regexes.get(subscription.regex)
        return subscription.names if resolved is None else subscription.names | resolved.topics

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self._names or any(topic in regex.topics for regex in self.regexes.values())

    @property
    def regexes_in_use(self) -> Collection[str]:
        """Expressions of all members."""
        return self._regex_counts.keys()

    def uses_regex(self, regex: str) -> bool:
        return regex in self._regex_counts

    def users_of(self, regex: str) -> int:
        """Number of members with the expression."""
        return self._regex_counts[regex]

    @property
    def is_all_classic(self) -> bool:
        """True if all members are of the classic protocol, and there is at least one."""
        return bool(self.members) and self.classic_count == len(self.members)

    def supports(self, protocol_type: str, protocols: Iterable[str]) -> bool:
        """True if a classic member has one of ``protocols`` in common with all other classic
        members.
        """
        return protocol_type == CONSUMER and any(
            self._classic_protocols[name] == self.classic_count for name in protocols
        )

    def preferred_assignor(self, default: str) -> str:
        """Return the assignor that most members request."""
        if not self._assignors:
            return default
        # The name breaks ties, so that every coordinator chooses the same.
        return max(self._assignors, key=lambda name: (self._assignors[name], name))

    def is_owned(self, topic_id: uuid.UUID, partition: int) -> bool:
        """True if any member owns the partition, or has not confirmed its revocation."""
        if self._moves:
            self.follow_moves()
        return partition in self._holders.get(topic_id, ())

    def target_of(self, member_id: str) -> Assignment:
        return self.targets.get(member_id, _NO_ASSIGNMENT)

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        member_id = self.static_members.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def hash_of(self, topic: Callable[[str], SubscribedTopic | None]) -> int:
        """Return a hash of the consumed topics. It changes if one is created, deleted or grows."""
        digest = hashlib.blake2b(digest_size=8)
        for name in sorted(self.subscribed):
            found = topic(name)
            if found is not None:
                digest.update(f"{name} {found.topic_id} {found.partitions};".encode())
        # The record has a signed 64-bit field.
        return int.from_bytes(digest.digest(), "big", signed=True)

    def spec(self, topic: Callable[[str], SubscribedTopic | None]) -> Spec:
        """Return the input for the assignor: members, their topics, and numbers of partitions.

        The result is immutable, so it may be used in a thread while the group changes.
        """
        partitions: dict[uuid.UUID, int] = {}
        topics: dict[Subscription, frozenset[uuid.UUID]] = {}
        # Subscriptions that resolve to equal topics share a set, so assignors can compare by
        # identity.
        shared: dict[frozenset[uuid.UUID], frozenset[uuid.UUID]] = {}
        for subscription in self._subscriptions:
            # Topics that do not exist (yet) are left out.
            found = [topic(name) for name in self.topics_of(subscription)]
            existing = [match for match in found if match is not None]
            partitions.update(existing)
            ids = frozenset(match.topic_id for match in existing)
            topics[subscription] = shared.setdefault(ids, ids)
        members = {
            member.member_id: Subscriber(
                instance_id=member.instance_id,
                topics=topics[member.subscription],
                target=self.target_of(member.member_id),
            )
            for member in self.members.values()
        }
        return Spec(members=members, partitions=partitions)

    # ------------------------------------------------------------ authorization of offset requests

    def validate(self, member_id: str, epoch: int) -> ErrorCode:
        """Check membership and member epoch; for a classic member, the generation."""
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
        """Return whether the member may commit an offset of the partition in that epoch (KIP-1251).

        A commit may be in flight while the member advances. It is accepted if the partition was
        assigned to the member in that epoch already. ``of``: number of the partition.
        """
        member = self.members.get(member_id)
        if member is None or epoch > member.position.epoch:
            return False
        if epoch == member.position.epoch:
            return True
        # Without a topic id, or for a classic member, only the current epoch is valid.
        if topic_id is None or member.metadata.classic is not None:
            return False
        # The partition may be on its way out (revoking). The member still commits its last offsets
        # then.
        for partitions in (member.position.assigned, member.position.revoking):
            since = partitions.get(topic_id, {}).get(of)
            if since is not None:
                return epoch >= since
        return False

    # ------------------------------------------------------------ application of records

    def apply(self, key: records.Key, effect: Effect | None) -> None:
        """Apply a record to the state in memory.

        ``effect``: value of the record, None for a tombstone. A tombstone, or a value that does not
        fit the key, removes the state.
        """
        # A tombstone of the group is handled by the caller, which drops the object.
        if isinstance(key, records.ConsumerGroupMetadataKey):
            if isinstance(effect, records.ConsumerGroupMetadataValue):
                self.epoch, self.metadata_hash = effect.epoch, effect.metadata_hash
        elif isinstance(key, records.ConsumerGroupMemberMetadataKey):
            if isinstance(effect, MemberDescription):
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
            position = effect if isinstance(effect, MemberPosition) else NOWHERE
            self._put_position(key.member_id, position)
        else:
            resolved = effect if isinstance(effect, ResolvedRegex) else None
            self._put_regex(key.regular_expression, resolved)

    def _put_member(self, member_id: str, described: MemberDescription) -> None:
        """Add a member, or replace its description."""
        member = self.members.get(member_id)
        if member is None:
            member = self.members[member_id] = ConsumerMember(member_id, described)
        else:
            # Counts of the old description are removed before it is replaced.
            self._count(member, -1)
            member.described = described
        subscription = described.subscription
        member.subscription = self._subscriptions.setdefault(subscription, subscription)
        self._count(member, 1)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member_id

    def _remove_member(self, member_id: str) -> None:
        # Positions first: the holders index is keyed by member and must not keep a removed one.
        self._put_position(member_id, NOWHERE)
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._count(member, -1)
        instance_id = member.instance_id
        # A successor may own the instance id already.
        if instance_id is not None and self.static_members.get(instance_id) == member_id:
            del self.static_members[instance_id]

    def _count(self, member: ConsumerMember, sign: int) -> None:
        """Include a member in the group's counts (``sign`` 1), or exclude it (-1)."""
        subscription, regex = member.subscription, member.subscription.regex
        self.weight_bytes += sign * (member.described.weight_bytes + len(member.member_id))
        self._counts[subscription] += sign
        # Names are only counted when the subscription's first member is added or its last one
        # removed.
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
            for name in {protocol.name for protocol in member.metadata.classic.supported_protocols}:
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

    def _put_position(self, member_id: str, position: MemberPosition) -> None:
        """Set a member's current assignment (Kafka's current member assignment record)."""
        member = self.members.get(member_id)
        if member is None:
            if position is NOWHERE:
                return
            # Compaction reorders records by their last write: the member's description may follow.
            self._put_member(member_id, UNKNOWN)
            member = self.members[member_id]
        before, member.position = member.position, position
        self.weight_bytes += _weight(position) - _weight(before)
        # Large moves are applied later in a thread, when a caller needs the holders.
        self._moves.append((member_id, before, position))
        self.moves_size += before.size + position.size
        if self.moves_size <= AT_ONCE_MAX:
            self.follow_moves()

    @property
    def moves_pending(self) -> int:
        """Number of moves that are not applied to the holders yet."""
        return len(self._moves)

    def follow_moves(self) -> None:
        """Apply the members' moves to the index of holders.

        Large moves are left to the caller that needs the index, since it takes long
        (:attr:`moves_size`, in partitions).
        """
        moves, self._moves, self.moves_size = self._moves, [], 0
        # All releases of a move come before its claims, so partitions that it keeps stay with it.
        for member_id, before, after in moves:
            self._release(member_id, before.assigned, after.assigned)
            self._release(member_id, before.revoking, after.revoking)
            self._claim(member_id, before.assigned, after.assigned)
            self._claim(member_id, before.revoking, after.revoking)

    def _release(self, member_id: str, before: PartitionEpochs, after: PartitionEpochs) -> None:
        """Remove a member as the owner of the partitions that it no longer has."""
        for topic, numbers in before.items():
            # Unchanged topics share the object, which skips most of a large assignment.
            if after.get(topic) is numbers:
                continue
            holders = self._holders.get(topic, {})
            for number in numbers:
                # Another member may have claimed the partition already. Its claim must stay.
                if holders.get(number) == member_id:
                    del holders[number]
            if not holders:
                self._holders.pop(topic, None)

    def _claim(self, member_id: str, before: PartitionEpochs, after: PartitionEpochs) -> None:
        for topic, numbers in after.items():
            if before.get(topic) is not numbers:
                self._holders.setdefault(topic, {}).update(dict.fromkeys(numbers, member_id))

    def _put_regex(self, regex: str, resolved: ResolvedRegex | None) -> None:
        before = self.regexes.pop(regex, None)
        if before is not None:
            self.weight_bytes -= names_weigh(before.topics)
        if resolved is not None:
            self.regexes[regex] = resolved
            self.weight_bytes += names_weigh(resolved.topics)
        self.topic_changes += 1


def _weight(position: MemberPosition) -> int:
    return partitions_weigh(position.assigned) + partitions_weigh(position.revoking)


def _add(counts: Counter[str], name: str, sign: int) -> None:
    counts[name] += sign
    if not counts[name]:
        del counts[name]
