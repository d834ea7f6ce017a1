"""Codec of messages: a reader and a writer for each class of kio's entities, and of our own.

Both are derived once per class from the fields of its dataclass, as Python source that is compiled
(``dataclasses`` makes ``__init__`` in the same way). An entity with a number, an error code, a
string and an array, in a flexible version, gives::

    def read(buffer, position, left):
        entity = Unfrozen()
        (entity.index, entity.error_code,) = unpack_index(buffer, position)
        entity.error_code = read_error_code(entity.error_code)
        position += 6
        entity.name, position = read_name(buffer, position, left)
        entity.replicas, position = read_replicas(buffer, position, left)
        position = read_tags(entity, buffer, position, left) if buffer[position] else position + 1
        entity.__class__ = Entity
        return entity, position

    def write(entity, out):
        out.append(pack_index(entity.index, entity.error_code))
        write_name(entity.name, out)
        write_replicas(entity.replicas, out)
        out.append(no_tags)

Adjacent fields of fixed size are one run, which one call unpacks or packs. Every other field has a
reader and a writer from this module, or those of its own entity. ``inspect.getsource`` prints the
source of a class, and tracebacks show its lines.

A reader checks each length before it uses it, and reserves no memory for what a length merely
claims. It skips tagged fields that the class does not have (KIP-482). Two readers must not find
different messages in the same bytes, so a known tagged field has to fill the size that it claims.
"""

import dataclasses
import datetime
import itertools
import linecache
import struct
import types
import typing
import uuid
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from tidemark.records.split_bytes import SplitBytes
from tidemark.wire.bounds import ANY, MessageBounds, Remaining

Buffer = bytes | memoryview
#: Returns the value at a position, and the position behind it. Raises ValueError, LookupError,
#: OverflowError or struct.error if the bytes contain none.
Reader = Callable[[Buffer, int, Remaining], tuple[Any, int]]

#: Bytes of at least this length are passed to the socket without a copy.
LARGE_BYTES = 8192
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_ONE_BYTE = tuple(bytes([number]) for number in range(0x80))
_ZERO_ID = bytes(16)
#: A header has nothing but tagged fields.
_HEADER = MessageBounds(elements=1024)
#: Number of durations and ids that are remembered, because most messages repeat them.
_REMEMBERED = 1024
_source_numbers = itertools.count()


class Pieces(list[bytes]):
    """Pieces of a message: small ones, until a large one or the end joins them."""

    __slots__ = ("_joined",)

    def __init__(self) -> None:
        # A list that starts empty needs no call of its own initializer.
        self._joined: list[bytes] = []

    def append_large(self, piece: Buffer) -> None:
        """Append a piece that is not copied. Transports accept views like bytes."""
        # Parts of the same bytes have nothing between them. The first piece is a small one.
        if self or not self._joined:
            self._joined.append(b"".join(self))
            self.clear()
        self._joined.append(typing.cast(bytes, piece))

    def joined(self) -> list[bytes]:
        """Return the message in few pieces, of which the first is a small one."""
        if self or not self._joined:
            self._joined.append(b"".join(self))
        return self._joined


Writer = Callable[[Any, Pieces], None]


class TypeCodec(NamedTuple):
    """Reader and writer of a type, and the bytes of its shortest value."""

    read: Reader
    write: Writer
    least_bytes: int


#: Reader and writer of a length, where -1 is null, and its least bytes.
_Lengths = tuple[Callable[[Buffer, int], tuple[int, int]], Callable[[int], bytes], int]
#: Tagged fields by number: name, codec and default.
_Tagged = dict[int, tuple[str, TypeCodec, Any]]


class _Fixed(NamedTuple):
    """Type of fixed size: its code in :mod:`struct`, and the conversions from and to that."""

    code: str
    read: Callable[[Any], Any] | None = None
    write: Callable[[Any], Any] | None = None


