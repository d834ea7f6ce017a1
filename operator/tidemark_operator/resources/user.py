"""``User``: a user of a cluster, its credentials, and its permissions.

The user's name is the object's. Kafka's clients know it by its principal (``status.username``): the
name itself, or the subject ``CN=<name>`` of a certificate, as with Kafka's default principal
builder (``DefaultKafkaPrincipalBuilder``).

Permissions are access control lists (KIP-11) in the terms of Kafka's tools. Kafka's
``AclEntry.supportedOperations`` defines the operations of each type of resource. Other operations
are rejected when the manifest is applied: an ACL that can never match looks like protection and is
none.
"""

import enum
from typing import Annotated, ClassVar

from pydantic import Field

from tidemark.wire.users import OPERATIONS_OF
from tidemark_operator.resources.conditions import READY, Conditions, pending
from tidemark_operator.resources.config_rules import cel_list
from tidemark_operator.resources.metadata import Resource
from tidemark_operator.resources.quotas import UserQuotas
from tidemark_operator.resources.references import FixedClusterRef, SecretKeyRef
from tidemark_operator.resources.schema import (
    AGE,
    ATOMIC,
    SET,
    ApiModel,
    ControllerEpoch,
    Generation,
    KubernetesSchema,
    PrinterColumn,
    ResourceKind,
    Rule,
    SpecModel,
    condition_column,
    reason_column,
)

#: X.509's limit for a common name (RFC 5280, ub-common-name).
COMMON_NAME_MAX = 64


class AuthenticationType(enum.StrEnum):
    """Authentication method of a user."""

    SCRAM_SHA_512 = "scram-sha-512"
    SCRAM_SHA_256 = "scram-sha-256"
    TLS = "tls"
    TLS_EXTERNAL = "tls-external"
    OAUTH = "oauth"

    @property
    def is_scram(self) -> bool:
        """Whether the user has a password (RFC 5802)."""
        return self in (AuthenticationType.SCRAM_SHA_512, AuthenticationType.SCRAM_SHA_256)

    @property
    def is_certificate(self) -> bool:
        """Whether the user has a certificate, of any issuer."""
        return self in (AuthenticationType.TLS, AuthenticationType.TLS_EXTERNAL)


class PasswordSource(SpecModel):
    """Location of the password."""

    secret_key_ref: SecretKeyRef


class Password(SpecModel):
    """Password from an existing Secret."""

    value_from: PasswordSource


