"""Conditions of an object, by Kubernetes' API conventions, and the losses that a person accepted.

They are an atomic list: a map-list would double the cost of every status write, and the operator is
the only writer. ``pending`` is the default status of a new object in the schema (as in the Gateway
API), so that a tool that waits never sees an object without its main condition.
"""

import enum
from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from tidemark.reasons import Reason
from tidemark_operator.resources.scalars import Time
from tidemark_operator.resources.schema import ATOMIC, ApiModel, Count, KubernetesSchema

READY = "Ready"
SUCCEEDED = "Succeeded"


class ConditionStatus(enum.StrEnum):
    """Status of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(ApiModel):
    """Observation about the state of the object."""

    type: Annotated[str, Field(min_length=1, max_length=64, pattern="^[A-Z][A-Za-z]*$")]
    status: ConditionStatus
    observed_generation: Count | None = None
    last_transition_time: Time
    reason: Annotated[str, Field(min_length=1, max_length=128, pattern="^[A-Z][A-Za-z0-9]*$")]
    message: Annotated[str, Field(max_length=32768)] = ""


Conditions = Annotated[tuple[Condition, ...], Field(max_length=16), KubernetesSchema(**ATOMIC)]


def find_condition(conditions: Iterable[Condition], type_: str) -> Condition | None:
    """Return the condition of a type, None if it is missing."""
    return next((condition for condition in conditions if condition.type == type_), None)


def pending(type_: str) -> dict[str, object]:
    """Return the default status of a new object, before the operator has reconciled it.

    kstatus reports ``Ready=Unknown`` as in progress. A kind without ``Ready`` gets the observed
    generation 0, which no object has; otherwise kstatus would report it as current at once.
    """
    condition = {
        "type": type_,
        "status": "Unknown",
        "reason": Reason.PENDING.value,
        "message": "waiting for the operator",
        # A constant time: the schema's default cannot depend on the object.
        "lastTransitionTime": "1970-01-01T00:00:00Z",
    }
    unseen = {} if type_ == READY else {"observedGeneration": 0}
    return {**unseen, "conditions": [condition]}


#: Records in a status; the oldest are dropped first.
ACCEPTED_MAX = 16


class AcceptanceRecord(ApiModel):
    """One loss that a user accepted by annotation."""

    annotation: Annotated[str, Field(max_length=128)]
    """Name of the annotation."""
    value: Annotated[str, Field(max_length=1024)]
    """Value of the annotation."""
    effect: Annotated[str, Field(max_length=1024)]
    """Result of the acceptance."""
    time: Time


AcceptedLosses = Annotated[
    tuple[AcceptanceRecord, ...],
    Field(max_length=ACCEPTED_MAX, description="Latest losses that were accepted by annotation."),
    KubernetesSchema(**ATOMIC),
]
