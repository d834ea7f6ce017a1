"""Losses that a person has accepted by annotation, as statuses record them."""

from typing import Annotated

from pydantic import Field

from tidemark_operator.resources.schema import ApiModel
from tidemark_operator.resources.times import Time

#: Records in a status; the oldest are dropped first.
ACCEPTED_MAX = 16


class AcceptanceRecord(ApiModel):
    """One loss that a user accepted by annotation."""

    annotation: Annotated[str, Field(max_length=128, description="Name of the annotation.")]
    value: Annotated[str, Field(max_length=1024, description="Value of the annotation.")]
    effect: Annotated[str, Field(max_length=1024, description="Result of the acceptance.")]
    time: Time
