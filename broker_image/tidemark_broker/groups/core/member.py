"""One member of a classic group."""

from kio.schema.errors import ErrorCode

from tidemark_broker.groups.core.values import (
    Join,
    JoinAnswer,
    MemberIdentity,
    MemberProtocol,
    Sync,
    SyncAnswer,
    weight_of,
)

#: Size of a member without its texts and protocols.
_OVERHEAD_BYTES = 1000


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
        return _OVERHEAD_BYTES + texts + weight_of(self.protocols)

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
