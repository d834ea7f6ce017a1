"""Heartbeats of the consumer protocol (KIP-848, Kafka's GroupMetadataManager).

A member that joins, leaves or changes its subscription raises the group's epoch. Then targets are
computed for all members (:mod:`.consumer_targets`), and each member converges to its target by
itself (:mod:`.reconciliation`). No member waits for another. A heartbeat without changes costs the
same in a group of thousands. Work on a member with thousands of topics is done in steps
(:mod:`.steps`).
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from kio.schema.errors import ErrorCode

from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.groups.core import consumer_checks
from tidemark_broker.groups.core import consumer_records as records
from tidemark_broker.groups.core.assignors import Assignment
from tidemark_broker.groups.core.consumer_checks import (
    check_request,
    check_room,
    known_member,
    refused,
    static_member,
    unknown,
)
from tidemark_broker.groups.core.consumer_effects import (
    UNKNOWN,
    Entry,
    MemberDescription,
    epoch_entry,
    group_tombstones,
    member_entry,
    member_tombstones,
    position_entry,
    regex_entry,
    size_of,
    target_entry,
)
from tidemark_broker.groups.core.consumer_group import ConsumerGroup, ConsumerMember, TopicsSeen
from tidemark_broker.groups.core.consumer_reconciliation import (
    MemberPosition,
    MemberTarget,
    advance,
)
from tidemark_broker.groups.core.consumer_records import UNREVOKED_PARTITIONS
from tidemark_broker.groups.core.consumer_targets import (
    AssignmentDeadline,
    ConsumerTargets,
    Offload,
)
from tidemark_broker.groups.core.journal import ConsumerJournal, GroupContext
from tidemark_broker.groups.core.settings import Now
from tidemark_broker.groups.core.steps import Steps, off_loop
from tidemark_broker.groups.core.values import (
    JOIN,
    LEAVE,
    LEAVE_FOR_NOW,
    NO_TIMEOUT,
    HeartbeatAnswer,
    HeartbeatRequest,
    shown,
)

logger = logging.getLogger(__name__)

_AGAIN_S, _SOON_S = 1.0, 0.01


@dataclass(frozen=True, slots=True)
class ConsumerSessionDeadline:
    """The member's session has expired."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class RevocationDeadline:
    """The member has not given up its revoked partitions in time."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class RejoinDeadline:
    """A member of the classic protocol has not rejoined, or not requested its assignment, in
    time.
    """

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class DowngradeDeadline:
    """The group has no member of the consumer protocol any more."""

    group_id: str


_MemberDeadline: TypeAlias = ConsumerSessionDeadline | RevocationDeadline | RejoinDeadline
_OVERDUE: dict[type[_MemberDeadline], str] = {
    ConsumerSessionDeadline: "its session has expired",
    RevocationDeadline: "it did not give up its revoked partitions in time",
    RejoinDeadline: "it did not rejoin the rebalance in time",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Description of a member. ``takes_over``: as the successor of a static member."""

    member_id: str
    described: MemberDescription
    takes_over: bool


