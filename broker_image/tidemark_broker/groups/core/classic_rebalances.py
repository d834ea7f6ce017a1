"""The classic protocol (Kafka's GroupMetadataManager): joins, syncs, heartbeats and rebalances.

A rebalance has two phases. In PreparingRebalance members join, until all have or the time is over.
In CompletingRebalance the leader sends the assignments, which are recorded, and once that is
committed all members receive theirs (Stable). A join or leave restarts the rebalance. Only the
start and end of a generation iterate over all members, so that thousands of members can join
quickly.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.groups.core.classic_group import ClassicGroup, ClassicMember
from tidemark_broker.groups.core.journal import GroupContext
from tidemark_broker.groups.core.records import GroupMetadataKey, GroupMetadataValue, record_of
from tidemark_broker.groups.core.settings import Now
from tidemark_broker.groups.core.values import (
    UNKNOWN_MEMBER_ID,
    GroupState,
    JoinAnswer,
    JoinRequest,
    MemberIdentity,
    SyncAnswer,
    SyncRequest,
    shown,
)

logger = logging.getLogger(__name__)

#: Session of a member that waits for its first generation (Kafka's
#: classicGroupNewMemberJoinTimeoutMs): it sends no heartbeats yet, and may have disconnected.
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
#: Delay of the next expiry check if one check did not delete everything that has expired.
_SOON_S = 0.1
_AFTER_JOIN = (GroupState.STABLE, GroupState.COMPLETING_REBALANCE)


@dataclass(frozen=True, slots=True)
class JoinDeadline:
    """The join phase of a rebalance ends."""

    group_id: str


@dataclass(frozen=True, slots=True)
class SyncDeadline:
    """Members that have not requested their assignment are removed."""

    group_id: str


@dataclass(frozen=True, slots=True)
class SessionDeadline:
    """The member's session has expired."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class CheckDeadline:
    """Offsets of the group may have expired (``offsets.retention.check.interval.ms``)."""

    group_id: str


class _InitialDelay(NamedTuple):
    """Delay of a new group's first rebalance, and how much longer it may be extended."""

    delay_ms: int
    remaining_ms: int


