"""Durations such as ``72h``, ``1h30m`` and ``500ms``.

Go's notation, which CEL's ``duration()`` reads as well. Units are h, m, s and ms, in this order,
each at most once, with whole numbers. There are no days: write ``168h``.
"""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from tidemark_operator.resources.schema import KubernetesSchema, Rule

#: The limits of digits keep every duration below CEL's limit of 290 years.
PATTERN = "^([0-9]{1,6}h)?([0-9]{1,7}m)?([0-9]{1,9}s)?([0-9]{1,12}ms)?$"
_MESSAGE = (
    "must be a duration such as 168h, 1h30m or 500ms (units h, m, s, ms; days are not supported)"
)
_UNIT_MS = (3_600_000, 60_000, 1_000, 1)


def cel_is_duration(text: str) -> str:
    """Return CEL: the text (an expression) is such a duration."""
    return f"({text} != '' && {text}.matches('{PATTERN}'))"


def duration_ms(text: str) -> int:
    """Return the milliseconds of a duration; raises ValueError."""
    match = re.fullmatch(PATTERN, text)
    # Every part of the pattern is optional, so it also matches an empty text.
    if match is None or not text:
        raise ValueError(f"{text!r} {_MESSAGE}")
    digits = (re.sub("[a-z]", "", part) if part else "0" for part in match.groups())
    return sum(int(count) * unit for count, unit in zip(digits, _UNIT_MS, strict=True))


def _check(text: str) -> str:
    duration_ms(text)
    return text


#: Text of a duration.
Duration = Annotated[
    str,
    AfterValidator(_check),
    Field(max_length=40),
    KubernetesSchema(Rule(rule=cel_is_duration("self"), message=_MESSAGE)),
]