@cache
def codec_of(entity_type: Any) -> TypeCodec:
    """Return the codec of an entity, from kio's (or our own) dataclass of the message."""
    plain: list[tuple[str, TypeCodec | _Fixed]] = []
    tagged: _Tagged = {}
    for field in dataclasses.fields(entity_type):
        kind = _type_of(field, flexible=entity_type.__flexible__)
        if "tag" in field.metadata:
            tagged[field.metadata["tag"]] = (field.name, _alone(kind), default_of(field))
        else:
            plain.append((field.name, kind))
    source = _Source(entity_type)
    for is_fixed, fields in itertools.groupby(plain, lambda item: isinstance(item[1], _Fixed)):
        (source.add_run if is_fixed else source.add_fields)(list(fields))
    # Tagged fields (KIP-482) follow all others in flexible versions.
    if entity_type.__flexible__:
        source.add_tags(tagged)
    return source.compiled(entity_type.__qualname__)


class _Source:
    """Lines of an entity's two functions, and the objects that they name."""

    def __init__(self, entity_type: Any) -> None:
        self._names = {"Entity": entity_type, "Unfrozen": _unfrozen(entity_type)}
        self._read = ["entity = Unfrozen()"]
        self._write: list[str] = []
        self._least_bytes = 0

    def add_run(self, fields: Sequence[tuple[str, Any]]) -> None:
        """Add adjacent fields of fixed size."""
        layout = struct.Struct(">" + "".join(kind.code for _, kind in fields))
        run = fields[0][0]
        self._names |= {f"unpack_{run}": layout.unpack_from, f"pack_{run}": layout.pack}
        targets = ", ".join(f"entity.{name}" for name, _ in fields)
        self._read.append(f"({targets},) = unpack_{run}(buffer, position)")
        values = []
        for name, kind in fields:
            self._names |= {f"read_{name}": kind.read, f"write_{name}": kind.write}
            value = f"entity.{name}"
            if kind.read is not None:
                self._read.append(f"{value} = read_{name}({value})")
            values.append(value if kind.write is None else f"write_{name}({value})")
        self._read.append(f"position += {layout.size}")
        self._write.append(f"out.append(pack_{run}({', '.join(values)}))")
        self._least_bytes += layout.size

    def add_fields(self, fields: Sequence[tuple[str, Any]]) -> None:
        """Add fields of variable size."""
        for name, codec in fields:
            self._names |= {f"read_{name}": codec.read, f"write_{name}": codec.write}
            self._read.append(f"entity.{name}, position = read_{name}(buffer, position, left)")
            self._write.append(f"write_{name}(entity.{name}, out)")
            self._least_bytes += codec.least_bytes

    def add_tags(self, tagged: _Tagged) -> None:
        """Add the tagged fields, even if none is known."""
        for name, _, default in tagged.values():
            self._names[f"default_{name}"] = default
            self._read.append(f"entity.{name} = default_{name}")
        names = {"read_tags": _tags_reader(tagged), "write_tags": _tags_writer(tagged)}
        self._names |= {**names, "no_tags": _ONE_BYTE[0]}
        read = "read_tags(entity, buffer, position, left)"
        self._read.append(f"position = {read} if buffer[position] else position + 1")
        # Nearly all tagged fields have their defaults.
        defaults = [f"entity.{name} is default_{name}" for name, _, _ in tagged.values()]
        unless = f" if {' and '.join(defaults)} else write_tags(entity, out)" if tagged else ""
        self._write.append(f"out.append(no_tags){unless}")
        self._least_bytes += 1

    def compiled(self, title: str) -> TypeCodec:
        """Return the codec, whose source tracebacks and ``inspect`` find."""
        read = [*self._read, "entity.__class__ = Entity", "return entity, position"]
        write = self._write or ["pass"]
        body = "\n    ".join
        source = f"def read(buffer, position, left):\n    {body(read)}\n\n"
        source += f"def write(entity, out):\n    {body(write)}\n"
        file_name = f"<codec {next(_source_numbers)} of {title}>"
        lines = source.splitlines(keepends=True)
        linecache.cache[file_name] = (len(source), None, lines, file_name)
        names = {**self._names, "__name__": __name__}
        exec(compile(source, file_name, "exec"), names)
        return TypeCodec(names["read"], names["write"], max(1, self._least_bytes))


