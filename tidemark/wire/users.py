"""Users of a cluster with their credentials, ACLs and quotas, as the controller sends them to
brokers.

``UserStates`` is a command like those of :mod:`tidemark.wire.control`. It always has the complete
state, and is sent after a full snapshot and after every change, so the next one replaces a lost
one. Numbers are Kafka's: ``ScramMechanism`` (KIP-554), ``ResourceType``, ``PatternType``,
``AclOperation`` and ``AclPermissionType`` of its clients. Passwords are never sent, only what RFC
5802 lets a server store.
"""

import enum

from kio.static.constants import EntityType
from kio.static.primitive import i64

from tidemark.wire.entity import entity, wire

USER_STATES = 10006

_nested = EntityType.nested


#: Name of the only resource of type CLUSTER.
CLUSTER_NAME = "kafka-cluster"


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


#: Operations on a resource in addition to ALL (KIP-430 counts them).
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
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DESCRIBE,
        Operation.DELETE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.IDEMPOTENT_WRITE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.DESCRIBE, Operation.WRITE),
}


@entity(_nested, USER_STATES)
class ScramCredential:
    """Stored SCRAM credential. ``mechanism`` 1: SCRAM-SHA-256, 2: SCRAM-SHA-512."""

    mechanism: int = wire("int8")
    iterations: int = wire("int32")
    salt: bytes = wire("bytes")
    stored_key: bytes = wire("bytes", secret=True)
    server_key: bytes = wire("bytes", secret=True)


@entity(_nested, USER_STATES)
class Acl:
    """Access control entry.

    ``host``: "*" or an address. ``pattern_type`` 3: literal, 4: prefixed. ``permission`` 2: deny,
    3: allow. The literal resource name "*" matches every resource of its type.
    """

    resource_type: int = wire("int8")
    resource_name: str = wire("string")
    pattern_type: int = wire("int8")
    host: str = wire("string")
    operation: int = wire("int8")
    permission: int = wire("int8")


@entity(_nested, USER_STATES)
class UserState:
    """Principal ``User:<name>``.

    Without a SCRAM credential it can authenticate only otherwise (by a certificate or a token).
    """

    name: str = wire("string")
    scram: tuple[ScramCredential, ...]
    acls: tuple[Acl, ...]


@entity(_nested, USER_STATES)
class ClientQuota:
    """Quota of an entity on each broker (KIP-55).

    ``user`` and ``client_id`` None: any; "": each that has no quota of its own. Rates are bytes per
    second, percents of one thread's time, and partitions created or deleted per second (KIP-599);
    0: no limit.
    """

    user: str | None = wire("string")
    client_id: str | None = wire("string")
    producer_byte_rate: int = wire("int64")
    consumer_byte_rate: int = wire("int64")
    request_percentage: int = wire("int32")
    controller_mutation_rate: int = wire("int64", default=i64(0), tag=0)


@entity(EntityType.request, USER_STATES)
class UserStatesRequest:
    """Complete state of users and quotas.

    ``authorize``: ACLs decide (otherwise every authenticated client may do everything, as without
    an ``authorizer.class.name`` in Kafka). ``super_users``: names. ``strangers_key``: secret of the
    cluster from which the answers to unknown user names are derived.
    """

    controller_epoch: int = wire("int32")
    authorize: bool = wire("bool")
    super_users: tuple[str, ...] = wire("string")
    users: tuple[UserState, ...]
    quotas: tuple[ClientQuota, ...]
    strangers_key: bytes = wire("bytes", default=b"", tag=0, secret=True)


@entity(EntityType.response, USER_STATES)
class UserStatesResponse:
    """Answer. ``error_code``: 0 or STALE_CONTROLLER_EPOCH (11)."""

    error_code: int = wire("int16")
    broker_epoch: int = wire("int64")
