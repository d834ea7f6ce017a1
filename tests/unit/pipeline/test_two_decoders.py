"""Spark's decoder and the brokers' accept the same bytes, and read the same records."""

import random
import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.fuzz.agreement import EVERYTHING, LATEST_MS, check_batch, rows_of
from tests.fuzz.batches import T0, batch, records, sealed, spoilt
from tidemark.records.batch import HEADER_BYTES
from tidemark.records.builder import Record, build_batch
from tidemark.records.codecs import UNPACKED_BYTES_MAX, compress
from tidemark_pipeline.errors import CorruptData
from tidemark_pipeline.read import decode as spark
from tidemark_pipeline.read.decode import ByteSource, decode


@given(rng=st.randoms(use_true_random=False), codec=st.integers(0, 4))
@settings(max_examples=examples(300))
def test_valid_batches_are_read_alike(rng: random.Random, codec: int) -> None:
    payload, count = records(rng)
    assert check_batch(batch(payload, count, codec=codec, base_offset=rng.randint(0, 2**40)))


@given(
    rng=st.randoms(use_true_random=False),
    codec=st.sampled_from([0, 0, 0, 1, 2, 3, 4]),
    lies=st.sampled_from([0.0, 0.02, 0.1]),
)
@settings(max_examples=examples(600))
def test_corrupt_batches_are_read_alike_or_by_neither(
    rng: random.Random, codec: int, lies: float
) -> None:
    payload, count = records(rng, lies)
    check_batch(spoilt(rng, payload, count, codec=codec))


def _record(*fields: bytes) -> bytes:
    body = b"\x00" + b"".join(fields)
    return bytes([2 * len(body)]) + body


NULL, EMPTY, NONE = b"\x01", b"\x00", b"\x00"
HUGE = b"\xfe" + b"\xff" * 8 + b"\x01"  # 2^63 - 1


@pytest.mark.parametrize(
    ("payload", "count", "valid"),
    [
        (_record(b"\x00", b"\x00", NULL, NULL, NONE), 1, True),
        (_record(b"\x00", b"\x00", b"\x03", b"\x09", NONE), 1, True),
        (_record(b"\x00", b"\x00", b"\x02", b"kv", NONE), 1, False),
        (_record(b"\x00", b"\x00", HUGE, NULL, NONE), 1, False),
        (_record(b"\x00", b"\x00", NULL, NULL, b"\x02", EMPTY, NULL), 1, True),
        (_record(b"\x00", b"\x00", NULL, NULL, b"\x02", b"\x02\xff", b"\x03"), 1, True),
        (_record(b"\x00", b"\x00", NULL, NULL, b"\x02", NULL, NULL), 1, False),
        (_record(b"\x00", b"\x00", NULL, NULL, b"\x01"), 1, False),
        (_record(b"\x00", b"\x00", NULL, NULL, b"\x02"), 1, False),
        (_record(b"\x00", b"\x00", NULL, NULL, NONE, b"x"), 1, False),
        (_record(b"\x00", b"\x00", NULL, NULL, NONE) + b"x", 1, False),
        (b"anything", 0, True),
        (b"\x00", 1, False),
        (b"\x01\x00\x00\x00\x01\x01\x00", 1, False),
        (_record(b"\x00", b"\xff\xff\xff\xff\x7f", NULL, NULL, NONE), 1, True),
        (_record(b"\x00", b"\x80\x80\x80\x80\x80\x00", NULL, NULL, NONE), 1, False),
        (_record(b"\x80" * 9 + b"\x00", b"\x00", NULL, NULL, NONE), 1, True),
        (_record(b"\x80" * 10 + b"\x00", b"\x00", NULL, NULL, NONE), 1, False),
    ],
    ids=[
        "nulls", "other negative lengths are nulls", "a key that ends behind its record",
        "a length of 64 bits", "a header", "a name that is no UTF-8", "a header without a name",
        "a negative number of headers", "fewer headers than claimed", "bytes behind the headers",
        "bytes behind the last record", "no records", "a record of no bytes", "a negative record",
        "33 bits", "a varint of six bytes", "ten bytes", "a varlong of eleven bytes",
    ],
)  # fmt: skip
@pytest.mark.parametrize("codec", [0, 4])
def test_validity_of_a_record_matches_kafka(
    payload: bytes, count: int, valid: bool, codec: int
) -> None:
    assert check_batch(batch(payload, count, codec=codec)) is valid