def default_of(field: "dataclasses.Field[Any]") -> Any:
    """Return the default of a field, else that of its type, as in Kafka's generated classes."""
    if field.default is not dataclasses.MISSING:
        return field.default
    if isinstance(field.type, types.UnionType):
        return None
    # Numbers are 0, and whatever has a length is empty.
    return _alone(_type_of(field, flexible=False)).read(bytes(16), 0, Remaining(ANY))[0]


def _unfrozen(entity_type: Any) -> Any:
    """Return a subclass of an entity that has no arguments and whose fields can be set.

    The reader sets them on an instance of it, which then becomes one of the entity. ``__init__`` of
    a frozen class is several times as expensive, because it calls ``object.__setattr__`` for each.
    """
    mutable = {name: getattr(object, name) for name in ("__init__", "__setattr__", "__delattr__")}
    return type("Unfrozen", (entity_type,), {"__slots__": (), **mutable})


# ---------------------------------------------------------------- types of fields


def _type_of(field: "dataclasses.Field[Any]", *, flexible: bool) -> TypeCodec | _Fixed:
    """Return the codec of a field, or its type if that has a fixed size."""
    annotation, nullable = without_none(field.type)
    if typing.get_origin(annotation) is not tuple:
        # A tagged field is left out instead of being null.
        nullable = nullable and "tag" not in field.metadata
        return _single_type_of(field, annotation, flexible=flexible, nullable=nullable)
    inner, _ = without_none(typing.get_args(annotation)[0])
    element = _single_type_of(field, inner, flexible=flexible, nullable=False)
    return _array(element, _lengths(field.name, _INT32, flexible=flexible, nullable=nullable))


def _single_type_of(
    field: "dataclasses.Field[Any]", annotation: Any, *, flexible: bool, nullable: bool
) -> TypeCodec | _Fixed:
    if "kafka_type" not in field.metadata:
        codec = codec_of(annotation)
        return _nullable(codec) if nullable else codec
    kafka_type = field.metadata["kafka_type"]
    if kafka_type in _FIXED:
        return _FIXED[kafka_type]
    is_string = kafka_type == "string"
    prefix = _INT16 if is_string else _INT32
    lengths = _lengths(field.name, prefix, flexible=flexible, nullable=nullable)
    return _sized(lengths, is_string=is_string, nullable=nullable)


@cache
def bytes_codec(*, flexible: bool) -> TypeCodec:
    """Return the codec of record batches, which may be null. All callers share it."""
    lengths = _lengths("records", _INT32, flexible=flexible, nullable=True)
    return _sized(lengths, is_string=False, nullable=True)


def without_none(annotation: Any) -> tuple[Any, bool]:
    """Return the type in an optional one, and whether it is optional.

    Bytes may be :class:`SplitBytes` or a view instead, when they are written.
    """
    if isinstance(annotation, types.UnionType):
        args = typing.get_args(annotation)
        (only,) = (a for a in args if a not in (types.NoneType, SplitBytes, memoryview))
        return only, types.NoneType in args
    return annotation, False


# ---------------------------------------------------------------- types of fixed size


def _boolean(number: int) -> bool:
    # struct reads any byte but 0 as true.
    if number > 1:
        raise ValueError(f"a boolean of {number}")
    return number == 1


@lru_cache(_REMEMBERED)
def _duration(milliseconds: int) -> datetime.timedelta:
    # kio's limit: the microseconds have 64 bits.
    if abs(milliseconds) * 1000 >= 2**63:
        raise ValueError(f"a duration of {milliseconds} ms")
    return datetime.timedelta(milliseconds=milliseconds)


def _duration_ms(value: datetime.timedelta) -> int:
    return round(value.total_seconds() * 1000)


def _time(milliseconds: int) -> datetime.datetime | None:
    if milliseconds < -1:
        raise ValueError(f"a time of {milliseconds} ms")
    # All times of the messages in use are nullable.
    if milliseconds == -1:
        return None
    return datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)


def _time_ms(value: datetime.datetime | None) -> int:
    return -1 if value is None else round(value.timestamp() * 1000)


