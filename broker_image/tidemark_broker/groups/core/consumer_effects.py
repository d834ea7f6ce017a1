"""In-memory values of a consumer group's records, and conversion in both directions.

A record that this coordinator decides and one that it reads are applied in the same way, as the
value made here. The conversion iterates over everything in the record, so it may run in a thread.
"""

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from tidemark_broker.coordinators.log import CoordinatorRecord
from tidemark_broker.groups.core import consumer_records as records
from tidemark_broker.groups.core.assignors import Assignment
from tidemark_broker.groups.core.consumer_reconciliation import MemberPosition, PartitionEpochs
from tidemark_broker.groups.core.records import record_of

_MEMBER_BYTES, _PARTITION_BYTES, _NAME_BYTES = 1500, 120, 60
#: Fixed cost of a record, in names.
_RECORD_SIZE = 20


def size_of(assignment: "Assignment | PartitionEpochs") -> int:
    """Number of topics and partitions."""
    return len(assignment) + sum(map(len, assignment.values()))


def names_weigh(names: "frozenset[str] | tuple[str, ...]") -> int:
    """Approximate memory in bytes of names."""
    return _NAME_BYTES * len(names) + sum(map(len, names))


def partitions_weigh(assignment: "Assignment | PartitionEpochs") -> int:
    """Approximate memory in bytes of an assignment."""
    return _NAME_BYTES * len(assignment) + _PARTITION_BYTES * sum(map(len, assignment.values()))


class Subscription(NamedTuple):
    """Subscription of a member. Members with equal subscriptions share it."""

    names: frozenset[str]
    regex: str | None


class MemberDescription(NamedTuple):
    """Description of a member by itself, with its approximate memory in bytes."""

    metadata: records.ConsumerGroupMemberMetadataValue
    subscription: Subscription
    weight_bytes: int

    @classmethod
    def of(cls, metadata: records.ConsumerGroupMemberMetadataValue) -> "MemberDescription":
        """Convert a record's value."""
        names, regex = metadata.subscribed_topic_names, metadata.subscribed_topic_regex
        texts = len(metadata.client_id) + len(metadata.client_host) + len(regex or "")
        weight_bytes = _MEMBER_BYTES + texts + names_weigh(names)
        if metadata.classic is not None:
            protocols = metadata.classic.supported_protocols
            weight_bytes += sum(
                len(protocol.name) + len(protocol.metadata) for protocol in protocols
            )
        return cls(metadata, Subscription(frozenset(names), regex), weight_bytes)


class ResolvedRegex(NamedTuple):
    """Topics that match an expression, with the version of the cluster's topics and the time in
    ms.
    """

    topics: frozenset[str]
    version: int
    timestamp_ms: int


Effect: TypeAlias = (
    records.ConsumerGroupMetadataValue
    | records.ConsumerGroupTargetAssignmentMetadataValue
    | MemberDescription
    | Assignment
    | MemberPosition
    | ResolvedRegex
)


class Entry(NamedTuple):
    """Desired value of a key; None is a tombstone."""

    key: records.Key
    effect: Effect | None

    @property
    def size(self) -> int:
        """Approximate cost of encoding the record, in names."""
        effect = self.effect
        if isinstance(effect, MemberDescription):
            return _RECORD_SIZE + len(effect.metadata.subscribed_topic_names)
        if isinstance(effect, ResolvedRegex):
            return _RECORD_SIZE + len(effect.topics)
        if isinstance(effect, MemberPosition):
            return _RECORD_SIZE + effect.size
        if isinstance(effect, dict):
            return _RECORD_SIZE + size_of(effect)
        return _RECORD_SIZE

    def record(self) -> CoordinatorRecord:
        """Return the encoded record."""
        return record_of(self.key, None if self.effect is None else _value_of(self.effect))


#: Description of a member of which no record exists.
UNKNOWN = MemberDescription.of(
    records.ConsumerGroupMemberMetadataValue(
        instance_id=None,
        rack_id=None,
        client_id="",
        client_host="",
        subscribed_topic_names=(),
        subscribed_topic_regex=None,
        server_assignor=None,
    )
)


def effect_of(value: records.Value) -> Effect:
    """Convert a record's value, as read from the log, to the value that is kept in memory."""
    if isinstance(value, records.ConsumerGroupMemberMetadataValue):
        return MemberDescription.of(value)
    # Sets make comparisons with the next target cheap.
    if isinstance(value, records.ConsumerGroupTargetAssignmentMemberValue):
        return {
            entry.topic_id: frozenset(entry.partitions)
            for entry in value.topic_partitions
            if entry.topic_id is not None
        }
    if isinstance(value, records.ConsumerGroupCurrentMemberAssignmentValue):
        return MemberPosition(
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=value.state,
            assigned=_read_partition_epochs(value.assigned_partitions, value.member_epoch),
            revoking=_read_partition_epochs(
                value.partitions_pending_revocation, value.member_epoch
            ),
        )
    # The rest is small and used as it is, except for resolved regular expressions.
    if isinstance(value, records.ConsumerGroupRegularExpressionValue):
        return ResolvedRegex(frozenset(value.topics), value.version, value.timestamp)
    return value