def test_headers_belong_to_one_record() -> None:
    """The second record's first bytes could be the value of the first one's header."""
    first = _record(b"\x00", b"\x00", NULL, NULL, b"\x02", EMPTY)
    second = _record(b"\x00", b"\x02", NULL, NULL, NONE)
    assert not check_batch(batch(first + second, 2))


@pytest.mark.parametrize("count", [-1, 1 << 20, 2**31 - 1])
@pytest.mark.parametrize("codec", [0, 4])
def test_claimed_number_of_records_reserves_no_memory(count: int, codec: int) -> None:
    data = batch(_record(b"\x00", b"\x00", NULL, NULL, NONE), count, codec=codec)
    # The first call prepares what later ones reuse, which is not to be measured.
    rows_of(build_batch([Record(None, b"", (), T0)]))
    tracemalloc.start()
    with pytest.raises(CorruptData, match=f"{count:,} records in 7 bytes"):
        rows_of(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
    assert not check_batch(data)


def test_a_batch_of_very_many_records_becomes_many_arrow_batches() -> None:
    count = 2 * spark.ROWS_MAX + 1
    record = _record(b"\x00", b"\x00", NULL, NULL, NONE)
    data = batch(record * count, count, codec=4)
    sizes = [item.num_rows for item in decode(data, EVERYTHING)]
    assert sizes == [spark.ROWS_MAX, spark.ROWS_MAX, 1]
    with pytest.raises(CorruptData, match="behind its last record"):
        list(decode(batch(record * count + b"x", count, codec=4), EVERYTHING))


def test_malformed_batch_is_reported_with_its_place() -> None:
    good = build_batch([Record(b"k", b"v", (), T0)], base_offset=7)
    with pytest.raises(CorruptData, match=r"t-3, among the offsets 5 to 9 \(local\): magic 1"):
        list(decode(good + good[:16] + b"\x01" + good[17:], ByteSource("t", 3, "local", 5, 9)))


@pytest.mark.parametrize(
    ("time_ms", "read"),
    [
        *((LATEST_MS, LATEST_MS), (-LATEST_MS, -LATEST_MS)),
        *((LATEST_MS + 1, LATEST_MS), (2**63 - 1, LATEST_MS), (-(2**63), -LATEST_MS)),
    ],
)
def test_time_beyond_microseconds_is_clamped(time_ms: int, read: int) -> None:
    """A producer may send such a time. A sum beyond 64 bits wraps around first, as in Java."""
    pair = [Record(b"k", b"v", (), T0), Record(b"k", b"v", (), T0 + 1000)]
    made = bytearray(build_batch(pair, base_offset=7))
    # The base timestamp is at byte 27 of a batch.
    struct.pack_into(">q", made, 27, time_ms)
    found = [row[1] for row in rows_of(sealed(made))]
    assert found[0] == read
    wrapped = (time_ms + 1000 + 2**63) % 2**64 - 2**63
    assert found[1] == min(max(wrapped, -LATEST_MS), LATEST_MS)


def test_batch_that_unpacks_to_too_much_is_reported_with_its_place() -> None:
    made = bytearray(batch(b"", 1, codec=4))
    made[HEADER_BYTES:] = compress(4, bytes(UNPACKED_BYTES_MAX + 1))
    with pytest.raises(CorruptData, match=r"t-3, offsets 0 to 0 .* unpacks to more than"):
        rows_of(sealed(made))
