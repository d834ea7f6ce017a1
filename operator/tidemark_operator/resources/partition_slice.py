"""``PartitionSlice``: a shard of the partitions' state, for the controller only.

Rows are compact texts, because the API server walks every node of a structured list on each write.
The rule on ``controllerEpoch`` makes the API server itself fence an older controller.
"""

from typing import Annotated, ClassVar

from pydantic import Field

from tidemark.configuration.values import INT32_MAX
from tidemark_operator.resources.metadata import Resource
from tidemark_operator.resources.names import INTERNAL_CATEGORY
from tidemark_operator.resources.schema import (
    AGE,
    ATOMIC,
    KubernetesSchema,
    PrinterColumn,
    ResourceKind,
    Rule,
)

Row = Annotated[str, Field(min_length=1, max_length=2048)]


class PartitionSlice(Resource):
    """Replicas, leaders, epochs and ISR of a set of partitions. Internal. Do not edit."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="self.controllerEpoch >= oldSelf.controllerEpoch",
            message=(
                "STALE_CONTROLLER_EPOCH: a newer controller has claimed this "
                "slice. Stop writing and rejoin the leader election."
            ),
            field_path=".controllerEpoch",
            reason="FieldValueForbidden",
        ),
        Rule(
            rule=(
                # A delayed write of the same controller must not undo a later one.
                "self.controllerEpoch > oldSelf.controllerEpoch || self.commit >= oldSelf.commit"
            ),
            message="commit never goes back within a controller epoch",
            field_path=".commit",
        ),
    )

    controller_epoch: Annotated[int, Field(ge=0, le=INT32_MAX), KubernetesSchema(format="int32")]
    """Epoch of the controller that wrote the slice last."""
    commit: Annotated[int, Field(ge=0), KubernetesSchema(format="int64")]
    """Number of the latest commit."""
    partitions: Annotated[tuple[Row, ...], Field(max_length=65536), KubernetesSchema(**ATOMIC)] = ()
    """One row per partition."""
    directories: Annotated[tuple[Row, ...], Field(max_length=4096), KubernetesSchema(**ATOMIC)] = ()
    """Log directory id of each broker that a row names."""
    tombstones: Annotated[tuple[Row, ...], Field(max_length=65536), KubernetesSchema(**ATOMIC)] = ()
    """Deleted topics and replicas that are still to be removed."""
    placed: Annotated[tuple[Row, ...], Field(max_length=4096), KubernetesSchema(**ATOMIC)] = ()
    """Placements in other slices that no Topic status includes yet."""


PARTITION_SLICE = ResourceKind(
    PartitionSlice,
    columns=(
        PrinterColumn(
            "Controller epoch",
            "integer",
            ".controllerEpoch",
            "Epoch of the controller that wrote the slice last",
        ),
        PrinterColumn("Commit", "integer", ".commit", "Number of the latest commit"),
        AGE,
    ),
    category=INTERNAL_CATEGORY,
    has_status=False,
)
