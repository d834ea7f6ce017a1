"""Encoding of a field's default, which the schema has as JSON, as Avro's bytes.

The kernel then reads defaults in the same way as values of records.
"""

import struct
from typing import Any

from tidemark_avro.schema import Schema

_SIGN = 1 << 63
_MASK = (1 << 64) - 1


def encode(value: Any, schema: Schema, out: bytearray) -> None:  # noqa: PLR0912
    """Append a field's default to ``out``, encoded as Avro binary.

    ``value``: the default as parsed JSON. Raises TypeError, ValueError, KeyError, AttributeError or
    OverflowError if it does not fit the schema.
    """
    kind = schema.kind
    if kind == "null":
        if value is not None:
            raise ValueError
    elif kind == "boolean":
        if not isinstance(value, bool):
            raise TypeError
        out.append(value)
    elif kind in {"int", "long"}:
        # True and false are numbers in Python, so they are excluded.
        if isinstance(value, bool) or value != int(value):
            raise TypeError
        _encode_long(int(value), out)
    elif kind in {"float", "double"}:
        if isinstance(value, bool):
            raise TypeError
        out += struct.pack("<f" if kind == "float" else "<d", float(value))
    elif kind in {"bytes", "fixed", "string"}:
        # Avro writes bytes in JSON as characters U+0000 to U+00FF.
        data = value.encode("utf-8" if kind == "string" else "iso-8859-1")
        if kind == "fixed":
            if len(data) != schema.size:
                raise ValueError
        else:
            _encode_long(len(data), out)
        out += data
    elif kind == "enum":
        _encode_long(schema.symbols.index(value), out)
    elif kind == "union":
        # The default of a union belongs to its first branch.
        _encode_long(0, out)
        encode(value, schema.branches[0], out)
    elif kind == "record":
        for field in schema.fields:
            # A field that the record's default omits has its own default.
            if field.name not in value and not field.has_default:
                raise KeyError(field.name)
            encode(value.get(field.name, field.default), field.schema, out)
    else:
        assert schema.items is not None
        items = value.items() if kind == "map" else ((None, item) for item in value)
        # Items are one block, preceded by their number and followed by a block of zero items.
        if len(value):
            _encode_long(len(value), out)
        for key, item in items:
            if kind == "map":
                encode(key, Schema("string", "string"), out)
            encode(item, schema.items, out)
        out.append(0)


def _encode_long(value: int, out: bytearray) -> None:
    if not -_SIGN <= value < _SIGN:
        raise OverflowError
    # Zigzag: numbers close to zero take few bytes, whatever their sign.
    raw = (value << 1) ^ (value >> 63)
    raw &= _MASK
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
