"""Topics of Avro, Protobuf and JSON in tables whose columns follow their schemas, written with
confluent-kafka's serializers and a real registry (Apicurio, by Confluent's interface)."""

import json
import socket
import sys
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql import SparkSession

from tests import apicurio
from tests.integration.pipeline.lakes import Killed, Lake, new_lake
from tests.integration.pipeline.marks import MARKS
from tests.pipeline_proof.poison_records import INJECTIONS, JSON_LETTERS, JSON_ROWS
from tidemark_pipeline.export import json_values
from tidemark_pipeline.export import table_options as wanting
from tidemark_pipeline.export.export_progress import ExportError, WriteMode
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.export.iceberg import IcebergTable
from tidemark_pipeline.export.schema_options import INFER
from tidemark_pipeline.export.table import Evolution
from tidemark_pipeline.export.table_options import TableOptions
from tidemark_pipeline.jobs.export import ExportProgress
from tidemark_pipeline.schemas.protobuf.descriptors import by_name, compiled
from tidemark_pipeline.schemas.registry.client import RegistryDown

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "pipeline"))

from small_tier import SmallTier

pytestmark = [*MARKS, pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    # Reserve a free port; the registry is a separate process.
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    try:
        with apicurio.running(port, tmp_path_factory.mktemp("registry") / "log") as url:
            yield url
    except apicurio.ApicurioMissing as error:
        pytest.skip(str(error))


class SchemaTopic:
    """A topic ``t`` in a tier, and the lake that it is exported into."""

    def __init__(
        self,
        session: SparkSession,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        kind: Format = Format.ICEBERG,
    ) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "tier").mkdir()
        self.tier = SmallTier(folder / "tier", uuid.uuid4())
        self.lake: Lake = new_lake(
            session, {"topic": "t", "path": str(self.tier.path)}, folder / "lake", kind
        )
        self._format: dict[str, Any] = {}
        # Delta has no catalog of its own here, only a path.
        if kind is Format.DELTA:
            catalog = {"warehouse": str(folder / "lake")}
            self._format = {"format": kind, "catalog": catalog}
        monkeypatch.setattr(wanting, "CATALOG", self.lake.catalog)
        self.session = session
        self.messages: list[str] = []

    def copy(self, values: list[bytes]) -> None:
        """Copy records whose keys are their offsets."""
        start = self.tier.loaded.head.next_copy_offset
        self.tier.copy(values, keys=[b"%d" % (start + n) for n in range(len(values))])

    def run(self, **fields: Any) -> ExportProgress:
        options = TableOptions(table="db.events", **self._format, **fields)
        return self.lake.run(options.tables(self.session, self.lake.source, self.messages.append))

    def rows(self) -> list[dict[str, Any]]:
        kept = self.session.table(self.lake.name).orderBy("kafka.offset").collect()
        return [
            {
                "offset": row["kafka"]["offset"],
                **{n: v for n, v in row.asDict(True).items() if n != "kafka"},
            }
            for row in kept
        ]

    def letters(self) -> list[tuple[int, bytes, str]]:
        name = self.lake.named("events_dead_letters")
        kept = self.session.table(name).orderBy("offset").collect()
        return [(row["offset"], bytes(row["value"]), row["error"]) for row in kept]

    def types(self) -> str:
        return str(self.session.table(self.lake.name).drop("kafka").schema.simpleString())


@pytest.fixture
def topic(session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SchemaTopic:
    return SchemaTopic(session, tmp_path, monkeypatch)


def avro(*fields: tuple[str, Any]) -> str:
    made = []
    for name, kind in fields:
        made.append({"name": name, "type": kind})
        if isinstance(kind, list):
            made[-1]["default"] = None
    return json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": made})


def value_of(subject: str) -> SerializationContext:
    return SerializationContext(subject, MessageField.VALUE)


MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}


