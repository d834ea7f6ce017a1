"""Records of JSON, Avro and Protobuf that once ended an export or silently lost a value. Each is
expected to be a dead letter with a cause, or a row. Sound records are between them."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.message_factory import GetMessageClass

from tidemark_pipeline.export.export_progress import WriteMode
from tidemark_pipeline.export.table import Evolution
from tidemark_pipeline.schemas.protobuf.descriptors import by_name, compiled

#: A nested field's name that closes its struct, where a statement has it unquoted.
INJECTION = "a:bigint>, injected string COMMENT 'by a record', z struct<b"
#: Nested fields' names that a statement reads as something else. The last two are what Spark puts a
#: variable of the job's environment for, and nothing.
INJECTIONS = (INJECTION, "${env:PATH}", "${nothing}")
#: For columns ``id bigint, name string, in struct<x: double>, large decimal(20,0)``: values, and
#: what their causes say.
JSON_LETTERS: list[tuple[bytes, str]] = [
    (b'{"a.b": 1}', "'a.b': a column's name cannot have the character '.'"),
    (b'{"in": {"a.b": 1}}', "'in.a.b'"),
    (b'{"kafka": 1}', "'kafka': the name is reserved"),
    (b'{"new": 1, "NEW": 2}', "differs from it by case only"),
    (b'{"Name": "a"}', "'Name': the column name differs from it by case only"),
    (b'{"in": {"X": 1.0}}', "'in.X': the column x"),
    (json.dumps({f"f{n}": n for n in range(120)}).encode(), "it has 120 fields"),
    (b'{"deep": ' + b'{"a":' * 60 + b"1" + b"}" * 61, "nested at most 30 deep"),
    (b'{"a":' * 250 + b"1" + b"}" * 250, "nested more than 100 deep"),
    (b'{"a":' * 5_000 + b"1" + b"}" * 5_000, "nested more than 100 deep"),
    (b'{"in": {"x": 1e400}}', "in.x: a number is beyond a double"),
    (b'{"large": 1.5, "id": 1}', "JSON that does not fit the schema"),
    (b"{'id': 1}", "not JSON"),
    (b'{"id": 1}{"id": 2}', "not JSON"),
    (b'{"name": "\xff"}', "its text is not UTF-8"),
]
#: Values that look like poison and are rows, and what a row then has.
JSON_ROWS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"_corrupt_record": 7}, {"_corrupt_record": 7}),
    ({"dash-x": {"y-z": 1}}, {"dash-x": {"y-z": 1}}),
    ({"_number": 3, "id": 9}, {"_number": 3, "id": 9}),
    ({"odd": {"é:1'\"<": "t"}}, {"odd": {"é:1'\"<": "t"}}),
]
_SOUND = b'{"id": %d, "name": "n", "in": {"x": 0.5}, "large": 20000000000000000000}'
#: Milliseconds: a time that SQL has, one behind the year 9999, the largest of microseconds, and the
#: largest of all.
_FAR = (4_200_000_000_000, 253_402_300_800_000, (2**63 - 1) // 1000, 2**63 - 1)

_PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Order {
  int32 id = 1; google.protobuf.Timestamp at = 2; map<string, int32> by = 3; string name = 4;
}
"""


@dataclass(frozen=True, slots=True)
class Produced:
    """A record. ``cause``: of its dead letter, "" for a row."""

    value: bytes
    key: bytes
    timestamp_ms: int = 1_700_000_000_000
    cause: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoisonCase:
    """Records of one format, and how they are exported: what ``table`` has, as an export's table is
    described, after ``first`` and after ``then``, whose schemas are not registered before.
    ``columns``: at the end, but for ``kafka``. ``keys``: rows at the end, where they are by key.
    ``files``: the text of a file with a schema, by its suffix."""

    name: str
    table: dict[str, Any]
    first: Sequence[Produced]
    then: Callable[[], Sequence[Produced]]
    columns: set[str]
    keys: int = 0
    files: dict[str, str] = field(default_factory=dict)


def cases(registry: str, sound: int) -> Iterator[PoisonCase]:
    """Return all cases, with about ``sound`` sound records between poisoned ones."""
    yield json_case(sound)
    yield avro_case(registry, sound)
    yield protobuf_case(sound)


def json_case(sound: int) -> PoisonCase:
    """JSON: fields are inferred, and the table grows, partitioned by hour."""
    # Sound records, bad ones with their causes, odd ones that are rows, and names that could end a
    # statement.
    good = [Produced(_SOUND % n, b"%d" % n) for n in range(sound)]
    letters = [Produced(value, b"k", cause=cause) for value, cause in JSON_LETTERS]
    rows = [Produced(json.dumps(value).encode(), b"k") for value, _ in JSON_ROWS]
    injected = [Produced(json.dumps({"in": {name: 1}}).encode(), b"k") for name in INJECTIONS]
    far = [Produced(_SOUND % n, b"far", time) for n, time in enumerate(_FAR)]
    return PoisonCase(
        name="json",
        table={"schema": "infer", "evolution": Evolution.GROW, "partition": "hour"},
        first=good,
        then=lambda: _mixed(good, [*letters, *rows, *injected, *far]),
        columns={
            *("id", "name", "in", "large"),
            *("_corrupt_record", "dash-x", "_number", "odd"),
        },
    )