def _value_of(effect: Effect) -> records.Value:
    """Convert a value in memory to its record's value; the inverse of ``effect_of``."""
    if isinstance(effect, MemberDescription):
        return effect.metadata
    if isinstance(effect, MemberPosition):
        return records.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=effect.epoch,
            previous_member_epoch=effect.previous_epoch,
            state=effect.state,
            assigned_partitions=_current(effect.assigned),
            partitions_pending_revocation=_current(effect.revoking),
        )
    # Sorted, so that equal sets have equal records.
    if isinstance(effect, ResolvedRegex):
        return records.ConsumerGroupRegularExpressionValue(
            topics=tuple(sorted(effect.topics)),
            version=effect.version,
            timestamp=effect.timestamp_ms,
        )
    if isinstance(
        effect,
        records.ConsumerGroupMetadataValue | records.ConsumerGroupTargetAssignmentMetadataValue,
    ):
        # The rest is a target assignment.
        return effect
    return records.ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=tuple(
            records.TargetTopicPartition(topic_id=topic, partitions=tuple(sorted(numbers)))
            for topic, numbers in effect.items()
            if numbers
        )
    )


def _read_partition_epochs(
    topics: tuple[records.CurrentTopicPartitions, ...], epoch: int
) -> PartitionEpochs:
    """Return, for each topic and partition, the epoch in which the member got the partition.

    ``epoch``: the member's, for records without epochs of the partitions (before KIP-1251).
    """
    return {
        topic.topic_id: dict(
            zip(
                topic.partitions,
                # Records before KIP-1251 have no epochs. The member's epoch is the latest possible
                # one.
                topic.assignment_epochs or (epoch,) * len(topic.partitions),
                strict=False,
            )
        )
        for topic in topics
        if topic.topic_id is not None
    }


def _current(assigned: PartitionEpochs) -> tuple[records.CurrentTopicPartitions, ...]:
    return tuple(
        records.CurrentTopicPartitions(
            topic_id=topic,
            partitions=tuple(numbers),
            assignment_epochs=tuple(numbers.values()),
        )
        for topic, numbers in assigned.items()
    )


# ------------------------------------------------------------ records of a group


def epoch_entry(group_id: str, epoch: int, metadata_hash: int) -> Entry:
    """Entry of the group's epoch and of the hash of its topics."""
    return Entry(
        records.ConsumerGroupMetadataKey(group_id=group_id),
        records.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash),
    )


def assigned_entry(group_id: str, epoch: int, timestamp_ms: int) -> Entry:
    """Entry of the epoch and time of the targets."""
    return Entry(
        records.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id),
        records.ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=epoch, assignment_timestamp=timestamp_ms
        ),
    )


def member_entry(group_id: str, member_id: str, described: MemberDescription | None) -> Entry:
    """Entry of a member's description."""
    key = records.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id)
    return Entry(key, described)


def target_entry(group_id: str, member_id: str, target: Assignment | None) -> Entry:
    """Entry of a member's target assignment."""
    key = records.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    return Entry(key, target)


def position_entry(group_id: str, member_id: str, position: MemberPosition | None) -> Entry:
    """Entry of a member's current assignment."""
    key = records.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id)
    return Entry(key, position)


def regex_entry(group_id: str, regex: str, resolved: ResolvedRegex | None) -> Entry:
    """Entry of the topics that match an expression."""
    key = records.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex)
    return Entry(key, resolved)


def member_tombstones(group_id: str, member_id: str) -> list[Entry]:
    """Tombstones of a member."""
    # In reverse order of creation: a reader that stops in between still finds a consistent member.
    return [
        position_entry(group_id, member_id, None),
        target_entry(group_id, member_id, None),
        member_entry(group_id, member_id, None),
    ]


def group_tombstones(group_id: str) -> list[Entry]:
    """Tombstones of a group without members, targets and expressions."""
    return [
        Entry(records.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None),
        Entry(records.ConsumerGroupMetadataKey(group_id=group_id), None),
    ]


def records_of(entries: Iterable[Entry]) -> list[CoordinatorRecord]:
    """Encode the entries, in their order."""
    return [entry.record() for entry in entries]
