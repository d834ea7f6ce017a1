"""Validation of heartbeats of the consumer protocol, before any change.

Corresponds to Kafka's throwIfConsumerGroupHeartbeatRequestIsInvalid and related methods. All errors
are :class:`CoordinatorError`.
"""

from collections.abc import Sequence

from kio.schema.errors import ErrorCode

from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.groups.core.assignors import Assignment
from tidemark_broker.groups.core.consumer_effects import (
    Entry,
    MemberDescription,
    ResolvedRegex,
    regex_entry,
)
from tidemark_broker.groups.core.consumer_group import ConsumerGroup, ConsumerMember
from tidemark_broker.groups.core.consumer_reconciliation import MemberPosition
from tidemark_broker.groups.core.journal import GroupMemory
from tidemark_broker.groups.core.settings import GroupSettings, Now
from tidemark_broker.groups.core.values import (
    JOIN,
    LEAVE_FOR_NOW,
    NO_TIMEOUT,
    HeartbeatRequest,
    shown,
)


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


# ------------------------------------------------------------ regular expressions

# Regular expressions in subscriptions: which must be resolved, and their records.
#
# The coordinator resolves an expression for the whole group, among the topics that the requesting
# member may describe (see
# :meth:`~tidemark_broker.groups.group_coordinator.GroupCoordinator.consumer_heartbeat`). Each
# member with the expression gets the recorded topics.

#: Limit of different expressions in one group. Each is matched against all topics.
REGEXES_MAX = 50
#: Minimum interval of resolving expressions again after a change of topics (Kafka's
#: REGEX_BATCH_REFRESH_MIN_INTERVAL_MS).
_PAUSE_MS = 10_000


def unresolved(
    group: ConsumerGroup | None,
    regex: str | None,
    topics_version: int,
    refresh_ms: int,
    now: Now,
) -> Sequence[str]:
    """Return the regular expressions to resolve before a heartbeat is handled.

    ``regex``: the heartbeat's own expression, None or "" for none. All expressions of the group are
    due if topics may have changed, or after ``refresh_ms``. Otherwise only those are due that were
    never resolved. ``group`` None: it does not exist yet.
    """
    if group is None:
        return [regex] if regex else []
    in_use = dict.fromkeys(group.regexes_in_use)
    if regex:
        in_use[regex] = None
    if not in_use:
        return []
    # A short pause after each resolution limits the work while many topics are created.
    changed = group.regexes_version != topics_version
    pause_ms = _PAUSE_MS if changed else refresh_ms
    if now.ms - group.regexes_checked_ms >= pause_ms:
        group.regexes_checked_ms = now.ms  # so that concurrent heartbeats do not resolve them too
        return list(in_use)
    return [expression for expression in in_use if expression not in group.regexes]


def check_limit(group: ConsumerGroup, regex: str | None) -> None:
    """Check the limit of expressions."""
    if regex and not group.uses_regex(regex) and len(group.regexes_in_use) >= REGEXES_MAX:
        wrong = f"The group already has {REGEXES_MAX} different expressions, which is the limit."
        raise refused(ErrorCode.invalid_regular_expression, wrong)


def resolved(group: ConsumerGroup, request: HeartbeatRequest, now: Now) -> list[Entry]:
    """Return record entries for expressions whose matching topics differ from the record.

    ``request.resolved``: matching topics by expression, as resolved before the heartbeat.
    """
    found = request.resolved or {}
    if not found:
        return []
    # Only a complete set marks the version as checked, else the others would never be refreshed.
    if all(expression in found for expression in group.regexes_in_use):
        group.regexes_version = request.topics_version
        group.regexes_checked_ms = now.ms
    return [
        regex_entry(group.group_id, regex, ResolvedRegex(topics, request.topics_version, now.ms))
        for regex, topics in found.items()
        # Members may have dropped an expression while it was being resolved.
        if (regex == request.regex or group.uses_regex(regex))
        and (regex not in group.regexes or group.regexes[regex].topics != topics)
    ]


def no_longer_used(
    group: ConsumerGroup, member: ConsumerMember | None, regex: str | None
) -> list[Entry]:
    """Return the tombstone of the member's previous expression, if no other member uses it."""
    former = None if member is None else member.subscription.regex
    if former is None or former == regex or group.users_of(former) > 1:
        return []
    return [regex_entry(group.group_id, former, None)] if former in group.regexes else []
