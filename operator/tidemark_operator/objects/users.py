"""Conversion of ``User`` objects to the core's values, in Kafka's numbers. Pure."""

from tidemark.wire.users import (
    CLUSTER_NAME,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from tidemark_operator.controller.state.users import UserInfo
from tidemark_operator.kube.kinds import Json
from tidemark_operator.objects.quotas import user_quotas
from tidemark_operator.resources.scalars import ms_of_time
from tidemark_operator.resources.user import (
    AclRule,
    AuthenticationType,
    PatternTypeName,
    PermissionName,
    User,
)
from tidemark_operator.users.scram import Mechanism


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
        mechanism=int(Mechanism[type_.name]) if type_.is_scram else 0,
        password_ref=(ref.name, ref.key) if ref and type_.is_scram else None,
        certificate=type_ is AuthenticationType.TLS,
        # Rules may overlap. Brokers receive each ACL once, in the order of the manifest.
        acls=tuple(dict.fromkeys(acl for rule in rules for acl in _acls(rule))),
        quotas=user_quotas(spec.quotas, username),
        status=body.get("status") or {},
    )


def _acls(rule: AclRule) -> list[Acl]:
    resource = rule.resource
    pattern_type = resource.pattern_type or PatternTypeName.LITERAL
    permission = rule.permission or PermissionName.ALLOW
    return [
        Acl(
            resource_type=int(ResourceType[resource.type.name]),
            resource_name=resource.name or CLUSTER_NAME,
            pattern_type=int(PatternType[pattern_type.name]),
            host=rule.host or "*",
            operation=int(Operation[operation.name]),
            permission=int(Permission[permission.name]),
        )
        for operation in rule.operations
    ]
