"""Record batches of version 2: round trips, patches that keep the CRC, and detection of damage."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.records.batch import (
    HEADER_BYTES,
    CorruptBatch,
    TimestampType,
    check_crc,
    iter_headers,
    parse_header,
    restamp,
    set_log_append_time,
)
from tidemark.records.builder import Record, build_batch
from tidemark.records.decode import decode_records

_BYTES = st.none() | st.binary(max_size=40)
_RECORDS = st.lists(
    st.builds(
        Record,
        _BYTES,
        _BYTES,
        st.lists(st.tuples(st.text(max_size=5), _BYTES), max_size=3).map(tuple),
        st.integers(0, 2**42),
    ),
    min_size=1,
    max_size=8,
)


@given(records=_RECORDS, codec=st.integers(0, 4), base_offset=st.integers(0, 2**50))
def test_a_built_batch_round_trips(records: list[Record], codec: int, base_offset: int) -> None:
    batch = build_batch(records, base_offset=base_offset, codec=codec, leader_epoch=7)
    header = parse_header(batch)
    check_crc(batch, 0, header)
    assert header.size_bytes == len(batch)
    assert (header.base_offset, header.next_offset) == (base_offset, base_offset + len(records))
    assert (header.count, header.codec, header.partition_leader_epoch) == (len(records), codec, 7)
    # The header repeats what the records say: count, offsets, and largest timestamp.
    assert header.max_timestamp == max(record.timestamp_ms for record in records)
    decoded = list(decode_records(batch))
    assert [record.offset for record in decoded] == list(
        range(base_offset, base_offset + len(records))
    )
    assert [
        Record(item.key, item.value, item.headers, item.timestamp_ms) for item in decoded
    ] == records


@given(records=_RECORDS, offset=st.integers(0, 2**60), epoch=st.integers(0, 2**30))
def test_restamp_keeps_the_crc(records: list[Record], offset: int, epoch: int) -> None:
    batch = bytearray(build_batch(records))
    restamp(batch, 0, offset, epoch)
    header = parse_header(batch)
    check_crc(batch, 0, header)
    assert (header.base_offset, header.partition_leader_epoch) == (offset, epoch)


def test_log_append_time_is_every_records_timestamp() -> None:
    batch = bytearray(build_batch([Record(b"k", b"v", (), 5), Record(b"k", b"w", (), 9)]))
    set_log_append_time(batch, 0, parse_header(batch), 1234)
    header = parse_header(batch)
    check_crc(batch, 0, header)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert [record.timestamp_ms for record in decode_records(batch)] == [1234, 1234]


@given(position=st.integers(17, HEADER_BYTES + 11), bit=st.integers(0, 7))
def test_every_flipped_bit_behind_the_magic_is_detected(position: int, bit: int) -> None:
    batch = bytearray(build_batch([Record(b"key", b"value", (), 1)]))
    # Bytes 17 to 20 are the CRC itself. Everything behind is covered by it.
    batch[position] ^= 1 << bit
    with pytest.raises(CorruptBatch):
        check_crc(batch, 0, parse_header(batch))


def test_iteration_ends_before_a_partial_batch() -> None:
    first, second = (build_batch([Record(None, bytes(size))]) for size in (10, 300))
    # A fetch response may end within a batch, which clients ignore.
    for cut in range(len(second)):
        found = list(iter_headers(first + second[:cut]))
        assert [position for position, _ in found] == [0]
    assert [position for position, _ in iter_headers(first + second)] == [0, len(first)]
    assert [position for position, _ in iter_headers(first + second, len(first))] == [len(first)]


@pytest.mark.parametrize(
    ("position", "form", "value", "message"),
    [
        (16, ">b", 1, "magic 1"),
        (8, ">i", 48, "shorter than its own header"),
        (0, ">q", -1, "negative offsets"),
        (23, ">i", -1, "negative offsets"),
    ],
)
def test_invalid_headers_are_rejected(position: int, form: str, value: int, message: str) -> None:
    batch = bytearray(build_batch([Record(None, b"v")]))
    struct.pack_into(form, batch, position, value)
    with pytest.raises(CorruptBatch, match=message):
        parse_header(batch)


def test_control_and_transactional_bits() -> None:
    header = parse_header(
        build_batch([Record(b"k", b"v")], is_control=True, is_transactional=True, producer_id=4)
    )
    assert header.is_control
    assert header.is_transactional
    assert header.producer_id == 4


def test_a_batch_of_aiokafka_is_read() -> None:
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    # An independent implementation of the format, with gzip.
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=1,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=10_000,
    )
    for number in range(5):
        builder.append(number, 1000 + number, b"key", b"value" * 50, [("h", b"x")])
    batch = bytes(builder.build())
    header = parse_header(batch)
    check_crc(batch, 0, header)
    assert [(r.offset, r.timestamp_ms, r.headers) for r in decode_records(batch)] == [
        (number, 1000 + number, (("h", b"x"),)) for number in range(5)
    ]
