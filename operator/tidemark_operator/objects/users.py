"""Conversion of ``User`` objects to the core's values, in Kafka's numbers. Pure."""

from tidemark.wire.users import Acl
from tidemark_operator.controller.users import UserInfo
from tidemark_operator.kube.kinds import Json
from tidemark_operator.objects.quotas import user_quotas
from tidemark_operator.resources.acls import (
    AclRule,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from tidemark_operator.resources.times import ms_of_time
from tidemark_operator.resources.user import AuthenticationType, parse_user
from tidemark_operator.users.scram import Mechanism

#: Kafka's codes (``org.apache.kafka.common.resource``, ``org.apache.kafka.common.acl``).
_RESOURCE_TYPES = {
    ResourceType.TOPIC: 2,
    ResourceType.GROUP: 3,
    ResourceType.CLUSTER: 4,
    ResourceType.TRANSACTIONAL_ID: 5,
}
_PATTERN_TYPES = {PatternType.LITERAL: 3, PatternType.PREFIXED: 4}
_OPERATIONS = {
    Operation.ALL: 2,
    Operation.READ: 3,
    Operation.WRITE: 4,
    Operation.CREATE: 5,
    Operation.DELETE: 6,
    Operation.ALTER: 7,
    Operation.DESCRIBE: 8,
    Operation.CLUSTER_ACTION: 9,
    Operation.DESCRIBE_CONFIGS: 10,
    Operation.ALTER_CONFIGS: 11,
    Operation.IDEMPOTENT_WRITE: 12,
}
_PERMISSIONS = {Permission.DENY: 2, Permission.ALLOW: 3}
#: The name of the one resource of type Cluster (Kafka's ``Resource.CLUSTER_NAME``).
CLUSTER_NAME = "kafka-cluster"

_MECHANISMS = {
    AuthenticationType.SCRAM_SHA_256: Mechanism.SCRAM_SHA_256,
    AuthenticationType.SCRAM_SHA_512: Mechanism.SCRAM_SHA_512,
}


def user_info(body: Json) -> UserInfo:
    """Return a ``User``; raises ``InvalidResource``."""
    user = parse_user(body)
    spec, meta = user.spec, user.metadata
    type_, ref = spec.authentication_type, spec.password_ref
    rules = spec.authorization.acls if spec.authorization else ()
    created = meta.creation_timestamp
    # A certificate's principal is its distinguished name, as in Kafka's SSL principal.
    username = f"CN={meta.name}" if type_.is_certificate else meta.name
    return UserInfo(
        key=meta.key,
        uid=str(meta.uid),
        username=username,
        generation=meta.generation,
        created_ms=0 if created is None else ms_of_time(created),
        mechanism=int(_MECHANISMS.get(type_, 0)),
        password_ref=(ref.name, ref.key) if ref and type_.is_scram else None,
        certificate=type_ is AuthenticationType.TLS,
        # Rules may overlap; brokers receive each ACL once, in the order of the manifest.
        acls=tuple(dict.fromkeys(acl for rule in rules for acl in _acls(rule))),
        quotas=user_quotas(spec.quotas, username),
        status=body.get("status") or {},
    )


def _acls(rule: AclRule) -> list[Acl]:
    resource = rule.resource
    return [
        Acl(
            resource_type=_RESOURCE_TYPES[resource.type],
            resource_name=resource.name or CLUSTER_NAME,
            pattern_type=_PATTERN_TYPES[resource.pattern_type or PatternType.LITERAL],
            host=rule.host or "*",
            operation=_OPERATIONS[operation],
            permission=_PERMISSIONS[rule.permission or Permission.ALLOW],
        )
        for operation in rule.operations
    ]