def avro_case(registry: str, sound: int) -> PoisonCase:
    """Avro: by registry and key; the keys' schema gets another id in between."""
    client = SchemaRegistryClient({"url": registry})
    topic = "poison-avro"

    def schema(name: str, *fields: tuple[str, Any], **more: Any) -> str:
        made = [{"name": n, "type": kind} for n, kind in fields]
        for given in made:
            if isinstance(given["type"], list):
                given["default"] = None
        return json.dumps({"type": "record", "name": name, "fields": made, **more})

    # Another documentation text makes another schema id for the same key.
    def key(number: int, doc: str) -> bytes:
        write = AvroSerializer(client, schema("Key", ("n", "long"), doc=doc))
        return bytes(write({"n": number}, SerializationContext(topic, MessageField.KEY)) or b"")

    numbers = {"type": "map", "values": "int"}
    fields: list[tuple[str, Any]] = [("id", "long"), ("m", numbers)]

    def value(number: int, *more: tuple[str, Any], **others: Any) -> bytes:
        write = AvroSerializer(client, schema("Value", *fields, *more))
        context = SerializationContext(topic, MessageField.VALUE)
        return bytes(write({"id": number, "m": {"k": 1}, **others}, context) or b"")

    first = [Produced(value(n), key(n, "as it was")) for n in range(sound)]
    # The frame of a valid record: magic byte and schema id. Its map is given the same key twice.
    frame = first[0].value[:5]
    twice = frame + b"\x02" + b"\x04" + b"\x02k\x02" + b"\x02k\x04" + b"\x00"

    def then() -> list[Produced]:
        anew = [Produced(value(n), key(n, "anew")) for n in range(sound)]
        taken = value(1, ("kafka", ["null", "int"]), kafka=1)
        # Each is wrong in one way: no schema id, an unknown one, too short, too long, an impossible
        # count, a reserved name.
        poison = [
            Produced(b"plain text", key(0, "anew"), cause="no schema id"),
            Produced(b"\x00\x7f\xff\xff\xff\x02", key(0, "anew"), cause="does not know it"),
            Produced(first[0].value[:-1], key(0, "anew"), cause="the bytes end within it"),
            Produced(first[0].value + b"\x00", key(0, "anew"), cause="left over"),
            Produced(frame + b"\x02\xfe\xff\x03", key(0, "anew"), cause="more items than"),
            Produced(taken, key(0, "anew"), cause="is called kafka"),
            Produced(twice, key(sound, "anew")),
        ]
        return _mixed(anew, poison)

    return PoisonCase(
        name="avro",
        table={
            "registry": registry,
            "registry_options": {"subject": f"{topic}-value", "key-subject": f"{topic}-key"},
            "evolution": Evolution.GROW,
            "mode": WriteMode.UPSERT,
        },
        first=first,
        then=then,
        columns={"id", "m"},
        keys=sound + 1,
    )


def protobuf_case(sound: int) -> PoisonCase:
    """Protobuf: by a schema file."""
    order = GetMessageClass(by_name(compiled(_PROTO), "Order"))

    def message(number: int) -> bytes:
        return bytes(order(id=number, by={"k": 1}, name="n").SerializeToString())

    first = [Produced(message(n), b"%d" % n) for n in range(sound)]
    # A time that Protobuf allows and SQL does not have.
    late = order(id=1)
    late.at.seconds = 253_402_300_800
    twice = b"\x1a\x05\x0a\x01k\x10\x01" * 2
    poison = [
        Produced(b"\xff" * 20, b"k", cause="no message"),
        Produced(message(1)[:-1], b"k", cause="no message"),
        Produced(b"\x22\x01\xff", b"k", cause="no message"),  # text that is not UTF-8
        Produced(b"\x0b" * 500, b"k", cause="no message"),  # groups within one another
        Produced(bytes(late.SerializeToString()), b"k", cause="not between the years 1 and 9999"),
        Produced(twice, b"k"),
    ]
    return PoisonCase(
        name="protobuf",
        table={"message": "Order", "format": "delta", "partition": "day"},
        first=first,
        then=lambda: _mixed(first, poison),
        columns={"id", "at", "by", "name", "kafka_day"},
        files={".proto": _PROTO},
    )


def _mixed(sound: Sequence[Produced], poison: Sequence[Produced]) -> list[Produced]:
    """Mix poisoned records with sound ones."""
    # Between two poisoned records there are sound ones, which must all become rows.
    step = max(1, len(sound) // (len(poison) + 1))
    made: list[Produced] = []
    left = list(poison)
    for number, record in enumerate(sound, 1):
        made.append(record)
        if number % step == 0 and left:
            made.append(left.pop(0))
    return made + left
