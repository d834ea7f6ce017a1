"""Spark reads a topic of a real broker with its tier in MinIO: as a table, and as a stream that
resumes, while segments move, expire and tiering is switched (invariants 4, 5, 26, 27).
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.integration.pipeline.marks import MARKS
from tests.integration.remote_log.tiered_host import NOW_MS, TOPIC, VALUE, TieredHost
from tests.s3 import fresh_bucket
from tidemark.tiering import DisablePolicy, TieringState
from tidemark_pipeline.read.streaming import run_available

pytestmark = MARKS


class SparkBroker:
    """One broker, and how Spark reads it; Spark blocks, so it is called in a thread."""

    def __init__(self, host: TieredHost, session: SparkSession, s3: dict[str, Any]) -> None:
        self.host, self.session = host, session
        self.tier = {
            "topic": TOPIC,
            "endpoint": s3["endpoint"],
            "buckets": s3["buckets"][0],
            "prefix": s3["prefix"],
            "accessKeyId": s3["accessKeyId"],
            "secretAccessKey": s3["secretAccessKey"],
        }

    @property
    def both(self) -> dict[str, str]:
        return self.tier | {"bootstrap": f"127.0.0.1:{self.host.clients.port}"}

    def table(self, **options: str) -> DataFrame:
        return self.session.read.format("tidemark").options(**self.both, **options).load()

    def stream(self, **options: str) -> DataFrame:
        with_start = {"startingOffsets": "earliest"} | options
        reader = self.session.readStream.format("tidemark").options(**self.both, **with_start)
        return reader.load()

    async def rows(self, frame: DataFrame) -> list[Any]:
        return await asyncio.to_thread(lambda: frame.orderBy("offset").collect())


@pytest.fixture
async def broker(tmp_path: Path, minio: Any, session: SparkSession) -> AsyncIterator[SparkBroker]:
    s3 = fresh_bucket(minio)
    host = TieredHost(tmp_path, tmp_path / "tier")
    host.store = {"s3": s3}
    await host.listen()
    await host.apply()
    yield SparkBroker(host, session, s3)
    await host.close()


async def moved(host: TieredHost) -> None:
    """Closed segments are in the tier, and only there."""
    await host.copied()
    await host.upkeep.apply_retention()


def values(rows: list[Any]) -> list[tuple[int, bytes]]:
    return [(row["offset"], bytes(row["value"])) for row in rows]


def expected(first: int, end: int) -> list[tuple[int, bytes]]:
    return [(offset, b"%08d" % offset + VALUE) for offset in range(first, end)]


async def patiently(run: Callable[..., StreamingQuery], *args: Any, **options: str) -> Any:
    """Spark gives the process that plans a stream ten seconds to start, which is little where
    many programs run. A query that did not begin may be run again."""
    for _ in range(5):
        try:
            return await asyncio.to_thread(run, *args, **options)
        except StreamingQueryException as error:
            if _NOT_STARTED not in str(error):
                raise
    raise AssertionError(_NOT_STARTED)


_NOT_STARTED = "Python worker failed to connect back"


def in_order(batches: dict[int, list[tuple[int, bytes]]]) -> list[tuple[int, bytes]]:
    return [row for number in sorted(batches) for row in batches[number]]


async def test_table_joins_the_tier_and_the_local_log(broker: SparkBroker) -> None:
    host = broker.host
    await host.produce(200)
    await moved(host)
    tiered = host.partition.log.highest_remote_offset + 1
    local = host.partition.log.segment_infos()[0].base_offset
    # The tier and the local log overlap, as they do in general.
    assert 0 < local <= tiered < 200
    rows = await broker.rows(broker.table())
    assert values(rows) == expected(0, 200)
    places = {(row["tier"], row["tieredEpoch"]) for row in rows}
    assert places == {("remote", 0), ("local", None)}
    # Each row is from exactly one of them.
    assert [row["tier"] for row in rows].count("remote") == tiered
    assert {row["leaderEpoch"] for row in rows} == {1}
    first = rows[0]["timestamp"].timestamp() * 1000
    assert int(first + 0.5) == NOW_MS
    # The tier and the local log, each on its own.
    assert values(await broker.rows(broker.table(tier="remote"))) == expected(0, tiered)
    assert values(await broker.rows(broker.table(tier="local"))) == expected(local, 200)
    # Less than all of it, by options and by filters, which Spark applies again.
    some = broker.table(
        startingOffsetsByTimestamp=f'{{"{TOPIC}": {{"0": {NOW_MS + 30}}}}}',
        endingOffsets=f'{{"{TOPIC}": {{"0": 190}}}}',
        columns="offset,value",
    )
    assert some.columns == ["value", "offset"]
    assert values(await broker.rows(some)) == expected(30, 190)
    where = f"offset > 40 and offset <= 60 and partition in (0, 3) and topic = '{TOPIC}'"
    assert values(await broker.rows(broker.table().where(where))) == expected(41, 61)
    later = broker.table().where(f"timestamp >= timestamp_millis({NOW_MS + 77})")
    assert values(await broker.rows(later)) == expected(77, 200)
    nothing = broker.table().where("partition = 7")
    assert await broker.rows(nothing) == []


@pytest.mark.long
async def test_stream_resumes_where_it_was(broker: SparkBroker, tmp_path: Path) -> None:
    """One row for each record, though they were read from brokers and from the tier, in small
    micro-batches, over restarts, one of which repeats a batch that failed."""
    host, seen = broker.host, dict[int, list[tuple[int, bytes]]]()

    def run(start: Callable[[Any], StreamingQuery], **options: str) -> StreamingQuery:
        def keep(frame: DataFrame, number: int) -> None:
            rows = sorted(values(frame.collect()))
            repeated = seen.setdefault(number, rows)
            assert repeated == rows
            if options.get("fails_at") == str(number):
                # A sink fails once, and the batch is repeated after the restart.
                raise RuntimeError("a sink that fails")

        of_source = {name: value for name, value in options.items() if name != "fails_at"}
        writer = broker.stream(**of_source).writeStream.foreachBatch(keep)
        return start(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))

    # 50 offsets per batch, so two batches were stored before the failure.
    limited = {"maxOffsetsPerTrigger": "50", "endingOffsets": "latest"}
    await host.produce(120)
    with pytest.raises(Exception, match="a sink that fails"):
        await patiently(run, run_available, fails_at="1", **limited)
    assert {number: len(rows) for number, rows in seen.items()} == {0: 50, 1: 50}
    # Records of the failed batch have moved to the tier in the meantime.
    await moved(host)
    await host.produce(80)
    await patiently(run, run_available, **limited)
    assert max(map(len, seen.values())) == 50
    # No row twice and none missing, although the source of the rows changed.
    assert in_order(seen) == expected(0, 200)

    # The same with Spark's own trigger: all at once, of brokers and of the tier.
    await host.produce(100)
    await moved(host)
    await host.produce(100)

    def available_now(writer: Any) -> StreamingQuery:
        query: StreamingQuery = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        return query

    await patiently(run, available_now)
    assert in_order(seen) == expected(0, 400)


@pytest.mark.full
async def test_tiering_is_switched_between_two_reads(broker: SparkBroker) -> None:
    """With Delete only the brokers' local records are left, and the tier restarts behind them;
    a read of deleted records fails with that reason.
    """
    host = broker.host
    await host.produce(200)
    await moved(host)
    await host.apply(
        tiering_state=int(TieringState.DISABLING),
        tiered_epoch=1,
        disable_policy=int(DisablePolicy.DELETE),
    )
    # Everything that was in the tier is deleted.
    await host.acknowledged(1, DisablePolicy.DELETE)
    start = host.partition.log_start_offset
    assert 0 < start < 200
    assert values(await broker.rows(broker.table())) == expected(start, 200)
    # An explicit offset below the log start is an error.
    with pytest.raises(Exception, match=f"its log starts at {start}"):
        await broker.rows(broker.table(startingOffsets='{"0": 0}'))
    # On request the deleted range is skipped.
    lenient = broker.table(startingOffsets='{"0": 0}', failOnDataLoss="false")
    assert values(await broker.rows(lenient)) == expected(start, 200)
    # Tiered again: local, remote, local.
    await host.apply(tiering_state=int(TieringState.DISABLED), disable_policy=0)
    await host.apply(tiering_state=int(TieringState.ENABLED), tiered_epoch=2)
    await host.produce(100)
    await moved(host)
    rows = await broker.rows(broker.table())
    assert values(rows) == expected(host.partition.log_start_offset, 300)
    assert {row["tieredEpoch"] for row in rows} == {2, None}
