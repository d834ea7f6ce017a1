"""Rules for the columns of a schema in any format: limits, equal names, and the error."""

COLUMNS_MAX = 2_000
DEPTH_MAX = 30
#: Metadata of a field: its former names.
ALIASES = "aliases"
#: What ``toLowerCase`` makes of U+0130, the only character that it makes two of.
_DOTTED_I = "i\u0307"


class SchemaRefused(ValueError):
    """The text is no schema, or has no columns. The message names the field and the reason."""


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
