"""Access control lists (KIP-11) as a ``User`` declares them, in the terms of Kafka's tools.

Kafka's ``AclEntry.supportedOperations`` defines the operations of each type of resource. Other
operations are rejected when the manifest is applied: an ACL that can never match looks like
protection and is none.
"""

import enum
from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from tidemark_operator.resources.config_rules import cel_list
from tidemark_operator.resources.schema import KubernetesSchema, Rule, SpecModel

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


_CONFIGS = (OperationName.DESCRIBE_CONFIGS, OperationName.ALTER_CONFIGS)
#: In addition to All, which every type supports.
OPERATIONS: Mapping[ResourceTypeName, tuple[OperationName, ...]] = {
    ResourceTypeName.TOPIC: (
        OperationName.READ,
        OperationName.WRITE,
        OperationName.CREATE,
        OperationName.DELETE,
        OperationName.ALTER,
        OperationName.DESCRIBE,
        *_CONFIGS,
    ),
    ResourceTypeName.GROUP: (
        OperationName.READ,
        OperationName.DESCRIBE,
        OperationName.DELETE,
        *_CONFIGS,
    ),
    ResourceTypeName.CLUSTER: (
        OperationName.CREATE,
        OperationName.ALTER,
        OperationName.DESCRIBE,
        OperationName.CLUSTER_ACTION,
        OperationName.IDEMPOTENT_WRITE,
        *_CONFIGS,
    ),
    ResourceTypeName.TRANSACTIONAL_ID: (OperationName.DESCRIBE, OperationName.WRITE),
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
    name: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=249,
            description="Name of the topic, group or transactional id, or their prefix. "
            "'*' matches every name. Unset for type Cluster.",
        ),
    ] = None
    pattern_type: Annotated[
        PatternTypeName | None,
        Field(
            description="Literal matches exactly this name. Prefixed matches every name with "
            "this prefix. Default: Literal."
        ),
    ] = None


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
        KubernetesSchema(**{"x-kubernetes-list-type": "set"}),
    ]
    host: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=45,
            description="IP address that the user connects from. '*' matches every "
            "address. Default: '*'.",
        ),
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
    permission: Annotated[
        PermissionName | None,
        Field(description="Allow or Deny. A Deny overrides every Allow. Default: Allow."),
    ] = None
