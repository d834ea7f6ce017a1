"""Types of configuration values: accepted texts, and their parsed values.

Values are texts, as in Kafka. A type describes what it accepts as a sentence, and in a form that
Python and CEL can both evaluate (a range, or a regular expression in the common subset of both).
``parse`` is for texts that were accepted before: it ignores the range.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

_NUMBER = re.compile(r"-?[0-9]{1,19}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Number:
    """A whole number from ``minimum`` to ``maximum``, both allowed."""

    minimum: int
    maximum: int

    @property
    def name(self) -> str:
        """Kafka's name of the type."""
        return "long" if self.maximum > INT32_MAX else "int"

    @property
    def requirement(self) -> str:
        """Return the requirement on the value, for messages."""
        if self.maximum >= INT64_MAX:
            return f"must be a whole number, at least {self.minimum}"
        return f"must be a whole number from {self.minimum} to {self.maximum}"

    def accepts(self, text: str) -> bool:
        """Return whether the text is a value of this type."""
        return bool(_NUMBER.fullmatch(text)) and self.minimum <= int(text) <= self.maximum

    def parse(self, text: str) -> int:
        """Return the number. Raises ValueError."""
        return int(text)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A text that matches a regular expression (the common subset of RE2 and Python's)."""

    name: str
    regex: str
    requirement: str
    parse: Callable[[str], object] = str

    def accepts(self, text: str) -> bool:
        """Return whether the text is a value of this type."""
        # ASCII, because CEL's classes such as \d match ASCII only.
        return re.fullmatch(self.regex, text, re.ASCII) is not None


ValueType = Number | Pattern


def one_of(choices: Mapping[str, object]) -> Pattern:
    """Return the type of a choice between texts; ``choices`` has the value of each."""
    return Pattern(
        "string",
        f"({'|'.join(choices)})",
        f"must be one of {', '.join(choices)}",
        lambda text: _chosen(choices, text),
    )


def _chosen(choices: Mapping[str, object], text: str) -> object:
    if text not in choices:
        raise ValueError(f"{text!r} is not one of {', '.join(choices)}")
    return choices[text]


def long(minimum: int) -> Number:
    """Return Kafka's type ``long`` with a minimum."""
    return Number(minimum, INT64_MAX)


def integer(minimum: int, maximum: int = INT32_MAX) -> Number:
    """Return Kafka's type ``int`` with bounds."""
    return Number(minimum, maximum)


def _boolean(text: str) -> object:
    return _chosen({"true": True, "false": False}, text.lower())


def _parts(text: str) -> frozenset[str]:
    return frozenset(part.strip() for part in text.split(",") if part.strip())


BOOLEAN = Pattern("boolean", "(true|false)", "must be 'true' or 'false', in quotes", _boolean)
CLEANUP_POLICY = Pattern(
    "list",
    "(delete|compact)( *, *(delete|compact))?",
    "must be delete, compact, or both separated by a comma",
    _parts,
)
TEXT = Pattern("string", ".+", "must not be empty")
RATIO = Pattern(
    "double",
    r"(0|1|0?[.][0-9]{1,17}|1[.]0{1,17})",
    "must be a number from 0 to 1, in quotes",
    float,
)
