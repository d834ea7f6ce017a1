"""References to other objects of the same namespace."""

from typing import Annotated

from pydantic import Field

from tidemark_operator.resources.schema import IMMUTABLE, Kube, ObjectName, Rule, SpecModel


class ClusterRef(SpecModel):
    """The Cluster, in the same namespace, that the object belongs to."""

    name: ObjectName


class TopicRef(SpecModel):
    """A Topic in the same namespace."""

    name: ObjectName


class SecretRef(SpecModel):
    """A Secret in the same namespace."""

    name: ObjectName


class UserRef(SpecModel):
    """A User in the same namespace."""

    name: ObjectName


class SecretKeyRef(SpecModel):
    """A key of a Secret in the same namespace."""

    name: ObjectName
    key: Annotated[
        str, Field(min_length=1, max_length=253, pattern="^[-._a-zA-Z0-9]+$")
    ]  # what the API server takes as a key of a Secret


FixedClusterRef = Annotated[
    ClusterRef,
    Kube(
        Rule(
            rule=IMMUTABLE,
            message="clusterRef is immutable: make a new object for the other cluster",
        )
    ),
]
