"""References to other objects of the same namespace."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, Field

from tidemark_operator.resources.schema import (
    IMMUTABLE,
    KubernetesSchema,
    ObjectName,
    Rule,
    SpecModel,
)


class ClusterRef(SpecModel):
    """Cluster in the same namespace that the object belongs to."""

    name: ObjectName


class TopicRef(SpecModel):
    """Topic in the same namespace."""

    name: ObjectName


class SecretRef(SpecModel):
    """Secret in the same namespace."""

    name: ObjectName


class UserRef(SpecModel):
    """User in the same namespace."""

    name: ObjectName


class SecretKeyRef(SpecModel):
    """Key of a Secret in the same namespace."""

    name: ObjectName
    key: Annotated[
        str, Field(min_length=1, max_length=253, pattern="^[-._a-zA-Z0-9]+$")
    ]  # what the API server takes as a key of a Secret


def secret_names(part: object) -> frozenset[str]:
    """Return the names of all Secrets that a part of a manifest refers to, at any depth.

    Access is checked for these names. Every field that names a Secret must therefore be a
    :class:`SecretRef` or a :class:`SecretKeyRef` (a test compares them with the schemas).
    """
    if isinstance(part, SecretRef | SecretKeyRef):
        return frozenset({part.name})
    if isinstance(part, BaseModel):
        inner: list[object] = [getattr(part, field) for field in type(part).model_fields]
    elif isinstance(part, Mapping):
        inner = list(part.values())
    elif isinstance(part, tuple | list):
        inner = list(part)
    else:
        return frozenset()
    return frozenset().union(*map(secret_names, inner))


FixedClusterRef = Annotated[
    ClusterRef,
    KubernetesSchema(
        Rule(
            rule=IMMUTABLE,
            message="clusterRef is immutable. Create another object for the other cluster.",
        )
    ),
]
