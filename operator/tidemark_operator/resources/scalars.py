"""Scalar values of manifests: times, durations and quantities of bytes.

Times are RFC 3339 in manifests and statuses, and milliseconds inside.

Durations such as ``72h``, ``1h30m`` and ``500ms`` are Go's notation, which CEL's ``duration()``
reads as well. Units are h, m, s and ms, in this order, each at most once, with whole numbers. There
are no days: write ``168h``.

Quantities such as ``10Gi``, ``500M`` and ``1048576`` are the subset of Kubernetes' quantities that
are a whole number of bytes. Fractions and exponents are rejected, so that ``size`` in a manifest
and Kafka's ``local.retention.bytes`` are the same number.
"""

import datetime
import re
from typing import Annotated

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BeforeValidator,
    Field,
    PlainSerializer,
    WithJsonSchema,
)

from tidemark.configuration.values import INT64_MAX
from tidemark_operator.resources.schema import VALIDATIONS, KubernetesSchema, Rule

# ------------------------------------------------------------ times

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)


def ms_of_time(time: datetime.datetime) -> int:
    """Return a time with a zone as milliseconds since the epoch, fractions dropped."""
    return (time - _EPOCH) // _MILLISECOND


def time_text(time: datetime.datetime) -> str:
    """Return ``2026-11-21T10:00:00Z``, with milliseconds only if there are any."""
    utc = time.astimezone(datetime.UTC)
    seconds = utc.strftime("%Y-%m-%dT%H:%M:%S")
    millis = utc.microsecond // 1000
    return f"{seconds}.{millis:03d}Z" if millis else f"{seconds}Z"


def _since_the_epoch(time: datetime.datetime) -> datetime.datetime:
    if time < _EPOCH:
        raise ValueError("timestamps before 1970 are not supported")
    return time


#: A time in a manifest or a status, with its zone.
Time = Annotated[AwareDatetime, PlainSerializer(time_text, when_used="json")]
#: Timestamp of a record. Kafka's negative timestamps have other meanings (-1: the log's end).
RecordTime = Annotated[
    Time,
    AfterValidator(_since_the_epoch),
    KubernetesSchema(
        Rule(
            rule="self >= timestamp('1970-01-01T00:00:00Z')",
            message="timestamps before 1970 are not supported",
        )
    ),
]


# ------------------------------------------------------------ durations

#: The limits of digits keep every duration below CEL's limit of 290 years.
DURATION_PATTERN = "^([0-9]{1,6}h)?([0-9]{1,7}m)?([0-9]{1,9}s)?([0-9]{1,12}ms)?$"
_DURATION_MESSAGE = (
    "must be a duration such as 168h, 1h30m or 500ms (units h, m, s, ms; days are not supported)"
)
_UNIT_MS = (3_600_000, 60_000, 1_000, 1)


def cel_is_duration(text: str) -> str:
    """Return CEL: the text (an expression) is such a duration."""
    return f"({text} != '' && {text}.matches('{DURATION_PATTERN}'))"


def duration_ms(text: str) -> int:
    """Return the milliseconds of a duration; raises ValueError."""
    match = re.fullmatch(DURATION_PATTERN, text)
    # Every part of the pattern is optional, so it also matches an empty text.
    if match is None or not text:
        raise ValueError(f"{text!r} {_DURATION_MESSAGE}")
    digits = (re.sub("[a-z]", "", part) if part else "0" for part in match.groups())
    return sum(int(count) * unit for count, unit in zip(digits, _UNIT_MS, strict=True))


def _checked_duration(text: str) -> str:
    duration_ms(text)
    return text


#: Text of a duration.
Duration = Annotated[
    str,
    AfterValidator(_checked_duration),
    Field(max_length=40),
    KubernetesSchema(Rule(rule=cel_is_duration("self"), message=_DURATION_MESSAGE)),
]


# ------------------------------------------------------------ quantities

QUANTITY_PATTERN = "^[0-9]{1,18}(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$"
_QUANTITY_MESSAGE = "must be a whole number of bytes such as 10Gi, 500M or 1048576"
_FACTORS = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
}


def cel_is_quantity(text: str) -> str:
    """Return CEL: the text (an expression) is such a quantity and fits 64 bits.

    ``isInteger()`` is no alternative: it is false for 100Ti, which the API server stores as a
    decimal. A larger quantity becomes the largest integer, which no other valid text represents.
    """
    fits = f"quantity({text}).compareTo(quantity('{INT64_MAX}')) < 0"
    return f"({text}.matches('{QUANTITY_PATTERN}') && {fits})"


def quantity_bytes(text: str) -> int:
    """Return the number of bytes of a quantity; raises ValueError."""
    match = re.fullmatch(r"([0-9]{1,18})([A-Za-z]{0,2})", text)
    if match is None or match[2] not in _FACTORS:
        raise ValueError(f"{text!r} {_QUANTITY_MESSAGE}")
    number = int(match[1]) * _FACTORS[match[2]]
    if number > INT64_MAX:
        raise ValueError(f"{text!r} exceeds {INT64_MAX} bytes")
    return number


def _checked_quantity(text: str) -> str:
    quantity_bytes(text)
    return text


def text_of_number(value: object) -> object:
    """Return the text of a whole number without quotes; pydantic checks all other values."""
    # bool is a subclass of int, and `true` is not a number.
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


#: Text of a quantity; a manifest may also contain a bare number.
def int_or_string(rule: Rule) -> WithJsonSchema:
    """Return the schema of a text that may be written as a number."""
    return WithJsonSchema({"x-kubernetes-int-or-string": True, VALIDATIONS: [rule.as_schema()]})


Quantity = Annotated[
    str,
    BeforeValidator(text_of_number),
    AfterValidator(_checked_quantity),
    int_or_string(Rule(rule=cel_is_quantity("string(self)"), message=_QUANTITY_MESSAGE)),
]
