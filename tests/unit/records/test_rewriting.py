"""Iteration over records by key, and rewriting of batches without some of their records."""

import struct
from typing import Any

import pytest

from tidemark.records.batch import (
    HEADER_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    CorruptBatch,
    TimestampType,
    check_crc,
    parse_header,
    set_log_append_time,
)
from tidemark.records.builder import Record, build_batch
from tidemark.records.codecs import Codec, decompress
from tidemark.records.decode import DecodedRecord, decode_records
from tidemark.records.record_keys import KeyedRecord, keyed_records
from tidemark.records.rewriting import (
    Gap,
    delete_horizon_ms,
    reaching_to,
    with_records,
    without_records,
)

T0 = 1_700_000_000_000
RECORDS = [
    Record(b"a", b"1", (("h", b"x"), ("none", None)), T0),
    Record(b"key" * 50, None, (), T0 + 9),
    Record(None, b"v" * 200, (), T0 - 5),
    Record(b"", b"", (), T0 + 3),
    Record(b"b", bytes(70_000), (), T0 + 1),
]


def _batch(codec: int = 0, **fields: Any) -> tuple[BatchHeader, bytes, bytes]:
    """Return (header, batch, its decompressed records)."""
    batch = build_batch(RECORDS, base_offset=1000, codec=codec, leader_epoch=4, **fields)
    header = parse_header(batch)
    return header, batch, decompress(header.codec, batch[HEADER_BYTES:])


def _records(batch: bytes) -> list[DecodedRecord]:
    header = parse_header(batch)
    assert header.size_bytes == len(batch)
    check_crc(batch, 0, header)
    return list(decode_records(batch))


def test_keys_and_presence_of_values() -> None:
    _, _, payload = _batch()
    found = list(keyed_records(payload, len(RECORDS), len(RECORDS) - 1))
    assert [(delta, key, has_value) for _, _, delta, key, has_value in found] == [
        (number, record.key, record.value is not None) for number, record in enumerate(RECORDS)
    ]
    # The spans are adjacent and cover the complete payload.
    assert [found[0][0], *(end for _, end, *_ in found)] == [
        *(start for start, *_ in found),
        len(payload),
    ]


def test_records_with_deltas_of_several_bytes() -> None:
    records = [Record(b"%d" % n, b"v", (), T0 + n * 1000) for n in range(20_000)]
    batch = build_batch(records)
    found = list(keyed_records(batch[HEADER_BYTES:], len(records), len(records) - 1))
    assert [(delta, key) for _, _, delta, key, _ in found] == [
        (number, record.key) for number, record in enumerate(records)
    ]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x0c\0\0\0\1\1",  # shorter than its length
        b"\x0c\0\0\0\1\1\0\0",  # a byte behind the last record
        b"\x01\0\0\0\1\1\0",  # a negative length
        b"\x0c\0\0\1\1\1\0",  # a negative offset
        b"\x0c\0\0\0\x60\1\0",  # a key beyond the record
        b"\x0c\0" + b"\x80" * 5,  # a timestamp that does not end
        b"\xff" * 12,
    ],
    ids=lambda payload: payload.hex() or "nothing",
)
def test_invalid_records_are_rejected(payload: bytes) -> None:
    with pytest.raises(CorruptBatch):
        list(keyed_records(payload, 1, 0))


def _spans(payload: bytes, count: int, kept: list[int]) -> list[tuple[int, int]]:
    records: list[KeyedRecord] = list(keyed_records(payload, count, count - 1))
    return [records[number][:2] for number in kept]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("kept", [[0], [1, 4], [2, 3], [0, 1, 2, 3, 4]], ids=str)
def test_kept_records_and_header_fields_do_not_change(codec: int, kept: list[int]) -> None:
    header, batch, payload = _batch(codec, producer_id=7, producer_epoch=3, base_sequence=11)
    new = with_records(header, payload, _spans(payload, header.count, kept))
    before = _records(batch)
    assert _records(new) == [before[number] for number in kept]
    after = parse_header(new)
    # The offsets of a batch, its producer and its base timestamp stay, even if its first and last
    # records were removed.
    same = ("base_offset", "last_offset_delta", "partition_leader_epoch", "attributes")
    producer = ("producer_id", "producer_epoch", "base_sequence", "base_timestamp")
    for name in (*same, *producer):
        assert getattr(after, name) == getattr(header, name), name
    assert (after.count, after.max_timestamp) == (
        len(kept),
        max(RECORDS[number].timestamp_ms for number in kept),
    )
    assert delete_horizon_ms(after) is None


@pytest.mark.parametrize("log_append_time", [False, True])
def test_a_delete_horizon_does_not_change_record_timestamps(log_append_time: bool) -> None:
    header, batch, payload = _batch(Codec.LZ4)
    if log_append_time:
        stamped = bytearray(batch)
        set_log_append_time(stamped, 0, header, T0 + 77)
        batch = bytes(stamped)
        header = parse_header(batch)
    # KIP-534 stores the horizon in the base timestamp, so every delta must be rewritten.
    horizon = T0 + 10_000_000
    new = with_records(header, payload, _spans(payload, header.count, [0, 1]), horizon)
    assert _records(new) == _records(batch)[:2]
    after = parse_header(new)
    assert delete_horizon_ms(after) == after.base_timestamp == horizon
    assert after.timestamp_type is TimestampType(log_append_time)
    # A second rewrite starts from a batch whose base timestamp is a horizon.
    decompressed = decompress(after.codec, new[HEADER_BYTES:])
    once_more = with_records(after, decompressed, _spans(decompressed, after.count, [1]))
    assert _records(once_more) == _records(batch)[1:2]
    assert delete_horizon_ms(parse_header(once_more)) == horizon


def test_an_empty_batch_keeps_its_producers_last_sequence() -> None:
    header, _, _ = _batch(Codec.ZSTD, producer_id=7, producer_epoch=3, base_sequence=11)
    new = without_records(header)
    after = parse_header(new)
    assert _records(new) == []
    assert len(new) == HEADER_BYTES
    assert (after.base_offset, after.last_offset, after.partition_leader_epoch) == (1000, 1004, 4)
    assert (after.producer_id, after.producer_epoch, after.base_sequence) == (7, 3, 11)
    assert (after.codec, after.base_timestamp, after.max_timestamp) == (0, NO_TIMESTAMP, T0 + 9)
    assert without_records(after) == new


def test_a_gap_is_an_empty_batch() -> None:
    new = Gap(50, 2**31 + 49, 6).batch()
    header = parse_header(new)
    assert _records(new) == []
    assert (header.base_offset, header.last_offset) == (50, 2**31 + 49)
    assert (header.partition_leader_epoch, header.producer_id) == (6, -1)
    assert header.max_timestamp == NO_TIMESTAMP


def test_extending_a_batch_does_not_change_its_records() -> None:
    header, batch, _ = _batch(Codec.SNAPPY)
    new = reaching_to(batch, 5000)
    assert _records(new) == _records(batch)
    assert parse_header(new).last_offset == 5000
    assert new[:8] == struct.pack(">q", header.base_offset)
