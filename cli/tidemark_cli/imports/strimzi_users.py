"""Strimzi's ``KafkaUser`` objects as ``User`` manifests.

A manifest names Secrets and contains none: a command copies the password that Strimzi generated, so
clients keep it. Rules that can never match in Kafka are left out, because admission refuses them.
"""

import ipaddress
import math
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from tidemark.configuration.values import INT64_MAX
from tidemark_cli.imports.documents import Document
from tidemark_cli.imports.strimzi import (
    CLUSTER_LABEL,
    MetadataRule,
    field_map,
    is_paused,
    supported_metadata,
    text_map,
)
from tidemark_cli.imports.topics import ImportedManifest, ImportTarget, NotImported
from tidemark_operator.resources.metadata import InvalidResource
from tidemark_operator.resources.names import OFFERED_ANNOTATION
from tidemark_operator.resources.user import (
    ACLS_MAX,
    COMMON_NAME_MAX,
    OPERATIONS,
    AuthenticationType,
    OperationName,
    PatternTypeName,
    PermissionName,
    ResourceTypeName,
    User,
)

_FIELDS = frozenset({"userName", "authentication", "authorization", "quotas"})
_RESOURCE_TYPES = {
    "topic": ResourceTypeName.TOPIC,
    "group": ResourceTypeName.GROUP,
    "cluster": ResourceTypeName.CLUSTER,
    "transactionalId": ResourceTypeName.TRANSACTIONAL_ID,
}
_AUTHENTICATION_TYPES = {
    "scram-sha-512": AuthenticationType.SCRAM_SHA_512,
    "tls": AuthenticationType.TLS,
    "tls-external": AuthenticationType.TLS_EXTERNAL,
}
_ANY = "*"
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")
#: Names in commands: nothing that a shell or a line end could end.
_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_SECRET_KEY = re.compile(r"[-._a-zA-Z0-9]+")
#: Suffixes of Secrets that belong to the operator.
_RESERVED = ("-ca", "-tls")
_PASSWORD = "password"


def user_manifest(
    document: Document, target: ImportTarget, metadata: MetadataRule
) -> ImportedManifest:
    """Return the User manifest of a KafkaUser, with remarks and with commands for its owner.

    ``metadata``: which labels and annotations are copied. Raises :class:`NotImported`.
    """
    meta, object_name = supported_metadata(document)
    spec = field_map(document.body, "spec")
    name = _user_name(spec, object_name)
    authentication, commands, remarks = _authentication(document, spec, name, target)
    acls, acl_remarks = _acls(spec)
    quotas, quota_remarks = _quotas(spec)

    # Keys in the conventional order of a manifest, as the YAML keeps it.
    user_spec: dict[str, Any] = {
        "clusterRef": {"name": target.cluster},
        "authentication": authentication,
    }
    if acls:
        user_spec["authorization"] = {"acls": acls}
    if quotas:
        user_spec["quotas"] = quotas
    labels = metadata.copied(text_map(document.body, "labels"))
    annotations = metadata.copied(text_map(document.body, "annotations"))
    manifest = target.manifest("User", name, labels, dict(sorted(annotations.items())), user_spec)
    try:
        User.parse(manifest)
    except InvalidResource as error:
        raise NotImported(str(error)) from error
    return ImportedManifest(
        document.source,
        manifest,
        (*remarks, *acl_remarks, *quota_remarks, *_other_remarks(document, meta, spec)),
        commands,
    )


def _user_name(spec: Mapping[str, Any], object_name: str) -> str:
    """Return the name of the User, which is also its name in Kafka.

    Raises :class:`NotImported` if no User can have that name.
    """
    name = spec.get("userName") or object_name
    if not isinstance(name, str) or not _OBJECT_NAME.fullmatch(name):
        raise NotImported(
            f"the user name {name!r} is not a valid object name, and a User's name in Kafka is the "
            "name of its object: give the clients another user"
        )
    if name.endswith(_RESERVED):
        raise NotImported(
            f"the name {name} ends with {' or '.join(_RESERVED)}, which is reserved for Secrets of "
            "the operator: give the clients another user"
        )
    return name


