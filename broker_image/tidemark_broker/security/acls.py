"""Kafka's names for what ACLs are about, and the numbers by which they travel.

From Kafka's ``AclOperation``, ``AclPermissionType``, ``PatternType`` and ``ResourceType``.
"""

import enum
from collections.abc import Iterable

#: The only resource of type CLUSTER.
CLUSTER_NAME = "kafka-cluster"
#: The literal name that is every resource of its type; the host that is every host; the user that
#: is every user.
WILDCARD = "*"
PRINCIPAL_PREFIX = "User:"
ANONYMOUS = "User:ANONYMOUS"


class Operation(enum.IntEnum):
    """What may be done."""

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
    """Whether it may."""

    ANY = 1
    DENY = 2
    ALLOW = 3


class PatternType(enum.IntEnum):
    """How a resource's name is meant; ANY and MATCH stand in filters only."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class ResourceType(enum.IntEnum):
    """What there is to be used."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    USER = 7


#: An operation -> those whose permission includes it.
IMPLIED_BY = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}

#: What can be done with a resource, as ``*_authorized_operations`` of answers count it (KIP-430).
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
    """A set of operations as a number, a bit for each."""
    made = 0
    for operation in operations:
        made |= 1 << operation
    return made
