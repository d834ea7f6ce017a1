"""Who may use a cluster, as the controller tells the brokers: users, their secrets, ACLs, quotas.

``UserStates`` is a command like those of :mod:`tidemark.wire.control`: the whole truth each time,
sent after a full snapshot and whenever something changed, so a lost one is made up for by the next.
Numbers are Kafka's: ``ScramMechanism`` (KIP-554), ``ResourceType``, ``PatternType``,
``AclOperation`` and ``AclPermissionType`` of its clients. Passwords never travel, only what RFC
5802 has a server keep.
"""

from kio.static.constants import EntityType
from kio.static.primitive import i64

from tidemark.wire.entity import entity, wire

USER_STATES = 10006

_nested = EntityType.nested


@entity(_nested, USER_STATES)
class ScramCredential:
    """``mechanism`` 1: SCRAM-SHA-256, 2: SCRAM-SHA-512."""

    mechanism: int = wire("int8")
    iterations: int = wire("int32")
    salt: bytes = wire("bytes")
    stored_key: bytes = wire("bytes", secret=True)
    server_key: bytes = wire("bytes", secret=True)


@entity(_nested, USER_STATES)
class Acl:
    """``host`` "*" or an address; ``pattern_type`` 3: literal, 4: prefixed; ``permission`` 2: deny,
    3: allow. The literal resource name "*" is every resource of its type."""

    resource_type: int = wire("int8")
    resource_name: str = wire("string")
    pattern_type: int = wire("int8")
    host: str = wire("string")
    operation: int = wire("int8")
    permission: int = wire("int8")


@entity(_nested, USER_STATES)
class UserState:
    """The principal ``User:<name>``. Without a SCRAM credential it can only prove itself otherwise
    (by a certificate or a token)."""

    name: str = wire("string")
    scram: tuple[ScramCredential, ...]
    acls: tuple[Acl, ...]


@entity(_nested, USER_STATES)
class ClientQuota:
    """What those whom an entity names may use on each broker (KIP-55): ``user`` and ``client_id``
    None: whichever, "": each that has no quota of its own. Bytes a second, percents of one
    thread's time, and partitions created or deleted a second (KIP-599); 0: not limited."""

    user: str | None = wire("string")
    client_id: str | None = wire("string")
    producer_byte_rate: int = wire("int64")
    consumer_byte_rate: int = wire("int64")
    request_percentage: int = wire("int32")
    controller_mutation_rate: int = wire("int64", default=i64(0), tag=0)


@entity(EntityType.request, USER_STATES)
class UserStatesRequest:
    """All of it. ``authorize``: whether ACLs decide (else everybody who is authenticated may do
    everything, as without an ``authorizer.class.name`` in Kafka); ``super_users`` are names;
    ``strangers_key``: a secret of the cluster by which names that nobody has are answered."""

    controller_epoch: int = wire("int32")
    authorize: bool = wire("bool")
    super_users: tuple[str, ...] = wire("string")
    users: tuple[UserState, ...]
    quotas: tuple[ClientQuota, ...]
    strangers_key: bytes = wire("bytes", default=b"", tag=0, secret=True)


@entity(EntityType.response, USER_STATES)
class UserStatesResponse:
    """``error_code`` 0 or STALE_CONTROLLER_EPOCH (11)."""

    error_code: int = wire("int16")
    broker_epoch: int = wire("int64")