def _authentication(
    document: Document, spec: Mapping[str, Any], name: str, target: ImportTarget
) -> tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]:
    """Return ``spec.authentication``, commands and remarks."""
    given = spec.get("authentication")
    # Only ACLs and quotas of a name: its credentials are managed elsewhere.
    if given is None:
        remark = (
            "has no authentication in Strimzi: type oauth gives the name ACLs and quotas, and no "
            "password. Set another type if the user has a password"
        )
        return {"type": str(AuthenticationType.OAUTH)}, (), (remark,)
    if not isinstance(given, Mapping):
        raise NotImported("spec.authentication is not a map")
    type_ = _AUTHENTICATION_TYPES.get(str(given.get("type")))
    if type_ is None:
        known = ", ".join(_AUTHENTICATION_TYPES)
        raise NotImported(
            f"spec.authentication.type {given.get('type')!r} is not supported; use {known}"
        )
    if type_.is_certificate and len(name) > COMMON_NAME_MAX:
        raise NotImported(
            f"the name of a user with a certificate has at most {COMMON_NAME_MAX} characters"
        )
    # The password stays the same, by a reference to a copy of its Secret.
    if type_.is_scram:
        reference, commands = _password(document, given, name, target)
        remark = "its password stays in a Secret: copy it with these commands before you apply"
        return (
            {"type": str(type_), "password": {"valueFrom": {"secretKeyRef": reference}}},
            commands,
            (remark,),
        )
    if type_ is AuthenticationType.TLS_EXTERNAL:
        remark = "add the authority of its certificate to ca.crt of the listener's Secret"
        return {"type": str(type_)}, (), (remark,)
    # Strimzi's authority cannot be moved, so the certificate is a new one.
    strimzi_cluster = text_map(document.body, "labels").get(CLUSTER_LABEL) or "CLUSTER"
    remark = (
        "receives a new certificate, in the Secret of its name. To accept the present one until "
        f"the client has changed, add ca.crt of Strimzi's Secret {strimzi_cluster}-clients-ca-cert "
        "to ca.crt of the listener's Secret"
    )
    return {"type": str(type_)}, (), (remark,)


