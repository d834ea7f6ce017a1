"""Record batches, good and bad, and what else a Produce says."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from tests.conformance.oracle.case import COMPACT, SINK, T0, Build, Row
from tests.conformance.oracle.sides import SideWorld
from tests.unit.api import api_requests as kafka
from tidemark.records.batch import CRC_COVERS_FROM, HEADER_BYTES, compute_crc
from tidemark.records.builder import Record, build_batch

_BY_ID = 13


def batch(*values: bytes, **options: Any) -> bytes:
    records = [Record(b"k", value, (), T0 + number) for number, value in enumerate(values)]
    return build_batch(records, **options)


def _sealed(data: bytes | bytearray) -> bytes:
    whole = bytearray(data)
    # The length field counts from offset 12, and the CRC covers everything from the attributes on.
    whole[8:12] = (len(whole) - 12).to_bytes(4, "big")
    whole[17:21] = compute_crc(whole, CRC_COVERS_FROM, len(whole)).to_bytes(4, "big")
    return bytes(whole)


def _with(data: bytes, position: int, new: bytes) -> bytes:
    """Bytes of a batch replaced, and the CRC that goes with them."""
    return _sealed(data[:position] + new + data[position + len(new) :])


def produce(topic: str, *records: bytes | None, **values: Any) -> Build:
    def build(world: SideWorld, version: int) -> Any:
        topic_id = world.id_of(topic) if version >= _BY_ID else None
        return kafka.produce(version, topic, *records, topic_id=topic_id, **{"acks": 1} | values)

    return build


def filling(topic: str) -> Build:
    """Three records for a topic that is read: three batches would be three requests."""
    return produce(topic, batch(b"a", b"b", b"c"))


def _twice(world: SideWorld, version: int) -> Any:
    made = produce(SINK, batch(b"a"))(world, version)
    # The same partition twice in one request.
    (topic,) = made.topic_data
    both = dataclasses.replace(topic, partition_data=topic.partition_data * 2)
    return dataclasses.replace(made, topic_data=(both,))


GOOD_BATCH = batch(b"a", b"b")
_RECORD = GOOD_BATCH[HEADER_BYTES : HEADER_BYTES + (len(GOOD_BATCH) - HEADER_BYTES) // 2]
_PRODUCED: dict[str, bytes | None] = {
    "good": GOOD_BATCH,
    "null records": None,
    "empty": b"",
    "short": GOOD_BATCH[:11],
    "shorter than a magic": GOOD_BATCH[:16],
    "cut": GOOD_BATCH[:-1],
    "zeros": bytes(80),
    "noise": bytes(range(1, 100)),
    "two batches": GOOD_BATCH + GOOD_BATCH,
    "bytes behind it": GOOD_BATCH + b"xyz",
    "zeros behind it": GOOD_BATCH + bytes(20),
    "old format": GOOD_BATCH[:16] + b"\x01" + GOOD_BATCH[17:],
    "future format": GOOD_BATCH[:16] + b"\x03" + GOOD_BATCH[17:],
    "wrong CRC": GOOD_BATCH[:-1] + b"?",
    "too large": batch(bytes(6000)),
    "unknown codec": _with(GOOD_BATCH, 21, b"\x00\x05"),
    "base offset 1": batch(b"a", base_offset=1),
    "no records": _with(GOOD_BATCH, 57, bytes(4)),
    "too many records": _with(_with(GOOD_BATCH, 57, b"\x00\x00\x00\x03"), 23, b"\x00\x00\x00\x02"),
    "last offset delta off": _with(GOOD_BATCH, 23, b"\x00\x00\x00\x05"),
    "control": batch(b"a", is_control=True),
    "transactional": batch(b"a", is_transactional=True),
    "sequence below zero": batch(b"a", producer_id=7),
    "largest timestamp -1": _with(GOOD_BATCH, 35, b"\xff" * 8),
    "largest timestamp lies": _with(GOOD_BATCH, 35, bytes(8)),
    "timestamp far ahead": _with(batch(b"a"), 27, (2**60).to_bytes(8, "big") * 2),
    "timestamp below -1": build_batch([Record(b"k", b"v", (), -5)]),
    "log append time": _with(GOOD_BATCH, 21, b"\x00\x08"),
    "zstd": batch(b"a" * 100, codec=4),
}

#: Their CRC is valid, but their records are unreadable: the first batch of a connection is
#: inspected.
_POISON: dict[str, bytes] = {
    "offset deltas twice": _sealed(GOOD_BATCH[:HEADER_BYTES] + _RECORD * 2),
    "value too long": _with(GOOD_BATCH, len(GOOD_BATCH) - 3, b"\x7e"),
    "varint without end": _with(GOOD_BATCH, HEADER_BYTES, b"\xff" * 6),
    "broken gzip": _with(batch(b"a" * 100, codec=1), HEADER_BYTES, b"\xaa" * 8),
    "broken lz4": _with(batch(b"a" * 100, codec=3), HEADER_BYTES, b"\xaa" * 8),
    "broken snappy": _with(batch(b"a" * 100, codec=2), HEADER_BYTES, b"\xaa" * 8),
    "broken zstd": _with(batch(b"a" * 100, codec=4), HEADER_BYTES, b"\xaa" * 8),
}


def produce_rows() -> Iterator[Row]:
    # Since version 3, because older ones carry message formats before v2.
    for what, records in _PRODUCED.items():
        yield Row("Produce", 0, what, produce(SINK, records), since=3)
    # A connection of its own, because only its first batches are inspected.
    for what, records in _POISON.items():
        yield Row("Produce", 0, f"poison, {what}", produce(SINK, records), since=3, fresh=True)
    keyless = build_batch([Record(None, b"v", (), T0)])
    yield Row("Produce", 0, "keyless to a compacted topic", produce(COMPACT, keyless), since=3)
    yield Row("Produce", 0, "unknown topic", produce("nope", GOOD_BATCH), since=3)
    yield Row("Produce", 0, "unknown partition", produce(SINK, GOOD_BATCH, GOOD_BATCH), since=3)
    yield Row("Produce", 0, "acks 2", produce(SINK, GOOD_BATCH, acks=2), since=3)
    yield Row("Produce", 0, "acks all", produce(SINK, GOOD_BATCH, acks=-1), since=3)
    # No answer is sent for acks=0. An error closes the connection.
    yield Row("Produce", 0, "acks 0", produce(SINK, GOOD_BATCH, acks=0), since=3)
    yield Row("Produce", 0, "acks 0, refused", produce(SINK, b"", acks=0), since=3)
    yield Row("Produce", 0, "named twice", _twice, since=3)
