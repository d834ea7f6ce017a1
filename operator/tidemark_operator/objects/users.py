"""Conversion of ``User`` objects to the core's values, in Kafka's numbers. Pure."""

from tidemark.wire.users import Acl
from tidemark_operator.controller.state.users import UserInfo
from tidemark_operator.kube.kinds import Json
from tidemark_operator.objects.quotas import user_quotas
from tidemark_operator.resources.scalars import ms_of_time
from tidemark_operator.resources.user import (
    AclRule,
    AuthenticationType,
    OperationName,
    PatternTypeName,
    PermissionName,
    ResourceTypeName,
    User,
)
from tidemark_operator.users.scram import Mechanism

#: Kafka's codes (``org.apache.kafka.common.resource``, ``org.apache.kafka.common.acl``).
_RESOURCE_TYPES = {
    ResourceTypeName.TOPIC: 2,
    ResourceTypeName.GROUP: 3,
    ResourceTypeName.CLUSTER: 4,
    ResourceTypeName.TRANSACTIONAL_ID: 5,
}
_PATTERN_TYPES = {PatternTypeName.LITERAL: 3, PatternTypeName.PREFIXED: 4}
_OPERATIONS = {
    OperationName.ALL: 2,
    OperationName.READ: 3,
    OperationName.WRITE: 4,
    OperationName.CREATE: 5,
    OperationName.DELETE: 6,
    OperationName.ALTER: 7,
    OperationName.DESCRIBE: 8,
    OperationName.CLUSTER_ACTION: 9,
    OperationName.DESCRIBE_CONFIGS: 10,
    OperationName.ALTER_CONFIGS: 11,
    OperationName.IDEMPOTENT_WRITE: 12,
}
_PERMISSIONS = {PermissionName.DENY: 2, PermissionName.ALLOW: 3}
#: The name of the one resource of type Cluster (Kafka's ``Resource.CLUSTER_NAME``).
CLUSTER_NAME = "kafka-cluster"

_MECHANISMS = {
    AuthenticationType.SCRAM_SHA_256: Mechanism.SCRAM_SHA_256,
    AuthenticationType.SCRAM_SHA_512: Mechanism.SCRAM_SHA_512,
}


def user_info(body: Json) -> UserInfo:
    """Convert a ``User`` object for the controller. Raises ``InvalidResource``."""
    user = User.parse(body)
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
        # Rules may overlap. Brokers receive each ACL once, in the order of the manifest.
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
            pattern_type=_PATTERN_TYPES[resource.pattern_type or PatternTypeName.LITERAL],
            host=rule.host or "*",
            operation=_OPERATIONS[operation],
            permission=_PERMISSIONS[rule.permission or PermissionName.ALLOW],
        )
        for operation in rule.operations
    ]
