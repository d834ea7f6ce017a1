"""Kafka's DumpLogSegments reads what compaction has left: batches with fewer records than offsets,
empty batches, delete horizons, and the indexes that were made for them."""

import re
from pathlib import Path

import pytest

from tests.kafka_programs import java, kafka_jars
from tests.unit.log.conftest import T0, LogBench
from tidemark.records.batch import iter_headers
from tidemark.records.builder import Record, build_batch
from tidemark.records.decode import decode_records
from tidemark_broker.log import LogConfig, PartitionLog, appending, flushing
from tidemark_broker.log.compaction import CleanerSettings, clean, dirtiness_of

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.full]

CONFIG = LogConfig(
    segment_bytes=8000, index_interval_bytes=300, cleanup_policy=frozenset({"compact"})
)
RECORD = re.compile(r"^\| offset: (\d+) ", re.MULTILINE)
BATCH = re.compile(r"^baseOffset: (\d+) lastOffset: (\d+) count: (\d+) .*isvalid: (\w+)", re.M)
#: Offsets of records that do not run on are what compaction makes.
TROUBLE = re.compile(r"isvalid: false|mismatch|out of order|Found .*error|corrupt", re.IGNORECASE)


def _written(bench: LogBench) -> PartitionLog:
    """Every codec, one and several records a batch, tombstones, two epochs, an idempotent
    producer."""
    log, sequence = bench.create(), 0
    # Multiples of 7 modulo 97 write each key several times, so that the cleaner has duplicates.
    # Number modulo 5 runs through Kafka's codecs.
    for number in range(240):
        producer_id = 7 if number % 3 == 0 else -1
        records = [
            Record(b"key-%d" % (number * 7 % 97 + index), _value(number, index), (), T0 + number)
            for index in range(number % 4 + 1)
        ]
        data = build_batch(
            records,
            codec=number % 5,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=sequence if producer_id >= 0 else -1,
        )
        sequence += len(records) if producer_id >= 0 else 0
        bench.append(log, data, epoch=number // 120, now_ms=T0 + number)
    # The cleaner stops at the high watermark and at the active segment.
    log.advance_high_watermark(log.next_offset)
    appending.roll(log, T0)
    return log


def _value(number: int, each: int) -> bytes | None:
    return None if (number + each) % 11 == 0 else bytes(number % 90)


def test_kafka_reads_a_compacted_log(tmp_path: Path) -> None:
    jars, bench = kafka_jars(), LogBench(tmp_path / "t-0", config=CONFIG)
    log = _written(bench)
    settings = CleanerSettings(memory_bytes=1 << 20, load_factor=0.9, buffer_bytes=4096)
    # The first pass keeps tombstones with a delete horizon. The second pass, 10 ms later, reads
    # batches that already have one.
    for now_ms in (T0, T0 + 10):
        what = dirtiness_of(log, now_ms)
        clean(log, what, settings, now_ms=now_ms, stopping=lambda: False, moved=lambda _: 0.0)
        # Make the whole log dirty again, as after a change of the policy.
        log.first_dirty = 0
    bench.check(log)
    data = bench.read_all(log)
    flushing.close(log)
    # An empty file has nothing to check.
    files = [*bench.directory.glob("*.log"), *bench.directory.glob("*.index")]
    names = ",".join(str(file) for file in sorted(files) if file.stat().st_size)
    program = "org.apache.kafka.tools.DumpLogSegments"
    text = java(jars, program, "--files", names, "--deep-iteration")
    assert not TROUBLE.findall(text), text
    # Kafka's view of batches and records must equal what our reader finds.
    headers = [header for _, header in iter_headers(data)]
    assert [tuple(map(int, found[:3])) for found in BATCH.findall(text)] == [
        (header.base_offset, header.last_offset, header.count) for header in headers
    ]
    assert list(map(int, RECORD.findall(text))) == [
        decode_record.offset
        for position, _ in iter_headers(data)
        for decode_record in decode_records(memoryview(data)[position:])
    ]
    assert "deleteHorizonMs: OptionalLong[" in text
