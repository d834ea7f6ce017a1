"""Compile a writer's schema and a table's columns into a program for the kernel.

A field goes to the column of its name, or of a name that the reader's schema gives as its alias.
Numbers are widened as in Avro's schema resolution. A column without a field gets the reader's
default, else null. A field without a column is skipped. A type that fits no column refuses the
schema; in a union of several types it refuses only the records with that branch.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tidemark_avro import kernel
from tidemark_avro.column_rules import SchemaRefused
from tidemark_avro.column_types import VALUE, member_names, present_branches
from tidemark_avro.layout import (
    Layout,
    Leaf,
    ListOf,
    MapOf,
    Slots,
    StructOf,
    null_slots,
)
from tidemark_avro.schema import DECIMAL_DIGITS_MAX, Field, Schema

_DEFAULT_BYTES_MAX = 64 * 1024
_NODES_MAX = 100_000
_MASK = (1 << 64) - 1
_OPS = {
    "null": kernel.NULL,
    "boolean": kernel.BOOLEAN,
    "int": kernel.INT,
    "long": kernel.LONG,
    "float": kernel.FLOAT,
    "double": kernel.DOUBLE,
    "bytes": kernel.BYTES,
    "string": kernel.STRING,
    "fixed": kernel.FIXED,
    "enum": kernel.ENUM,
}


@dataclass(frozen=True, slots=True)
class Compiled:
    """Program that reads a writer's records into the columns of a table.

    ``nodes``, ``children``, ``nulls``: as in the kernel's program. ``trailer``: bytes that follow
    the records: defaults and enum symbols. ``layout``: slots of the columns. ``in_list``: for each
    slot, whether one record may have several entries. ``paths``: path of each node, for messages.
    ``unfit``: for each node that refuses its records, the reason.
    """

    nodes: kernel.Longs
    children: kernel.Longs
    nulls: kernel.Longs
    trailer: bytes
    layout: StructOf
    in_list: Sequence[bool]
    paths: Sequence[str]
    unfit: dict[int, str]

    def at(self, trailer: int) -> kernel.KernelProgram:
        """Return the program for a buffer in which the trailer starts at this position."""
        return kernel.KernelProgram(self.nodes, self.children, self.nulls, _LIMITS, trailer)


def _limits() -> "np.ndarray[Any, np.dtype[np.uint64]]":
    bounds = [10**digits for digits in range(DECIMAL_DIGITS_MAX + 1)]
    return np.array([[bound >> 64, bound & _MASK] for bound in bounds], dtype=np.uint64)


_LIMITS = _limits()


def compile_program(writer: Schema, columns: StructType, reader: Schema | None) -> Compiled:
    """Compile a program. Raises :class:`SchemaRefused` if the writer's schema does not fit."""
    try:
        return _Compiler().program(writer, columns, reader)
    except RecursionError as error:  # Named types may be nested thousands deep.
        raise SchemaRefused("the record's schema is nested too deep") from error