class ConsumerGroups:
    """All consumer-protocol groups of one partition of ``__consumer_offsets``.

    - ``topic`` returns a topic by name, or None
    - ``offload`` receives targets to compute outside
    - ``due`` receives a group id whose targets are due (:meth:`assign`), or that may be downgraded

    Errors are :class:`CoordinatorError` and mean that nothing has changed. Pure.
    """

    def __init__(
        self,
        context: GroupContext,
        *,
        offload: Callable[[Offload], None],
        due: Callable[[str], None],
    ) -> None:
        """Manage the consumer groups of ``context``. For the callbacks see the class."""
        self._context = context
        self._journal = ConsumerJournal(context.consumer_groups, context.journal)
        self._due = due
        # Targets share the journal, so that records of a group stay in order.
        self.targets = ConsumerTargets(context, self._journal, offload)

    # ------------------------------------------------------------ timers

    def loaded(self, now: Now) -> None:
        """Start the sessions of all members after the log was loaded."""
        for group in self._context.consumer_groups.values():
            for member in group.members.values():
                self.renew_session(group, member, now)
                if member.position.state == UNREVOKED_PARTITIONS:
                    self._await_revocation(group, member, now)
            self.targets.make_later(group, now)
            self.downgrade_later(group, now)

    def expired(self, key: object, now: Now) -> bool:
        """Handle an expired deadline; return False if it is not one of this class's types.

        Member deadlines (session, revocation, rejoin) remove the member from its group.
        """
        if isinstance(key, AssignmentDeadline | DowngradeDeadline):
            # Targets are computed, or the group is downgraded, in the group's own sequence of
            # requests.
            self._due(key.group_id)
            return True
        if not isinstance(key, _MemberDeadline):
            return False
        group = self._context.consumer_groups.get(key.group_id)
        if group is None:
            return True
        try:
            self._overdue(group, key, now)
        except CoordinatorError as error:
            logger.warning("group %s: records were not written: %s", shown(key.group_id), error)
            # The member is removed only with a record. Without one the attempt is repeated.
            self._context.deadlines.schedule(key, now.s + _AGAIN_S)
        return True

    def _overdue(self, group: ConsumerGroup, key: "_MemberDeadline", now: Now) -> None:
        member = group.members.get(key.member_id)
        if member is None:
            return
        logger.info(
            "group %s: member %s is removed: %s",
            shown(key.group_id),
            shown(key.member_id),
            _OVERDUE[type(key)],
        )
        self.fence(group, member, now)

    def assign(self, group: ConsumerGroup, now: Now) -> Steps[None]:
        """Compute targets that are due."""
        try:
            # Topics may have changed since the epoch was raised, so the hash is refreshed first.
            yield from self._see_topics(group, group.topics_seen.version, is_new=False)
            yield from self.targets.make_if_due(group, now)
        except CoordinatorError as error:
            logger.warning("group %s: records were not written: %s", shown(group.group_id), error)
            self._context.deadlines.schedule(AssignmentDeadline(group.group_id), now.s + _AGAIN_S)

    def adopt(self, group: ConsumerGroup, now: Now) -> None:
        """Take over a group that was upgraded from the classic protocol."""
        self._context.consumer_groups[group.group_id] = group
        self._context.room.weigh(group)
        for member in group.members.values():
            self.renew_session(group, member, now)

    def forget(self, group: ConsumerGroup) -> int:
        """Write tombstones for an empty group. Return the end offset of the records."""
        group_id = group.group_id
        entries = [regex_entry(group_id, regex, None) for regex in tuple(group.regexes)]
        entries += [target_entry(group_id, member_id, None) for member_id in tuple(group.targets)]
        self._journal.record_now(group, [*entries, *group_tombstones(group_id)])
        self.forgotten(group)
        return group.recorded_below

    def forgotten(self, group: ConsumerGroup) -> None:
        """Remove a group without records from memory."""
        self._context.consumer_groups.pop(group.group_id, None)
        self._context.room.forget(group)
        self._context.deadlines.cancel(AssignmentDeadline(group.group_id))
        for member_id in group.members:
            self._forget_deadlines(group, member_id)

    def unresolved(
        self, group_id: str, regex: str | None, topics_version: int, now: Now
    ) -> Sequence[str]:
        """Return expressions to resolve. See :func:`.expressions.unresolved`."""
        group, refresh_ms = (
            self._context.consumer_groups.get(group_id),
            self._context.settings.regex_refresh_ms,
        )
        return consumer_checks.unresolved(group, regex, topics_version, refresh_ms, now)

    # ------------------------------------------------------------ ConsumerGroupHeartbeat

    def heartbeat(self, request: HeartbeatRequest, now: Now) -> Steps[HeartbeatAnswer]:
        """Handle a ConsumerGroupHeartbeat: join, keep the session, or leave.

        Raises CoordinatorError before anything has changed.
        """
        self.check(request)
        if request.member_epoch in (LEAVE, LEAVE_FOR_NOW):
            return (yield from self._leave(request, now))
        group = self._group(request)
        member = known_member(group, request)
        # A static member takes over when it returns, or from another process with its instance id.
        takes_over = member is not None and (
            member.position.epoch == LEAVE_FOR_NOW or member.member_id != request.member_id
        )
        # Everything that may reject the request comes before the first record is written.
        described = yield from _described(request, None if member is None else member.described)
        check_room(group, member, described, self._context.settings, self._context.room)
        # Regular expressions were resolved by the caller; only their number is limited here.
        consumer_checks.check_limit(group, request.regex)
        wants_others = yield from self.update(
            group,
            member,
            Update(member_id=request.member_id, described=described, takes_over=takes_over),
            consumer_checks.resolved(group, request, now),
            request.topics_version,
            now,
        )
        return (yield from self._moved(group, request, now, wants_others=wants_others))

    def update(
        self,
        group: ConsumerGroup,
        member: ConsumerMember | None,
        by: "Update",
        resolved: Sequence[Entry],
        topics_version: int,
        now: Now,
    ) -> Steps[bool]:
        """Record a member's description and newly resolved expressions, and compute due targets.

        ``member``: the existing member, None for a new one. ``by``: the new description.
        ``topics_version``: version of the broker's topics that the request has seen. Returns
        whether an existing member has changed its subscription.
        """
        described = by.described
        # Collect all records first, because they are written together.
        entries = consumer_checks.no_longer_used(group, member, described.subscription.regex)
        if member is not None and by.takes_over:
            entries += _replacement(group, member, by.member_id, described)
        elif member is None or described is not member.described:
            entries.append(member_entry(group.group_id, by.member_id, described))
        entries += resolved
        # Each condition changes the assignor's input, so the epoch is raised.
        wants_others = member is not None and described.subscription != member.subscription
        bump = member is None or wants_others or bool(resolved)
        yield from self._change(group, entries, bump=bump)
        # A topic that was created or has grown changes the assignor's input, too.
        yield from self._see_topics(group, topics_version, is_new=bump)
        # The predecessor's timers would otherwise remove the new member's state.
        if by.takes_over and member is not None and member.member_id != by.member_id:
            self._forget_deadlines(group, member.member_id)
        yield from self.targets.make_if_due(group, now)
        return wants_others

    def check(self, request: HeartbeatRequest) -> None:
        """Check the fields of a request."""
        check_request(request, self._context.settings)

    def _group(self, request: HeartbeatRequest) -> ConsumerGroup:
        group = self._context.consumer_groups.get(request.group_id)
        if group is None and request.member_epoch != JOIN:
            raise refused(
                ErrorCode.group_id_not_found, f"Group {shown(request.group_id)} not found."
            )
        return ConsumerGroup(request.group_id) if group is None else group

    def _moved(
        self, group: ConsumerGroup, request: HeartbeatRequest, now: Now, *, wants_others: bool
    ) -> Steps[HeartbeatAnswer]:
        """Advance the member towards its target, and return the answer to its heartbeat.

        ``wants_others``: its subscription has just changed.
        """
        member = group.members[request.member_id]
        before = member.position
        yield from self.reconcile(group, member, request.owned, now, wants_others=wants_others)
        after = member.position
        # The session is renewed last: a failed heartbeat must not keep a member alive.
        self.renew_session(group, member, now)
        self._context.room.weigh(group)
        # Comparing large assignments takes a thread, unless the position is the same object.
        size = 0 if before is after and not request.is_full else before.size + after.size
        assignment = yield from off_loop(
            size, partial(_assignment_to_send, before, after, is_full=request.is_full)
        )
        return HeartbeatAnswer(
            member_id=member.member_id,
            member_epoch=after.epoch,
            heartbeat_interval_ms=self._context.configs.heartbeat_interval_ms(group.group_id),
            assignment=assignment,
            recorded_below=group.recorded_below,
        )

    # ------------------------------------------------------------ leaving

    def _leave(self, request: HeartbeatRequest, now: Now) -> Steps[HeartbeatAnswer]:
        """Remove a member that leaves; a static member may intend to return (epoch -2)."""
        group = self._group(request)
        if request.instance_id is not None:
            member = static_member(group, request)
        elif request.member_id in group.members:
            member = group.members[request.member_id]
        else:
            raise unknown(group, request)
        # A static member that returns in time gets its assignment back without a rebalance.
        if request.member_epoch == LEAVE_FOR_NOW:
            yield from self._leave_for_now(group, member)
        else:
            self.fence(group, member, now)
        return HeartbeatAnswer(
            member_id=member.member_id,
            member_epoch=request.member_epoch,
            recorded_below=group.recorded_below,
        )

    def _leave_for_now(self, group: ConsumerGroup, member: ConsumerMember) -> Steps[None]:
        # A static member keeps its assignment and only leaves the epoch, so no rebalance follows.
        position = replace(member.position, epoch=LEAVE_FOR_NOW, revoking={})
        entry = position_entry(group.group_id, member.member_id, position)
        yield from self._journal.record(group, [entry])
        self._context.deadlines.cancel(RevocationDeadline(group.group_id, member.member_id))

    def fence(self, group: ConsumerGroup, member: ConsumerMember, now: Now) -> None:
        """Remove a member, in one batch with the new epoch."""
        entries = [
            *consumer_checks.no_longer_used(group, member, None),
            *member_tombstones(group.group_id, member.member_id),
            epoch_entry(group.group_id, group.epoch + 1, group.metadata_hash),
        ]
        self._journal.record_now(group, entries)
        self._forget_deadlines(group, member.member_id)
        self._context.room.weigh(group)
        # Deadlines are cleared before timers are set for the remaining members.
        self.targets.make_later(group, now)
        self.downgrade_later(group, now)

    def downgrade_later(self, group: ConsumerGroup, now: Now) -> None:
        """Check soon whether the group can be downgraded to the classic protocol."""
        if group.is_all_classic and self._context.settings.migration.may_downgrade:
            self._context.deadlines.schedule(DowngradeDeadline(group.group_id), now.s + _SOON_S)

    def _forget_deadlines(self, group: ConsumerGroup, member_id: str) -> None:
        self._context.deadlines.cancel(ConsumerSessionDeadline(group.group_id, member_id))
        self._context.deadlines.cancel(RevocationDeadline(group.group_id, member_id))
        self._context.deadlines.cancel(RejoinDeadline(group.group_id, member_id))

    # ------------------------------------------------------------ epochs

    def _change(self, group: ConsumerGroup, entries: list[Entry], *, bump: bool) -> Steps[None]:
        """Record changes of members, and the next epoch if targets must be recomputed."""
        if bump:
            entries.append(epoch_entry(group.group_id, group.epoch + 1, group.metadata_hash))
        if entries:
            yield from self._journal.record(group, entries)

    def _see_topics(
        self, group: ConsumerGroup, topics_version: int, *, is_new: bool
    ) -> Steps[None]:
        """Check whether subscribed topics changed; record their new hash and a new epoch.

        The epoch is not raised if ``is_new``: the request has just raised it, so its targets are
        still to be computed.
        """
        seen = TopicsSeen(topics_version, group.topic_changes)
        # Neither the broker's topics nor the group's subscriptions have changed since.
        if seen == group.topics_seen:
            return
        metadata_hash = yield from off_loop(
            group.topics_size, partial(group.hash_of, self._context.topic)
        )
        if metadata_hash != group.metadata_hash:
            # Targets for the current epoch are not being computed, so it can still include the new
            # topics.
            is_new |= group.epoch > group.assignment_epoch and not group.is_being_assigned
            entry = epoch_entry(group.group_id, group.epoch + (not is_new), metadata_hash)
            self._journal.record_now(group, [entry])
        group.topics_seen = seen

    # ------------------------------------------------------------ where a member is

    def reconcile(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        owned: Assignment | None,
        now: Now,
        *,
        wants_others: bool,
    ) -> Steps[None]:
        """Advance a member from its current assignment towards its target, and record the result.

        ``owned``: partitions that the member reports, None if it reports no change.
        ``wants_others``: its subscription has just changed. See :func:`.reconciliation.advance` for
        the steps.
        """
        before = member.position
        # The member has reached its target, which is the case for nearly every heartbeat.
        if before.is_at(group.assignment_epoch) and not wants_others:
            return
        target = MemberTarget(
            group.assignment_epoch, group.target_of(member.member_id), group.is_owned
        )

        def advanced() -> MemberPosition:
            # is_owned below needs the moves, and this function may already run in a thread.
            if group.moves_pending:
                group.follow_moves()
            subscribed = None
            if wants_others:
                found = map(self._context.topic, group.topics_of(member.subscription))
                ids = {topic.topic_id for topic in found if topic is not None}
                subscribed = ids.__contains__
            return advance(before, target, owned, subscribed)

        # The size decides whether the computation runs in a thread.
        names = len(member.subscription.names) if wants_others else 0
        size = before.size + size_of(target.partitions) + names + group.moves_size
        after = yield from off_loop(size, advanced)
        if after is before:
            return
        entry = position_entry(group.group_id, member.member_id, after)
        yield from self._journal.record(group, [entry])
        # The deadline by which the member must confirm starts with the revocation, and later
        # heartbeats do not extend it.
        if after.state != UNREVOKED_PARTITIONS:
            self._context.deadlines.cancel(RevocationDeadline(group.group_id, member.member_id))
        elif before.state != UNREVOKED_PARTITIONS or after.revoking:
            self._await_revocation(group, member, now)

    def _await_revocation(self, group: ConsumerGroup, member: ConsumerMember, now: Now) -> None:
        self._context.deadlines.schedule(
            RevocationDeadline(group.group_id, member.member_id),
            now.s + max(member.metadata.rebalance_timeout_ms, 0) / 1000,
        )

    def renew_session(self, group: ConsumerGroup, member: ConsumerMember, now: Now) -> None:
        """Restart the member's session."""
        classic = member.metadata.classic
        if classic is None:
            timeout_ms = self._context.configs.session_timeout_ms(group.group_id)
        else:
            timeout_ms = classic.session_timeout_ms
        key = ConsumerSessionDeadline(group.group_id, member.member_id)
        self._context.deadlines.schedule(key, now.s + timeout_ms / 1000)


