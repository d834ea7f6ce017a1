"""Batches of which more than the header is read: poison, keys where a topic is compacted, and which
batches are read at all."""

import struct
from typing import Any

import pytest

from tidemark.records.batch import CRC_COVERS_FROM, HEADER_BYTES, compute_crc
from tidemark.records.builder import Record, build_batch
from tidemark.records.codecs import compress, decompress
from tidemark_broker.log import (
    BatchContents,
    InvalidRecords,
    InvalidTimestamp,
    LogConfig,
    RecordError,
    RecordsInDoubt,
    RecordTooLarge,
    batch_contents,
    batch_inspection,
    is_quickly_read,
    is_sampled,
)

Bench = Any  # the LogBench of conftest.py
T0 = 1_700_000_000_000
CODECS = [0, 1, 2, 3, 4]
#: A record: length, attributes, deltas of time and offset, key, value, headers.
FIRST = b"\x18\x00\x00\x00\x02k\x02v\x02\x02h\x02v"
SECOND = FIRST[:3] + b"\x02" + FIRST[4:]


def sealed(payload: bytes, *, count: int = 2, codec: int = 0) -> bytes:
    """Return a batch of the payload with a valid header and CRC."""
    packed = compress(codec, payload)
    front = bytearray(build_batch([Record(None, b"", (), T0)] * count, codec=codec)[:HEADER_BYTES])
    struct.pack_into(">i", front, 8, HEADER_BYTES - 12 + len(packed))
    whole = bytes(front) + packed
    crc = compute_crc(whole, CRC_COVERS_FROM, len(whole))
    return whole[:17] + struct.pack(">I", crc) + whole[21:]


@pytest.mark.parametrize("codec", CODECS)
def test_good_records(codec: int) -> None:
    found = batch_contents(sealed(FIRST + SECOND, codec=codec))
    assert found == BatchContents(smallest_ms=T0, largest_ms=T0)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "payload",
    [
        FIRST + SECOND[:-1],
        FIRST + SECOND + b"\x00",
        FIRST + FIRST,
        SECOND + FIRST,
        FIRST + b"\x1a" + SECOND[1:],
        FIRST + b"\x16" + SECOND[1:],
        FIRST + b"\x01" + SECOND[1:],
        FIRST + b"\xff\xff\xff\xff\xff" + SECOND[5:],
        FIRST + SECOND[:4] + b"\x7e" + SECOND[5:],
        FIRST + SECOND[:6] + b"\x7e" + SECOND[7:],
        FIRST + SECOND[:8] + b"\x04" + SECOND[9:],
        FIRST + SECOND[:8] + b"\x01" + SECOND[9:],
        FIRST + SECOND[:9] + b"\x01" + SECOND[10:],
        bytes(len(FIRST + SECOND)),
    ],
    ids=[
        "a record too short",
        "a byte behind the last",
        "offsets doubled",
        "offsets backwards",
        "a length too long",
        "a length too short",
        "a length below zero",
        "a varint without an end",
        "a key beyond the record",
        "a value beyond the record",
        "more headers than there are",
        "headers below zero",
        "a header without a name",
        "zeros",
    ],
)
def test_unreadable_records(bench: Bench, payload: bytes, codec: int) -> None:
    data = sealed(payload, codec=codec)
    with pytest.raises(InvalidRecords):
        batch_contents(data)
    log = bench.create()
    with pytest.raises(RecordsInDoubt):
        log.append_as_leader(data, leader_epoch=0, now_ms=T0, reads=True)
    assert log.next_offset == 0


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_packed_bytes_that_cannot_be_unpacked(codec: int) -> None:
    good = sealed(FIRST + SECOND, codec=codec)
    broken = good[:HEADER_BYTES] + b"\xaa" * (len(good) - HEADER_BYTES)
    with pytest.raises(InvalidRecords):
        batch_contents(broken)


def test_a_wrong_count() -> None:
    for count in (1, 3):
        with pytest.raises(InvalidRecords):
            batch_contents(sealed(FIRST + SECOND, count=count))


def test_records_without_a_key() -> None:
    def of(*keys: bytes | None) -> tuple[int, ...]:
        records = [Record(key, b"v", (), T0) for key in keys]
        return batch_contents(build_batch(records)).keyless

    assert of(b"k", b"") == ()
    assert of(None, b"k", None) == (0, 2)
    assert len(of(*[None] * 150)) == batch_inspection.KEYLESS_MAX


def test_a_compacted_topic_takes_no_record_without_a_key(bench: Bench) -> None:
    bench.config = LogConfig.of({"cleanup.policy": "compact"})
    log = bench.create()
    keyless = build_batch([Record(b"k", b"v", (), T0), Record(None, b"v", (), T0)])
    with pytest.raises(RecordsInDoubt):
        log.append_as_leader(keyless, leader_epoch=0, now_ms=T0, reads=True)
    with pytest.raises(InvalidRecords) as refused:
        log.append_as_leader(keyless, leader_epoch=0, now_ms=T0, contents=batch_contents(keyless))
    assert [record.batch_index for record in refused.value.records] == [1]
    unread = BatchContents(unread="too much")
    with pytest.raises(RecordTooLarge):
        log.append_as_leader(keyless, leader_epoch=0, now_ms=T0, contents=unread)
    bench.append(log, build_batch([Record(b"", None, (), T0)]), now_ms=T0)
    assert log.next_offset == 1


def test_a_batch_that_is_too_large_to_be_read_on_suspicion_is_taken(bench: Bench) -> None:
    log = bench.create()
    good = build_batch([Record(None, b"v", (), T0)])
    unread = BatchContents(unread="too much")
    log.append_as_leader(good, leader_epoch=0, now_ms=T0, contents=unread, reads=True)
    assert log.next_offset == 1


def test_which_record_has_a_timestamp_that_is_not_allowed(bench: Bench) -> None:
    log = bench.create()
    times = (T0, T0 + 10 * 3_600_000, T0)
    data = build_batch([Record(None, b"v", (), time) for time in times])
    with pytest.raises(InvalidTimestamp) as refused:
        bench.append(log, data, now_ms=T0)
    (record,) = refused.value.records
    assert isinstance(record, RecordError)
    assert record.batch_index == 1


def numbered(count: int, number: int, *, codec: int = 0) -> bytes:
    return build_batch([Record(None, b"%d" % number, (), T0)] * count, codec=codec)


@pytest.mark.parametrize(
    ("count", "size", "codec", "is_quick"),
    [
        (1, 10, 0, True),
        (8, 10, 0, True),
        (9, 10, 0, False),
        (1, 20_000, 0, False),
        (1, 10, 1, False),
    ],
)
def test_what_is_read_on_the_loop(count: int, size: int, codec: int, is_quick: bool) -> None:
    data = build_batch([Record(None, bytes(size), (), T0)] * count, codec=codec)
    assert is_quickly_read(data) is is_quick


def test_which_batches_are_read() -> None:
    sent = [numbered(20, number) for number in range(2000)]
    assert all(is_sampled(data, is_early=True) for data in sent)
    read = sum(is_sampled(data, is_early=False) for data in sent)
    assert 10 < read < 80
    assert not is_sampled(b"short", is_early=True)


def test_what_was_packed_is_what_is_read() -> None:
    data = numbered(20, 1, codec=3)
    assert len(decompress(3, data[HEADER_BYTES:])) > 20
    assert batch_contents(data).largest_ms == T0
