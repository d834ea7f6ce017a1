"""Signatures of Avro schemas: schemas with the same signature write a value as the same bytes.

Names, documentation, aliases and defaults are not written, so they are not part of a signature.
"""

from tidemark_pipeline.schemas.avro.schema import Schema

_SAME = {"int": "whole", "long": "whole", "string": "bytes"}


def signature(schema: Schema) -> str:
    """Return a text that is the same for schemas that write equal values as equal bytes."""
    return _signature(schema, [])


def _signature(schema: Schema, within: list[Schema]) -> str:
    for distance, outer in enumerate(reversed(within)):
        if outer is schema:  # a type that contains itself
            return f"^{distance}"
    inner = [*within, schema]
    match schema.kind:
        case "record":
            return f"({','.join(_signature(field.schema, inner) for field in schema.fields)})"
        case "union":
            return f"[{','.join(_signature(branch, inner) for branch in schema.branches)}]"
        case "enum":
            return f"enum{list(schema.symbols)}"
        case "fixed":
            return f"fixed{schema.size}"
        case "array" | "map":
            assert schema.items is not None
            return f"{schema.kind}<{_signature(schema.items, inner)}>"
    return _SAME.get(schema.kind, schema.kind)
