"""Users of a cluster with their credentials, ACLs and quotas, as the controller sends them to
brokers.

``UserStates`` is a command like those of :mod:`tidemark.wire.control`. It always has the complete
state, and is sent after a full snapshot and after every change, so the next one replaces a lost
one. Numbers are Kafka's: ``ScramMechanism`` (KIP-554), ``ResourceType``, ``PatternType``,
``AclOperation`` and ``AclPermissionType`` of its clients. Passwords are never sent, only what RFC
5802 lets a server store.
"""

from kio.static.constants import EntityType
from kio.static.primitive import i64

from tidemark.wire.entity import entity, wire

USER_STATES = 10006

_nested = EntityType.nested


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