@dataclass(slots=True)
class _Compiler:
    """State of compiling a program; the fields are those of :class:`Compiled`.

    ``skipped_nodes``: node of each type that is skipped, by the id of its schema.
    """

    nodes: list[list[int]] = field(default_factory=list)
    children: list[int] = field(default_factory=list)
    nulls: list[int] = field(default_factory=list)
    trailer: bytearray = field(default_factory=bytearray)
    paths: list[str] = field(default_factory=list)
    unfit: dict[int, str] = field(default_factory=dict)
    skipped_nodes: dict[int, int] = field(default_factory=dict)

    def program(self, writer: Schema, columns: StructType, reader: Schema | None) -> Compiled:
        """Compile the program that reads the writer's records into the table's columns.

        ``reader``: schema of the table, whose aliases and defaults apply; None for none. Raises
        :class:`SchemaRefused`.
        """
        # Each column, also a nested one, gets a slot: its space in the kernel's store.
        slots = Slots()
        layout = slots.layout(columns)
        assert isinstance(layout, StructOf)
        root = self._root(writer, layout, reader)
        assert root == kernel.ROOT
        return Compiled(
            np.array(self.nodes, dtype=np.int64).reshape(-1, kernel.NODE),
            np.array(self.children, dtype=np.int64),
            np.array(self.nulls, dtype=np.int64),
            bytes(self.trailer),
            layout,
            slots.in_list,
            self.paths,
            self.unfit,
        )

    def _root(self, writer: Schema, layout: StructOf, reader: Schema | None) -> int:
        """Compile the root node and return its index.

        A schema that is not a record is read into the single column ``value``.
        """
        is_record = writer.kind == "record" or (
            # A nullable record counts as a record, as in the schema's columns.
            writer.kind == "union" and [b.kind for b in present_branches(writer)] == ["record"]
        )
        if is_record:
            return self._read(writer, layout, reader, "")
        node = self._node(kernel.RECORD, layout, "")
        children = [
            self._read(writer, child, reader, VALUE)
            if name == VALUE
            else self._missing(child, name)
            for name, child in layout.fields
        ]
        # Without this column all records would become rows of nulls.
        if VALUE not in dict(layout.fields):
            raise SchemaRefused(f"the record's schema is {writer.name}, and no record")
        self._set_children(node, children)
        return node

    def _node(self, op: int, layout: Layout | None, path: str) -> int:
        """Append a node to the program and return its index.

        ``layout``: column of the value; None if the value is skipped. ``path``: for error messages.
        """
        # A recursive schema expands with the columns, so the number of nodes is limited.
        if len(self.nodes) >= _NODES_MAX:
            raise SchemaRefused("the schema is too large")
        row = [0] * kernel.NODE
        row[kernel.OP] = op
        row[kernel.SLOT] = -1 if layout is None else layout.slot
        if layout is not None:
            slots = list(null_slots(layout))
            row[kernel.NULLS], row[kernel.NULLS_COUNT] = len(self.nulls), len(slots)
            self.nulls += slots
        self.nodes.append(row)
        self.paths.append(path)
        return len(self.nodes) - 1

    def _set_children(self, node: int, children: list[int]) -> None:
        self.nodes[node][kernel.CHILDREN], self.nodes[node][kernel.COUNT] = (
            len(self.children),
            len(children),
        )
        self.children += children

    def _missing(self, layout: Layout, path: str) -> int:
        return self._node(kernel.MISSING, layout, path)

    def _read(self, writer: Schema, layout: Layout, reader: Schema | None, path: str) -> int:
        """Compile the node that reads a value of ``writer`` into ``layout``; return its index.

        ``reader``: the table's type, for aliases and defaults; None for none. Raises
        :class:`SchemaRefused` if the value does not fit the column.
        """
        # Null and union come first, as any column may have them.
        if writer.kind == "null":
            return self._node(kernel.NULL, layout, path)
        if writer.kind == "union":
            return self._union(writer, layout, reader, path)
        # Of a union in the reader's schema, use the branch that corresponds to the writer's type.
        reader = _counterpart(reader, writer)
        # Types with parts compile their parts with the parts of the column.
        if writer.kind == "record" and isinstance(layout, StructOf):
            return self._record(writer, layout, reader, path)
        if writer.kind == "array" and isinstance(layout, ListOf) and writer.items is not None:
            node = self._node(kernel.ARRAY, layout, path)
            inner = reader.items if reader is not None else None
            self._set_children(
                node, [self._read(writer.items, layout.item, inner, f"{path}.element")]
            )
            return node
        if writer.kind == "map" and isinstance(layout, MapOf) and writer.items is not None:
            node = self._node(kernel.MAP, layout, path)
            inner = reader.items if reader is not None else None
            key = self._node(kernel.STRING, layout.key, f"{path}.key")
            # A map's keys are always strings, and Arrow requires UTF-8.
            self.nodes[key][kernel.CONVERT] = kernel.TEXT
            children = [key, self._read(writer.items, layout.value, inner, f"{path}.value")]
            self._set_children(node, children)
            return node
        # A single value in a single column.
        if isinstance(layout, Leaf):
            return self._leaf(writer, layout, path)
        # A union in the table, of which the writer's schema has only this branch.
        if isinstance(layout, StructOf) and writer.short_name in dict(layout.fields):
            return self._member(writer, writer.short_name, layout, reader, path)
        raise SchemaRefused(_misfit(path, writer, layout))

    def _leaf(self, writer: Schema, layout: Leaf, path: str) -> int:
        convert = conversion(writer, layout.type)
        if convert is None:
            raise SchemaRefused(_misfit(path, writer, layout))
        node = self._node(_OPS[writer.kind], layout, path)
        self.nodes[node][kernel.CONVERT] = convert
        self.nodes[node][kernel.SIZE] = writer.size
        if writer.kind == "enum":
            self._symbols(node, writer)
        return node

    def _symbols(self, node: int, writer: Schema) -> None:
        self.nodes[node][kernel.CHILDREN] = len(self.children)
        self.nodes[node][kernel.COUNT] = len(writer.symbols)
        for symbol in writer.symbols:
            text = symbol.encode("utf-8", "replace")
            # Symbols are part of the trailer, so an enum's text is copied like a string.
            self.children += [len(self.trailer), len(text)]
            self.trailer += text

    def _union(self, writer: Schema, layout: Layout, reader: Schema | None, path: str) -> int:
        """Compile a union, with one child node for each branch of the writer's schema."""
        node = self._node(kernel.UNION, layout, path)
        # Null is a branch too, so only the other branches are counted.
        has_several = len(present_branches(writer)) > 1
        names = member_names(writer)
        children = []
        for place, branch in enumerate(writer.branches):
            counterpart = _counterpart(reader, branch)
            fields = dict(layout.fields) if isinstance(layout, StructOf) else {}
            try:
                # Each branch of a union of several types has its own column. Nullable types, and
                # unions of numbers only, have one column.
                if has_several and names.get(place) in fields:
                    child = self._member(branch, names[place], layout, counterpart, path)
                else:
                    child = self._read(branch, layout, counterpart, path)
            except SchemaRefused as error:
                # A type that does not fit refuses the schema, unless other branches may fit.
                if not has_several:
                    raise
                child = self._node(kernel.REFUSED, layout, path)
                self.unfit[child] = str(error)
            children.append(child)
        self._set_children(node, children)
        return node

    def _member(
        self, writer: Schema, name: str, layout: Layout, reader: Schema | None, path: str
    ) -> int:
        """Compile a branch that has its own column; the columns of the other branches are null."""
        assert isinstance(layout, StructOf)
        node = self._node(kernel.RECORD, layout, path)
        children = [
            self._read(writer, child, reader, f"{path}.{column}")
            if column == name
            else self._missing(child, f"{path}.{column}")
            for column, child in layout.fields
        ]
        self._set_children(node, children)
        return node

    def _record(self, writer: Schema, layout: StructOf, reader: Schema | None, path: str) -> int:
        """Compile a record: read fields that have a column, skip the others, fill other columns.

        Returns the index of its node. ``reader``: gives aliases and defaults; None for none.
        """
        node = self._node(kernel.RECORD, layout, path)
        # The reader's fields give aliases and defaults.
        known = {read.name: read for read in reader.fields} if reader is not None else {}
        goes_to = _matched(writer, layout, known)
        children = []
        # Nodes follow the order in which the writer encodes the fields.
        for written in writer.fields:
            where = f"{path}.{written.name}" if path else written.name
            column = goes_to.get(written.name)
            if column is None:
                children.append(self._skip(written.schema, where))
            else:
                name, place = column
                inner = known[name].schema if name in known else None
                children.append(self._read(written.schema, place, inner, where))
        # Columns without a field are filled with their defaults after the record's last field.
        filled = {name for name, _ in goes_to.values()}
        for name, place in layout.fields:
            if name not in filled:
                where = f"{path}.{name}" if path else name
                children.append(self._default(known.get(name), place, where))
        self._set_children(node, children)
        return node

    def _default(self, reader_field: Field | None, layout: Layout, path: str) -> int:
        """Compile the node of a column without a field in the writer's schema; return its index.

        The value is the reader's default, otherwise null.
        """
        # A null default needs no bytes.
        if reader_field is None or not reader_field.has_default or reader_field.default is None:
            return self._missing(layout, path)
        schema = reader_field.schema
        if schema.kind == "union":  # Avro: a default has the type of the first branch.
            schema = schema.branches[0]
        # Producers write the schema, so a default may have any JSON value.
        encoded = bytearray()
        try:
            encode(reader_field.default, schema, encoded)
        except (
            TypeError,
            ValueError,
            KeyError,
            AttributeError,
            OverflowError,
            RecursionError,
        ) as error:
            raise SchemaRefused(f"{path}: the default does not fit its type") from error
        if len(self.trailer) + len(encoded) > _DEFAULT_BYTES_MAX:
            raise SchemaRefused(f"{path}: the defaults have more than {_DEFAULT_BYTES_MAX} bytes")
        node = self._node(kernel.DEFAULT, None, path)
        self.nodes[node][kernel.SIZE] = len(self.trailer)
        self.trailer += encoded
        # The default is read with its own schema as writer's schema.
        self._set_children(node, [self._read(schema, layout, schema, path)])
        return node

    def _skip(self, writer: Schema, path: str) -> int:
        """Compile the node that reads over a value without a column; return its index.

        A recursive type has one node, which is its own descendant.
        """
        known = self.skipped_nodes.get(id(writer))
        if known is not None:
            return known
        ops = {"array": kernel.ARRAY, "map": kernel.MAP, "record": kernel.RECORD}
        op = {**_OPS, **ops, "union": kernel.UNION}[writer.kind]
        # Registered before its parts, which may contain the type again.
        node = self.skipped_nodes[id(writer)] = self._node(op, None, path)
        self.nodes[node][kernel.SIZE] = writer.size
        if writer.kind == "enum":
            self.nodes[node][kernel.COUNT] = len(writer.symbols)
        else:
            children = [self._skip(part, path) for part in writer.parts()]
            # The parts of a map omit its key, which is encoded before each value.
            if writer.kind == "map":
                children.insert(0, self._node(kernel.STRING, None, path))
            self._set_children(node, children)
        return node


