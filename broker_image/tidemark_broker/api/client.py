"""Whom a handler answers: where it is, who it is, and what it may do.

One for each connection, made once. What it may do is looked up again only when the users have
changed: a handler asks for it once in a request, and where it may do everything that is all.
"""

import asyncio
from typing import Protocol, Self

from tidemark.wire.framing import PRODUCE_KEY, peek_client_id, peek_key
from tidemark.wire.receiver import Frame
from tidemark_broker.quotas.client_quotas import RequestQuotas
from tidemark_broker.quotas.table import QuotaKind
from tidemark_broker.security.acls import ANONYMOUS, CLUSTER_NAME, Operation, ResourceType
from tidemark_broker.security.authorizer import Authorizer, Permissions
from tidemark_broker.security.principal import host_of, user_name
from tidemark_broker.security.sasl import SaslState
from tidemark_broker.security.user_store import UserStore


class _Connection(Protocol):
    def rest(self, for_s: float) -> None: ...


class Client:
    """``peer`` is its address, ``listener`` where it came. ``sasl`` is None where that has no SASL.
    ``users`` None: whoever is there may do everything. ``connection``: what rests once a quota is
    used up."""

    __slots__ = (
        "_authorizer", "_connection", "_host", "_is_proven", "_permissions", "_users",
        "batches_sent", "listener", "order", "peer", "principal", "sasl",
    )  # fmt: skip

    def __init__(
        self,
        peer: str,
        listener: str,
        users: UserStore | None = None,
        *,
        principal: str = ANONYMOUS,
        sasl: SaslState | None = None,
        connection: _Connection | None = None,
    ) -> None:
        self._connection = connection
        self._is_proven = sasl is None
        #: Record batches that it has produced.
        self.batches_sent = 0
        #: Of those that have not begun all of what they ask for.
        self.order = asyncio.Lock()
        self.peer = peer
        self.listener = listener
        self.sasl = sasl
        self._users = users
        self._host = host_of(peer)
        self._authorizer: Authorizer | None = None
        self._permissions: Permissions | None = None
        self.principal = principal

    @classmethod
    def controller(cls, peer: str) -> Self:
        """The controller, whose connection this broker made: it has proven who it is."""
        return cls(peer, "")

    def is_now(self, principal: str) -> None:
        """It has proven who it is."""
        self.principal, self._authorizer = principal, None
        self._is_proven = True

    @property
    def who(self) -> tuple[str, str]:
        """Its principal and its address: clients that share what there is of both."""
        return self.principal, self._host

    @property
    def authorizer(self) -> Authorizer | None:
        """What decides now: another one each time that users have changed."""
        return None if self._users is None else self._users.authorizer

    @property
    def permissions(self) -> Permissions | None:
        """None: everything."""
        users = self._users
        if users is not None and self._authorizer is not users.authorizer:
            self._authorizer = users.authorizer
            self._permissions = self._authorizer.permissions(self.principal, self._host)
        return self._permissions

    @property
    def has_quotas(self) -> bool:
        """Is anybody limited at all? Who has to prove yet who it is uses nobody's quota."""
        return self._is_proven and self._users is not None and not self._users.quotas.is_empty

    def quotas(self, client_id: str) -> RequestQuotas | None:
        """What limits a request of its; None: nothing."""
        if self._users is None:
            return None
        return self._users.quotas.of(user_name(self.principal), client_id)

    def rest_before_first_s(self, request: Frame) -> float | None:
        """For how long it has to rest before its first Produce, since others have used up the same
        quota; None: this is none, or it has to prove yet who it is. (A Fetch is answered with
        nothing then.)"""
        if not self._is_proven or peek_key(request) != PRODUCE_KEY:
            return None
        quotas = self.quotas(peek_client_id(request)) if self.has_quotas else None
        if quotas is None:
            return 0.0
        quotas.use(QuotaKind.PRODUCE, 0)
        return quotas.rest_s

    def rest(self, for_s: float) -> None:
        """It has used up a quota: see :meth:`ServerConnection.rest`."""
        if self._connection is not None:
            self._connection.rest(for_s)

    def may(self, operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME) -> bool:
        """May it use that one?"""
        permissions = self.permissions
        return permissions is None or permissions.allows(operation, kind, name)
