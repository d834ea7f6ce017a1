"""Online migration between the two protocols (Kafka's ConsumerGroup.fromClassicGroup and
ClassicGroup.fromConsumerGroup).

The migration moves no partitions: each member keeps its assignment. Later joins and leaves raise
the epoch or start a rebalance as usual. All records are one batch, because a coordinator that reads
only half of them would know neither group.
"""

import uuid
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from kio.schema.errors import ErrorCode

from tidemark.wire.framing import FrameError
from tidemark_broker.groups.core import consumer_records as consumer
from tidemark_broker.groups.core.classic_group import ClassicGroup, ClassicMember
from tidemark_broker.groups.core.consumer_checks import refused
from tidemark_broker.groups.core.consumer_effects import (
    UNKNOWN,
    Entry,
    MemberDescription,
    assigned_entry,
    epoch_entry,
    group_tombstones,
    member_entry,
    member_tombstones,
    position_entry,
    regex_entry,
    target_entry,
)
from tidemark_broker.groups.core.consumer_group import CONSUMER, ConsumerGroup
from tidemark_broker.groups.core.consumer_reconciliation import MemberPosition
from tidemark_broker.groups.core.records import GroupMetadataValue, MemberMetadata
from tidemark_broker.groups.core.settings import GroupSettings
from tidemark_broker.groups.core.subscriptions import (
    assigned,
    assignment_bytes,
    subscribed,
)
from tidemark_broker.groups.core.values import MemberProtocol, SubscribedTopic, shown


def check_upgrade(group: ClassicGroup, settings: GroupSettings) -> None:
    """Check that a classic group may become a consumer-protocol group while it has members.

    As Kafka's validateOnlineUpgrade. Raises GROUP_ID_NOT_FOUND with the cause.
    """
    because = None
    # The texts are Kafka's, since admin tools display them.
    if not settings.migration.may_upgrade:
        because = "online upgrade is disabled"
    elif not group.is_consumer_group:
        because = "the group does not use the consumer embedded protocol"
    elif len(group.members) > settings.consumer_size_max:
        because = "the group size exceeds the consumer group maximum size"
    if because is not None:
        raise refused(
            ErrorCode.group_id_not_found,
            f"Cannot upgrade classic group {shown(group.group_id)} to consumer group because "
            f"{because}.",
        )


def upgraded(group: ClassicGroup, topic: Callable[[str], SubscribedTopic | None]) -> list[Entry]:
    """Return the records of a classic group as a consumer-protocol group.

    Its epoch is the generation. Each member keeps its assignment. Raises GROUP_ID_NOT_FOUND if the
    members' embedded protocol is not readable.
    """
    group_id, epoch = group.group_id, group.generation_id
    # The hash of the topics is left 0; the next heartbeat computes it and, then, the targets.
    entries = [epoch_entry(group_id, epoch, 0), assigned_entry(group_id, epoch, 0)]
    for member in group.members.values():
        try:
            described = MemberDescription.of(_metadata(member, group.protocol_name or ""))
            has = _by_id(assigned(member.assignment), topic)
        except FrameError as error:
            wrong = f"Cannot upgrade classic group {shown(group_id)} to consumer group: {error}."
            raise refused(ErrorCode.group_id_not_found, wrong) from error
        # Target and position are equal, so that the upgraded group is stable at once.
        position = MemberPosition(
            epoch=epoch,
            previous_epoch=epoch,
            assigned={
                topic_id: dict.fromkeys(sorted(numbers), epoch) for topic_id, numbers in has.items()
            },
            revoking={},
        )
        entries += [
            member_entry(group_id, member.member_id, described),
            target_entry(group_id, member.member_id, has),
            position_entry(group_id, member.member_id, position),
        ]
    return entries


def classic_metadata(
    session_timeout_ms: int, protocols: tuple[MemberProtocol, ...]
) -> consumer.ClassicMemberMetadata:
    """Return the record's data of a classic member."""
    return consumer.ClassicMemberMetadata(
        is_there=1,
        session_timeout_ms=session_timeout_ms,
        supported_protocols=tuple(
            consumer.ClassicProtocol(name=protocol.name, metadata=protocol.metadata)
            for protocol in protocols
        ),
    )