def _matched(
    writer: Schema, layout: StructOf, known: dict[str, Field]
) -> dict[str, tuple[str, Layout]]:
    """Return by name of the writer's field the name and layout of the column that it fills.

    ``known``: the reader's fields by name. A column takes the field of its own name, otherwise the
    first field that is one of its aliases.
    """
    # A field of type null never has a value, so an alias may take its column.
    present = {written.name for written in writer.fields if written.schema.kind != "null"}
    columns: dict[str, tuple[str, Layout]] = {}
    for name, place in layout.fields:
        if name in present:
            columns[name] = (name, place)
    # An alias applies only if no other column has taken the field.
    for name, place in layout.fields:
        aliases = known[name].aliases if name in known and name not in present else ()
        for alias in aliases:
            if alias in present and alias not in columns:
                columns[alias] = (name, place)
                break
    return columns


def _counterpart(reader: Schema | None, writer: Schema) -> Schema | None:
    """Return the reader's type for a writer's type: of a union the matching branch."""
    if reader is None or reader.kind != "union" or writer.kind == "union":
        same = reader is not None and reader.kind == writer.kind
        return reader if same else None
    like = [branch for branch in reader.branches if branch.kind == writer.kind]
    # Of several branches of a kind the one of the same name is preferred.
    named = [branch for branch in like if branch.short_name == writer.short_name]
    return next(iter(named or like), None)


