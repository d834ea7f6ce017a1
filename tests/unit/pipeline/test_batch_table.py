"""Reads through a table of batches return what reads of one batch after the other return."""

import random
import re
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tier import SmallTier

from tests.effort import examples
from tidemark.logfiles.transaction_index import AbortedTxn
from tidemark.records.batch import (
    CRC_COVERS_FROM,
    HEADER_BYTES,
    BatchHeader,
    CorruptBatch,
    check_crc,
    compute_crc,
    iter_headers,
    restamp,
)
from tidemark.records.builder import Record, build_batch
from tidemark.records.control import EndMarker, build_end_marker
from tidemark.records.decode import decode_records
from tidemark.records.read_committed import AbortedProducers, committed
from tidemark.tier.metadata.queries import SegmentRange
from tidemark.tier.segments import integrity
from tidemark.tier.segments.integrity import BatchLine, ObjectDamaged
from tidemark_pipeline.errors import CorruptData
from tidemark_pipeline.read import scan, segment_reader, segment_window
from tidemark_pipeline.read.segment_reader import RecordSelection
from tidemark_pipeline.read.tasks import RemoteTask

EPOCH = 1
#: Header fields that get a wrong value: position, format and values.
FIELDS = (
    (0, ">q", (-1, 0, 2**62, 2**63 - 1)),
    (8, ">i", (-1, 0, HEADER_BYTES, 2**31 - 1)),
    (12, ">i", (-1, 0, 2)),
    (16, ">b", (0, 1, 3)),
    (21, ">h", (0, 3, 7, 0x08, 0x10, 0x20, 0x30)),
    (23, ">i", (-1, 0, 2**31 - 1)),
    (35, ">q", (-1, 0, 2**63 - 1)),
    (57, ">i", (-1, 0, 2**31 - 1)),
)
Row = tuple[int, bytes | None]


def drawn_log(rng: random.Random, lies: float) -> tuple[bytes, int]:
    """Return batches of a log that starts at 0, some with wrong headers, and its end offset."""
    made, offset = b"", 0
    for _ in range(rng.randint(1, 7)):
        batch = bytearray(_marker(rng, offset) if rng.random() < 0.2 else _data(rng, offset))
        # Compaction removes records from the end of a batch, too.
        (last_delta,) = struct.unpack_from(">i", batch, 23)
        last_delta += rng.choice((0, 0, 0, 2))
        struct.pack_into(">i", batch, 23, last_delta)
        if rng.random() < lies:
            _lie(rng, batch)
        struct.pack_into(">I", batch, 17, compute_crc(batch, CRC_COVERS_FROM, len(batch)))
        made += batch
        offset += last_delta + 1
    if rng.random() < lies:
        made = made[: -rng.randint(1, len(made) - 1)]
    return made, offset


def _data(rng: random.Random, offset: int) -> bytes:
    producer = rng.choice((-1, -1, 1, 2))
    return build_batch(
        [
            Record(b"k", b"%d" % number, (), rng.randint(0, 50))
            for number in range(rng.randint(1, 3))
        ],
        base_offset=offset,
        leader_epoch=EPOCH,
        codec=rng.randint(0, 4),
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=producer >= 0,
    )


def _marker(rng: random.Random, offset: int) -> bytes:
    made = bytearray(
        build_end_marker(
            EndMarker(rng.random() < 0.5, 0),
            producer_id=rng.randint(1, 2),
            producer_epoch=0,
            timestamp_ms=rng.randint(0, 50),
        )
    )
    restamp(made, 0, offset, EPOCH)
    return bytes(made)


def _lie(rng: random.Random, batch: bytearray) -> None:
    position, form, values = rng.choice(FIELDS)
    (correct,) = struct.unpack_from(form, batch, position)
    near = (value for value in (correct - 1, correct + 1) if -100 < value < 2**15)
    struct.pack_into(form, batch, position, rng.choice((*values, *near)))


def fields(at: int, header: BatchHeader) -> list[int]:
    """Return a header as a row of the table."""
    return [
        at, at + header.size_bytes, header.crc, header.attributes, header.base_offset,
        header.last_offset, header.base_timestamp, header.max_timestamp,
        header.partition_leader_epoch, header.count,
    ]  # fmt: skip


@given(rng=st.randoms(use_true_random=False), lies=st.sampled_from([0.0, 0.3, 1.0]))
@settings(max_examples=examples(300))
def test_table_has_the_headers_of_a_plain_walk(rng: random.Random, lies: float) -> None:
    data, _ = drawn_log(rng, lies)
    refusal, expected = "", []
    try:
        expected += [fields(at, header) for at, header in iter_headers(data)]
    except CorruptBatch as error:
        refusal = re.escape(str(error))
    # Only the table has a limit of offsets, that of their 64 bits.
    if any(row[scan.LAST_OFFSET] >= 2**63 for row in expected):
        refusal = "offsets beyond"
    if refusal:
        with pytest.raises(CorruptBatch, match=refusal):
            scan.find_batches(data)
        return
    batches, size = scan.find_batches(data)
    assert batches.tolist() == expected
    assert size == (expected[-1][scan.END] if expected else 0)


