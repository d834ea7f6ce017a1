"""The client of a request: its address, its principal, and its permissions.

One object per connection. Permissions are looked up again only when users have changed. A handler
queries them once per request, and for a client with all permissions that is the only cost.
"""

from collections.abc import Callable, Hashable
from typing import Any, Self

from tidemark.wire.framing import PRODUCE_KEY, peek_client_id, peek_key
from tidemark.wire.receiver import Frame
from tidemark.wire.repeats import Repeats
from tidemark.wire.users import CLUSTER_NAME, OPERATIONS_OF, Operation, ResourceType
from tidemark_broker.admission.arrival_order import ArrivalOrder
from tidemark_broker.admission.client_quotas import QuotaKind, RequestQuotas
from tidemark_broker.security.acls import ANONYMOUS, bits
from tidemark_broker.security.authorizer import Authorizer, Permissions
from tidemark_broker.security.principal import host_of, user_name
from tidemark_broker.security.sasl import SaslState
from tidemark_broker.security.user_store import UserStore

#: Limit of partitions for which a connection remembers where it reads remote records.
_READS_HERE_MAX = 1_000


class Client:
    """A client connection.

    ``peer`` is its address, ``listener`` the listener's name. ``sasl`` is None on a listener
    without SASL. Without ``users`` the client may do everything. ``mute`` mutes
    the connection for some seconds once a quota is exceeded. ``is_plaintext``: without TLS.
    """

    __slots__ = (
        "_authorizer", "_host", "_is_proven", "_permissions", "_reads_here", "_users",
        "batches_sent", "is_plaintext", "listener", "mute", "order", "peer", "principal", "repeats",
        "sasl", "software",
    )  # fmt: skip

    def __init__(
        self,
        peer: str,
        listener: str,
        users: UserStore | None = None,
        *,
        principal: str = ANONYMOUS,
        sasl: SaslState | None = None,
        mute: Callable[[float], None] = lambda _: None,
        is_plaintext: bool = False,
    ) -> None:
        """Create the client of a new connection, anonymous until it authenticates."""
        self.mute = mute
        self.is_plaintext = is_plaintext
        #: True once the client has authenticated, and from the start on a listener without SASL.
        self._is_proven = sasl is None
        #: Record batches that this client has produced.
        self.batches_sent = 0
        #: Produce requests that it repeats with other records.
        self.repeats: Repeats[Any, Any] = Repeats()
        #: Order in which the work of its requests starts.
        self.order = ArrivalOrder()
        self.peer = peer
        #: Name of its library, "" if it names none (KIP-511).
        self.software = ""
        self.listener = listener
        self.sasl = sasl
        self._users = users
        self._host = host_of(peer)
        #: Authorizer from which ``_permissions`` was computed.
        self._authorizer: Authorizer | None = None
        self._permissions: Permissions | None = None
        #: Partitions whose remote records this broker serves itself, with the time in monotonic
        #: seconds until which it does. None before the first one.
        self._reads_here: dict[Hashable, float] | None = None
        #: Kafka principal, such as ``User:alice``.
        self.principal = principal

    @classmethod
    def controller(cls, peer: str) -> Self:
        """Return the controller, whose connection this broker opened and which is therefore
        authenticated.
        """
        return cls(peer, "")

    def is_now(self, principal: str) -> None:
        """Set the authenticated principal."""
        # Resetting the authorizer discards permissions of the previous principal
        # (re-authentication).
        self.principal, self._authorizer = principal, None
        self._is_proven = True

    @property
    def identity(self) -> tuple[str, str]:
        """Principal and address. Clients with the same pair share fair-share limits."""
        return self.principal, self._host

    def is_assigned_here(self, partition: Hashable, now_s: float) -> bool:
        """Return whether this broker itself serves the partition's remote records to the client.

        Otherwise it may assign another replica (:mod:`replica_selector`).
        """
        known = self._reads_here
        if known is None:
            return False
        until_s = known.get(partition)
        if until_s is None and len(known) >= _READS_HERE_MAX:
            # There is no room to remember a redirection, which could then be repeated in a loop.
            until_s = next(iter(known.values()))
        return until_s is not None and now_s < until_s

    def assign_here(self, partition: Hashable, until_s: float) -> None:
        """Serve the partition's remote records here until that time in monotonic seconds."""
        known = self._reads_here = self._reads_here or {}
        # The oldest assignment is the first one.
        known.pop(partition, None)
        known[partition] = until_s
        if len(known) > _READS_HERE_MAX:
            del known[next(iter(known))]

    @property
    def authorizer(self) -> Authorizer | None:
        """The current authorizer; a new object each time users change."""
        return None if self._users is None else self._users.authorizer

    @property
    def permissions(self) -> Permissions | None:
        """The client's permissions, None if it may do everything."""
        users = self._users
        # An authorizer is immutable, so identity tells whether the users have changed.
        if users is not None and self._authorizer is not users.authorizer:
            self._authorizer = users.authorizer
            self._permissions = self._authorizer.permissions(self.principal, self._host)
        return self._permissions

    @property
    def has_quotas(self) -> bool:
        """True if any quota applies. A client that has not authenticated uses no quota."""
        return self._is_proven and self._users is not None and not self._users.quotas.is_empty

    def quotas(self, client_id: str) -> RequestQuotas | None:
        """Return the quotas of one request, None if it is not limited."""
        if self._users is None:
            return None
        return self._users.quotas.of(user_name(self.principal), client_id)

    def mute_before_first_s(self, request: Frame) -> float | None:
        """Return how many seconds the connection's first Produce must wait for its client's quota.

        Other connections of the client may have exceeded the quota, which a new connection must not
        evade. None means that this request is not a Produce, or that the client has not
        authenticated. A Fetch needs no wait, because its response is empty while the quota is
        exceeded.
        """
        if not self._is_proven or peek_key(request) != PRODUCE_KEY:
            return None
        quotas = self.quotas(peek_client_id(request)) if self.has_quotas else None
        if quotas is None:
            return 0.0
        # Using zero bytes refreshes the delay without counting anything.
        quotas.use(QuotaKind.PRODUCE, 0)
        return quotas.throttle_s

    def may(self, operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME) -> bool:
        """True if the operation on that resource is authorized."""
        permissions = self.permissions
        return permissions is None or permissions.allows(operation, kind, name)

    def operations(self, kind: ResourceType, name: str = CLUSTER_NAME) -> int:
        """Return the authorized operations on a resource as a bit set (KIP-430).

        Of the cluster it is empty for a client that may not describe it, as in Kafka. Other
        resources are only described to clients that may.
        """
        if kind is ResourceType.CLUSTER and not self.may(Operation.DESCRIBE, kind):
            return 0
        return bits(
            operation for operation in OPERATIONS_OF[kind] if self.may(operation, kind, name)
        )
