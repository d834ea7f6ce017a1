"""Upsert by key: the table equals a dictionary of the records, wherever the job is killed
(invariant 26)."""

import asyncio
import random
import zlib
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import confluent_kafka
import pytest
from pyspark.sql import SparkSession

from tests.integration.pipeline.lakes import (
    KILLED,
    Killed,
    OthersCommitMeanwhile,
    new_lake,
)
from tests.integration.pipeline.marks import MARKS
from tests.integration.pipeline.rows import records
from tests.integration.remote_log.tiered_host import NOW_MS, TOPIC, TieredHost
from tidemark.records.builder import Record, build_batch
from tidemark_broker.replication.partition import produce
from tidemark_pipeline.export.dead_letters import TableWithDeadLetters
from tidemark_pipeline.export.export_progress import ExportError, WriteMode
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.export.json_values import JsonValues, fields_of
from tidemark_pipeline.export.row_shapes import KAFKA, LETTERS_DDL, RAW_DDL, columns_ddl
from tidemark_pipeline.export.table import Partitioning, PartitionPeriod, TableLayout

pytestmark = [*MARKS, pytest.mark.timeout(600), pytest.mark.full]
PARTITIONS = 2
UPSERT = TableLayout(columns=RAW_DDL, mode=WriteMode.UPSERT)
BY_KEY, BY_DAY = Partitioning(buckets=4), Partitioning(PartitionPeriod.DAY)


class KeyedTopic:
    """Keyed topic of a broker with its tier: keys that repeat, and are deleted."""

    def __init__(self, host: TieredHost) -> None:
        self.host = host
        # A fixed seed: failures can be repeated.
        self._chance = random.Random(7)
        self._times = iter(range(NOW_MS, NOW_MS + 1_000_000))

    @property
    def source(self) -> dict[str, str]:
        bootstrap = f"127.0.0.1:{self.host.clients.port}"
        return {"topic": TOPIC, "path": str(self.host.tier_path), "bootstrap": bootstrap}

    async def send(self, count: int) -> None:
        """Records of thirty keys, one in four without a value, in batches of five."""
        for _ in range(count // 5):
            keys = [b"key %d" % self._chance.randrange(30) for _ in range(5)]
            by_partition: dict[int, list[Record]] = {}
            for key in keys:
                value = None if self._chance.random() < 0.25 else self._chance.randbytes(100)
                record = Record(key, value, (), next(self._times))
                # The partition follows from the key, as with a client's partitioner.
                by_partition.setdefault(zlib.crc32(key) % PARTITIONS, []).append(record)
            for number, batch in by_partition.items():
                await self.append(number, batch)

    async def append(self, number: int, batch: list[Record]) -> None:
        partition = self.host.at(number)
        result = await produce.append(partition, build_batch(batch), acks=1, timeout_ms=1000)
        assert result.error.value == 0, result

    async def tier(self) -> None:
        await self.host.copied()
        await self.host.upkeep.apply_retention()

    async def folded(self) -> dict[bytes, tuple[int, int, bytes]]:
        """Return the expected table: the last (partition, offset, value) of each key."""
        read = await asyncio.to_thread(self._consume)
        kept: dict[bytes, tuple[int, int, bytes]] = {}
        for partition, offset, key, value in sorted(read):
            # Later records replace earlier ones; a record without a value deletes its key.
            kept.pop(key, None)
            if value is not None:
                kept[key] = partition, offset, value
        return kept

    def _consume(self) -> list[tuple[int, int, bytes, bytes | None]]:
        bootstrap = self.source["bootstrap"]
        consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "fold"})
        places = [confluent_kafka.TopicPartition(TOPIC, n, 0) for n in range(PARTITIONS)]
        consumer.assign(places)
        left = sum(consumer.get_watermark_offsets(place, timeout=10)[1] for place in places)
        read = []
        while left > len(read):
            message = consumer.poll(10)
            assert message is not None, f"{len(read)} of {left} records"
            assert not message.error(), message.error()
            read.append((message.partition(), message.offset(), message.key(), message.value()))
        consumer.close()
        return read


@pytest.fixture
async def topic(tmp_path: Path) -> AsyncIterator[KeyedTopic]:
    host = TieredHost(tmp_path, tmp_path / "tier")
    host.rows = {number: host.new_row(number) for number in range(PARTITIONS)}
    (tmp_path / "tier").mkdir()
    await host.listen()
    await host.apply()
    topic = KeyedTopic(host)
    await topic.send(40)
    yield topic
    await host.close()


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "partitioning"), [(Format.ICEBERG, BY_KEY), (Format.DELTA, BY_DAY)], ids=list(Format)
)
async def test_table_equals_a_dictionary_of_the_records_despite_kills(
    session: SparkSession,
    topic: KeyedTopic,
    tmp_path: Path,
    kind: Format,
    partitioning: Partitioning,
) -> None:
    """Another client commits meanwhile; records come from the tier and from the broker."""
    lake = new_lake(session, topic.source, tmp_path / "warehouse", kind)
    layout = replace(UPSERT, partitioning=partitioning)
    for doomed in KILLED:
        # Each job is killed at another step; records move to the tier in between.
        with pytest.raises(Killed):
            await asyncio.to_thread(lake.run, lake.table(doomed, layout))
        await topic.tier()
        await topic.send(40)
    done = await asyncio.to_thread(lake.run, lake.table(OthersCommitMeanwhile, layout))
    assert done.lag == 0
    # Some keys were deleted.
    assert done.written.deleted
    expected = await topic.folded()
    rows = session.table(lake.name).collect()
    assert len(rows) == len(expected)
    found = {bytes(r["key"]): (r["partition"], r["offset"], bytes(r["value"])) for r in rows}
    assert found == expected
    # Some of the thirty keys have no row.
    assert 0 < len(found) < 30
    # Rows of all records are another thing.
    # The same table cannot be appended to.
    with pytest.raises(ExportError, match="with mode upsert"):
        await asyncio.to_thread(lake.run, lake.table())