def _misfit(path: str, writer: Schema, layout: Layout) -> str:
    kinds = {ListOf: "array", MapOf: "map", StructOf: "struct"}
    column = layout.type.simpleString() if isinstance(layout, Leaf) else kinds[type(layout)]
    logical = f" ({writer.logical})" if writer.logical else ""
    where = path or "the record"
    return f"{where}: {writer.name}{logical} in the record's schema does not fit {column}"


# ------------------------------------------------------------ Conversions

# Conversions of Avro values to columns.
#
# They follow Avro's schema resolution, which widens numbers, and the logical types.

_NUMBERS = {"int": 0, "long": 1, "float": 2, "double": 3}
_WIDTHS: dict[type[DataType], int] = {IntegerType: 0, LongType: 1, FloatType: 2, DoubleType: 3}


def conversion(writer: Schema, column_type: DataType) -> int | None:
    """Return the kernel's conversion of a writer's type to a column type, None if none fits.

    The result is one of the kernel's constants. For decimals it is TO_DECIMAL plus the precision.
    """
    if writer.logical == "decimal":
        if isinstance(column_type, DecimalType):
            # Another scale would need rounding, or digits that the value does not have.
            if column_type.scale != writer.scale:
                return None
            return kernel.TO_DECIMAL + column_type.precision
        return kernel.AS_IS if isinstance(column_type, BinaryType) else None
    if writer.kind == "long" and writer.logical:
        # A local timestamp has no time zone, so only TIMESTAMP_NTZ fits. A plain long takes the raw
        # number.
        local = writer.logical.startswith("local-")
        if isinstance(column_type, TimestampNTZType if local else TimestampType):
            return kernel.MILLIS if writer.logical.endswith("millis") else kernel.MICROS
        return kernel.AS_IS if isinstance(column_type, LongType) else None
    if writer.kind == "int" and writer.logical == "date":
        if isinstance(column_type, DateType):
            return kernel.DAYS
        return kernel.AS_IS if isinstance(column_type, IntegerType) else None
    if writer.kind in _NUMBERS:
        # A number only goes to a column that is at least as wide.
        width = _WIDTHS.get(type(column_type))
        if width is None or width < _NUMBERS[writer.kind]:
            return None
        is_integer = _NUMBERS[writer.kind] < 2
        return kernel.TO_DOUBLE if is_integer and width >= 2 else kernel.AS_IS
    # Text is checked for UTF-8. Strings also fit binary columns, where no check is needed.
    if writer.kind in {"string", "bytes"} and isinstance(column_type, StringType):
        return kernel.TEXT
    fits = {
        "boolean": BooleanType,
        "enum": StringType,
        "string": BinaryType,
        "bytes": BinaryType,
        "fixed": BinaryType,
    }.get(writer.kind)
    return kernel.AS_IS if fits is not None and isinstance(column_type, fits) else None


# ------------------------------------------------------------ Defaults

# Encoding of a field's default, which the schema has as JSON, as Avro's bytes.
#
# The kernel then reads defaults in the same way as values of records.

_SIGN = 1 << 63


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
