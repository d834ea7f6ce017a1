"""Parsed and bounded Avro schema (https://avro.apache.org/docs/1.12.0/specification).

Anyone with access to a topic or a registry may write any schema: types that contain themselves, a
few names that expand to millions of columns, or an array whose items take no bytes, so that twelve
bytes announce 2^62 items. Parsed schemas are finite, and their recursive types are marked.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tidemark_avro.column_rules import SchemaRefused

TEXT_BYTES_MAX = 1024 * 1024
TYPES_MAX = 20_000
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_NAMED = ("record", "enum", "fixed")
_FIXED_BYTES_MAX = 1024 * 1024
#: Depth of the JSON, not of the types. Python's own parser has a similar limit.
_TEXT_DEPTH_MAX = 200


@dataclass(slots=True, eq=False)
class Schema:
    """One type.

    ``name``: full name of a named type, else ``kind``. ``logical``: "" for none or an unknown one.
    ``items``: items of an array or values of a map. ``recursive``: the type contains itself.
    """

    kind: str
    name: str
    logical: str = ""
    precision: int = 0
    scale: int = 0
    size: int = 0
    symbols: tuple[str, ...] = ()
    default: str | None = None
    items: "Schema | None" = None
    fields: "tuple[Field, ...]" = ()
    branches: "tuple[Schema, ...]" = ()
    recursive: bool = False

    @property
    def short_name(self) -> str:
        """Name without its namespace."""
        return self.name.rpartition(".")[2]

    def parts(self) -> "Iterator[Schema]":
        """Yield the direct parts of the type."""
        if self.items is not None:
            yield self.items
        yield from self.branches
        for field in self.fields:
            yield field.schema


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """Field of a record. ``default`` is JSON, and is valid only with ``has_default``."""

    name: str
    schema: Schema
    aliases: tuple[str, ...] = ()
    has_default: bool = False
    default: Any = None


def parse_schema(text: str | bytes, named: Mapping[str, Schema] | None = None) -> Schema:
    """Parse and check an Avro schema, given as JSON text.

    ``named``: types of other schemas that it references, by full name. Raises
    :class:`SchemaRefused`.
    """
    size = len(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    # The size is checked first, as parsed JSON takes many times the memory of its text.
    if size > TEXT_BYTES_MAX:
        raise SchemaRefused(f"the schema has {size} bytes; {TEXT_BYTES_MAX} are the most")
    try:
        parsed = json.loads(text)
        schema = _SchemaReader(dict(named or {})).read(parsed, "", "the schema", 0)
    except RecursionError as error:
        raise SchemaRefused("the schema is nested too deep") from error
    except json.JSONDecodeError as error:
        raise SchemaRefused(f"the schema is no JSON: {error}") from error
    # Both checks need the complete schema.
    _check_items(schema)
    _mark_recursive(schema)
    return schema


def names_of(schema: Schema) -> dict[str, Schema]:
    """Return the named types of a schema by their full names."""
    return {named.name: named for named in walk(schema) if named.kind in _NAMED}


def walk(schema: Schema) -> Iterator[Schema]:
    """Yield the type and all types within it, each once."""
    visited, pending = {id(schema)}, [schema]
    while pending:
        current = pending.pop()
        yield current
        for part in current.parts():
            if id(part) not in visited:
                visited.add(id(part))
                pending.append(part)


@dataclass(slots=True)
class _SchemaReader:
    """State of parsing one schema.

    ``named``: named types that were defined so far, by full name. ``count``: number of types so
    far.
    """

    named: dict[str, Schema]
    count: int = 0

    def read(self, given: Any, namespace: str, where: str, depth: int) -> Schema:
        """Return the parsed type of one part of a schema's JSON.

        ``namespace``: that of the enclosing type. ``where``: path of the type, for messages.
        ``depth``: nesting depth of the JSON.
        """
        # Count and depth are checked for each type, as the schema comes from any producer.
        self.count += 1
        if self.count > TYPES_MAX:
            raise SchemaRefused(f"the schema has more than {TYPES_MAX} types")
        if depth > _TEXT_DEPTH_MAX:
            raise SchemaRefused(f"{where}: the schema is nested too deep")
        # A name, a union, or an object.
        if isinstance(given, str):
            return self._by_name(given, namespace, where)
        if isinstance(given, list):
            return self._union(given, namespace, where, depth)
        if not isinstance(given, dict):
            raise SchemaRefused(f"{where}: {_short(given)} is no type of Avro's")
        kind = given.get("type")
        # ``{"type": {...}}`` is allowed and means the inner type.
        if isinstance(kind, dict | list):
            return self.read(kind, namespace, where, depth + 1)
        if kind in _NAMED:
            return self._named(given, str(kind), namespace, where, depth)
        # Arrays and maps have no names.
        if kind == "array":
            items = self.read(given.get("items"), namespace, f"{where}.element", depth + 1)
            return Schema("array", "array", items=items)
        if kind == "map":
            items = self.read(given.get("values"), namespace, f"{where}.value", depth + 1)
            return Schema("map", "map", items=items)
        if not isinstance(kind, str):
            raise SchemaRefused(f"{where}: {_short(given)} has no type")
        schema = self._by_name(kind, namespace, where)
        # An object may add a logical type to a primitive type.
        return _with_logical(schema, given) if schema.kind in PRIMITIVES else schema

    def _by_name(self, name: str, namespace: str, where: str) -> Schema:
        if name in PRIMITIVES:
            return Schema(name, name)
        # A name without a namespace has the enclosing one.
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        schema = self.named.get(full) or self.named.get(name)
        if schema is None:
            raise SchemaRefused(f"{where}: the type {_short(name)} is not known")
        return schema

    def _union(self, given: list[Any], namespace: str, where: str, depth: int) -> Schema:
        branches = tuple(self.read(branch, namespace, where, depth + 1) for branch in given)
        names = [branch.name for branch in branches]
        # Avro forbids nested unions and two branches of one name.
        if not branches or len(set(names)) < len(names) or "union" in names:
            raise SchemaRefused(f"{where}: {_short(given)} is no union of Avro's")
        return Schema("union", "union", branches=branches)

    def _named(
        self, given: dict[str, Any], kind: str, namespace: str, where: str, depth: int
    ) -> Schema:
        """Parse a record, an enum or a fixed, and register it under its full name."""
        full = _full_name(given, namespace, where)
        # A second definition would change the meaning of earlier references.
        if full in self.named or full in PRIMITIVES:
            raise SchemaRefused(f"{where}: the name {full} is taken")
        # Registered before its fields are parsed, as these may refer to it.
        schema = self.named[full] = Schema(kind, full)
        if kind == "fixed":
            schema.size = _fixed_size(given.get("size"), where)
            if schema.size > _FIXED_BYTES_MAX:
                raise SchemaRefused(f"{where}: a fixed of {schema.size} bytes is too large")
            schema.logical, schema.precision, schema.scale = _logical(given, kind, schema.size)
        elif kind == "enum":
            symbols = given.get("symbols")
            if not isinstance(symbols, list) or not all(isinstance(s, str) for s in symbols):
                raise SchemaRefused(f"{where}: the enum {full} has no list of symbols")
            schema.symbols = tuple(symbols)
            # An unknown default counts as none, and does not refuse the schema.
            default = given.get("default")
            schema.default = default if default in schema.symbols else None
        else:
            # Fields are resolved in the namespace of their record.
            inner = full.rpartition(".")[0]
            schema.fields = self._fields(given.get("fields"), inner, where, depth)
        return schema

    def _fields(self, given: Any, namespace: str, where: str, depth: int) -> tuple[Field, ...]:
        """Return the parsed fields of a record, in order.

        ``namespace``: that of the record. ``where``: its path, for messages.
        """
        if not isinstance(given, list):
            raise SchemaRefused(f"{where}: a record has no list of fields")
        fields: dict[str, Field] = {}
        for declared in given:
            name = declared.get("name") if isinstance(declared, dict) else None
            if not isinstance(name, str) or not name or name in fields:
                raise SchemaRefused(f"{where}: {_short(declared)} is no field, or there are two")
            # Invalid aliases are ignored: they matter only for a renamed field.
            aliases = declared.get("aliases") or []
            fields[name] = Field(
                name,
                self.read(declared.get("type"), namespace, f"{where}.{name}", depth + 1),
                tuple(a for a in aliases if isinstance(a, str)) if aliases else (),
                "default" in declared,
                declared.get("default"),
            )
        return tuple(fields.values())


def _full_name(given: dict[str, Any], namespace: str, where: str) -> str:
    name = given.get("name")
    if not isinstance(name, str) or not name:
        raise SchemaRefused(f"{where}: a type has no name")
    if "." in name:
        return name
    own = given.get("namespace", namespace)
    return f"{own}.{name}" if isinstance(own, str) and own else name


def _with_logical(schema: Schema, given: dict[str, Any]) -> Schema:
    logical, precision, scale = _logical(given, schema.kind, 0)
    return Schema(schema.kind, schema.name, logical, precision, scale)


#: Logical types that have columns of their own, by the type that they annotate.
_LOGICAL = {
    "int": ("date",),
    "long": (
        *("timestamp-millis", "timestamp-micros"),
        *("local-timestamp-millis", "local-timestamp-micros"),
    ),
    "bytes": ("decimal",),
    "fixed": ("decimal",),
}
DECIMAL_DIGITS_MAX = 38


def _logical(given: dict[str, Any], kind: str, size: int) -> tuple[str, int, int]:
    """Return logical type, precision and scale; ("", 0, 0) if it has no logical type.

    ``size``: number of bytes of a fixed, otherwise 0. Avro requires readers to ignore a logical
    type that is unknown or invalid.
    """
    logical = given.get("logicalType")
    if logical not in _LOGICAL.get(kind, ()):
        return "", 0, 0
    if logical != "decimal":
        return str(logical), 0, 0
    precision, scale = given.get("precision"), given.get("scale", 0)
    if type(precision) is not int or type(scale) is not int:
        return "", 0, 0
    fits = 0 < precision <= DECIMAL_DIGITS_MAX and 0 <= scale <= precision
    # A fixed of ``size`` bytes limits the digits of its decimal.
    if size and precision > len(str(2 ** (8 * size - 1) - 1)):
        fits = False
    return ("decimal", precision, scale) if fits else ("", 0, 0)


def _fixed_size(given: Any, where: str) -> int:
    if type(given) is not int or given < 0:
        raise SchemaRefused(f"{where}: a fixed has the size {_short(given)}")
    return given


def _check_items(root: Schema) -> None:
    """Raise :class:`SchemaRefused` for an array whose items may be encoded in no bytes.

    A record of a few bytes could then declare any number of items.
    """
    types = list(walk(root))
    # Map each type to the records that have a field of it.
    within: dict[int, list[Schema]] = {}
    for schema in types:
        for part in schema.fields:
            within.setdefault(id(part.schema), []).append(schema)
    # All other types take at least one byte. A record does if one of its fields does, so the
    # property is propagated from fields to their records.
    pending = [
        t for t in types if t.kind not in {"null", "record"} and (t.kind != "fixed" or t.size)
    ]
    takes = {id(schema) for schema in pending}
    while pending:
        for record in within.get(id(pending.pop()), ()):
            if id(record) not in takes:
                takes.add(id(record))
                pending.append(record)
    # An item without bytes would allow any number of items in a short record.
    for schema in types:
        if schema.kind == "array" and id(schema.items) not in takes:
            raise SchemaRefused(
                f"the items of an array ({schema.items.name if schema.items else ''}) take no "
                "bytes: a record of a few bytes could have any number of them"
            )


def _mark_recursive(schema: Schema) -> None:
    """Set ``recursive`` on the types that contain themselves.

    Uses Tarjan's algorithm for strongly connected components. It is iterative, as a deep schema
    would exceed Python's stack.
    """
    # By id of a type: its visit number, and the lowest visit number that is reachable from it.
    # ``open_`` and ``on`` hold the types whose component is not complete yet.
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    open_: list[Schema] = []
    on: set[int] = set()
    # The stack replaces recursion: each type with its parts that are still to visit.
    stack: list[tuple[Schema, Iterator[Schema]]] = [(schema, schema.parts())]
    number[id(schema)] = low[id(schema)] = 0
    open_.append(schema)
    on.add(id(schema))
    while stack:
        current, parts = stack[-1]
        part = next(parts, None)
        if part is None:
            # All parts are visited: pass the lowest number to the parent, and close a component at
            # its root.
            stack.pop()
            if stack:
                parent = id(stack[-1][0])
                low[parent] = min(low[parent], low[id(current)])
            if low[id(current)] == number[id(current)]:
                _close(current, open_, on)
        # A part that is seen for the first time is visited next.
        elif id(part) not in number:
            number[id(part)] = low[id(part)] = len(number)
            open_.append(part)
            on.add(id(part))
            stack.append((part, part.parts()))
        # A part in the open component closes a cycle.
        elif id(part) in on:
            low[id(current)] = min(low[id(current)], number[id(part)])


def _close(root: Schema, open_: list[Schema], on: set[int]) -> None:
    component = []
    while True:
        member = open_.pop()
        on.discard(id(member))
        component.append(member)
        if member is root:
            break
    # A component of one type is recursive only if the type contains itself directly.
    circle = len(component) > 1 or any(part is root for part in root.parts())
    for member in component:
        member.recursive = member.recursive or circle


def _short(given: Any) -> str:
    text = given if isinstance(given, str) else json.dumps(given)
    return text if len(text) <= 60 else text[:57] + "..."
