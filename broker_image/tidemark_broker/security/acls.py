"""Kafka's ACL vocabulary with its numbers.

From Kafka's ``AclOperation``, ``AclPermissionType``, ``PatternType`` and ``ResourceType``.
"""

import enum
from collections.abc import Iterable

#: Name of the only resource of type CLUSTER.
CLUSTER_NAME = "kafka-cluster"
#: Literal name for every resource of a type, for every host, and for every user.
WILDCARD = "*"
PRINCIPAL_PREFIX = "User:"
ANONYMOUS = "User:ANONYMOUS"


class Operation(enum.IntEnum):
    """Operation on a resource."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14


class Permission(enum.IntEnum):
    """Effect of an ACL."""

    ANY = 1
    DENY = 2
    ALLOW = 3


class PatternType(enum.IntEnum):
    """Interpretation of a resource's name. ANY and MATCH are for filters only."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class ResourceType(enum.IntEnum):
    """Type of a resource."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    USER = 7


#: Operation -> operations whose permission includes it.
IMPLIED_BY = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}

#: Possible operations on a resource, as ``*_authorized_operations`` counts them (KIP-430).
OPERATIONS_OF = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
}


def bits(operations: Iterable[int]) -> int:
    """Return a set of operations as a bit mask."""
    made = 0
    for operation in operations:
        made |= 1 << operation
    return made
