"""Users as a controller tells of them, made from passwords and short texts."""

import hashlib
import hmac
import secrets

from tidemark.wire.users import (
    Acl,
    ClientQuota,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    ScramCredential,
    UserState,
    UserStatesRequest,
)

_HASHES = {1: "sha256", 2: "sha512"}


def credential(password: str, mechanism: int, iterations: int = 4096) -> ScramCredential:
    """RFC 5802, 3: what a server keeps of a password."""
    name, salt = _HASHES[mechanism], secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", name)
    return ScramCredential(
        mechanism=mechanism,
        iterations=iterations,
        salt=salt,
        stored_key=hashlib.new(name, client_key).digest(),
        server_key=hmac.digest(salted, b"Server Key", name),
    )


def acl(text: str) -> Acl:
    """``ALLOW READ TOPIC name``; a name that ends in dots is a prefix; ``@host`` may follow."""
    permission, operation, kind, name, *host = text.split()
    prefixed = name.endswith("...")
    return Acl(
        resource_type=ResourceType[kind],
        resource_name=name.removesuffix("..."),
        pattern_type=PatternType.PREFIXED if prefixed else PatternType.LITERAL,
        host=host[0].removeprefix("@") if host else "*",
        operation=Operation[operation],
        permission=Permission[permission],
    )


def user(
    name: str, *acls: str, password: str | None = None, mechanisms: tuple[int, ...] = (1, 2)
) -> UserState:
    """With a password for these SCRAM mechanisms, or without one."""
    scram = (
        ()
        if password is None
        else tuple(credential(password, mechanism) for mechanism in mechanisms)
    )
    return UserState(name=name, scram=scram, acls=tuple(acl(text) for text in acls))


def quota(user: str | None, client_id: str | None, **rates: int) -> ClientQuota:
    """``produce``, ``fetch``: bytes a second, ``request``: percent."""
    return ClientQuota(
        user=user,
        client_id=client_id,
        producer_byte_rate=rates.get("produce", 0),
        consumer_byte_rate=rates.get("fetch", 0),
        request_percentage=rates.get("request", 0),
        controller_mutation_rate=rates.get("mutation", 0),
    )


def user_states(
    *users: UserState,
    authorize: bool = True,
    super_users: tuple[str, ...] = (),
    quotas: tuple[ClientQuota, ...] = (),
    controller_epoch: int = 1,
    strangers_key: bytes = b"of this cluster",
) -> UserStatesRequest:
    """Return all user states."""
    return UserStatesRequest(
        controller_epoch=controller_epoch,
        authorize=authorize,
        super_users=super_users,
        users=users,
        quotas=quotas,
        strangers_key=strangers_key,
    )