@lru_cache(_REMEMBERED)
def _id(data: bytes) -> uuid.UUID | None:
    return uuid.UUID(bytes=data) if data != _ZERO_ID else None


def _id_bytes(value: uuid.UUID | None) -> bytes:
    return _ZERO_ID if value is None else value.bytes


_FIXED = {
    "int8": _Fixed("b"), "int16": _Fixed("h"), "int32": _Fixed("i"), "int64": _Fixed("q"),
    "uint8": _Fixed("B"), "uint16": _Fixed("H"), "uint32": _Fixed("I"), "uint64": _Fixed("Q"),
    "float64": _Fixed("d"),
    "bool": _Fixed("B", _boolean, bool),
    "error_code": _Fixed("h", lru_cache(_REMEMBERED)(ErrorCode)),
    "uuid": _Fixed("16s", _id, _id_bytes),
    "timedelta_i32": _Fixed("i", _duration, _duration_ms),
    "timedelta_i64": _Fixed("q", _duration, _duration_ms),
    "datetime_i64": _Fixed("q", _time, _time_ms),
}  # fmt: skip


def _alone(kind: TypeCodec | _Fixed) -> TypeCodec:
    """Return the codec of a type outside of a run."""
    if isinstance(kind, TypeCodec):
        return kind
    layout = struct.Struct(">" + kind.code)

    def read(buffer: Buffer, position: int, left: Remaining) -> tuple[Any, int]:
        (value,) = layout.unpack_from(buffer, position)
        return value if kind.read is None else kind.read(value), position + layout.size

    def write(value: Any, out: Pieces) -> None:
        out.append(layout.pack(value if kind.write is None else kind.write(value)))

    return TypeCodec(read, write, layout.size)


# ---------------------------------------------------------------- types of variable size


