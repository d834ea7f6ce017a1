"""Kafka's ACL vocabulary with its numbers.

From Kafka's ``AclOperation``, ``AclPermissionType``, ``PatternType`` and ``ResourceType``.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tidemark.wire.users import Acl, Operation, PatternType, Permission, ResourceType, UserState

#: Literal name for every resource of a type, for every host, and for every user.
WILDCARD = "*"
PRINCIPAL_PREFIX = "User:"
ANONYMOUS = "User:ANONYMOUS"


#: Operation -> operations whose permission includes it.
IMPLIED_BY = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}


def bits(operations: Iterable[int]) -> int:
    """Return a set of operations as a bit mask."""
    made = 0
    for operation in operations:
        made |= 1 << operation
    return made


_KNOWN = tuple(
    frozenset(int(member) for member in kind)
    for kind in (ResourceType, PatternType, Operation, Permission)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFilter:
    """Filter of ACLs: Kafka's ``AclBindingFilter``.

    None and ANY match everything. Pattern type MATCH matches every pattern that applies to the
    resource.
    """

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    @property
    def is_known(self) -> bool:
        """True if all types in the filter are known."""
        requested = self.resource_type, self.pattern_type, self.operation, self.permission
        return all(number in known for number, known in zip(requested, _KNOWN, strict=True))

    def select(self, user: UserState) -> Iterator[tuple[str, Acl]]:
        """Yield the matching ACLs of a user, with the principal."""
        # An ACL belongs to one user, so the principal filter selects whole users.
        principal = PRINCIPAL_PREFIX + user.name
        if self.principal in (None, principal):
            yield from ((principal, acl) for acl in user.acls if self._matches(acl))

    def _matches(self, acl: Acl) -> bool:
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
            and self._has_name(acl)
        )

    def _has_name(self, acl: Acl) -> bool:
        """Return whether an ACL's resource name and pattern type match the filter (KIP-290)."""
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        name = self.resource_name
        if name is None or name == acl.resource_name:
            return True
        # Only MATCH also finds wildcards and prefixes that cover the name.
        if self.pattern_type != PatternType.MATCH:
            return False
        if acl.pattern_type == PatternType.LITERAL:
            return acl.resource_name == WILDCARD
        return name.startswith(acl.resource_name)
