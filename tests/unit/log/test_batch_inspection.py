"""Inspection of a batch's records beyond its header: invalid records, missing keys in compacted
topics, and the choice of the batches to inspect."""

import random
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
    appending,
    batch_contents,
    is_quickly_read,
    is_sampled,
    validation,
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
    unsealed = bytes(front) + packed
    crc = compute_crc(unsealed, CRC_COVERS_FROM, len(unsealed))
    return unsealed[:17] + struct.pack(">I", crc) + unsealed[21:]


@pytest.mark.parametrize("codec", CODECS)
def test_valid_records_yield_their_timestamp_range(codec: int) -> None:
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
        # Lengths are zigzag varints: 0x18 is 12, so 0x1a is one too long, 0x16 one too short, and
        # 0x01 is -1.
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
def test_malformed_records_are_rejected_and_not_appended(
    bench: Bench, payload: bytes, codec: int
) -> None:
    data = sealed(payload, codec=codec)
    with pytest.raises(InvalidRecords):
        batch_contents(data)
    log = bench.create()
    # Few records are read at once. Compressed ones could be many, so the caller must read them.
    with pytest.raises(InvalidRecords if is_quickly_read(data) else RecordsInDoubt):
        appending.append_as_leader(log, data, leader_epoch=0, now_ms=T0, reads=True)
    assert log.next_offset == 0


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_payload_that_does_not_decompress_is_rejected(codec: int) -> None:
    good = sealed(FIRST + SECOND, codec=codec)
    broken = good[:HEADER_BYTES] + b"\xaa" * (len(good) - HEADER_BYTES)
    with pytest.raises(InvalidRecords):
        batch_contents(broken)


def test_a_record_count_that_differs_from_the_header_is_rejected() -> None:
    for count in (1, 3):
        with pytest.raises(InvalidRecords):
            batch_contents(sealed(FIRST + SECOND, count=count))


def test_keyless_records_are_listed_up_to_a_limit() -> None:
    def of(*keys: bytes | None) -> tuple[int, ...]:
        records = [Record(key, b"v", (), T0) for key in keys]
        return batch_contents(build_batch(records)).keyless

    # An empty key is a key. Only a null key is missing.
    assert of(b"k", b"") == ()
    assert of(None, b"k", None) == (0, 2)
    assert len(of(*[None] * 150)) == validation.KEYLESS_MAX


def test_a_compacted_topic_rejects_records_without_a_key(bench: Bench) -> None:
    bench.config = LogConfig.of({"cleanup.policy": "compact"})
    log = bench.create()
    keyless = build_batch([Record(b"k", b"v", (), T0), Record(None, b"v", (), T0)])
    # As LogValidator does since KIP-467: the error names the record by its index in the batch.
    with pytest.raises(InvalidRecords) as refused:
        appending.append_as_leader(log, keyless, leader_epoch=0, now_ms=T0, reads=True)
    assert [record.batch_index for record in refused.value.records] == [1]
    # A batch that is too large to inspect may contain keyless records, so it is rejected too.
    unread = BatchContents(unread="too much")
    with pytest.raises(RecordTooLarge):
        appending.append_as_leader(log, keyless, leader_epoch=0, now_ms=T0, contents=unread)
    bench.append(log, build_batch([Record(b"", None, (), T0)]), now_ms=T0)
    assert log.next_offset == 1


def test_a_batch_too_large_to_inspect_is_appended_to_a_topic_that_is_not_compacted(
    bench: Bench,
) -> None:
    log = bench.create()
    good = build_batch([Record(None, b"v", (), T0)])
    unread = BatchContents(unread="too much")
    appending.append_as_leader(log, good, leader_epoch=0, now_ms=T0, contents=unread, reads=True)
    assert log.next_offset == 1


def test_the_error_names_the_record_whose_timestamp_is_out_of_bounds(bench: Bench) -> None:
    log = bench.create()
    # Ten hours ahead: message.timestamp.after.max.ms is one hour by default.
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
def test_only_small_uncompressed_batches_are_read_on_the_event_loop(
    count: int, size: int, codec: int, is_quick: bool
) -> None:
    data = build_batch([Record(None, bytes(size), (), T0)] * count, codec=codec)
    assert is_quickly_read(data) is is_quick


def test_early_batches_are_all_inspected_and_later_ones_are_sampled() -> None:
    sent = [numbered(20, number) for number in range(2000)]
    assert all(is_sampled(data, is_early=True) for data in sent)
    read = sum(is_sampled(data, is_early=False) for data in sent)
    # The sample is drawn from the batch's own bytes, so the share varies around 1 of 64.
    assert 10 < read < 80
    # Too short for a header: the parser rejects it anyway.
    assert not is_sampled(b"short", is_early=True)


def test_compressed_records_are_inspected_after_decompression() -> None:
    data = numbered(20, 1, codec=3)
    assert len(decompress(3, data[HEADER_BYTES:])) > 20
    assert batch_contents(data).largest_ms == T0


def test_check_of_plain_batches_accepts_no_batch_that_the_full_check_refuses_or_changes() -> None:
    config, chance = LogConfig.of({"max.message.bytes": "120"}), random.Random(7)
    good = build_batch([Record(b"k", b"value", (), T0 + number) for number in range(3)])
    plain = 0
    for _ in range(4000):
        data = bytearray(good)
        for _ in range(chance.randrange(3)):
            data[chance.randrange(len(data))] = chance.choice((0, 1, 2, 0x7E, 0x80, 0xFF))
        if chance.random() < 0.9:  # a damaged batch with a right CRC is the interesting one
            data[17:21] = compute_crc(data, CRC_COVERS_FROM, len(data)).to_bytes(4, "big")
        found = validation.check_plain_batch(bytes(data), config, T0)
        if found is None:
            continue
        plain += 1
        header, contents = validation.check_leader_batch(
            validation.one_batch(bytes(data)), config, T0, None, reads=True
        )
        assert contents is not None
        assert (found, found.max_timestamp) == (header, contents.largest_ms)
    assert validation.check_plain_batch(good, config, T0) is not None
    assert 1300 < plain < 3000