def _read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Return an unsigned varint of at most 32 bits, and the position behind it.

    Longer ones raise ValueError, because readers interpret them differently.
    """
    value = 0
    for shift in (0, 7, 14, 21, 28):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    if byte >= 0x80 or value > 0xFFFF_FFFF:
        raise ValueError("a varint is longer than 32 bits")
    return value, position


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _lengths(name: str, prefix: struct.Struct, *, flexible: bool, nullable: bool) -> _Lengths:
    """Return the codec of a length: plus one as a varint in flexible versions, else ``prefix``."""
    least = -1 if nullable else 0
    unpack_from, prefix_bytes = prefix.unpack_from, prefix.size

    def read(buffer: Buffer, position: int) -> tuple[int, int]:
        if flexible:
            length = buffer[position] - 1
            position += 1
            # Nearly all lengths take one byte.
            if length >= 0x7F:
                length, position = _read_varint(buffer, position - 1)
                length -= 1
        else:
            (length,) = unpack_from(buffer, position)
            position += prefix_bytes
        if length < least:
            cause = "is null, which it must not be" if length == -1 else f"has a length of {length}"
            raise ValueError(f"{name} {cause}")
        return length, position

    def write_compact(length: int) -> bytes:
        return _ONE_BYTE[length + 1] if length < 0x7F else _varint(length + 1)

    return (read, write_compact, 1) if flexible else (read, prefix.pack, prefix_bytes)


def _sized(lengths: _Lengths, *, is_string: bool, nullable: bool) -> TypeCodec:
    """Return the codec of strings or of bytes."""
    read_length, write_length, least_bytes = lengths

    def read(buffer: Buffer, position: int, left: Remaining) -> tuple[Any, int]:
        length, position = read_length(buffer, position)
        if length < 0:
            return None, position
        # Slices end silently at the end of the buffer, so the length is checked before.
        if is_string and length > left.string_bytes:
            raise ValueError(f"a string of {length} bytes")
        end = position + length
        if end > len(buffer):
            raise ValueError(f"{end - len(buffer)} bytes are missing")
        data = buffer[position:end]
        return str(data, "utf-8") if is_string else bytes(data), end

    def write(value: Any, out: Pieces) -> None:
        if value is None and nullable:
            out.append(write_length(-1))
            return
        data = value.encode() if is_string else value
        out.append(write_length(len(data)))
        # Records are large, and are passed on as the object that the log returned.
        if isinstance(data, SplitBytes):
            for part in data.parts():
                out.append_large(part)
        elif len(data) < LARGE_BYTES:
            out.append(data)
        else:
            out.append_large(data)

    return TypeCodec(read, write, least_bytes)


def _array(element: TypeCodec | _Fixed, lengths: _Lengths) -> TypeCodec:
    """Return the codec of tuples. Numbers are read in one call."""
    read_length, write_length, least_bytes = lengths
    code = element.code if isinstance(element, _Fixed) and element.read is None else ""
    read_element, write_element, element_bytes = _alone(element)

    def read(buffer: Buffer, position: int, left: Remaining) -> tuple[Any, int]:
        number, position = read_length(buffer, position)
        if number <= 0:
            return (None if number else ()), position
        # Counted before the elements are read: nested arrays multiply.
        left.take(number, element_bytes, len(buffer) - position)
        # Numbers need no call for each element.
        if code:
            numbers = struct.unpack_from(f">{number}{code}", buffer, position)
            return numbers, position + number * element_bytes
        elements = []
        for _ in range(number):
            value, position = read_element(buffer, position, left)
            elements.append(value)
        return tuple(elements), position

    def write(values: Sequence[Any] | None, out: Pieces) -> None:
        if values is None:
            out.append(write_length(-1))
            return
        out.append(write_length(len(values)))
        for value in values:
            write_element(value, out)

    return TypeCodec(read, write, least_bytes)


def _nullable(entity: TypeCodec) -> TypeCodec:
    """Return the codec of an entity after a byte that is -1 for null, else 1 (KIP-893)."""

    def read(buffer: Buffer, position: int, left: Remaining) -> tuple[Any, int]:
        marker = buffer[position]
        if marker < 0x80:
            return entity.read(buffer, position + 1, left)
        # Readers interpret other negative numbers differently.
        if marker != 0xFF:
            raise ValueError(f"an entity's marker is {marker - 0x100}")
        return None, position + 1

    def write(value: Any, out: Pieces) -> None:
        if value is None:
            out.append(b"\xff")
            return
        out.append(b"\x01")
        entity.write(value, out)

    return TypeCodec(read, write, 1)


def _tags_reader(tagged: _Tagged) -> Callable[[Any, Buffer, int, Remaining], int]:
    """Return a reader of tagged fields, which sets the known ones in an entity."""

    def read(entity: Any, buffer: Buffer, position: int, left: Remaining) -> int:
        # Each field has a tag and a size of at least one byte.
        number, position = _read_varint(buffer, position)
        left.take(number, 2, len(buffer) - position)
        for _ in range(number):
            tag, position = _read_varint(buffer, position)
            size, position = _read_varint(buffer, position)
            end = position + size
            if end > len(buffer):
                raise ValueError(f"{end - len(buffer)} bytes are missing")
            # Readers that do not know the field skip its size, so the others have to end there.
            if tag in tagged:
                name, codec, _ = tagged[tag]
                value, position = codec.read(buffer, position, left)
                if position != end:
                    raise ValueError(f"tagged field {tag} does not have the {size} bytes it claims")
                setattr(entity, name, value)
            position = end
        return position

    return read


def _tags_writer(tagged: _Tagged) -> Writer:
    """Return a writer of those tagged fields that do not have their defaults."""
    fields = sorted(tagged.items())

    def write(entity: Any, out: Pieces) -> None:
        written = []
        for tag, (name, codec, default) in fields:
            if (value := getattr(entity, name)) != default:
                content = Pieces()
                codec.write(value, content)
                data = b"".join(content.joined())
                written.append(_varint(tag) + _varint(len(data)) + data)
        out.append(_varint(len(written)))
        out += written

    return write


def end_of_tagged_fields(buffer: Buffer, position: int) -> int:
    """Return the position behind the tagged fields of a header, of which none is known.

    Raises ValueError or IndexError if there are none.
    """
    if not buffer[position]:
        return position + 1
    return _tags_reader({})(None, buffer, position, Remaining(_HEADER))