def test_offsets_of_a_cut_batch_are_not_read() -> None:
    """A batch that is not complete yet is ignored, even if its offsets exceed 64 bits."""
    batch = bytearray(build_batch([Record(None, b"v"), Record(None, b"v")], base_offset=0))
    restamp(batch, 0, 2**63 - 1, EPOCH)
    assert scan.find_batches(bytes(batch[:-1]))[1] == 0
    with pytest.raises(CorruptBatch, match="offsets beyond"):
        scan.find_batches(bytes(batch))


@pytest.mark.parametrize("data", [b"", bytes(HEADER_BYTES - 1)])
def test_no_batch_is_an_empty_table(data: bytes) -> None:
    batches, size = scan.find_batches(data)
    assert (batches.shape, size) == ((0, scan.BATCH_COLUMNS), 0)


@given(
    rng=st.randoms(use_true_random=False),
    lies=st.sampled_from([0.0, 0.0, 0.05, 0.3]),
    piece_bytes=st.sampled_from([128, integrity.PIECE_BYTES]),
)
@settings(max_examples=examples(300))
def test_segments_have_the_rows_of_a_plain_reader(
    rng: random.Random, lies: float, piece_bytes: int
) -> None:
    data, end = drawn_log(rng, lies)
    bounds = sorted((rng.randint(0, end - 1), rng.randint(0, end - 1)))
    first, last = rng.choice([(0, end - 1), tuple(bounds)])
    since_ms = rng.choice([None, None, 25])
    aborted = [
        AbortedTxn(producer, begun, begun + rng.randint(0, 4), 0)
        for producer in (1, 2)
        for begun in range(end)
        if rng.random() < 0.2
    ]
    aborted.sort(key=lambda item: item.last_offset)
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        # Small pieces cut batches.
        for module in (integrity, segment_window, segment_reader):
            patch.setattr(module, "PIECE_BYTES", piece_bytes)
        (Path(name) / "tier").mkdir()
        tier = SmallTier(Path(name) / "tier")
        tier.copy([b""] * end, batches=[data], aborted=tuple(aborted), newest_ms=50)
        (entry,) = tier.loaded.head.entries
        part = SegmentRange(entry, first, last)
        found = found_rows(tier, part, since_ms)
    assert found == plain_rows(data, part, aborted, since_ms)


def found_rows(tier: SmallTier, part: SegmentRange, since_ms: int | None) -> list[Row] | None:
    """Return what the source reads, None if it refuses the segment."""
    selection = RecordSelection(("offset", "value"), since_ms)
    try:
        return [
            (row["offset"], row["value"])
            for batch in segment_reader.read_task(
                tier.tier,
                "t",
                tier.topic_id,
                RemoteTask.of(0, [part]),
                fail_on_data_loss=True,
                selection=selection,
            )
            for row in batch.to_pylist()
        ]
    except CorruptData:
        return None


def plain_rows(
    data: bytes, part: SegmentRange, aborted: list[AbortedTxn], since_ms: int | None
) -> list[Row] | None:
    """Return the rows of a segment, read batch by batch, None if one is wrong."""
    transactions = [(item.producer_id, item.first_offset) for item in aborted]
    try:
        # All batches must be sound before the first row.
        headers = list(_followed(data, part))
        rows: list[Row] = []
        least = most = 0
        for at, header in committed(data, headers, AbortedProducers(transactions)):
            is_early = since_ms is not None and header.max_timestamp < since_ms
            requested = _requested(header, part)
            if is_early or not requested:
                continue
            check_crc(data, at, header)
            # A batch may have fewer records than offsets. Its header bounds the number of rows.
            whole = header.last_offset - header.base_offset + 1
            least += max(0, header.count - (whole - requested))
            most += min(requested, header.count)
            rows += _rows(data[at : at + header.size_bytes], part)
    except (CorruptBatch, ObjectDamaged):
        return None
    return rows if least <= len(rows) <= most else None


def _followed(data: bytes, part: SegmentRange) -> Iterator[tuple[int, BatchHeader]]:
    """Yield each batch of the segment, which must be the next one, of an epoch in the manifest."""
    line = BatchLine(part.entry, "the tier")
    for at, header in iter_headers(data):
        line.follow(header.base_offset, header.last_offset, at, header.size_bytes)
        if header.last_offset >= part.from_offset:
            line.check_epoch(header)
        yield at, header
    line.finish()


def _requested(header: BatchHeader, part: SegmentRange) -> int:
    """Return the number of requested offsets of a batch."""
    first = max(header.base_offset, part.from_offset)
    return max(0, min(header.last_offset, part.to_offset_inclusive) - first + 1)


def _rows(batch: bytes, part: SegmentRange) -> Iterator[Row]:
    for record in decode_records(batch):
        if part.from_offset <= record.offset <= part.to_offset_inclusive:
            yield record.offset, record.value
