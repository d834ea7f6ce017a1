"""``User``: a user of a cluster, its credentials, and its permissions.

The user's name is the object's. Kafka's clients know it by its principal (``status.username``): the
name itself, or the subject ``CN=<name>`` of a certificate, as with Kafka's default principal
builder (``DefaultKafkaPrincipalBuilder``).
"""

import enum
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from tidemark_operator.resources.acls import ACLS_MAX, AclRule
from tidemark_operator.resources.conditions import READY, Conditions, pending
from tidemark_operator.resources.metadata import Resource
from tidemark_operator.resources.names import CATEGORY, PLURALS
from tidemark_operator.resources.quotas import UserQuotas
from tidemark_operator.resources.references import FixedClusterRef, SecretKeyRef
from tidemark_operator.resources.schema import (
    AGE,
    ATOMIC,
    ApiModel,
    ControllerEpoch,
    Generation,
    KubernetesSchema,
    PrinterColumn,
    ResourceKind,
    Rule,
    SpecModel,
    condition_column,
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

    type: Annotated[
        AuthenticationType | None,
        Field(
            description="scram-sha-512 and scram-sha-256: password. tls: certificate "
            "issued by the operator. tls-external and oauth: certificate or "
            "token of another issuer. Default: scram-sha-512."
        ),
    ] = None
    password: Annotated[
        Password | None,
        Field(
            description="Existing password. Default: the operator generates one with 32 characters."
        ),
    ] = None


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
    username: Annotated[
        str | None,
        Field(
            max_length=256,
            description="Principal of the user without the prefix User:, as used in superUsers.",
        ),
    ] = None
    secret: Annotated[
        str | None,
        Field(
            max_length=253,
            description="Secret with the client's credentials. Unset if there is none.",
        ),
    ] = None
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


def parse_user(obj: Mapping[str, Any]) -> User:
    """Read a User; raises InvalidResource."""
    return User.parse(obj)


USER = ResourceKind(
    kind="User",
    plural=PLURALS["User"],
    singular="user",
    short_names=("tmu",),
    category=CATEGORY,
    model=User,
    columns=(
        PrinterColumn(
            name="Cluster",
            type="string",
            json_path=".spec.clusterRef.name",
            description="Cluster of the user",
        ),
        PrinterColumn(
            name="Username",
            type="string",
            json_path=".status.username",
            description="The principal",
        ),
        PrinterColumn(
            name="Authentication",
            type="string",
            json_path=".spec.authentication.type",
            description="Authentication type, if set",
        ),
        condition_column("Ready"),
        PrinterColumn(
            name="Reason",
            type="string",
            json_path='.status.conditions[?(@.type=="Ready")].reason',
            description="Reason of the condition Ready",
        ),
        PrinterColumn(
            name="Secret",
            type="string",
            json_path=".status.secret",
            description="Secret with the client's credentials",
            priority=1,
        ),
        AGE,
    ),
)
