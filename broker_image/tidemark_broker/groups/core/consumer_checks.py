"""Validation of heartbeats of the consumer protocol, before any change.

Corresponds to Kafka's throwIfConsumerGroupHeartbeatRequestIsInvalid and related methods. All errors
are :class:`CoordinatorError`.
"""

from kio.schema.errors import ErrorCode

from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.groups.core.assignors import Assignment
from tidemark_broker.groups.core.consumer_effects import MemberDescription
from tidemark_broker.groups.core.consumer_group import ConsumerGroup, ConsumerMember
from tidemark_broker.groups.core.consumer_values import (
    JOIN,
    LEAVE_FOR_NOW,
    NO_TIMEOUT,
    HeartbeatRequest,
)
from tidemark_broker.groups.core.journal import GroupMemory
from tidemark_broker.groups.core.reconciliation import MemberPosition
from tidemark_broker.groups.core.settings import GroupSettings
from tidemark_broker.groups.core.values import shown


def check_request(request: HeartbeatRequest, settings: GroupSettings) -> None:
    """Check the fields of a ConsumerGroupHeartbeat, independent of the group's state.

    Raises CoordinatorError with Kafka's code and text.
    """
    for name, value in (
        ("MemberId", request.member_id),
        ("GroupId", request.group_id),
        ("InstanceId", request.instance_id),
        ("RackId", request.rack_id),
    ):
        if value is not None and not value.strip():
            raise refused(ErrorCode.invalid_request, f"{name} can't be empty.")
    # Only a join must be complete. Later heartbeats contain what has changed.
    if request.member_epoch == JOIN:
        _check_join(request)
    # Member epoch -2: a static member leaves and intends to return (KIP-848).
    elif request.member_epoch == LEAVE_FOR_NOW:
        if request.instance_id is None:
            raise refused(ErrorCode.invalid_request, "InstanceId can't be null.")
    elif request.member_epoch < LEAVE_FOR_NOW:
        raise refused(ErrorCode.invalid_request, "MemberEpoch is invalid.")
    assignor = request.server_assignor
    if assignor is not None and assignor not in settings.consumer_assignors:
        known = ", ".join(settings.consumer_assignors)
        wrong = f"ServerAssignor {shown(assignor)} is not supported. Supported assignors: {known}."
        raise refused(ErrorCode.unsupported_assignor, wrong)


def _check_join(request: HeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == NO_TIMEOUT:
        wrong = "RebalanceTimeoutMs must be provided in first request."
        raise refused(ErrorCode.invalid_request, wrong)
    if request.owned is None or request.owned:
        wrong = "TopicPartitions must be empty when (re-)joining."
        raise refused(ErrorCode.invalid_request, wrong)
    if request.topic_names is None and request.regex is None:
        wrong = "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
        raise refused(ErrorCode.invalid_request, f"{wrong}(re-)joining.")


def known_member(group: ConsumerGroup, request: HeartbeatRequest) -> ConsumerMember | None:
    """Return the member that a heartbeat concerns, None for a new one.

    For a join with an instance id it is the static member that is replaced. Raises CoordinatorError
    if the id is unknown, fenced or owned by another process, or for a wrong epoch.
    """
    member = group.members.get(request.member_id)
    if request.instance_id is not None:
        named = group.static_member(request.instance_id)
        if request.member_epoch == JOIN:
            if named is None:
                return member
            # A static member is replaceable only after it left for now, or if it is a classic
            # member.
            is_free = named.position.epoch == LEAVE_FOR_NOW or named.metadata.classic is not None
            if is_free or named.member_id == request.member_id:
                return named
            owner = shown(named.member_id)
            wrong = f"{_named(request)} cannot join the group: it is owned by {owner}."
            raise refused(ErrorCode.unreleased_instance_id, wrong)
        member = static_member(group, request)
    # Only a join may create a member.
    elif member is None and request.member_epoch != JOIN:
        raise unknown(group, request)
    if member is not None:
        _check_epoch(member, request)
    return member


def static_member(group: ConsumerGroup, request: HeartbeatRequest) -> ConsumerMember:
    """Return the member with the request's instance id."""
    member = group.static_member(request.instance_id or "")
    if member is None:
        wrong = f"Instance id {shown(request.instance_id or '')} is unknown."
        raise refused(ErrorCode.unknown_member_id, wrong)
    if member.member_id != request.member_id:
        wrong = f"{_named(request)} was fenced by member {shown(member.member_id)}."
        raise refused(ErrorCode.fenced_instance_id, wrong)
    return member


def _check_epoch(member: ConsumerMember, request: HeartbeatRequest) -> None:
    """Check the member epoch in a heartbeat against the member's current one.

    The previous epoch is accepted, too, if the answer with the current one may have been lost. Any
    other epoch is fenced.
    """
    position, epoch = member.position, request.member_epoch
    if epoch in (JOIN, position.epoch):
        return
    # Accepted only if the member owns no more than assigned, as then nothing is lost (KIP-848).
    if epoch == position.previous_epoch < position.epoch and _owns_no_more(request.owned, position):
        return
    is_greater = "greater" if epoch > position.epoch else "smaller"
    wrong = (
        f"The consumer group member has a {is_greater} member epoch ({epoch}) than the one known "
        f"by the group coordinator ({position.epoch}). The member must abandon all its partitions "
        "and rejoin."
    )
    raise refused(ErrorCode.fenced_member_epoch, wrong)


def _owns_no_more(owned: Assignment | None, position: MemberPosition) -> bool:
    return owned is not None and all(
        numbers <= position.assigned.get(topic, {}).keys() for topic, numbers in owned.items()
    )


def check_room(
    group: ConsumerGroup,
    member: ConsumerMember | None,
    described: MemberDescription,
    settings: GroupSettings,
    room: GroupMemory,
) -> None:
    """Check the group's maximum size, and that the broker's memory has room for the member.

    ``member``: None for a new one. Raises GROUP_MAX_SIZE_REACHED.
    """
    size_max = settings.consumer_size_max
    if member is None and len(group.members) >= size_max:
        wrong = f"The group has reached its maximum capacity of {size_max} members."
        raise refused(ErrorCode.group_max_size_reached, wrong)
    # An unchanged member needs no new memory, and must be able to continue when it is full.
    is_new = member is None or described is not member.described
    if is_new and room.is_full_for(described.weight_bytes):
        wrong = "The groups of this broker have reached tidemark.groups.bytes.max."
        raise refused(ErrorCode.group_max_size_reached, wrong)


def refused(error: ErrorCode, message: str) -> CoordinatorError:
    """Return the error with its message."""
    return CoordinatorError(error, message)


def unknown(group: ConsumerGroup, request: HeartbeatRequest) -> CoordinatorError:
    """Return the error for an unknown member id."""
    wrong = f"Member {shown(request.member_id)} is not a member of group {shown(group.group_id)}."
    return refused(ErrorCode.unknown_member_id, wrong)


def _named(request: HeartbeatRequest) -> str:
    instance_id = shown(request.instance_id or "")
    return f"Static member {shown(request.member_id)} with instance id {instance_id}"