@pytest.mark.long
@pytest.mark.parametrize("kind", Format)
def test_newer_record_of_two_partitions_wins(
    session: SparkSession, tmp_path: Path, kind: Format
) -> None:
    """Within a batch, and against the table's row, in either order."""
    lake = new_lake(session, {}, tmp_path / "warehouse", kind)
    table = lake.table(layout=UPSERT)
    at = table.claim("t", "")
    table.commit(
        records(
            session,
            # Two partitions have the same key: the larger timestamp wins.
            *((b"a", 1, 7, 2000, "new"), (b"a", 0, 90, 1000, "old")),
            *((b"b", 0, 91, 3000, "first"), (b"b", 0, 92, 1000, "second")),
            *((b"c", 0, 93, 1000, "old"), (b"d", 0, 94, 1000, "stays")),
        ),
        at := at.reaching({0: 95, 1: 8}),
    )
    table.commit(
        records(
            session,
            # Older records of another partition change nothing.
            *((b"a", 0, 95, 1500, None), (b"b", 0, 96, 500, "third")),
            *((b"c", 1, 8, 1001, None), (b"c", 1, 9, 900, "again"), (b"e", 1, 10, 1, None)),
        ),
        at.reaching({0: 97, 1: 11}),
    )
    rows = session.table(lake.name).orderBy("key").collect()
    table.close()
    assert [(bytes(row["key"]), bytes(row["value"])) for row in rows] == [
        *((b"a", b"new"), (b"b", b"third"), (b"c", b"old"), (b"d", b"stays"))
    ]
    assert rows[0]["timestamp"].replace(tzinfo=UTC) == datetime.fromtimestamp(2, UTC)


def test_json_by_key(session: SparkSession, tmp_path: Path) -> None:
    """Unparseable values change no row; a record without a key is a dead letter."""
    lake = new_lake(session, {}, tmp_path / "warehouse")
    fields = fields_of("n INT", session)
    layout = replace(UPSERT, columns=columns_ddl(fields), kafka=KAFKA)
    letters = lake.table(layout=TableLayout(columns=LETTERS_DDL), name="dlq")
    tables = TableWithDeadLetters(
        JsonValues(fields), lake.table(layout=layout), letters, WriteMode.UPSERT
    )
    at = tables.claim("t", "")
    first = records(
        session,
        *((b"a", 0, 0, 1, '{"n": 1}'), (b"b", 0, 1, 1, '{"n": 1}'), (b"c", 0, 2, 1, '{"n": 1}')),
        *((b"a", 0, 3, 1, '{"n": 2}'), (None, 0, 4, 1, '{"n": 3}')),
    )
    written = tables.commit(first, at := at.reaching({0: 5}))
    # Three keys, the record without a key is a dead letter.
    assert (written.rows, written.deleted, written.letters) == (3, 0, 1)
    second = records(
        session,
        (b"b", 0, 5, 1, None),
        (b"c", 0, 6, 1, "{"),
        (b"c", 0, 7, 1, '{"n": 4}'),
        (b"a", 0, 8, 1, "x"),
    )
    written = tables.commit(second, at.reaching({0: 9}))
    # One key deleted, one updated, two unreadable values.
    assert (written.rows, written.deleted, written.letters) == (1, 1, 2)
    kept = session.table(lake.name).orderBy("kafka.key").collect()
    assert [(bytes(row["kafka"]["key"]), row["n"]) for row in kept] == [(b"a", 2), (b"c", 4)]
    # A reader without Spark applies the position deletes, too.
    by_key = lake.query_without_spark("SELECT kafka.key, n FROM events ORDER BY ALL")
    assert by_key == [(b"a", 2), (b"c", 4)]
    errors = session.table(letters.name).orderBy("offset").collect()
    assert [row["error"] for row in errors] == ["no key", "not JSON", "not JSON"]
    tables.close()


@pytest.mark.long
async def test_record_without_a_key_is_refused_with_its_offset(
    session: SparkSession, topic: KeyedTopic, tmp_path: Path
) -> None:
    await topic.append(1, [Record(None, b"v", (), NOW_MS)])
    lake = new_lake(session, topic.source, tmp_path / "warehouse")
    offset = topic.host.at(1).next_offset - 1
    with pytest.raises(ExportError, match=f"offset {offset} of partition 1 has no key"):
        await asyncio.to_thread(lake.run, lake.table(layout=UPSERT))
