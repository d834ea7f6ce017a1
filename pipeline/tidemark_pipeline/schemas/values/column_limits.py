"""Limits of a table's columns: names and times.

Producers choose field names. Tables reserve some names, and use some characters as separators. So a
name is checked before it becomes a column.
"""

from dataclasses import dataclass

from tidemark_avro.column_rules import folded

#: Separators of paths, quotes and the escape character. No format quotes all of them in all places.
FORBIDDEN_CHARACTERS = ".`\\"
#: The limit of the Hive metastore and AWS Glue, which is below that of the formats.
NAME_LENGTH_MAX = 255
_FIRST_PRINTABLE, _DELETE = 0x20, 0x7F
_SURROGATES = range(0xD800, 0xE000)
#: First second and end of the years 1 to 9999, in seconds since 1970. SQL and Python have no other
#: dates and times.
FIRST_SECOND, END_SECOND = -62_135_596_800, 253_402_300_800


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