def _replacement(
    group: ConsumerGroup, former: ConsumerMember, member_id: str, described: MemberDescription
) -> list[Entry]:
    """Entries for a static member that returned as another process and takes over its
    assignment.
    """
    position = replace(former.position, epoch=JOIN, previous_epoch=JOIN)
    return [
        *member_tombstones(group.group_id, former.member_id),
        member_entry(group.group_id, member_id, described),
        target_entry(group.group_id, member_id, group.target_of(former.member_id)),
        position_entry(group.group_id, member_id, position),
    ]


def _described(
    request: HeartbeatRequest, known: MemberDescription | None
) -> Steps[MemberDescription]:
    """Return the member's current description, as the same object if it has not changed."""
    if (
        known is not None
        and not request.says_more
        and (known.metadata.client_id, known.metadata.client_host)
        == (request.client_id, request.client_host)
    ):
        return known
    # Sorting thousands of names takes long, so it is a step of its own.
    size = len(request.topic_names or ()) + len((known or UNKNOWN).subscription.names)
    return (yield from off_loop(size, partial(_new_description, request, known)))


def _new_description(
    request: HeartbeatRequest, known: MemberDescription | None
) -> MemberDescription:
    """Return the member's description after a heartbeat, as the same object if nothing changed."""
    former = (known or UNKNOWN).metadata
    # Fields that the heartbeat leaves out keep their previous values.
    names, regex = former.subscribed_topic_names, former.subscribed_topic_regex
    if request.topic_names is not None:
        names = tuple(sorted(set(request.topic_names)))
    if request.regex is not None:
        regex = request.regex or None
    timeout_ms = request.rebalance_timeout_ms
    if timeout_ms == NO_TIMEOUT:
        timeout_ms = former.rebalance_timeout_ms
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
    return known if known is not None and made == known.metadata else MemberDescription.of(made)


def _assignment_to_send(
    before: MemberPosition, after: MemberPosition, *, is_full: bool
) -> Assignment | None:
    """Return the assignment to send, or None if the member has it already."""
    if not is_full and (before is after or before.assigned == after.assigned):
        return None
    return {topic: frozenset(epochs) for topic, epochs in after.assigned.items()}
