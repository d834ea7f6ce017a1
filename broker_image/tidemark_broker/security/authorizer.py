"""Authorization of principals: the semantics of Kafka's ``AclAuthorizer``.

An ACL applies to a resource by its literal name, ``*``, or a prefix. It applies to a client if it
is for its user or for ``User:*``, and for its host or every host. A denying ACL precedes all
allowing ones. Without any ACL for a resource, the configuration decides. Super users may do
everything.

ACLs of one principal on one host are collected once and cached. Operations are bits and names are
keys, so a decision costs a few look-ups, one for each length of a prefix.
"""

from collections.abc import Iterable, Iterator, Mapping, Set
from types import MappingProxyType

from tidemark.lru import Lru
from tidemark.wire.users import (
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    UserStatesRequest,
)
from tidemark_broker.security.acls import IMPLIED_BY, PRINCIPAL_PREFIX, WILDCARD, bits

#: Number of cached pairs of principal and host.
KEPT_MAX = 10_000

_PATTERNS = (PatternType.LITERAL, PatternType.PREFIXED)
NOBODY: frozenset[str] = frozenset()


def _granting(operation: Operation) -> int:
    """Return the operations whose ACL allows ``operation``, as bits."""
    return bits((operation, Operation.ALL, *IMPLIED_BY.get(operation, ())))


_GRANTING = {operation: _granting(operation) for operation in Operation}
_DENYING = {operation: bits((operation, Operation.ALL)) for operation in Operation}


class _Names:
    """ACLs of one resource type: operations by literal name, and by prefix with its length."""

    __slots__ = ("_lengths", "_literal", "_prefixed")

    def __init__(self) -> None:
        self._literal: dict[str, int] = {}
        self._prefixed: dict[str, int] = {}
        self._lengths: tuple[int, ...] = ()

    def add(self, acl: Acl) -> None:
        """Add an ACL, for whatever principal."""
        names = self._literal if acl.pattern_type == PatternType.LITERAL else self._prefixed
        # An unknown operation may be negative, which a shift rejects.
        names[acl.resource_name] = names.get(acl.resource_name, 0) | 1 << max(0, acl.operation)
        if names is self._prefixed and len(acl.resource_name) not in self._lengths:
            self._lengths = tuple(sorted((*self._lengths, len(acl.resource_name))))

    def of(self, name: str) -> int:
        """Return the operations of all patterns that match ``name``, as bits."""
        literal = self._literal
        found = literal.get(name, 0) | literal.get(WILDCARD, 0)
        for length in self._lengths:
            if length > len(name):
                break
            found |= self._prefixed.get(name[:length], 0)
        return found

    def having(self, operations: int) -> Iterator[tuple[str, bool]]:
        """Yield names with any of the operations, and whether they are prefixes."""
        for names, is_prefix in ((self._literal, False), (self._prefixed, True)):
            for name, stands in names.items():
                if stands & operations:
                    yield name, is_prefix

    def covers(self, name: str, operations: int, *, is_prefix: bool) -> bool:
        """Return whether any of the operations is set for ``name``, or for a prefix of it."""
        if not is_prefix:
            return bool(self.of(name) & operations)
        found = self._literal.get(WILDCARD, 0)
        for length in self._lengths:
            if length <= len(name):
                found |= self._prefixed.get(name[:length], 0)
        return bool(found & operations)


_NOTHING = _Names()


class _Permissions:
    """Some ACLs, by resource type."""

    __slots__ = ("_allowed", "_denied")

    def __init__(self, acls: Iterable[Acl]) -> None:
        self._allowed: dict[int, _Names] = {}
        self._denied: dict[int, _Names] = {}
        for acl in acls:
            # An ACL with unknown values must not allow anything, but may deny.
            allows = acl.permission == Permission.ALLOW
            if allows and acl.pattern_type not in _PATTERNS:
                continue
            of = self._allowed if allows else self._denied
            of.setdefault(acl.resource_type, _Names()).add(acl)

    def denied(self, kind: ResourceType, name: str) -> int:
        """Denied operations, as bits."""
        return self._denied.get(kind, _NOTHING).of(name)

    def allowed(self, kind: ResourceType, name: str) -> int:
        """Allowed operations, as bits."""
        return self._allowed.get(kind, _NOTHING).of(name)

    def allows_any(self, operation: Operation, kind: ResourceType) -> bool:
        """Return whether these ACLs allow the operation on any resource of the type."""
        denied, denying = self._denied.get(kind, _NOTHING), _DENYING[operation]
        allowed = self._allowed.get(kind, _NOTHING)
        # An allowed name counts only if no denying ACL covers all of it.
        return any(
            not denied.covers(name, denying, is_prefix=is_prefix)
            for name, is_prefix in allowed.having(_GRANTING[operation])
        )

    def denies_all(self, operation: Operation, kind: ResourceType) -> bool:
        """Return whether the operation is denied on all resources of the type."""
        return bool(self.denied(kind, WILDCARD) & _DENYING[operation])


class Permissions:
    """Permissions of one principal on one host, until the users change."""

    def __init__(self, own: Iterable[Acl], wildcard_acls: _Permissions, *, if_none: bool) -> None:
        self._own = _Permissions(own)
        self._of_all = wildcard_acls
        self._if_none = if_none

    def allows(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Return whether the operation is authorized."""
        own = self._own
        if own.denied(kind, name) & _DENYING[operation]:
            return False
        if own.allowed(kind, name) & _GRANTING[operation]:
            return True
        # allow.everyone.if.no.acl.found applies only if no ACL of any user is about the resource.
        if not self._if_none:
            return False
        return not (self._of_all.denied(kind, name) | self._of_all.allowed(kind, name))

    def allows_any(self, operation: Operation, kind: ResourceType) -> bool:
        """Return whether the operation is authorized on any resource of the type (Kafka's
        ``authorizeByResourceType``).
        """
        if self._own.denies_all(operation, kind):
            return False
        return self._if_none or self._own.allows_any(operation, kind)


class Authorizer:
    """ACLs of one state of the users. ``if_none`` is ``allow.everyone.if.no.acl.found``."""

    def __init__(self, states: UserStatesRequest, *, if_none: bool) -> None:
        self.decides = states.authorize
        self._super_users: Set[str] = frozenset(
            PRINCIPAL_PREFIX + name for name in states.super_users
        )
        self._acls: Mapping[str, tuple[Acl, ...]] = MappingProxyType(
            {PRINCIPAL_PREFIX + user.name: user.acls for user in states.users}
        )
        self._of_all = _Permissions(acl for acls in self._acls.values() for acl in acls)
        self._if_none = if_none
        self._kept: Lru[tuple[str, str], Permissions] = Lru(KEPT_MAX)

    def permissions(self, principal: str, host: str) -> Permissions | None:
        """Return the permissions of a client, None if it may do everything."""
        if not self.decides or principal in self._super_users:
            return None
        kept = self._kept.get((principal, host))
        if kept is None:
            own = self._concerning(principal, host)
            kept = Permissions(own, self._of_all, if_none=self._if_none)
            self._kept.put((principal, host), kept)
            self._kept.evict()
        return kept

    def _concerning(self, principal: str, host: str) -> Iterable[Acl]:
        everybody = PRINCIPAL_PREFIX + WILDCARD
        for whose in {principal, everybody}:
            for acl in self._acls.get(whose, ()):
                if acl.host in (WILDCARD, host):
                    yield acl
