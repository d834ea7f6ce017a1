"""Regular expressions of subscriptions: which topics one stands for, in a time that is bounded.

Kafka uses RE2J, which like RE2 never goes back: its time goes with the length of a name. Python's
``re`` takes for ever for ``(a+)+$``, so an expression of a client never gets there. The engine here
is Rust's ``regex`` in pydantic, which is of RE2's kind and its syntax; no look-around, no
back-references. What an expression would become is bounded before it is built, since building holds
up the loop.
"""

from collections.abc import Callable
from typing import Annotated

LENGTH_MAX = 1000
#: Characters and classes, each as often as it may be repeated.
ATOMS_MAX = 1000
#: Topics' names are ASCII, and so are these in RE2J.
_CLASSES = {
    "w": "[0-9A-Za-z_]",
    "W": "[^0-9A-Za-z_]",
    "d": "[0-9]",
    "D": "[^0-9]",
    "s": r"[\t\n\f\r ]",
    "S": r"[^\t\n\f\r ]",
}


class BadPattern(ValueError):
    """The message says what is wrong with it."""


def compiled(pattern: str) -> Callable[[str], bool]:
    """Does a name match it as a whole? Raises :class:`BadPattern`."""
    if len(pattern) > LENGTH_MAX:
        raise BadPattern(f"an expression of {len(pattern)} characters, {LENGTH_MAX} at most")
    if _atoms(pattern) > ATOMS_MAX:
        raise BadPattern(f"its repetitions come to more than {ATOMS_MAX} characters")
    translated = _translated(pattern)
    _matcher(translated)  # by itself: "a)(b" is none, though it is one in parentheses
    return _matcher(rf"\A(?:{translated})\z")


def _matcher(pattern: str) -> Callable[[str], bool]:
    # Only who uses expressions pays for it.
    from pydantic import ConfigDict, StringConstraints, TypeAdapter
    from pydantic_core import SchemaError

    try:
        adapter = TypeAdapter(
            Annotated[str, StringConstraints(pattern=pattern)],
            config=ConfigDict(regex_engine="rust-regex"),
        )
    except SchemaError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise BadPattern(lines[-1].strip()) from error
    validator = adapter.validator
    return lambda name: bool(validator.isinstance_python(name))


def _translated(pattern: str) -> str:
    """Classes as RE2J has them; ``\\Q...\\E`` stands for itself."""
    made: list[str] = []
    place = 0
    while place < len(pattern):
        char, following = pattern[place], pattern[place + 1 : place + 2]
        if char != "\\":
            made.append(char)
            place += 1
        elif following == "Q":
            end = pattern.find("\\E", place + 2)
            end = len(pattern) if end < 0 else end
            made += [f"\\x{{{ord(each):x}}}" for each in pattern[place + 2 : end]]
            place = end + 2
        elif following in ("p", "P"):
            raise BadPattern(f"\\{following}: topics' names are ASCII, use [A-Za-z] and the like")
        else:
            made.append(_CLASSES.get(following, char + following))
            place += 2
    return "".join(made)


def _atoms(pattern: str) -> int:
    """About how many states it becomes: each character as often as counts around it say. What is
    not an expression at all is found out elsewhere."""
    sums, last = [0], 0
    place = 0
    while place < len(pattern):
        char = pattern[place]
        if char == "(":
            sums.append(0)
            last = 0
        elif char == ")" and len(sums) > 1:
            last = sums.pop()
            sums[-1] += last
        elif char == "{":
            end = pattern.find("}", place)
            counts = [each.strip() for each in pattern[place + 1 : end].split(",")]
            times = max((int(each) for each in counts if each.isdecimal()), default=1)
            sums[-1] += last * max(times - 1, 0)
            last *= max(times, 1)
            place = max(end, place)
        elif char not in "*+?|":
            last = 1
            sums[-1] += 1
        place += 2 if char == "\\" else 1
    return sum(sums)
