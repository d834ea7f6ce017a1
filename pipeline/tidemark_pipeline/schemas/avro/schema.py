"""An Avro schema (https://avro.apache.org/docs/1.12.0/specification), parsed and bounded.

Whoever may write to a topic or a registry may send any schema: types that contain themselves, a few
names that unfold to millions of columns, an array whose items take no bytes, so that twelve bytes
promise 2^62 of them. What is parsed here is finite, and says of itself what may be unfolded.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tidemark_pipeline.schemas.values.schema_errors import SchemaRefused

TEXT_BYTES_MAX = 1024 * 1024
TYPES_MAX = 20_000
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_NAMED = ("record", "enum", "fixed")
_FIXED_BYTES_MAX = 1024 * 1024
#: Of the JSON, not of the types: Python's own parser stops at about so many.
_TEXT_DEPTH_MAX = 200


@dataclass(slots=True, eq=False)
class Schema:
    """One type. ``name``: the full one of a named type, else ``kind``. ``logical``: "" where there
    is none, or none that is known. ``items``: of an array, or a map's values. ``recursive``: it
    contains itself."""

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
        """Without its namespace."""
        return self.name.rpartition(".")[2]

    def parts(self) -> "Iterator[Schema]":
        """The types that it is made of directly."""
        if self.items is not None:
            yield self.items
        yield from self.branches
        for field in self.fields:
            yield field.schema


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """Of a record. ``default`` is as JSON has it, and means nothing without ``has_default``."""

    name: str
    schema: Schema
    aliases: tuple[str, ...] = ()
    has_default: bool = False
    default: Any = None


def parse_schema(text: str | bytes, named: Mapping[str, Schema] | None = None) -> Schema:
    """A schema's JSON. ``named``: types of other schemas that it refers to. Raises
    :class:`SchemaRefused`."""
    size = len(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    if size > TEXT_BYTES_MAX:
        raise SchemaRefused(f"the schema has {size} bytes; {TEXT_BYTES_MAX} are the most")
    try:
        parsed = json.loads(text)
        schema = _SchemaReader(dict(named or {})).read(parsed, "", "the schema", 0)
    except RecursionError as error:
        raise SchemaRefused("the schema is nested too deep") from error
    except json.JSONDecodeError as error:
        raise SchemaRefused(f"the schema is no JSON: {error}") from error
    _check_items(schema)
    _mark_recursive(schema)
    return schema


def names_of(schema: Schema) -> dict[str, Schema]:
    """The named types in it, by their full names."""
    return {named.name: named for named in walk(schema) if named.kind in _NAMED}


def walk(schema: Schema) -> Iterator[Schema]:
    """It and all in it, each once."""
    seen, left = {id(schema)}, [schema]
    while left:
        each = left.pop()
        yield each
        for part in each.parts():
            if id(part) not in seen:
                seen.add(id(part))
                left.append(part)


@dataclass(slots=True)
class _SchemaReader:
    named: dict[str, Schema]
    count: int = 0

    def read(self, given: Any, namespace: str, where: str, depth: int) -> Schema:
        self.count += 1
        if self.count > TYPES_MAX:
            raise SchemaRefused(f"the schema has more than {TYPES_MAX} types")
        if depth > _TEXT_DEPTH_MAX:
            raise SchemaRefused(f"{where}: the schema is nested too deep")
        if isinstance(given, str):
            return self._by_name(given, namespace, where)
        if isinstance(given, list):
            return self._union(given, namespace, where, depth)
        if not isinstance(given, dict):
            raise SchemaRefused(f"{where}: {_short(given)} is no type of Avro's")
        kind = given.get("type")
        if isinstance(kind, dict | list):
            return self.read(kind, namespace, where, depth + 1)
        if kind in _NAMED:
            return self._named(given, str(kind), namespace, where, depth)
        if kind == "array":
            items = self.read(given.get("items"), namespace, f"{where}.element", depth + 1)
            return Schema("array", "array", items=items)
        if kind == "map":
            items = self.read(given.get("values"), namespace, f"{where}.value", depth + 1)
            return Schema("map", "map", items=items)
        if not isinstance(kind, str):
            raise SchemaRefused(f"{where}: {_short(given)} has no type")
        found = self._by_name(kind, namespace, where)
        return _with_logical(found, given) if found.kind in PRIMITIVES else found

    def _by_name(self, name: str, namespace: str, where: str) -> Schema:
        if name in PRIMITIVES:
            return Schema(name, name)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        found = self.named.get(full) or self.named.get(name)
        if found is None:
            raise SchemaRefused(f"{where}: the type {_short(name)} is not known")
        return found

    def _union(self, given: list[Any], namespace: str, where: str, depth: int) -> Schema:
        branches = tuple(self.read(branch, namespace, where, depth + 1) for branch in given)
        names = [branch.name for branch in branches]
        if not branches or len(set(names)) < len(names) or "union" in names:
            raise SchemaRefused(f"{where}: {_short(given)} is no union of Avro's")
        return Schema("union", "union", branches=branches)

    def _named(
        self, given: dict[str, Any], kind: str, namespace: str, where: str, depth: int
    ) -> Schema:
        full = _full_name(given, namespace, where)
        if full in self.named or full in PRIMITIVES:
            raise SchemaRefused(f"{where}: the name {full} is taken")
        made = self.named[full] = Schema(kind, full)
        if kind == "fixed":
            made.size = _whole(given.get("size"), where)
            if made.size > _FIXED_BYTES_MAX:
                raise SchemaRefused(f"{where}: a fixed of {made.size} bytes is too large")
            made.logical, made.precision, made.scale = _logical(given, kind, made.size)
        elif kind == "enum":
            symbols = given.get("symbols")
            if not isinstance(symbols, list) or not all(isinstance(s, str) for s in symbols):
                raise SchemaRefused(f"{where}: the enum {full} has no list of symbols")
            made.symbols = tuple(symbols)
            default = given.get("default")
            made.default = default if default in made.symbols else None
        else:
            inner = full.rpartition(".")[0]
            made.fields = self._fields(given.get("fields"), inner, where, depth)
        return made

    def _fields(self, given: Any, namespace: str, where: str, depth: int) -> tuple[Field, ...]:
        if not isinstance(given, list):
            raise SchemaRefused(f"{where}: a record has no list of fields")
        fields: dict[str, Field] = {}
        for declared in given:
            name = declared.get("name") if isinstance(declared, dict) else None
            if not isinstance(name, str) or not name or name in fields:
                raise SchemaRefused(f"{where}: {_short(declared)} is no field, or there are two")
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


def _with_logical(found: Schema, given: dict[str, Any]) -> Schema:
    logical, precision, scale = _logical(given, found.kind, 0)
    return Schema(found.kind, found.name, logical, precision, scale)


#: Those that have columns of their own; by the type that they are of.
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
    """What is not known, or is not as it should be, is as if it was not there: so it is in Avro."""
    logical = given.get("logicalType")
    if logical not in _LOGICAL.get(kind, ()):
        return "", 0, 0
    if logical != "decimal":
        return str(logical), 0, 0
    precision, scale = given.get("precision"), given.get("scale", 0)
    if type(precision) is not int or type(scale) is not int:
        return "", 0, 0
    fits = 0 < precision <= DECIMAL_DIGITS_MAX and 0 <= scale <= precision
    if size and precision > len(str(2 ** (8 * size - 1) - 1)):
        fits = False
    return ("decimal", precision, scale) if fits else ("", 0, 0)


def _whole(given: Any, where: str) -> int:
    if type(given) is not int or given < 0:
        raise SchemaRefused(f"{where}: a fixed has the size {_short(given)}")
    return given


def _check_items(root: Schema) -> None:
    """Refuse an array whose items may take no bytes."""
    types = list(walk(root))
    within: dict[int, list[Schema]] = {}
    for schema in types:
        for part in schema.fields:
            within.setdefault(id(part.schema), []).append(schema)
    left = [t for t in types if t.kind not in {"null", "record"} and (t.kind != "fixed" or t.size)]
    takes = {id(schema) for schema in left}
    while left:
        for record in within.get(id(left.pop()), ()):
            if id(record) not in takes:
                takes.add(id(record))
                left.append(record)
    for schema in types:
        if schema.kind == "array" and id(schema.items) not in takes:
            raise SchemaRefused(
                f"the items of an array ({schema.items.name if schema.items else ''}) take no "
                "bytes: a record of a few bytes could have any number of them"
            )


def _mark_recursive(schema: Schema) -> None:
    """Those that lie on a circle: Tarjan's components, without recursion."""
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    open_: list[Schema] = []
    on: set[int] = set()
    stack: list[tuple[Schema, Iterator[Schema]]] = [(schema, schema.parts())]
    number[id(schema)] = low[id(schema)] = 0
    open_.append(schema)
    on.add(id(schema))
    while stack:
        each, parts = stack[-1]
        part = next(parts, None)
        if part is None:
            stack.pop()
            if stack:
                parent = id(stack[-1][0])
                low[parent] = min(low[parent], low[id(each)])
            if low[id(each)] == number[id(each)]:
                _close(each, open_, on)
        elif id(part) not in number:
            number[id(part)] = low[id(part)] = len(number)
            open_.append(part)
            on.add(id(part))
            stack.append((part, part.parts()))
        elif id(part) in on:
            low[id(each)] = min(low[id(each)], number[id(part)])


def _close(root: Schema, open_: list[Schema], on: set[int]) -> None:
    component = []
    while True:
        each = open_.pop()
        on.discard(id(each))
        component.append(each)
        if each is root:
            break
    circle = len(component) > 1 or any(part is root for part in root.parts())
    for member in component:
        member.recursive = member.recursive or circle


def _short(given: Any) -> str:
    text = given if isinstance(given, str) else json.dumps(given)
    return text if len(text) <= 60 else text[:57] + "..."
