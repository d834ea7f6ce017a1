"""State of a group of the classic protocol: members, generation, leader and state machine.

This class neither waits nor decides when to rebalance (see :mod:`.rebalancing`). It keeps the parts
consistent. Counts are maintained as members join and leave, since a group may have thousands of
them.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from kio.schema.errors import ErrorCode

from tidemark.wire.framing import FrameError
from tidemark_broker.groups.core.records import (
    NO_TIMESTAMP,
    GroupMetadataValue,
    MemberMetadata,
)
from tidemark_broker.groups.core.subscriptions import subscribed_topics
from tidemark_broker.groups.core.values import (
    GroupState,
    Join,
    JoinAnswer,
    JoinedMember,
    MemberIdentity,
    MemberProtocol,
    Sync,
    SyncAnswer,
    weight_of,
)

# ------------------------------------------------------------ members

#: Size of a member without its texts and protocols.
_MEMBER_BYTES = 1000


class ClassicMember:
    """One member.

    ``join`` and ``sync`` receive the answers it waits for. ``is_new``: it has not received a
    generation yet.
    """

    __slots__ = (
        "assignment", "client_host", "client_id", "instance_id", "is_new", "join", "member_id",
        "protocols", "rebalance_timeout_ms", "session_timeout_ms", "sync",
    )  # fmt: skip

    def __init__(
        self,
        who: MemberIdentity,
        *,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: tuple[MemberProtocol, ...],
        assignment: bytes = b"",
    ) -> None:
        """Create a member that has sent its first JoinGroup, or that is read from a record."""
        self.member_id, self.instance_id = who
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        #: Assignment protocols with the member's metadata, in the order of its preference.
        self.protocols = protocols
        #: Assignment of the current generation, opaque to the coordinator.
        self.assignment = assignment
        # Pending requests, which are answered when the rebalance proceeds.
        self.join: Join | None = None
        self.sync: Sync | None = None
        self.is_new = False

    @property
    def is_static(self) -> bool:
        """True if it has an instance id (KIP-345)."""
        return self.instance_id is not None

    @property
    def weight_bytes(self) -> int:
        """Approximate memory in bytes."""
        texts = len(self.member_id) + len(self.client_id) + len(self.assignment)
        return _MEMBER_BYTES + texts + weight_of(self.protocols)

    def metadata_of(self, protocol_name: str) -> bytes:
        """Return its metadata for a protocol, empty if unsupported."""
        return next((p.metadata for p in self.protocols if p.name == protocol_name), b"")

    def vote(self, candidates: "frozenset[str] | set[str]") -> str | None:
        """Return its most preferred protocol among ``candidates``."""
        return next((p.name for p in self.protocols if p.name in candidates), None)

    def answer_sync(self, answer: SyncAnswer) -> bool:
        """Answer its sync, if it waits. Return whether it did."""
        waiting, self.sync = self.sync, None
        if waiting is None:
            return False
        waiting(answer)
        return True

    def fence(self) -> None:
        """Answer pending requests with FENCED_INSTANCE_ID, because another process has its
        instance id.
        """
        # Both requests may wait, if the process joined again without waiting for its assignment.
        if self.join is not None:
            self.join(JoinAnswer(error=ErrorCode.fenced_instance_id, member_id=self.member_id))
            self.join = None
        self.answer_sync(SyncAnswer(error=ErrorCode.fenced_instance_id))


CONSUMER = "consumer"
_GROUP_BYTES = 1000
#: Size of a member id that was handed out and not used yet.
PENDING_BYTES = 700
#: Limit of distinct topics of all members. Above it the subscription counts as unknown.
_SUBSCRIBED_MAX = 100_000
#: Size of a topic in memory, without its name.
_TOPIC_BYTES = 100


class ClassicGroup:
    """One group. ``state_timestamp_ms`` is the time of the last state change, -1 if unknown."""

    def __init__(self, group_id: str, now_ms: int = NO_TIMESTAMP) -> None:
        """Create an empty group. ``now_ms``: time of its creation, -1 if unknown."""
        self.group_id = group_id
        #: ``previous_state`` distinguishes the first rebalance of a group from later ones.
        self.state = self.previous_state = GroupState.EMPTY
        self.state_timestamp_ms = now_ms
        #: For example "consumer"; None until the first member has joined.
        self.protocol_type: str | None = None
        #: Assignment protocol that the members have in common, None before the first generation.
        self.protocol_name: str | None = None
        self.generation_id = 0
        #: Member id of the leader, which computes the assignments.
        self.leader: str | None = None
        #: By member id; ``static_members`` has the member id by instance id (KIP-345).
        self.members: dict[str, ClassicMember] = {}
        self.static_members: dict[str, str] = {}
        #: Ids that were handed out, whose members have not joined with them yet.
        self.pending_join: set[str] = set()
        #: Members that have not sent SyncGroup in this generation yet.
        self.pending_sync: set[str] = set()
        #: Number of members whose JoinGroup is waiting for the rebalance.
        self.awaiting_join = 0
        #: Whether a member has joined since the initial rebalance was last extended.
        self.new_member_added = False
        #: Topics that the members subscribe to, None if their metadata cannot be read.
        self.subscribed: frozenset[str] | None = frozenset()
        #: Approximate memory of the group.
        self.weight_bytes = _GROUP_BYTES + len(group_id)
        #: Part of ``weight_bytes`` that is included in the broker's total.
        self.weighed_bytes = 0
        #: End offset of the last record of the group or of its offsets.
        self.recorded_below = 0
        #: Number of members that support each assignment protocol.
        self._supported: Counter[str] = Counter()

    # ------------------------------------------------------------ what it is

    @property
    def is_empty(self) -> bool:
        """True without members. Ids may have been handed out nevertheless."""
        return self.state is GroupState.EMPTY

    @property
    def is_consumer_group(self) -> bool:
        """True if the members consume topics, instead of coordinating something else (such as
        Connect).
        """
        return self.protocol_type == CONSUMER

    @property
    def all_joined(self) -> bool:
        """True if every member waits for the next generation."""
        return self.awaiting_join == len(self.members) and not self.pending_join

    @property
    def rebalance_timeout_ms(self) -> int:
        """Longest rebalance timeout of the members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def is_subscribed_to(self, topic: str) -> bool:
        """True if the members consume the topic, or might."""
        return self.is_consumer_group if self.subscribed is None else topic in self.subscribed

    def validate(self, who: MemberIdentity) -> ErrorCode:
        """Check that the member exists and owns its instance id."""
        if who.instance_id is not None:
            owner = self.static_members.get(who.instance_id)
            if owner is None:
                return ErrorCode.unknown_member_id
            if owner != who.member_id:
                return ErrorCode.fenced_instance_id
        return ErrorCode.none if who.member_id in self.members else ErrorCode.unknown_member_id

    def supports(self, protocol_type: str, protocols: tuple[MemberProtocol, ...]) -> bool:
        """True if the member has a protocol in common with all others."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        count = len(self.members)
        return protocol_type == self.protocol_type and any(
            # A protocol whose count equals the number of members is supported by each of them.
            self._supported[name] == count
            for name in {p.name for p in protocols}
        )

    def select_protocol(self) -> str:
        """Return the assignment protocol with most votes among those that all members support.

        Each member votes for the first common protocol of its list. On a tie the first voted one
        wins. Raises ValueError if there is no common one.
        """
        candidates = {name for name, n in self._supported.items() if n == len(self.members)}
        votes = Counter(
            vote
            for vote in (member.vote(candidates) for member in self.members.values())
            if vote is not None
        )
        if not votes:
            raise ValueError(f"the members of {self.group_id} have no protocol in common")
        return max(votes, key=lambda name: votes[name])

    def joined_members(self) -> tuple[JoinedMember, ...]:
        """Members in the form that the leader receives."""
        name = self.protocol_name or ""
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata_of(name))
            for member in self.members.values()
        )

    # ------------------------------------------------------------ members that come and go

    def add(self, member: ClassicMember, join: Join | None, protocol_type: str) -> None:
        """Add a member. The first one becomes leader."""
        if not self.members:
            self.protocol_type = protocol_type
        self.leader = self.leader or member.member_id
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self._count(member, 1)
        self._await_join(member, join)
        self.remove_pending(member.member_id)

    def add_pending(self, member_id: str) -> None:
        """Register an id that was handed out."""
        self.pending_join.add(member_id)
        self.weight_bytes += PENDING_BYTES

    def remove_pending(self, member_id: str) -> bool:
        """Remove a handed-out id, because the member has joined or will not.

        Return whether it was pending.
        """
        if member_id not in self.pending_join:
            return False
        self.pending_join.discard(member_id)
        self.weight_bytes -= PENDING_BYTES
        return True

    def update(
        self,
        member: ClassicMember,
        protocols: tuple[MemberProtocol, ...],
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        join: Join | None,
    ) -> None:
        """Replace a rejoining member's protocols, time limits and pending join.

        ``join``: callback for the answer to its JoinGroup, None if it does not wait for one. A join
        that still waits under the same id gets no answer: the client has retried it.
        """
        # Counted out with the former protocols and in with the new ones.
        self._count(member, -1)
        member.protocols = protocols
        self._count(member, 1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms
        self._await_join(member, join)

    def remove(self, member_id: str) -> ClassicMember | None:
        """Remove a member, or an id that was handed out and not used; return the member."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count(member, -1)
            self._await_join(member, None)
            instance_id = member.instance_id
            if instance_id is not None and self.static_members.get(instance_id) == member_id:
                del self.static_members[instance_id]
        # Another member leads until the next generation elects one of those that have joined.
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.remove_pending(member_id)
        self.pending_sync.discard(member_id)
        return member

    def replace_static(self, instance_id: str, new_id: str) -> ClassicMember:
        """Give the instance id to a restarted process under a new member id; return the new member.

        The previous process is fenced: its pending requests fail with FENCED_INSTANCE_ID.
        """
        old_id = self.static_members[instance_id]
        old = self.members[old_id]
        was_leader = self.leader == old_id
        # The old member's join is answered with FENCED by fence(), so it no longer waits.
        self.awaiting_join -= old.join is not None
        old.fence()
        # The new process takes over the assignment, so a restart needs no rebalance (KIP-345).
        new = ClassicMember(
            MemberIdentity(new_id, instance_id),
            client_id=old.client_id,
            client_host=old.client_host,
            rebalance_timeout_ms=old.rebalance_timeout_ms,
            session_timeout_ms=old.session_timeout_ms,
            protocols=old.protocols,
            assignment=old.assignment,
        )
        self._count(old, -1)
        self._count(new, 1)
        del self.members[old_id]
        self.members[new_id] = new
        self.static_members[instance_id] = new_id
        if was_leader:
            self.leader = new_id
        # The old process cannot send its SyncGroup any more.
        self.pending_sync.discard(old_id)
        return new

    def answer_join(self, member: ClassicMember, answer: JoinAnswer) -> None:
        """Answer the member's join, if it waits."""
        join = member.join
        self._await_join(member, None)
        if join is not None:
            join(answer)

    def not_rejoined(self) -> list[ClassicMember]:
        """Members that do not wait for the next generation."""
        return [member for member in self.members.values() if member.join is None]

    def elect_joined_leader(self) -> bool:
        """Return whether a leader waits for the next generation; elect another one if needed."""
        if self.leader is None:
            return False
        if self.members[self.leader].join is None:
            joined = next((e.member_id for e in self.members.values() if e.join is not None), None)
            if joined is None:
                return False
            self.leader = joined
        return True

    # ------------------------------------------------------------ states

    def transition_to(self, state: GroupState, now_ms: int) -> None:
        """Enter a state and record its time."""
        self.previous_state, self.state = self.state, state
        self.state_timestamp_ms = now_ms

    def next_generation(self, now_ms: int) -> None:
        """Start the next generation with the joined members; without members the group is empty."""
        self.generation_id += 1
        self.pending_sync.clear()
        self.protocol_name = self.select_protocol() if self.members else None
        self._subscribe()
        self.transition_to(
            GroupState.COMPLETING_REBALANCE if self.members else GroupState.EMPTY, now_ms
        )

    def metadata(self, assignments: "dict[str, bytes] | None" = None) -> GroupMetadataValue:
        """Return the group's record value (Kafka's GroupMetadataValue).

        ``assignments``: by member id, recorded instead of the members' current assignments. They
        become current only after the commit.
        """
        name = self.protocol_name or ""
        # Metadata of the selected protocol only, as in Kafka's record.
        members = tuple(
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.metadata_of(name),
                assignment=member.assignment
                if assignments is None
                else assignments.get(member.member_id, b""),
            )
            for member in self.members.values()
        )
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation_id,
            protocol=self.protocol_name,
            leader=self.leader,
            current_state_timestamp=self.state_timestamp_ms,
            members=members,
        )

    def empty_metadata(self) -> GroupMetadataValue:
        """Return the group's record without members."""
        return replace(self.metadata(), protocol=None, leader=None, members=())

    @classmethod
    def of(cls, group_id: str, value: GroupMetadataValue) -> "ClassicGroup":
        """Restore a group from its record: Stable with members, else Empty."""
        group = cls(group_id, value.current_state_timestamp)
        group.generation_id = value.generation
        group.protocol_name = value.protocol
        for metadata in value.members:
            member = ClassicMember(
                MemberIdentity(metadata.member_id, metadata.group_instance_id),
                client_id=metadata.client_id,
                client_host=metadata.client_host,
                rebalance_timeout_ms=metadata.rebalance_timeout,
                session_timeout_ms=metadata.session_timeout,
                # Only the selected protocol is in the record. Members send the others when they
                # rejoin.
                protocols=(MemberProtocol(value.protocol or "", metadata.subscription),),
                assignment=metadata.assignment,
            )
            group.add(member, None, value.protocol_type)
        group.protocol_type = value.protocol_type or None
        group.leader = value.leader if value.members else None
        group.state = GroupState.STABLE if value.members else GroupState.EMPTY
        # Parse which topics the members consume, for the expiry of offsets.
        group._subscribe()
        return group

    def _subscribe(self) -> None:
        # The weight includes the topics, so it is corrected around the change.
        self.weight_bytes -= _weight(self.subscribed)
        self.subscribed = self._subscribed()
        self.weight_bytes += _weight(self.subscribed)

    def _subscribed(self) -> frozenset[str] | None:
        """Return the topics to which members subscribe, or None if that is unknown."""
        if not self.members:
            return frozenset()
        if not self.is_consumer_group or self.protocol_name is None:
            return None
        name, left = self.protocol_name, _SUBSCRIBED_MAX
        topics: set[str] = set()
        # Members with equal metadata are parsed once, since most groups have one subscription.
        try:
            for metadata in {member.metadata_of(name) for member in self.members.values()}:
                named = subscribed_topics(metadata, left)
                left -= len(named)
                topics.update(named)
        except FrameError:
            # Another embedded protocol, or too many topics: treat every topic as consumed.
            return None
        return frozenset(topics)

    def waiting(self) -> Iterator[ClassicMember]:
        """Members that wait for an answer."""
        for member in tuple(self.members.values()):
            if member.join is not None or member.sync is not None:
                yield member

    # ------------------------------------------------------------ counts

    def _count(self, member: ClassicMember, sign: int) -> None:
        self.weight_bytes += sign * member.weight_bytes
        for name in {protocol.name for protocol in member.protocols}:
            self._supported[name] += sign
            if not self._supported[name]:
                del self._supported[name]

    def _await_join(self, member: ClassicMember, join: Join | None) -> None:
        self.awaiting_join += (join is not None) - (member.join is not None)
        member.join = join


def _weight(topics: frozenset[str] | None) -> int:
    return sum(_TOPIC_BYTES + len(topic) for topic in topics or ())
