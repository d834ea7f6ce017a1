"""Quantities of bytes such as ``10Gi``, ``500M`` and ``1048576``.

They are the subset of Kubernetes' quantities that are a whole number of bytes. Fractions and
exponents are rejected, so that ``size`` in a manifest and Kafka's ``local.retention.bytes`` are the
same number.
"""

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

from tidemark.configuration.values import INT64_MAX
from tidemark_operator.resources.schema import VALIDATIONS, Rule

PATTERN = "^[0-9]{1,18}(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$"
_MESSAGE = "must be a whole number of bytes such as 10Gi, 500M or 1048576"
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
    return f"({text}.matches('{PATTERN}') && {fits})"


def quantity_bytes(text: str) -> int:
    """Return the number of bytes of a quantity; raises ValueError."""
    match = re.fullmatch(r"([0-9]{1,18})([A-Za-z]{0,2})", text)
    if match is None or match[2] not in _FACTORS:
        raise ValueError(f"{text!r} {_MESSAGE}")
    number = int(match[1]) * _FACTORS[match[2]]
    if number > INT64_MAX:
        raise ValueError(f"{text!r} exceeds {INT64_MAX} bytes")
    return number


def _check(text: str) -> str:
    quantity_bytes(text)
    return text


def text_of_number(value: object) -> object:
    """Return the text of a whole number without quotes; pydantic checks all other values."""
    # bool is a subclass of int, and `true` is not a number.
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


#: Text of a quantity; a manifest may also contain a bare number.
Quantity = Annotated[
    str,
    BeforeValidator(text_of_number),
    AfterValidator(_check),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            VALIDATIONS: [Rule(rule=cel_is_quantity("string(self)"), message=_MESSAGE).as_schema()],
        }
    ),
]
