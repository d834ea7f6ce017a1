"""Regular expressions of subscriptions, matched in bounded time.

Kafka uses RE2J, which never backtracks: its time is linear in the length of a name. Python's ``re``
is exponential for ``(a+)+$``, so clients' expressions are never passed to it. This module uses
Rust's ``regex`` in pydantic, which has RE2's algorithm and syntax, without look-around and
back-references. The size of the automaton is bounded before it is built, because building blocks
the loop.
"""

import re
from collections.abc import Callable
from typing import Annotated

LENGTH_MAX = 1000
#: Limit of characters and classes, each counted with its repetitions.
ATOMS_MAX = 1000
#: Topic names are ASCII, and so are these classes in RE2J.
_CLASSES = {
    "w": "[0-9A-Za-z_]",
    "W": "[^0-9A-Za-z_]",
    "d": "[0-9]",
    "D": "[^0-9]",
    "s": r"[\t\n\f\r ]",
    "S": r"[^\t\n\f\r ]",
}
_REPEAT = re.compile(r"(?:[*+?]|\{([0-9]+)(?:,([0-9]*))?\})\??")
_GROUP = re.compile(r"\((?!\?)|\(\?P?<[0-9A-Za-z_]+>|\(\?[imsU]*(?:-[imsU]+)?[:)]")
_POSIX = re.compile(r"\[:\^?[a-z]+:\]")
#: A class, a control character, a hexadecimal number, or an escaped punctuation character.
_ESCAPE = re.compile(
    r"\\(?:[dDsSwW]|[afnrtv]|x[0-9A-Fa-f]{2}|x\{[0-9A-Fa-f]{1,6}\}|[!-/:-@\[-`{-~])"
)
_ANCHORS = ("A", "b", "B", "z")


class BadPattern(ValueError):
    """An invalid expression. The message names the problem."""


def compiled(pattern: str) -> Callable[[str], bool]:
    """Return a predicate that matches whole names. Raises :class:`BadPattern`."""
    if len(pattern) > LENGTH_MAX:
        raise BadPattern(f"the expression has {len(pattern)} characters, the limit is {LENGTH_MAX}")
    translated = _PatternReader(pattern).read()
    _matcher(translated)  # validated alone: "a)(b" is invalid, but not within parentheses
    return _matcher(rf"\A(?:{translated})\z")


def _matcher(pattern: str) -> Callable[[str], bool]:
    """Return a predicate for an expression in Rust's syntax, whose matching time is linear.

    It uses the Rust engine in pydantic. Raises :class:`BadPattern`.
    """
    # Imported here, because only groups with expressions need pydantic.
    from pydantic import ConfigDict, StringConstraints, TypeAdapter
    from pydantic_core import SchemaError

    try:
        adapter = TypeAdapter(
            Annotated[str, StringConstraints(pattern=pattern)],
            config=ConfigDict(regex_engine="rust-regex"),
        )
    except SchemaError as error:
        # The last line of the error names the cause.
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise BadPattern(lines[-1].strip()) from error
    validator = adapter.validator
    return lambda name: bool(validator.isinstance_python(name))


