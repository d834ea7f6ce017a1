"""Rules for column names that come from data: allowed names, and names that count as equal.

Producers choose field names. Tables compare names without regard to case, reserve some, and use
some characters as separators. So a name is checked before it becomes a column.
"""

from dataclasses import dataclass

#: Separators of paths, quotes and the escape character. No format quotes all of them in all places.
FORBIDDEN_CHARACTERS = ".`\\"
#: The limit of the Hive metastore and AWS Glue, which is below that of the formats.
NAME_LENGTH_MAX = 255
_FIRST_PRINTABLE, _DELETE = 0x20, 0x7F
#: What ``toLowerCase`` makes of U+0130, the only character that it makes two of.
_DOTTED_I = "i\u0307"
_SURROGATES = range(0xD800, 0xE000)


def folded(name: str) -> str:
    """Return a text that is the same for all names that Spark or a table considers equal: by Java's
    ``equalsIgnoreCase``, which compares character by character, or by ``toLowerCase``."""
    if name.isascii():
        return name.lower()
    return "".join(map(_folded_character, name)).replace(_DOTTED_I, "i")


def _folded_character(character: str) -> str:
    upper = character.upper()
    # Java maps a character to one character: "ß" stays, though its capital is "SS".
    return (upper if len(upper) == 1 else character).lower()[0]


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """Rule for the names of a table's columns. ``characters``: further characters that the format
    forbids. ``reserved``: names, folded, that are forbidden at the top level."""

    characters: str = ""
    reserved: frozenset[str] = frozenset()

    def objection(self, name: str, *, is_top_level: bool) -> str:
        """Return the reason why no column can have the name, "" if one can.

        ``is_top_level``: the column is not nested, so reserved names apply.
        """
        if not name:
            return "a column needs a name"
        if len(name) > NAME_LENGTH_MAX:
            return f"a column's name has at most {NAME_LENGTH_MAX} characters"
        for character in name:
            code = ord(character)
            if code < _FIRST_PRINTABLE or code == _DELETE or code in _SURROGATES:
                return f"a column's name cannot have the character U+{code:04X}"
            if character in FORBIDDEN_CHARACTERS or character in self.characters:
                return f"a column's name cannot have the character {character!r}"
        if is_top_level and folded(name) in self.reserved:
            return "the name is reserved"
        return ""