class Authentication(SpecModel):
    """Credentials of the user."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="!has(self.password) || !has(self.type) || self.type.startsWith('scram-')",
            message="password requires type scram-sha-512 or scram-sha-256",
            field_path=".password",
        ),
    )

    type: AuthenticationType | None = None
    """scram-sha-512 and scram-sha-256: password. tls: certificate issued by the operator.
    tls-external and oauth: certificate or token of another issuer. Default: scram-sha-512."""
    password: Password | None = None
    """Existing password. Default: the operator generates one with 32 characters."""


# ------------------------------------------------------------ access control lists

#: Per User; each ACL names at least one operation.
ACLS_MAX = 100


class ResourceTypeName(enum.StrEnum):
    """Type of a Kafka resource (Kafka's ResourceType)."""

    TOPIC = "Topic"
    GROUP = "Group"
    CLUSTER = "Cluster"
    TRANSACTIONAL_ID = "TransactionalId"


class PatternTypeName(enum.StrEnum):
    """Match of an ACL with a resource name (Kafka's PatternType, KIP-290)."""

    LITERAL = "Literal"
    PREFIXED = "Prefixed"


class OperationName(enum.StrEnum):
    """Operation that an ACL allows or denies (Kafka's AclOperation)."""

    ALL = "All"
    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    DELETE = "Delete"
    ALTER = "Alter"
    DESCRIBE = "Describe"
    CLUSTER_ACTION = "ClusterAction"
    DESCRIBE_CONFIGS = "DescribeConfigs"
    ALTER_CONFIGS = "AlterConfigs"
    IDEMPOTENT_WRITE = "IdempotentWrite"


class PermissionName(enum.StrEnum):
    """Permission type of an ACL (Kafka's AclPermissionType)."""

    ALLOW = "Allow"
    DENY = "Deny"


#: In addition to All, which every type supports.
OPERATIONS = {
    ResourceTypeName[type_.name]: tuple(OperationName[operation.name] for operation in operations)
    for type_, operations in OPERATIONS_OF.items()
}


class AclResource(SpecModel):
    """Resource or set of resources that an ACL applies to."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="(self.type == 'Cluster') != has(self.name)",
            message="name is required for Topic, Group and TransactionalId and must be "
            "unset for Cluster",
            field_path=".name",
        ),
        Rule(
            rule=(
                # Kafka has a literal '*' as its only wildcard; with Prefixed it would be a plain
                # character.
                "!has(self.patternType) || self.patternType == 'Literal' || "
                "(self.type != 'Cluster' && (!has(self.name) || self.name != '*'))"
            ),
            message="name '*' requires patternType Literal, and type Cluster does not "
            "take a patternType of Prefixed. Set patternType to Literal.",
            field_path=".patternType",
        ),
        Rule(
            rule=(
                "self.type != 'Topic' || !has(self.name) || self.name == '*' || "
                "self.name.matches('^[a-zA-Z0-9._-]+$')"
            ),
            message="a topic name contains only letters, digits, '.', '_' and '-', and "
            "'*' inside a name matches nothing. To match several topics, set "
            "their common prefix with patternType Prefixed.",
            field_path=".name",
        ),
    )

    type: ResourceTypeName
    name: Annotated[str | None, Field(min_length=1, max_length=249)] = None
    """Name of the topic, group or transactional id, or their prefix. '*' matches every name. Unset
    for type Cluster."""
    pattern_type: PatternTypeName | None = None
    """Literal matches exactly this name. Prefixed matches every name with this prefix. Default:
    Literal."""


class AclRule(SpecModel):
    """Operations on a resource that the user is allowed or denied."""

    rules: ClassVar[tuple[Rule, ...]] = tuple(
        Rule(
            rule=(
                # Kafka accepts such an ACL without an error, and never applies it.
                f"self.resource.type != '{type_}' || "
                f"self.operations.all(o, o == 'All' || o in {cel_list(operations)})"
            ),
            message=f"operations of a {type_} are All, {', '.join(operations)}",
            field_path=".operations",
        )
        for type_, operations in OPERATIONS.items()
    )

    resource: AclResource
    operations: Annotated[
        tuple[OperationName, ...],
        Field(min_length=1, max_length=len(OperationName)),
        KubernetesSchema(**SET),
    ]
    host: Annotated[
        str | None,
        Field(min_length=1, max_length=45),
        KubernetesSchema(
            Rule(
                # Compared as text with the client's address, so only the canonical form can match.
                rule="self == '*' || (isIP(self) && ip.isCanonical(self))",
                message="host is '*' or one IP address in canonical form, such as "
                "10.0.0.7 or fd00::7. Host names and networks are not "
                "supported.",
            )
        ),
    ] = None
    """IP address that the user connects from. '*' matches every address. Default: '*'."""
    permission: PermissionName | None = None
    """Allow or Deny. A Deny overrides every Allow. Default: Allow."""


class Authorization(SpecModel):
    """Permissions of the user. They apply only if the Cluster has spec.authorization."""

    acls: Annotated[tuple[AclRule, ...], Field(max_length=ACLS_MAX), KubernetesSchema(**ATOMIC)]


class UserSpec(SpecModel):
    """Desired state of the user."""

    cluster_ref: FixedClusterRef
    authentication: Authentication | None = None
    authorization: Authorization | None = None
    quotas: UserQuotas | None = None

    @property
    def authentication_type(self) -> AuthenticationType:
        """Authentication type, with the default for an unset one."""
        given = self.authentication.type if self.authentication else None
        return given or AuthenticationType.SCRAM_SHA_512

    @property
    def password_ref(self) -> SecretKeyRef | None:
        """Secret key with an existing password; None: the operator generates the password."""
        password = self.authentication.password if self.authentication else None
        return password.value_from.secret_key_ref if password else None


class UserStatus(ApiModel):
    """Observed state of the user."""

    observed_generation: Generation | None = None
    controller_epoch: ControllerEpoch | None = None
    username: Annotated[str | None, Field(max_length=256)] = None
    """Principal of the user without the prefix User:, as used in superUsers."""
    secret: Annotated[str | None, Field(max_length=253)] = None
    """Secret with the client's credentials. Unset if there is none."""
    conditions: Conditions = ()


class User(Resource):
    """User of a Tidemark cluster."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            # Secrets of brokers and authorities have these names, and must never be replaced.
            rule="!self.metadata.name.endsWith('-ca') && !self.metadata.name.endsWith('-tls')",
            message="names that end with -ca or -tls are reserved for Secrets of the "
            "operator, and a User's Secret has the User's name. Use another "
            "name.",
        ),
        Rule(
            rule=(
                f"self.metadata.name.size() <= {COMMON_NAME_MAX} || "
                "!has(self.spec.authentication) || !has(self.spec.authentication.type) || "
                "!self.spec.authentication.type.startsWith('tls')"
            ),
            message="the name of a user with a certificate has at most "
            f"{COMMON_NAME_MAX} characters",
        ),
    )

    spec: UserSpec
    status: Annotated[UserStatus, KubernetesSchema(default=pending(READY))] = Field(
        default_factory=UserStatus
    )


USER = ResourceKind(
    User,
    short_names=("tmu",),
    columns=(
        PrinterColumn("Cluster", "string", ".spec.clusterRef.name", "Cluster of the user"),
        PrinterColumn("Username", "string", ".status.username", "The principal"),
        PrinterColumn(
            "Authentication", "string", ".spec.authentication.type", "Authentication type, if set"
        ),
        condition_column("Ready"),
        reason_column("Ready"),
        PrinterColumn(
            "Secret", "string", ".status.secret", "Secret with the client's credentials", priority=1
        ),
        AGE,
    ),
)