class _PatternReader:
    """Translation from RE2J's to Rust's syntax.

    Characters with another meaning in Rust are escaped, and syntax that RE2J lacks is rejected. The
    number of states is estimated on the way.
    """

    def __init__(self, pattern: str) -> None:
        self._left = pattern
        self._made: list[str] = []
        #: Sizes of the open groups, and of the last element.
        self._sums, self._last = [0], 0
        self._repeats = False

    def read(self) -> str:
        """Return the translated expression. Raises :class:`BadPattern`."""
        while self._left:
            self._step()
        if sum(self._sums) > ATOMS_MAX:
            raise BadPattern(f"the expression expands to more than {ATOMS_MAX} characters")
        return "".join(self._made)

    def _step(self) -> None:
        """Translate the next element: a repetition, group, class, escape, anchor or character."""
        char = self._left[0]
        repeat = _REPEAT.match(self._left)
        if repeat is not None:
            self._repeat(repeat)
            return
        # What follows is something that a next repetition may apply to.
        self._repeats = False
        if char == "(":
            self._open()
        elif char == ")":
            self._take(1)
            # An unmatched parenthesis is left to the final validation.
            if len(self._sums) > 1:
                self._last = self._sums.pop()
                self._sums[-1] += self._last
        elif char == "[":
            self._class()
        elif char == "\\":
            self._escape()
        elif char in "|^$":
            self._take(1)
        elif char in ".":
            self._take(1)
            self._count(1)
        else:
            self._left = self._left[1:]
            self._literal(char)

    def _take(self, count: int) -> str:
        """Copy characters unchanged into the translation."""
        taken, self._left = self._left[:count], self._left[count:]
        self._made.append(taken)
        return taken

    def _literal(self, char: str) -> None:
        self._made.append(_hex(char))
        self._count(1)

    def _count(self, atoms: int) -> None:
        self._last = atoms
        self._sums[-1] += atoms

    def _repeat(self, found: "re.Match[str]") -> None:
        """Translate a repetition such as ``*`` or ``{2,5}``, and estimate the states it adds."""
        if self._repeats:
            raise BadPattern(f"repetition of a repetition: {found.group()}")
        self._repeats = True
        self._take(found.end())
        # x{1000}{1000} is rejected above. The product of nested groups is bounded by the sums.
        counts = [int(count) for count in found.group(1, 2) if count]
        times = max(counts, default=1)
        if times > ATOMS_MAX:
            raise BadPattern(f"more than {ATOMS_MAX} repetitions")
        self._sums[-1] += self._last * max(times - 1, 0)
        self._last *= max(times, 1)

    def _open(self) -> None:
        opened = _GROUP.match(self._left)
        if opened is None:
            raise BadPattern("(? does not start a supported kind of group")
        self._take(opened.end())
        if not opened.group().endswith(")"):  # else flags, for all that follows
            self._sums.append(0)
            self._last = 0

    def _escape(self) -> None:
        following = self._left[1:2]
        if following == "Q":
            quoted, _, self._left = self._left[2:].partition("\\E")
            for char in quoted:
                self._literal(char)
        elif following in _ANCHORS:
            self._take(2)
        else:
            self._made.append(self._escaped())
            self._count(1)

    def _escaped(self) -> str:
        """Translate one escape of a character or class."""
        found = _ESCAPE.match(self._left)
        if found is None:
            escape = self._left[:2]
            raise BadPattern(f"{escape} is not supported: topic names are ASCII, use [A-Za-z]")
        self._left = self._left[found.end() :]
        escape = found.group()
        if escape[1] in _CLASSES:
            return _CLASSES[escape[1]]
        if escape[1] == "x" or escape[1].isalpha():
            return escape
        return _hex(escape[1])

    def _class(self) -> None:
        """Translate a bracket expression, for example ``[a-z_]``.

        Brackets and ampersands in it are literal, unlike in Rust.
        """
        negated = self._left.startswith("[^")
        self._take(2 if negated else 1)
        is_first = True
        # A closing bracket in first place is a member of the class.
        while not self._left.startswith("]") or is_first:
            is_first = False
            posix = _POSIX.match(self._left)
            if posix is not None:
                self._take(posix.end())
                continue
            # A single character, or the start of a range.
            low = self._class_char()
            if self._left.startswith("-") and self._left[1:2] not in ("]", "") and low[0] != "[":
                self._left = self._left[1:]
                low = f"{low}-{self._class_char()}"
            self._made.append(low)
        self._take(1)
        self._count(1)

    def _class_char(self) -> str:
        if not self._left:
            raise BadPattern("a bracket expression is not closed")
        if self._left[0] == "\\":
            return self._escaped()
        char, self._left = self._left[0], self._left[1:]
        return _hex(char)


def _hex(char: str) -> str:
    return char if char.isalnum() and char.isascii() else f"\\x{{{ord(char):x}}}"
