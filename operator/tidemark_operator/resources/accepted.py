"""What a person has accepted by annotation, as statuses keep it."""

from typing import Annotated

from pydantic import Field

from tidemark_operator.resources.schema import ApiModel
from tidemark_operator.resources.times import Time

#: Records that a status keeps; the oldest go first.
ACCEPTED_MAX = 16


class Accepted(ApiModel):
    """One acceptance that was acted upon."""

    annotation: Annotated[str, Field(max_length=128, description="The annotation's name.")]
    value: Annotated[str, Field(max_length=1024, description="What it named.")]
    effect: Annotated[str, Field(max_length=1024, description="What followed from it.")]
    time: Time
