"""Members of the classic protocol in a group of the consumer protocol (Kafka's
classicGroupJoinToConsumerGroup).

For such a member a generation is an epoch, and another member always leads. If it must give up
partitions or may have more, its heartbeat tells it to rejoin. In JoinGroup it reports its owned
partitions, and SyncGroup returns its assignment. Answers are immediate, as no member waits for
another.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from kio.schema.errors import ErrorCode

from tidemark.wire.framing import FrameError
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.groups.core import consumer_records as records
from tidemark_broker.groups.core.assignors import Assignment
from tidemark_broker.groups.core.consumer_checks import check_room, refused
from tidemark_broker.groups.core.consumer_effects import UNKNOWN, MemberDescription, size_of
from tidemark_broker.groups.core.consumer_group import CONSUMER, ConsumerGroup, ConsumerMember
from tidemark_broker.groups.core.consumer_heartbeats import (
    ConsumerGroups,
    RejoinDeadline,
    Update,
)
from tidemark_broker.groups.core.consumer_reconciliation import PartitionEpochs
from tidemark_broker.groups.core.consumer_records import (
    UNRELEASED_PARTITIONS,
    UNREVOKED_PARTITIONS,
)
from tidemark_broker.groups.core.journal import GroupContext
from tidemark_broker.groups.core.migration import classic_metadata
from tidemark_broker.groups.core.settings import Migration, Now
from tidemark_broker.groups.core.steps import Steps, off_loop
from tidemark_broker.groups.core.subscriptions import (
    Subscribed,
    assignment_bytes,
    subscribed,
)
from tidemark_broker.groups.core.values import (
    UNKNOWN_MEMBER_ID,
    JoinAnswer,
    JoinRequest,
    MemberIdentity,
    SyncAnswer,
    SyncRequest,
)


class ClassicMembers:
    """Classic members in all consumer-protocol groups of one partition.

    ``topic`` returns a topic by name, ``name`` a topic's name by id, or None. Errors are
    :class:`CoordinatorError`. Pure.
    """

    def __init__(self, context: GroupContext, consumers: ConsumerGroups) -> None:
        """Serve classic members of ``consumers``, whose groups and timers both protocols share."""
        self._context = context
        self._consumers = consumers

    # ------------------------------------------------------------ JoinGroup

    def join(
        self, group: ConsumerGroup, request: JoinRequest, topics_version: int, now: Now
    ) -> Steps[JoinAnswer]:
        """Handle JoinGroup of a classic member in a consumer-protocol group; return the answer.

        The member joins, or an existing member is updated. The answer is immediate, since a member
        has an epoch instead of a generation that all members must reach together.
        """
        member = self._check_join(group, request)
        member_id, instance_id = request.who
        # KIP-394: a dynamic member first gets an id, so that a retry does not create a second
        # member.
        if member_id == UNKNOWN_MEMBER_ID:
            if instance_id is None and request.needs_member_id:
                return JoinAnswer(error=ErrorCode.member_id_required, member_id=request.new_id)
            member_id = request.new_id
        # Large subscriptions are parsed in a thread, see steps.
        subscription = yield from off_loop(request.weight_bytes // 50, partial(_read, request))
        described = yield from off_loop(
            len(subscription.topics), partial(_described, request, subscription, member)
        )
        # The last check: everything from here on changes the group.
        check_room(group, member, described, self._context.settings, self._context.room)
        # A different id under the same instance id is a restarted static member.
        takes_over = member is not None and member.member_id != member_id
        wants_others = yield from self._consumers.update(
            group,
            member,
            Update(member_id=member_id, described=described, takes_over=takes_over),
            (),
            topics_version,
            now,
        )
        # The member reports what it owns by topic name. Reconciliation works with ids.
        owned = yield from off_loop(len(subscription.owned), partial(self._by_id, subscription))
        member = group.members[member_id]
        yield from self._consumers.reconcile(group, member, owned, now, wants_others=wants_others)
        # The session restarts only now, after the steps above, which may fail.
        self._consumers.renew_session(group, member, now)
        self._consumers.downgrade_later(group, now)
        self._context.room.weigh(group)
        self._await_rebalance(group, member, now)
        return JoinAnswer(
            member_id=member_id,
            generation_id=member.position.epoch,
            protocol_type=CONSUMER,
            protocol_name=request.protocols[0].name,
        )

    def _check_join(self, group: ConsumerGroup, request: JoinRequest) -> ConsumerMember | None:
        """Check a JoinGroup; return the existing member that it concerns, None for a new one.

        That is the member with the id, or the static member with the instance id. Raises
        CoordinatorError.
        """
        settings, session_ms = self._context.settings, request.session_timeout_ms
        # The checks are in Kafka's order, since the first failing one decides the error.
        if settings.migration is Migration.DISABLED:
            wrong = "Cannot join the consumer group with the classic protocol because the group "
            raise refused(ErrorCode.inconsistent_group_protocol, f"{wrong}migration is disabled.")
        if not settings.session_timeout_min_ms <= session_ms <= settings.session_timeout_max_ms:
            raise refused(ErrorCode.invalid_session_timeout, f"{session_ms} ms.")
        if not group.supports(
            request.protocol_type, {protocol.name for protocol in request.protocols}
        ):
            wrong = "No protocol in common with the other members."
            raise refused(ErrorCode.inconsistent_group_protocol, wrong)
        member_id, instance_id = request.who
        if instance_id is None:
            return group.members.get(member_id)
        # A static member without a member id is a restarted process, which takes over.
        named = group.static_member(instance_id)
        if member_id == UNKNOWN_MEMBER_ID or named is None:
            return named
        if named.member_id != member_id:
            wrong = "Another process owns that instance id now."
            raise refused(ErrorCode.fenced_instance_id, wrong)
        return named

    def _by_id(self, subscription: Subscribed) -> Assignment:
        found = (
            (self._context.topic(name), numbers) for name, numbers in subscription.owned.items()
        )
        return {topic.topic_id: numbers for topic, numbers in found if topic is not None}

    def _await_rebalance(self, group: ConsumerGroup, member: ConsumerMember, now: Now) -> None:
        at_s = now.s + max(member.metadata.rebalance_timeout_ms, 0) / 1000
        self._context.deadlines.schedule(RejoinDeadline(group.group_id, member.member_id), at_s)

    # ------------------------------------------------------------ SyncGroup

    def sync(self, group: ConsumerGroup, request: SyncRequest, now: Now) -> Steps[SyncAnswer]:
        """Handle SyncGroup: return the member's assignment in its epoch.

        Raises CoordinatorError; REBALANCE_IN_PROGRESS if the member must rejoin first.
        """
        member, classic = self._member(group, request.who, request.generation_id)
        protocol = classic.supported_protocols[0]
        if (request.protocol_type or CONSUMER, request.protocol_name or protocol.name) != (
            CONSUMER,
            protocol.name,
        ):
            wrong = f"The group's protocol is {protocol.name} of {CONSUMER}."
            raise refused(ErrorCode.inconsistent_group_protocol, wrong)
        position = member.position
        # The group's epoch advanced after the join. An assignment now would hide that partitions
        # must be revoked first.
        if group.epoch > position.epoch and position.state != UNREVOKED_PARTITIONS:
            self._rejoin(group, member, now)
            raise refused(ErrorCode.rebalance_in_progress, "The member must rejoin.")
        # The member has taken part, so it is no longer at risk of being removed.
        self._context.deadlines.cancel(RejoinDeadline(group.group_id, member.member_id))
        self._consumers.renew_session(group, member, now)
        assignment = yield from off_loop(
            position.size,
            lambda: assignment_bytes(self._by_name(position.assigned), protocol.metadata),
        )
        return SyncAnswer(
            protocol_type=CONSUMER, protocol_name=protocol.name, assignment=assignment
        )

    def _by_name(self, assignment: PartitionEpochs) -> dict[str, frozenset[int]]:
        """Return the assignment by name, without deleted topics."""
        named = ((self._context.name(topic), numbers) for topic, numbers in assignment.items())
        return {name: frozenset(numbers) for name, numbers in named if name is not None}

    # ------------------------------------------------------------ Heartbeat, LeaveGroup

    def heartbeat(
        self, group: ConsumerGroup, who: MemberIdentity, generation_id: int, now: Now
    ) -> Steps[ErrorCode]:
        """Handle a classic Heartbeat: renew the session, and tell the member whether to rejoin.

        Returns REBALANCE_IN_PROGRESS if it must give up partitions or may have more, else NONE.
        """
        member, _ = self._member(group, who, generation_id)
        self._consumers.renew_session(group, member, now)
        position = member.position
        is_to_rejoin = position.epoch < group.epoch or position.state == UNREVOKED_PARTITIONS
        # Whether a partition is free requires a look at the owners of all partitions, so it is only
        # computed for a member that waits for one.
        if not is_to_rejoin and position.state == UNRELEASED_PARTITIONS:
            target = group.target_of(member.member_id)
            size = size_of(target) + group.moves_size
            is_to_rejoin = yield from off_loop(size, partial(_may_have_more, group, member))
        if is_to_rejoin:
            self._rejoin(group, member, now)
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def _rejoin(self, group: ConsumerGroup, member: ConsumerMember, now: Now) -> None:
        if RejoinDeadline(group.group_id, member.member_id) not in self._context.deadlines:
            self._await_rebalance(group, member, now)

    def leave(
        self, group: ConsumerGroup, members: Sequence[MemberIdentity], now: Now
    ) -> list[ErrorCode]:
        """Remove members of either protocol. Return the error of each."""
        errors: list[ErrorCode] = []
        for who in members:
            try:
                self._consumers.fence(group, _leaving(group, who), now)
            except CoordinatorError as error:
                errors.append(error.error_code)
            else:
                errors.append(ErrorCode.none)
        return errors

    def _member(
        self, group: ConsumerGroup, who: MemberIdentity, generation_id: int
    ) -> tuple[ConsumerMember, records.ClassicMemberMetadata]:
        """Return a classic member and its metadata, after checking its id and generation.

        Raises CoordinatorError.
        """
        member = _known(group, who)
        classic = member.metadata.classic
        if classic is None:
            wrong = "The member is not of the classic protocol."
            raise refused(ErrorCode.unknown_member_id, wrong)
        if generation_id != member.position.epoch:
            wrong = f"The member's generation is {member.position.epoch}."
            raise refused(ErrorCode.illegal_generation, wrong)
        return member, classic


def _known(group: ConsumerGroup, who: MemberIdentity) -> ConsumerMember:
    """Return the member that a classic request names. Raises CoordinatorError."""
    if who.instance_id is not None:
        named = group.static_member(who.instance_id)
        if named is None:
            raise refused(ErrorCode.unknown_member_id, "No member has that instance id.")
        if named.member_id != who.member_id:
            wrong = "Another process owns that instance id now."
            raise refused(ErrorCode.fenced_instance_id, wrong)
        return named
    member = group.members.get(who.member_id)
    if member is None:
        raise refused(ErrorCode.unknown_member_id, "The group has no member with that id.")
    return member


def _leaving(group: ConsumerGroup, who: MemberIdentity) -> ConsumerMember:
    """Return the leaving member.

    An administrator may identify a static one without its id (KIP-345).
    """
    if who.instance_id is not None and who.member_id == UNKNOWN_MEMBER_ID:
        named = group.static_member(who.instance_id)
        if named is not None:
            return named
    return _known(group, who)


def _may_have_more(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """True if no other member holds a partition that this one waits for."""
    assigned = member.position.assigned
    return not any(
        group.is_owned(topic, number)
        for topic, numbers in group.target_of(member.member_id).items()
        for number in numbers - assigned.get(topic, {}).keys()
    )


def _read(request: JoinRequest) -> Subscribed:
    try:
        return subscribed(request.protocols[0].metadata)
    except FrameError as error:
        wrong = f"The member's subscription is not readable: {error}."
        raise refused(ErrorCode.inconsistent_group_protocol, wrong) from error


def _described(
    request: JoinRequest, subscription: Subscribed, member: ConsumerMember | None
) -> MemberDescription:
    """Return the member's description after a JoinGroup, as the same object if nothing changed."""
    known = None if member is None else member.described
    # What the request leaves out stays as it was.
    former = (known or UNKNOWN).metadata
    made = replace(
        former,
        instance_id=request.who.instance_id or former.instance_id,
        rack_id=subscription.rack_id or former.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        subscribed_topic_names=tuple(sorted(set(subscription.topics))),
        subscribed_topic_regex=None,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        classic_member_metadata=classic_metadata(request.session_timeout_ms, request.protocols),
    )
    return known if known is not None and made == former else MemberDescription.of(made)