def _metadata(
    member: ClassicMember, protocol_name: str
) -> consumer.ConsumerGroupMemberMetadataValue:
    """Return a classic member's description as a consumer-protocol record.

    Raises FrameError if its subscription cannot be parsed.
    """
    # A stable member has metadata for the protocol. Another one falls back to its first.
    subscription = subscribed(member.metadata_of(protocol_name) or member.protocols[0].metadata)
    return replace(
        UNKNOWN.metadata,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=tuple(sorted(set(subscription.topics))),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic_member_metadata=classic_metadata(member.session_timeout_ms, member.protocols),
    )


def _by_id(
    partitions: Mapping[str, AbstractSet[int]], topic: Callable[[str], SubscribedTopic | None]
) -> dict[uuid.UUID, frozenset[int]]:
    found = ((topic(name), numbers) for name, numbers in partitions.items())
    return {known.topic_id: frozenset(numbers) for known, numbers in found if known is not None}


def may_downgrade(group: ConsumerGroup, settings: GroupSettings) -> bool:
    """True if the group can be downgraded, as Kafka's validateOnlineDowngradeWithFencedMembers."""
    return (
        settings.migration.may_downgrade
        and group.is_all_classic
        and len(group.members) <= settings.size_max
    )


def tombstones(group: ConsumerGroup) -> list[Entry]:
    """Return tombstones for all records of the group."""
    group_id = group.group_id
    entries = [regex_entry(group_id, regex, None) for regex in group.regexes]
    for member_id in group.members:
        entries += member_tombstones(group_id, member_id)
    # Targets may exist for members that left before the targets were applied.
    entries += [
        target_entry(group_id, member_id, None)
        for member_id in group.targets
        if member_id not in group.members
    ]
    return [*entries, *group_tombstones(group_id)]


def downgraded(
    group: ConsumerGroup, name: Callable[[uuid.UUID], str | None], now_ms: int
) -> GroupMetadataValue:
    """Return a consumer-protocol group as a classic group's record.

    All members must support the classic protocol. The target of each member becomes its assignment
    in a generation with the group's epoch as its number. ``name``: returns a topic's name, None if
    it was deleted.
    """
    protocol = _common_protocol(group)
    members = []
    for member in group.members.values():
        metadata = member.metadata
        # The bytes that the client has sent for the common protocol.
        subscription = _subscription(metadata, protocol)
        named = (
            (name(topic), numbers) for topic, numbers in group.target_of(member.member_id).items()
        )
        # Topics that were deleted have no name, and a classic assignment contains names.
        partitions = {
            topic_name: numbers for topic_name, numbers in named if topic_name is not None
        }
        members.append(
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=metadata.instance_id,
                client_id=metadata.client_id,
                client_host=metadata.client_host,
                rebalance_timeout=metadata.rebalance_timeout_ms,
                session_timeout=metadata.classic_member_metadata.session_timeout_ms,
                subscription=subscription,
                assignment=assignment_bytes(partitions, subscription),
            )
        )
    return GroupMetadataValue(
        protocol_type=CONSUMER,
        generation=group.epoch,
        protocol=protocol,
        leader=next(iter(group.members)),
        current_state_timestamp=now_ms,
        members=tuple(members),
    )


def _common_protocol(group: ConsumerGroup) -> str:
    """Return a protocol that all support, preferred by the first member."""
    first = next(iter(group.members.values()))
    names = [
        protocol.name for protocol in first.metadata.classic_member_metadata.supported_protocols
    ]
    return next((name for name in names if group.supports(CONSUMER, (name,))), names[0])


def _subscription(metadata: consumer.ConsumerGroupMemberMetadataValue, protocol: str) -> bytes:
    protocols = metadata.classic_member_metadata.supported_protocols
    return next(
        (candidate.metadata for candidate in protocols if candidate.name == protocol), b"\0\0"
    )
