"""References to other objects of the same namespace."""

from typing import Annotated

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


FixedClusterRef = Annotated[
    ClusterRef,
    Kube(
        Rule(
            rule=IMMUTABLE,
            message="clusterRef is immutable: make a new object for the other cluster",
        )
    ),
]
