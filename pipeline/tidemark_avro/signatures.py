"""Signatures of Avro schemas: schemas with the same signature write a value as the same bytes.

Names, documentation, aliases and defaults are not written, so they are not part of a signature.
"""

import itertools
from collections.abc import Iterator

from tidemark_avro.column_rules import SchemaRefused
from tidemark_avro.schema import Schema

#: Types of a schema in which every name is expanded. Forty names, each used twice by the next,
#: expand to 2^40 types.
UNFOLDED_MAX = 5_000
_SAME = {"int": "whole", "long": "whole", "string": "bytes"}


def signature(schema: Schema) -> str:
    """Return a text that is the same for schemas that write equal values as equal bytes. Raises
    :class:`SchemaRefused` if the schema has more than :data:`UNFOLDED_MAX` types."""
    return _signature(schema, [], itertools.count(1))


def _signature(schema: Schema, within: list[Schema], counter: Iterator[int]) -> str:
    """Return a text that is equal for types that encode equal values as the same bytes.

    ``within``: the enclosing types, outermost first. ``counter``: counts types of the whole schema.
    Raises SchemaRefused if there are too many.
    """
    if next(counter) > UNFOLDED_MAX:
        raise SchemaRefused(f"the schema comes to more than {UNFOLDED_MAX} types")
    # A recursive reference is written as the distance to the enclosing type, so that names do not
    # matter.
    for distance, outer in enumerate(reversed(within)):
        if outer is schema:  # a type that contains itself
            return f"^{distance}"
    inner = [*within, schema]
    match schema.kind:
        case "record":
            return (
                f"({','.join(_signature(field.schema, inner, counter) for field in schema.fields)})"
            )
        case "union":
            return f"[{','.join(_signature(branch, inner, counter) for branch in schema.branches)}]"
        case "enum":
            return f"enum{list(schema.symbols)}"
        case "fixed":
            return f"fixed{schema.size}"
        case "array" | "map":
            assert schema.items is not None
            return f"{schema.kind}<{_signature(schema.items, inner, counter)}>"
    return _SAME.get(schema.kind, schema.kind)