def test_avro_by_a_registry(
    topic: SchemaTopic, registry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = SchemaRegistryClient({"url": registry})
    one = AvroSerializer(client, avro(("id", "int"), ("name", "string")))
    sound = [one({"id": n, "name": f"n{n}"}, value_of("t")) for n in range(6)]
    assert all(sound)
    # No frame, a truncated value, an unknown id, trailing bytes, and an empty value.
    poison = [b"plain text", sound[0][:-1], b"\x00\x7f\xff\xff\xff\x02", sound[0] + b"\x00", b""]
    topic.tier.copy([*sound[:3], *poison, *sound[3:]])
    progress = topic.run(registry=registry)
    # Six rows and five dead letters, in the order of their offsets.
    assert (progress.written.rows, progress.written.letters) == (6, 5)
    assert topic.rows()[3] == {"offset": 8, "id": 3, "name": "n3"}
    why = [
        "no schema id",
        "the bytes end within it",
        "does not know it",
        "left over",
        "no schema id",
    ]
    for (offset, value, error), data, messages in zip(topic.letters(), poison, why, strict=True):
        assert (offset, value) == (3 + poison.index(data), data)
        assert messages in error

    # The schema grows while records of the old one still come.
    two = AvroSerializer(
        client,
        avro(
            ("id", "long"),
            ("name", "string"),
            ("price", ["null", MONEY]),
            ("lines", ["null", {"type": "array", "items": "int"}]),
        ),
    )
    newer = two(
        {"id": 2**40, "name": "new", "price": Decimal("1.50"), "lines": [1, 2]}, value_of("t")
    )
    # An old and a new record in the same batch.
    topic.tier.copy([sound[0], newer])
    # By default a grown schema stops the job, and names the change.
    with pytest.raises(ExportError, match=r"id is widened from int to bigint; price .* is added"):
        topic.run(registry=registry)
    assert topic.types() == "struct<id:int,name:string>"

    def write(self: IcebergTable, *_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        # Killed after the table has grown and before the rows are written.
        patch.setattr(IcebergTable, "write", write)
        patch.setattr(IcebergTable, "close", lambda _: None)
        with pytest.raises(Killed):
            topic.run(registry=registry, evolution=Evolution.GROW)
    grown = "struct<id:bigint,name:string,price:decimal(9,2),lines:array<int>>"
    assert topic.types() == grown
    # Others' columns stay, and have nothing.
    topic.session.sql(f"ALTER TABLE {topic.lake.name} ADD COLUMNS (note STRING)")
    topic.run(registry=registry)
    had = {"price": Decimal("1.50"), "lines": [1, 2]}
    assert topic.rows()[6:] == [
        {"offset": 11, "id": 0, "name": "n0", "price": None, "lines": None, "note": None},
        {"offset": 12, "id": 2**40, "name": "new", **had, "note": None},
    ]

    # What no table can become is refused, by its name; the table's own columns can be kept.
    # A type that cannot be widened.
    narrow = AvroSerializer(client, avro(("id", "string"), ("name", "string")))
    topic.tier.copy([narrow({"id": "x", "name": "n"}, value_of("t")), sound[1]])
    with pytest.raises(ExportError, match="id: a column of bigint cannot become string"):
        topic.run(registry=registry, evolution=Evolution.GROW)
    before = len(topic.letters())
    # With IGNORE the record that does not fit becomes a dead letter.
    topic.run(registry=registry, evolution=Evolution.IGNORE)
    assert "id: string in the record's schema does not fit bigint" in topic.letters()[before][2]
    assert topic.rows()[-1]["id"] == 1

    # A registry that is down makes no dead letters.
    topic.tier.copy([newer])
    # The registry is unreachable: the job stops.
    with pytest.raises(RegistryDown):
        topic.run(
            registry="http://127.0.0.1:1",
            registry_options={"patience": "0.1"},
            evolution=Evolution.IGNORE,
        )
    assert len(topic.letters()) == before + 1


@pytest.mark.parametrize("kind", Format)
def test_key_keeps_its_row_under_another_schema_id(
    session: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    registry: str,
    kind: Format,
) -> None:
    """Within a batch, and against the table's rows; a key by another type is another key."""
    subject = f"k{uuid.uuid4().hex[:8]}"
    topic = SchemaTopic(session, tmp_path / "by-key", monkeypatch, kind)
    client = SchemaRegistryClient({"url": registry})
    value = AvroSerializer(client, avro(("id", "int")))
    context = SerializationContext(subject, MessageField.KEY)

    def key(number: Any, **schema: Any) -> bytes:
        config = {"auto.register.schemas": True, "normalize.schemas": False}
        made = {"type": "record", "name": "K", "fields": [{"name": "n", "type": "long"}], **schema}
        data = AvroSerializer(client, json.dumps(made), conf=config)({"n": number}, context)
        assert data
        return bytes(data)

    def copy(*pairs: tuple[bytes, int | None]) -> None:
        given = [value({"id": number}, value_of(subject)) or b"" for _, number in pairs]
        topic.tier.copy(given, keys=[item for item, _ in pairs])

    given = {
        "registry": registry,
        "registry_options": {"subject": f"{subject}-value", "key-subject": f"{subject}-key"},
        "mode": WriteMode.UPSERT,
    }
    old, new_id = key(5), key(5, doc="registered again")
    # Same key, registered again: only the id in the frame differs.
    assert old[:5] != new_id[:5]
    assert old[5:] == new_id[5:]
    long_key = b"\x00" * 4 + old[4:5] + old[5:] + b"x"  # a key without an id stays apart
    copy((old, 1), (key(6), 2), (b"raw", 3), (long_key[1:], 4))
    topic.run(**given)
    # The newest record of each key counts, whatever its schema id is.
    copy((new_id, 10), (old, 11), (new_id, 12), (b"raw", 13))
    topic.run(**given)
    found = sorted(row["id"] for row in topic.rows())
    assert found == [2, 4, 12, 13]
    text = [{"name": "n", "type": {"type": "fixed", "name": "F", "size": 1}}]
    other = AvroSerializer(
        client,
        json.dumps({"type": "record", "name": "K2", "fields": text}),
        conf={"auto.register.schemas": False, "use.schema.id": _registered(client, subject, text)},
    )({"n": old[5:]}, context)
    assert other
    # The same bytes under a schema of another type are another key.
    assert other[5:] == old[5:]
    copy((bytes(other), 20))
    topic.run(**given)
    assert sorted(row["id"] for row in topic.rows()) == [2, 4, 12, 13, 20]


def _registered(client: SchemaRegistryClient, subject: str, fields: Any) -> int:
    """Register a schema that no version of the subject is compatible with."""
    client.set_compatibility(f"{subject}-key", level="NONE")
    text = json.dumps({"type": "record", "name": "K2", "fields": fields})
    return int(client.register_schema(f"{subject}-key", Schema(text, "AVRO")))


def test_unusable_latest_schema_makes_dead_letters(topic: SchemaTopic, registry: str) -> None:
    """Any producer may register one: columns by names that are taken, or that differ by case."""
    subject = f"l{uuid.uuid4().hex[:8]}"
    client = SchemaRegistryClient({"url": registry})

    def written(value: dict[str, Any], *fields: tuple[str, Any]) -> bytes:
        data = AvroSerializer(client, avro(*fields))(value, value_of(subject))
        assert data
        return bytes(data)

    given = {
        "registry": registry,
        "registry_options": {"subject": f"{subject}-value"},
        "evolution": Evolution.GROW,
    }
    sound = ("id", "int")
    topic.tier.copy([written({"id": 1}, sound)])
    topic.run(**given)
    none = ["null", "int"]
    # A column may not have the name of the export's own column.
    taken = written({"id": 2, "kafka": 7}, sound, ("kafka", none))
    topic.tier.copy([taken, written({"id": 3}, sound)])
    topic.run(**given)
    # Names that differ by case cannot be columns of one table.
    by_case = written({"id": 4, "Id": 7}, sound, ("Id", none))
    topic.tier.copy([by_case, written({"id": 5}, sound)])
    for _ in range(2):  # a restarted job continues, too
        topic.run(**given)
    topic.tier.copy([written({"id": 6, "more": 1}, sound, ("more", none))])
    topic.run(**given)
    assert [(row["id"], row["more"]) for row in topic.rows()] == [
        *((1, None), (3, None), (5, None), (6, 1))
    ]
    letters = [error for _, _, error in topic.letters()]
    assert "a field of the schema is called kafka" in letters[0]
    assert "differ by case only" in letters[1]


PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Other { int64 x = 1; }
message Order {
  message Line { string name = 1; uint64 count = 2; }
  int32 id = 1; google.protobuf.Timestamp at = 2; repeated Line lines = 3;
  map<string, int32> by = 4;%s
}
"""


def test_protobuf_by_a_registry_and_by_a_file(
    topic: SchemaTopic, registry: str, tmp_path: Path
) -> None:
    client = SchemaRegistryClient({"url": registry})

    def made(text: str, name: str) -> Any:
        return GetMessageClass(by_name(compiled(text), name))

    order, other = made(PROTO % "", "shop.Order"), made(PROTO % "", "shop.Other")
    message = order(id=7, lines=[{"name": "a", "count": 2**63}], by={"k": 1})
    message.at.FromMilliseconds(1_700_000_000_123)
    framed = [
        ProtobufSerializer(type(item), client)(item, value_of("p"))
        for item in (message, other(x=1))
    ]
    # The frame's message index: the second message of the file.
    assert framed[0][5:6] == b"\x02"  # the second message of the file
    topic.tier.copy([framed[0], framed[1], framed[0][:-1], b"\x00" * 5])
    given = {
        "registry": registry,
        "registry_options": {"subject": "p-value"},
        "message": "shop.Order",
    }
    progress = topic.run(**given)
    assert (progress.written.rows, progress.written.letters) == (1, 3)
    (row,) = topic.rows()
    assert (row["id"], row["lines"], row["by"]) == (7, [{"name": "a", "count": 2**63}], {"k": 1})
    assert row["at"].microsecond == 123_000
    errors = [error for _, _, error in topic.letters()]
    assert "it is a message shop.Other, and the table is of shop.Order" in errors[0]
    assert "no message" in errors[1]

    # The same table by a file, with a field more; its records have no frame.
    # The same topic without a registry: records without a frame, a field more.
    (tmp_path / "order.proto").write_text(PROTO % " double weight = 5;")
    given = {"schema_file": str(tmp_path / "order.proto"), "message": "shop.Order"}
    newer = made(PROTO % " double weight = 5;", "shop.Order")(id=8, weight=0.5)
    topic.tier.copy([newer.SerializeToString(), message.SerializeToString()])
    topic.run(**given, evolution=Evolution.GROW)
    assert topic.messages == ["weight double is added"]
    assert [(row["id"], row["weight"]) for row in topic.rows()] == [(7, None), (8, 0.5), (7, 0.0)]


def test_fields_of_json_are_inferred(topic: SchemaTopic) -> None:
    # Nested 5,000 levels deep.
    deep = b'{"a": ' * 5_000 + b"1" + b"}" * 5_000
    # Three megabytes in one field.
    huge = b'{"id": 3, "name": "' + b"x" * 3_000_000 + b'"}'
    framed = b"\x00\x00\x00\x00\x07" + b'{"id": 2, "no": null}'
    values = [b'{"id": 1, "name": "a", "in": {"x": 0.5}}', framed, b"[", huge]
    topic.tier.copy([*values, deep, b"7"])
    # Fields are inferred from a sample.
    topic.run(schema=INFER)
    assert topic.messages == ["inferred: `id` bigint, `in` struct<`x`: double>, `name` string"]
    assert [row["id"] for row in topic.rows()] == [1, 2, 3]
    assert len(topic.rows()[2]["name"]) == 3_000_000
    assert [offset for offset, _, _ in topic.letters()] == [2, 4, 5]

    # A field that appears later is left out, or added on request.
    # By default unknown fields are ignored.
    topic.tier.copy([b'{"id": 4, "more": [{"y": true}], "in": {"z": "t"}}', b'{"id": 0.5}'])
    topic.run(schema=INFER)
    assert "more" not in topic.rows()[-1]
    topic.tier.copy([b'{"id": 5, "more": [{"y": true}], "in": {"z": "t"}}'])
    topic.run(schema=INFER, evolution=Evolution.GROW)
    assert topic.rows()[-1] == {
        "offset": 8,
        "id": 5,
        "name": None,
        "in": {"x": None, "z": "t"},
        "more": [{"y": True}],
    }
    assert topic.letters()[-1][0] == 7


@pytest.mark.parametrize("mode", WriteMode)
@pytest.mark.parametrize("kind", Format)
def test_poisoned_json_becomes_dead_letters_and_the_job_continues(
    session: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: Format,
    mode: WriteMode,
) -> None:
    """In the sample that fields are inferred from, and in a table that grows."""
    values = [value for value, _ in JSON_LETTERS]
    good = [
        b'{"id": %d, "name": "n", "in": {"x": 0.5}, "large": 20000000000000000000}' % n
        for n in range(5)
    ]
    given = {"schema": INFER, "evolution": Evolution.GROW, "mode": mode}
    # Poisoned values are in the sample itself.
    sampled = SchemaTopic(session, tmp_path / "sampled", monkeypatch, kind)
    sampled.copy([*values, *good])
    progress = sampled.run(**given)
    assert progress.written.rows + progress.written.letters == len(values) + len(good)
    columns = set(sampled.session.table(sampled.lake.name).columns)
    assert {"id", "name", "in", "large"} <= columns
    assert not {"a.b", "new", "deep"} & columns

    # Then in a table that grows.
    topic = SchemaTopic(session, tmp_path / "grown", monkeypatch, kind)
    topic.copy(good)
    topic.run(**given)
    injected = [json.dumps({"in": {name: 1}}).encode() for name in INJECTIONS]
    sound = [json.dumps(value).encode() for value, _ in JSON_ROWS]
    topic.copy([*values, *injected, *sound])
    topic.run(**given)
    letters = {offset: error for offset, _, error in topic.letters()}
    rows = {row["offset"]: row for row in topic.rows()}
    for offset, (_, messages) in enumerate(JSON_LETTERS, len(good)):
        assert messages in letters.pop(offset)
        # Poisoned values are dead letters, and no rows.
        assert offset not in rows
    first = len(good) + len(JSON_LETTERS)
    for offset, name in enumerate(INJECTIONS, first):
        # Delta refuses some characters in column names, Iceberg stores them.
        if kind is Format.DELTA:  # no column of Delta's has such a name
            assert "cannot have the character" in letters.pop(offset)
        else:
            assert rows[offset]["in"][name] == 1
    for offset, (_, had) in enumerate(JSON_ROWS, first + len(INJECTIONS)):
        assert {name: rows[offset][name] for name in had} == had
    assert letters == {}
    assert set(topic.session.table(topic.lake.name).columns) == {
        *("kafka", "id", "name", "in", "large"),
        *("_corrupt_record", "dash-x", "_number", "odd"),
    }


def test_number_of_added_columns_is_bounded(topic: SchemaTopic) -> None:
    given = {"schema": INFER, "evolution": Evolution.GROW}
    topic.tier.copy([b'{"id": 1}'])
    topic.run(**given)
    topic.tier.copy([b'{"user-%d": 1}' % n for n in range(15)] + [b'{"id": 2}'])
    # Ten new columns at most, so that data used as names cannot grow the table forever.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_values, "NEW_MAX", 10)
        topic.run(**given)
    assert len(topic.session.table(topic.lake.name).columns) == 2 + 10
    assert [row["id"] for row in topic.rows() if row["id"]] == [1, 2]
    letters = topic.letters()
    assert len(letters) == 5
    assert "the table has no such field" in letters[0][2]