def _password(
    document: Document, given: Mapping[str, Any], name: str, target: ImportTarget
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the reference to a user's password, and the commands that copy the password there.

    The operator writes a Secret with the User's name, so the copy has another name.
    """
    secret, key = _strimzi_secret(document, given)
    meta = document.body["metadata"]
    copy = f"{name}-{_PASSWORD}"
    # Go's template decodes the value, so that it is never on the terminal or in an argument.
    template = shlex.quote(f'{{{{index .data "{key}" | base64decode}}}}')
    source = _namespace_option(meta.get("namespace"))
    namespace = _namespace_option(target.namespace)
    copying = (
        f"kubectl{source} get secret {secret} --output go-template={template} | "
        f"kubectl{namespace} create secret generic {copy} --from-file={_PASSWORD}=/dev/stdin"
    )
    offering = f"kubectl{namespace} annotate secret {copy} {OFFERED_ANNOTATION}=User"
    return {"name": copy, "key": _PASSWORD}, (copying, offering)


def _strimzi_secret(document: Document, given: Mapping[str, Any]) -> tuple[str, str]:
    """Return name and key of the Secret with a user's password: the user's own, or Strimzi's."""
    reference: Any = given.get("password")
    for field in ("valueFrom", "secretKeyRef"):
        reference = reference.get(field) if isinstance(reference, Mapping) else None
    status = document.body.get("status")
    made = status.get("secret") if isinstance(status, Mapping) else None
    if isinstance(reference, Mapping):
        secret, key = reference.get("name"), reference.get("key")
    else:
        secret, key = made or document.body["metadata"]["name"], _PASSWORD
    if not (isinstance(secret, str) and _OBJECT_NAME.fullmatch(secret)):
        raise NotImported(f"{secret!r} is not the name of a Secret")
    if not (isinstance(key, str) and _SECRET_KEY.fullmatch(key)):
        raise NotImported(f"{key!r} is not a key of a Secret")
    return secret, key


def _namespace_option(namespace: object) -> str:
    if not namespace:
        return ""
    if not (isinstance(namespace, str) and _OBJECT_NAME.fullmatch(namespace)):
        raise NotImported(f"{namespace!r} is not the name of a namespace")
    return f" --namespace {namespace}"


def _acls(spec: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the ACLs of a User, and remarks about rules that are left out.

    Operations of the same resource, host and permission become one ACL, as Strimzi's manifests
    often have a rule for each operation.
    """
    authorization = field_map(spec, "authorization", "spec.")
    if not authorization:
        return [], []
    if authorization.get("type") != "simple":
        raise NotImported(
            f"spec.authorization.type {authorization.get('type')!r} is not supported; use simple"
        )
    rules = authorization.get("acls")
    if not isinstance(rules, list) or not all(isinstance(rule, Mapping) for rule in rules):
        raise NotImported("spec.authorization.acls is not a list of rules")
    # Rules that Kafka would never apply are dropped, operations of equal rules joined.
    combined: dict[tuple[str, str, str, str, str], list[str]] = {}
    remarks = []
    for number, rule in enumerate(rules, 1):
        where = f"spec.authorization.acls, rule {number}"
        resource, operations = _resource(rule, where), _operations(rule, where)
        applicable = [
            operation
            for operation in operations
            if operation is OperationName.ALL or operation in OPERATIONS[resource[0]]
        ]
        useless = _never_matches(resource, _host(rule)) or (
            "" if applicable else f"no operation of it applies to a {resource[0]}"
        )
        if useless:
            remarks.append(f"{where} is left out, as it matches nothing in Kafka: {useless}")
            continue
        if len(applicable) < len(operations):
            ignored = [operation for operation in operations if operation not in applicable]
            remarks.append(
                f"{where}: {', '.join(ignored)} left out, as Kafka ignores it for a {resource[0]}"
            )
        key = (*resource, _host(rule), _permission(rule, where))
        listed = combined.setdefault(key, [])
        listed += [str(operation) for operation in applicable if str(operation) not in listed]
    if len(combined) > ACLS_MAX:
        raise NotImported(
            f"spec.authorization.acls has rules for {len(combined)} resources, and a User has at "
            f"most {ACLS_MAX} ACLs: use patternType prefix, or several users"
        )
    return [_acl(*key, operations) for key, operations in combined.items()], remarks


def _acl(
    type_: str, name: str, pattern: str, host: str, permission: str, operations: list[str]
) -> dict[str, Any]:
    """Return an ACL without the fields that have their default."""
    resource = {"type": str(type_)}
    if name:
        resource["name"] = name
    if pattern == PatternTypeName.PREFIXED:
        resource["patternType"] = str(pattern)
    acl: dict[str, Any] = {"resource": resource, "operations": operations}
    if host != _ANY:
        acl["host"] = host
    if permission == PermissionName.DENY:
        acl["permission"] = str(permission)
    return acl


def _resource(rule: Mapping[str, Any], where: str) -> tuple[ResourceTypeName, str, PatternTypeName]:
    """Return type, name ("" for the cluster) and pattern of a rule's resource."""
    resource = field_map(rule, "resource", f"{where}: ")
    type_ = _RESOURCE_TYPES.get(str(resource.get("type")))
    if type_ is None:
        raise NotImported(f"{where}: resource type {resource.get('type')!r} is not supported")
    if type_ is ResourceTypeName.CLUSTER:
        return type_, "", PatternTypeName.LITERAL
    name = resource.get("name")
    if not isinstance(name, str) or not name:
        raise NotImported(f"{where}: resource.name is missing")
    pattern = resource.get("patternType", "literal")
    if pattern not in ("literal", "prefix"):
        raise NotImported(f"{where}: patternType {pattern!r} is not literal or prefix")
    return type_, name, PatternTypeName.PREFIXED if pattern == "prefix" else PatternTypeName.LITERAL


def _operations(rule: Mapping[str, Any], where: str) -> list[OperationName]:
    """Return the operations of a rule; ``operation`` is the older form with only one."""
    given = rule.get("operations", [rule["operation"]] if "operation" in rule else None)
    if not isinstance(given, list) or not given:
        raise NotImported(f"{where}: operations are missing")
    try:
        return [OperationName(operation) for operation in given]
    except ValueError as error:
        raise NotImported(f"{where}: {error}") from error


def _host(rule: Mapping[str, Any]) -> str:
    return str(rule.get("host") or _ANY)


def _permission(rule: Mapping[str, Any], where: str) -> str:
    permission = rule.get("type", "allow")
    if permission not in ("allow", "deny"):
        raise NotImported(f"{where}: type {permission!r} is not allow or deny")
    return str(PermissionName.DENY if permission == "deny" else PermissionName.ALLOW)


def _never_matches(resource: tuple[ResourceTypeName, str, PatternTypeName], host: str) -> str:
    """Return why no request can match a rule; "" if one can.

    Kafka compares names and addresses as text and accepts such rules without an error.
    """
    type_, name, pattern = resource
    if pattern is PatternTypeName.PREFIXED and name == _ANY:
        return "with patternType prefix, * is a plain character; use literal to match every name"
    if type_ is ResourceTypeName.TOPIC and name != _ANY and not _TOPIC_NAME.fullmatch(name):
        return f"no topic has the name {name!r}"
    if host != _ANY:
        try:
            canonical = str(ipaddress.ip_address(host))
        except ValueError:
            return f"host {host!r} is not an IP address"
        if canonical != host:
            return f"Kafka compares with the canonical form of host {host}, {canonical}"
    return ""


def _quotas(spec: Mapping[str, Any]) -> tuple[dict[str, int], list[str]]:
    """Return the quotas of a User, and remarks about values that differ from Strimzi's."""
    quotas, remarks = {}, []
    for name, value in field_map(spec, "quotas", "spec.").items():
        if name not in (
            *("producerByteRate", "consumerByteRate"),
            *("requestPercentage", "controllerMutationRate"),
        ):
            remarks.append(f"spec.quotas.{name} is not a known quota; left out")
            continue
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number and 0 <= value <= INT64_MAX):
            raise NotImported(f"spec.quotas.{name} {value!r} is not a number of at least 0")
        # Rounded up, as 0 would be no quota at all.
        quotas[name] = max(1, math.ceil(value))
        if quotas[name] != value:
            remarks.append(f"spec.quotas.{name} {value} became {quotas[name]}: quotas are integers")
        if name == "requestPercentage":
            remarks.append(
                f"spec.quotas.requestPercentage {value}: a Tidemark broker has one request thread "
                "(100), Apache Kafka has several. Check the value"
            )
    return quotas, remarks


def _other_remarks(
    document: Document, meta: Mapping[str, Any], spec: Mapping[str, Any]
) -> Iterator[str]:
    """Yield remarks about fields that a User does not have."""
    for name in sorted(set(spec) - _FIELDS):
        what = "has no counterpart" if name == "template" else "is not a known field of a KafkaUser"
        yield f"spec.{name} {what}; left out"
    if is_paused(document):
        yield "is paused in Strimzi; the User is not"
    if meta.get("deletionTimestamp"):
        yield "is being deleted in Strimzi"