class Rebalancing:
    """All classic groups of one partition of ``__consumer_offsets``. Pure."""

    def __init__(self, context: GroupContext) -> None:
        """Rebalance the classic groups of ``context``."""
        self._context = context
        #: Delay of the first rebalance, by id of a group that waits for more members (KIP-134).
        self._initial: dict[str, _InitialDelay] = {}

    # ------------------------------------------------------------ timers

    def loaded(self, now: Now) -> None:
        """Start the sessions of all members after the log was loaded."""
        for group in self._context.groups.values():
            self.check_later(group.group_id, now)
            for member in group.members.values():
                self._renew_session(group, member, now)
            if len(group.members) > self._context.settings.size_max:
                self._prepare(group, "the group exceeds group.max.size", now)

    def resigned(self) -> None:
        """Answer all waiting members NOT_COORDINATOR, because another broker took over."""
        for group in self._context.groups.values():
            for member in group.waiting():
                group.answer_join(member, JoinAnswer(error=ErrorCode.not_coordinator))
                member.answer_sync(SyncAnswer(error=ErrorCode.not_coordinator))

    def expired(self, key: object, now: Now) -> None:
        """Handle an expired deadline."""
        if isinstance(key, SessionDeadline):
            group = self._context.groups.get(key.group_id)
            if group is not None:
                self._session_over(group, key.member_id, now)
        elif isinstance(key, JoinDeadline):
            self._join_over(key.group_id, now)
        elif isinstance(key, SyncDeadline):
            self._sync_over(key.group_id, now)

    def check_later(self, group_id: str, now: Now, *, soon: bool = False) -> None:
        """Schedule an expiry check. ``soon``: the last one did not delete everything."""
        at_s = now.s + (_SOON_S if soon else self._context.settings.retention_check_ms / 1000)
        self._context.deadlines.schedule(CheckDeadline(group_id), at_s)

    def check_no_more(self, group_id: str) -> None:
        """Cancel the expiry check."""
        self._context.deadlines.cancel(CheckDeadline(group_id))

    def forget(self, group: ClassicGroup) -> None:
        """Remove a group that was deleted or upgraded; waiting members must rejoin.

        All timers of the group are cancelled. The caller has recorded the removal.
        """
        for member in group.waiting():
            again = ErrorCode.rebalance_in_progress
            group.answer_join(member, JoinAnswer(error=again, member_id=member.member_id))
            member.answer_sync(SyncAnswer(error=again))
        group.state = GroupState.DEAD
        del self._context.groups[group.group_id]
        self._context.room.forget(group)
        self._context.deadlines.cancel(JoinDeadline(group.group_id))
        self._context.deadlines.cancel(SyncDeadline(group.group_id))
        self.check_no_more(group.group_id)
        for member_id in (*group.pending_join, *group.members):
            self._context.deadlines.cancel(SessionDeadline(group.group_id, member_id))
        self._initial.pop(group.group_id, None)

    def adopt(self, group: ClassicGroup, now: Now) -> None:
        """Take over a group that was downgraded. Its members rebalance."""
        self._context.groups[group.group_id] = group
        self.check_later(group.group_id, now)
        for member in group.members.values():
            self._renew_session(group, member, now)
        self._context.room.weigh(group)
        self._prepare(group, "the last member of the consumer protocol left", now)

    # ------------------------------------------------------------ JoinGroup

    def join(self, request: JoinRequest, now: Now) -> None:
        """Join the next generation."""
        settings = self._context.settings
        session_ms = request.session_timeout_ms
        if not settings.session_timeout_min_ms <= session_ms <= settings.session_timeout_max_ms:
            self._refuse_join(request, ErrorCode.invalid_session_timeout)
            return
        group = self._context.groups.get(request.group_id)
        if group is None:
            self._join_new_group(request, now)
            return
        self._join(group, request, now)
        self._context.room.weigh(group)

    def _join_new_group(self, request: JoinRequest, now: Now) -> None:
        """Create a group with its first member. Its first record has no members yet."""
        if request.who.member_id != UNKNOWN_MEMBER_ID:
            self._refuse_join(request, ErrorCode.unknown_member_id)
            return
        if self._context.room.is_full_for(request.weight_bytes):
            self._refuse_join(request, ErrorCode.group_max_size_reached)
            return
        # The record precedes the group in memory, so a group that cannot be recorded does not
        # exist.
        group = ClassicGroup(request.group_id, now.ms)
        try:
            self._record(group, group.metadata())
        except CoordinatorError as error:
            self._refuse_join(request, error.error_code)
            return
        self._context.groups[group.group_id] = group
        self.check_later(group.group_id, now)
        self._join(group, request, now)
        self._context.room.weigh(group)

    def _join(self, group: ClassicGroup, request: JoinRequest, now: Now) -> None:
        """Handle JoinGroup in an existing group: find the kind of member and let it join."""
        # The order of the checks is Kafka's, since the first failing one decides the error.
        member_id, instance_id = request.who
        if not self._accepts(group, member_id):
            group.remove(member_id)
            self._context.deadlines.cancel(SessionDeadline(group.group_id, member_id))
            self._refuse_join(request, ErrorCode.group_max_size_reached, UNKNOWN_MEMBER_ID)
        # It shares no assignment protocol with the members.
        elif not group.supports(request.protocol_type, request.protocols):
            self._refuse_join(request, ErrorCode.inconsistent_group_protocol)
        elif member_id != UNKNOWN_MEMBER_ID:
            self._join_with_id(group, request, now)
        elif self._context.room.is_full_for(request.weight_bytes):
            self._refuse_join(request, ErrorCode.group_max_size_reached)
        # A new static member, or the restarted process of one (KIP-345).
        elif instance_id is not None:
            self._join_static(group, request, instance_id, now)
        # KIP-394: the member rejoins with the id. A client that gave up leaves only the pending id.
        elif request.needs_member_id:
            group.add_pending(request.new_id)
            self._context.deadlines.schedule(
                SessionDeadline(group.group_id, request.new_id),
                now.s + request.session_timeout_ms / 1000,
            )
            self._refuse_join(request, ErrorCode.member_id_required, request.new_id)
        else:
            self._add(group, request, request.new_id, now)

    def _accepts(self, group: ClassicGroup, member_id: str) -> bool:
        """True if the group has room for the member (``group.max.size``)."""
        size_max = self._context.settings.size_max
        # During a rebalance only members that have joined count, since the others may not return.
        if group.state is GroupState.PREPARING_REBALANCE:
            member = group.members.get(member_id)
            awaits = member is not None and member.join is not None
            return awaits or group.awaiting_join < size_max
        if group.state is GroupState.EMPTY:
            return True
        return member_id in group.members or len(group.members) < size_max

    def _join_with_id(self, group: ClassicGroup, request: JoinRequest, now: Now) -> None:
        """Handle JoinGroup with a member id: first join with a new id, a rejoin, or a retry."""
        # The id was handed out before (KIP-394), and this is its first join.
        member_id = request.who.member_id
        if member_id in group.pending_join:
            # A pending id belongs to a dynamic member. A static one has no pending phase.
            if request.who.instance_id is not None:
                self._refuse_join(request, ErrorCode.unknown_member_id)
            elif self._context.room.is_full_for(request.weight_bytes):
                self._refuse_join(request, ErrorCode.group_max_size_reached)
            else:
                self._add(group, request, member_id, now)
            return
        error = group.validate(request.who)
        if error is not ErrorCode.none:
            self._refuse_join(request, error)
            return
        # A rejoin of an existing member. Only other protocols may need more memory.
        member = group.members[member_id]
        same = member.protocols == request.protocols
        if not same and self._context.room.is_full_for(request.weight_bytes - member.weight_bytes):
            self._refuse_join(request, ErrorCode.group_max_size_reached)
            return
        leads = group.leader == member_id
        if group.state is GroupState.COMPLETING_REBALANCE and same:
            # A retry after a lost answer. The generation continues unchanged.
            request.answer(self._joined(group, member_id, with_members=leads))
        # A follower's rejoin in a stable group is a retry. The leader's may report new topics.
        elif group.state is GroupState.STABLE and same and not leads:
            request.answer(self._joined(group, member_id, with_members=False))
        # An empty group has no members to rejoin.
        elif group.state is GroupState.EMPTY:
            self._refuse_join(request, ErrorCode.unknown_member_id)
        else:
            self._update(group, member, request)
            self._prepare_or_complete(group, f"{member_id} joins again", now)

    def _update(self, group: ClassicGroup, member: ClassicMember, request: JoinRequest) -> None:
        """Replace a member's protocols and time limits after a rejoin.

        If an earlier JoinGroup of it still waits, that one is answered first: the client has
        retried.
        """
        if member.join is not None:
            group.answer_join(
                member,
                JoinAnswer(error=ErrorCode.rebalance_in_progress, member_id=member.member_id),
            )
        group.update(
            member,
            request.protocols,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.answer,
        )

    def _add(self, group: ClassicGroup, request: JoinRequest, member_id: str, now: Now) -> None:
        """Add a new member, and start a rebalance or complete the one in progress."""
        member = ClassicMember(
            MemberIdentity(member_id, request.who.instance_id),
            client_id=request.client_id,
            client_host=request.client_host,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocols=request.protocols,
        )
        member.is_new = True
        # A new member extends the delay of a new group's first rebalance.
        if (
            group.state is GroupState.PREPARING_REBALANCE
            and group.previous_state is GroupState.EMPTY
        ):
            group.new_member_added = True
        group.add(member, request.answer, request.protocol_type)
        # Until it gets its first generation, a member has a longer time limit than its session.
        self._renew_session(group, member, now, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._prepare_or_complete(group, f"{member_id} joins", now)

    def _join_static(
        self, group: ClassicGroup, request: JoinRequest, instance_id: str, now: Now
    ) -> None:
        """Join a static member, which may replace its previous process (KIP-345)."""
        old_id = group.static_members.get(instance_id)
        if old_id is None:
            self._add(group, request, request.new_id, now)
            return
        # Needed for the answer below: the new process gets another member id.
        former_leader = group.leader
        member = group.replace_static(instance_id, request.new_id)
        # The old id's session would remove the new process after its timeout.
        self._context.deadlines.cancel(SessionDeadline(group.group_id, old_id))
        self._update(group, member, request)
        self._renew_session(group, member, now)
        # A rebalance is needed or in progress, unless the group is stable.
        if group.state is not GroupState.STABLE:
            self._prepare_or_complete(group, f"{instance_id} joins again", now)
        # The generation can only continue if the new process supports its protocol.
        elif group.protocol_name != group.select_protocol():
            self._prepare_or_complete(group, f"{instance_id} changes the protocol", now)
        else:
            self._keep_generation(group, member, request, former_leader, now)

    def _keep_generation(
        self,
        group: ClassicGroup,
        member: ClassicMember,
        request: JoinRequest,
        former_leader: str | None,
        now: Now,
    ) -> None:
        """Let a restarted static member continue its generation, once its new id is recorded.

        The other members need no rebalance. ``former_leader``: member id of the leader before.
        """
        try:
            end_offset = self._record(group, group.metadata())
        except CoordinatorError:
            self._prepare(group, "the new id of a static member was not recorded", now)
            return
        leads = group.leader == member.member_id
        answer = self._joined(
            group, member.member_id, with_members=leads and request.may_skip_assignment
        )
        # Before KIP-814 a client that is named as leader would compute a new assignment.
        if not request.may_skip_assignment:
            answer = replace(answer, leader=former_leader or "")
        elif leads:
            answer = replace(answer, skip_assignment=True)

        def deliver(_: Now) -> None:
            # Another restart or a rebalance may have happened before the commit.
            if group.members.get(member.member_id) is member and member.join is request.answer:
                group.answer_join(member, answer)

        self._context.journal.when_committed(end_offset, deliver)

    def _joined(self, group: ClassicGroup, member_id: str, *, with_members: bool) -> JoinAnswer:
        return JoinAnswer(
            member_id=member_id,
            generation_id=group.generation_id,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            leader=group.leader or "",
            members=group.joined_members() if with_members else (),
        )

    def _refuse_join(
        self, request: JoinRequest, error: ErrorCode, member_id: str | None = None
    ) -> None:
        request.answer(
            JoinAnswer(
                error=error,
                member_id=request.who.member_id if member_id is None else member_id,
            )
        )

    # ------------------------------------------------------------ phases of a rebalance

    def _prepare_or_complete(self, group: ClassicGroup, reason: str, now: Now) -> None:
        if group.state is not GroupState.PREPARING_REBALANCE:
            self._prepare(group, reason, now)
        else:
            self._complete_if_all_joined(group, now)

    def _complete_if_all_joined(self, group: ClassicGroup, now: Now) -> None:
        """End the join phase if all members have joined.

        A new group waits for its initial delay.
        """
        if (
            group.state is GroupState.PREPARING_REBALANCE
            and group.all_joined
            and group.previous_state is not GroupState.EMPTY
        ):
            self._complete_join(group, now)

    def _prepare(self, group: ClassicGroup, reason: str, now: Now) -> None:
        """Start a rebalance: enter PreparingRebalance, in which all members must rejoin.

        ``reason`` is for the log.
        """
        # Assignments of the interrupted generation will not come, so its members must not wait.
        if group.state is GroupState.COMPLETING_REBALANCE:
            self._answer_syncs(group, ErrorCode.rebalance_in_progress, now)
        self._context.deadlines.cancel(SyncDeadline(group.group_id))
        is_initial = group.state is GroupState.EMPTY
        group.transition_to(GroupState.PREPARING_REBALANCE, now.ms)
        logger.info(
            "group %s: rebalance after generation %d: %s",
            shown(group.group_id),
            group.generation_id,
            shown(reason),
        )
        # A new group waits for more members (KIP-134), instead of rebalancing with each of them.
        # The delay ends at the latest after the rebalance timeout.
        if is_initial:
            delay_ms = self._context.settings.initial_rebalance_delay_ms
            remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            self._delay_initial(group, _InitialDelay(delay_ms, remaining_ms), now)
        elif group.all_joined:
            self._complete_join(group, now)
        else:
            self._schedule_join(group, now)

    def _delay_initial(self, group: ClassicGroup, delay: _InitialDelay, now: Now) -> None:
        self._initial[group.group_id] = delay
        self._context.deadlines.schedule(
            JoinDeadline(group.group_id), now.s + delay.delay_ms / 1000
        )

    def _schedule_join(self, group: ClassicGroup, now: Now) -> None:
        at_s = now.s + group.rebalance_timeout_ms / 1000
        self._context.deadlines.schedule(JoinDeadline(group.group_id), at_s)

    def _join_over(self, group_id: str, now: Now) -> None:
        """End the join phase at its time limit, or extend the delay of a first rebalance."""
        group = self._context.groups.get(group_id)
        delay = self._initial.pop(group_id, None)
        if group is None or group.state is not GroupState.PREPARING_REBALANCE:
            return
        # Members joined during the delay, so it is extended, at most to the rebalance timeout.
        if delay is not None and group.new_member_added and delay.remaining_ms:
            group.new_member_added = False
            more_ms = min(self._context.settings.initial_rebalance_delay_ms, delay.remaining_ms)
            left_ms = max(delay.remaining_ms - delay.delay_ms, 0)
            self._delay_initial(group, _InitialDelay(more_ms, left_ms), now)
            return
        self._complete_join(group, now)

    def _complete_join(self, group: ClassicGroup, now: Now) -> None:
        """End the join phase and start the next generation with the members that have joined.

        Dynamic members that have not joined are removed.
        """
        self._context.deadlines.cancel(JoinDeadline(group.group_id))
        self._initial.pop(group.group_id, None)
        for member in group.not_rejoined():
            if not member.is_static:
                self._drop(group, member.member_id)
        self._context.room.weigh(group)
        if group.members and not group.elect_joined_leader():
            self._schedule_join(group, now)  # only absent static members are left to wait for
            return
        # From here on the members of the generation are fixed.
        group.next_generation(now.ms)
        self._context.room.weigh(group)
        logger.info(
            "group %s: generation %d of %d members",
            shown(group.group_id),
            group.generation_id,
            len(group.members),
        )
        # The last member has left. The record keeps the generation for offsets that remain.
        if not group.members:
            self._record_empty(group)
            return
        # Answers are queued for each member, and are sent a few at a time.
        for member in group.members.values():
            leads = member.member_id == group.leader
            group.answer_join(member, self._joined(group, member.member_id, with_members=leads))
            self._renew_session(group, member, now)
            member.is_new = False
            group.pending_sync.add(member.member_id)
        # A member that does not send SyncGroup in time is removed.
        at_s = now.s + group.rebalance_timeout_ms / 1000
        self._context.deadlines.schedule(SyncDeadline(group.group_id), at_s)

    def _record_empty(self, group: ClassicGroup) -> None:
        try:
            self._record(group, group.empty_metadata())
        except CoordinatorError as error:  # a later coordinator loads members, which then expire
            name = shown(group.group_id)
            logger.warning("group %s: the empty generation was not recorded: %s", name, error)

    def _sync_over(self, group_id: str, now: Now) -> None:
        group = self._context.groups.get(group_id)
        if group is None or group.state not in _AFTER_JOIN or not group.pending_sync:
            return
        for member_id in tuple(group.pending_sync):
            self._drop(group, member_id)
        self._context.room.weigh(group)
        self._prepare(group, "members did not request their assignment", now)

    # ------------------------------------------------------------ SyncGroup

    def sync(self, request: SyncRequest, now: Now) -> None:
        """Handle SyncGroup: a member waits for its assignment, the leader provides all of them."""
        group = self._context.groups.get(request.group_id)
        error = self._sync_error(group, request)
        if group is None or error is not ErrorCode.none:
            request.answer(SyncAnswer(error=error))
            return
        member = group.members[request.who.member_id]
        self._remove_pending_sync(group, member.member_id)
        # The assignment is known already, for example after a retry.
        if group.state is GroupState.STABLE:
            request.answer(self._synced(group, member))
            return
        member.answer_sync(SyncAnswer(error=ErrorCode.rebalance_in_progress))  # replaced by a retry
        member.sync = request.answer
        # The leader's request ends the wait of all members.
        if group.leader == member.member_id:
            self._assign(group, dict(request.assignments), now)

    # The order of the checks is Kafka's.
    def _sync_error(self, group: ClassicGroup | None, request: SyncRequest) -> ErrorCode:
        """Return why a SyncGroup is refused, NONE if it is not.

        The checks are in Kafka's order, since the first failing one decides the error.
        """
        if group is None:
            return ErrorCode.unknown_member_id
        # The member first, then what it believes about the group.
        error = group.validate(request.who)
        if error is not ErrorCode.none:
            return error
        if request.generation_id != group.generation_id:
            return ErrorCode.illegal_generation
        if (request.protocol_type is not None and request.protocol_type != group.protocol_type) or (
            request.protocol_name is not None and request.protocol_name != group.protocol_name
        ):
            return ErrorCode.inconsistent_group_protocol
        if group.state is GroupState.EMPTY:
            return ErrorCode.unknown_member_id
        # The generation has ended: the member must send JoinGroup again.
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def _remove_pending_sync(self, group: ClassicGroup, member_id: str) -> None:
        group.pending_sync.discard(member_id)
        if not group.pending_sync:
            self._context.deadlines.cancel(SyncDeadline(group.group_id))

    def _assign(self, group: ClassicGroup, assignments: dict[str, bytes], now: Now) -> None:
        """Record the leader's assignments, and send them to the members once they are committed.

        ``assignments``: by member id. If they cannot be recorded, a new rebalance starts.
        """
        # Remembered, because the group may rebalance again before the records are committed.
        generation_id = group.generation_id
        try:
            end_offset = self._record_assigned(group, assignments)
        except CoordinatorError as error:
            self._answer_syncs(group, error.error_code, now)
            self._prepare(group, "an assignment that could not be recorded", now)
            return

        def deliver(then: Now) -> None:
            # A new rebalance may have started before the commit.
            if (
                group.state is GroupState.COMPLETING_REBALANCE
                and group.generation_id == generation_id
            ):
                self._begin_generation(group, assignments, then)

        self._context.journal.when_committed(end_offset, deliver)

    def _record_assigned(self, group: ClassicGroup, assignments: dict[str, bytes]) -> int:
        growth = _growth(group, assignments)
        if growth > 0 and self._context.room.is_full_for(growth):
            raise CoordinatorError(ErrorCode.group_max_size_reached)
        return self._record(group, group.metadata(assignments))

    def _begin_generation(
        self, group: ClassicGroup, assignments: dict[str, bytes], now: Now
    ) -> None:
        """Enter Stable: answer each SyncGroup with the member's committed assignment."""
        for member in group.members.values():
            given = assignments.get(member.member_id, b"")
            group.weight_bytes += len(given) - len(member.assignment)
            member.assignment = given
        self._context.room.weigh(group)
        group.transition_to(GroupState.STABLE, now.ms)
        for member in group.members.values():
            if member.answer_sync(self._synced(group, member)):
                self._renew_session(group, member, now)

    def _answer_syncs(self, group: ClassicGroup, error: ErrorCode, now: Now) -> None:
        """Fail all pending syncs and clear the assignments.

        Sessions restart for members that waited.
        """
        for member in group.members.values():
            group.weight_bytes -= len(member.assignment)
            member.assignment = b""
            if member.answer_sync(SyncAnswer(error=error)):
                self._renew_session(group, member, now)
        self._context.room.weigh(group)

    def _synced(self, group: ClassicGroup, member: ClassicMember) -> SyncAnswer:
        return SyncAnswer(
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            assignment=member.assignment,
        )

    # ------------------------------------------------------------ Heartbeat

    def heartbeat(
        self, group_id: str, who: MemberIdentity, generation_id: int, now: Now
    ) -> ErrorCode:
        """Handle a Heartbeat: keep the member's session, and report a rebalance."""
        group = self._context.groups.get(group_id)
        if group is None:
            return ErrorCode.unknown_member_id
        error = group.validate(who)
        if error is not ErrorCode.none:
            return error
        # A member of an earlier generation must rejoin, and does not keep its session by this.
        if generation_id != group.generation_id:
            return ErrorCode.illegal_generation
        if group.state is GroupState.EMPTY:
            return ErrorCode.unknown_member_id
        # The session is kept even during a rebalance, until the member rejoins or times out.
        self._renew_session(group, group.members[who.member_id], now)
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def renew_after_commit(self, group: ClassicGroup, member_id: str, now: Now) -> None:
        """Keep a member's session after an offset commit."""
        member = group.members.get(member_id)
        if member is not None and group.state in (
            GroupState.STABLE,
            GroupState.PREPARING_REBALANCE,
        ):
            self._renew_session(group, member, now)

    def _renew_session(
        self, group: ClassicGroup, member: ClassicMember, now: Now, timeout_ms: int | None = None
    ) -> None:
        timeout_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
        self._context.deadlines.schedule(
            SessionDeadline(group.group_id, member.member_id), now.s + timeout_ms / 1000
        )

    # ------------------------------------------------------------ LeaveGroup

    def leave(self, group_id: str, members: Sequence[MemberIdentity], now: Now) -> list[ErrorCode]:
        """Remove members, or static ones by instance id. Return the error of each."""
        group = self._context.groups.get(group_id)
        if group is None:
            return [ErrorCode.unknown_member_id] * len(members)
        errors = [self._leave(group, who) for who in members]
        self._context.room.weigh(group)
        if ErrorCode.none in errors:
            self._member_left(group, "members left the group", now)
        return errors

    def _leave(self, group: ClassicGroup, who: MemberIdentity) -> ErrorCode:
        """Remove one member of a LeaveGroup request; return its error code."""
        member_id = who.member_id
        # An administrator removes static members by instance id only (KIP-345).
        if member_id == UNKNOWN_MEMBER_ID:
            named = None
            if who.instance_id is not None:
                named = group.static_members.get(who.instance_id)
            if named is None:
                return ErrorCode.unknown_member_id
            member_id = named
        # An id that was handed out and not used yet may leave, too.
        elif member_id not in group.pending_join:
            error = group.validate(who)
            if error is not ErrorCode.none:
                return error
        self._drop(group, member_id)
        return ErrorCode.none

    def _member_left(self, group: ClassicGroup, reason: str, now: Now) -> None:
        if group.state in _AFTER_JOIN:
            self._prepare(group, reason, now)
        else:
            self._complete_if_all_joined(group, now)

    def _drop(self, group: ClassicGroup, member_id: str) -> None:
        """Remove a member.

        A pending request is answered UNKNOWN_MEMBER_ID, so it may join again.
        """
        member = group.members.get(member_id)
        if member is not None:
            group.answer_join(member, JoinAnswer(error=ErrorCode.unknown_member_id))
            member.answer_sync(SyncAnswer(error=ErrorCode.unknown_member_id))
        group.remove(member_id)
        self._context.deadlines.cancel(SessionDeadline(group.group_id, member_id))

    def _session_over(self, group: ClassicGroup, member_id: str, now: Now) -> None:
        """Remove a member whose session has expired, or an id that no client has used in time."""
        member = group.members.get(member_id)
        if member is None and member_id not in group.pending_join:
            return
        waits = member is not None and (member.join is not None or member.sync is not None)
        if waits and member is not None and not member.is_new:
            return  # it waits for an answer; the session restarts with that
        name = shown(group.group_id)
        logger.info("group %s: session of member %s has expired", name, shown(member_id))
        self._drop(group, member_id)
        self._context.room.weigh(group)
        # Only an unused id was removed: it may be the last one that the rebalance waits for.
        if member is None:
            self._complete_if_all_joined(group, now)
        else:
            self._member_left(group, f"the session of {member_id} expired", now)

    # ------------------------------------------------------------ records

    def _record(self, group: ClassicGroup, value: GroupMetadataValue) -> int:
        record = record_of(GroupMetadataKey(group=group.group_id), value)
        group.recorded_below = self._context.journal.append([record])
        return group.recorded_below


def _growth(group: ClassicGroup, assignments: dict[str, bytes]) -> int:
    """Change of the members' size in bytes with these assignments."""
    return sum(
        len(assignments.get(member.member_id, b"")) - len(member.assignment)
        for member in group.members.values()
    )
