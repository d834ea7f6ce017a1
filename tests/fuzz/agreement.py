"""Two parsers of the same bytes find the same in them: kio and our codec, Spark and the brokers.

Each check tells whether the bytes were taken; anything else that it raises is a finding.
"""

import io
from typing import Any

import pyarrow as pa
from kio.serial import entity_reader, entity_writer

from tests.fuzz import frames
from tidemark.records.batch import CorruptBatch
from tidemark.records.decode import decode_records
from tidemark.wire.bounds import ANY, Remaining
from tidemark.wire.codec import codec_of
from tidemark.wire.framing import FrameError, decode, encode
from tidemark_pipeline.errors import CorruptData
from tidemark_pipeline.read.decode import ByteSource
from tidemark_pipeline.read.decode import decode as decode_to_arrow

EVERYTHING = ByteSource("t", 3, "remote", -(2**63), 2**63 - 1)
#: The last time that microseconds of 64 bits can tell.
LATEST_MS = (2**63 - 1) // 1000
Row = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def check_message(entity_type: Any, body: bytes) -> bool:
    """Check that kio reads and writes the same as our codec, unless that refuses the message."""
    try:
        value = decode(entity_type, body)
    except FrameError:
        return False
    assert frames.elements_of(value) <= len(body)
    # What kio has written contains no unknown tagged field, so kio can read it.
    written = kio_bytes(value)
    assert encode(value) == written
    read_by_kio = entity_reader(entity_type)
    assert read_by_kio(written, 0) == (value, len(written))
    try:
        assert read_by_kio(body, 0) == codec_of(entity_type).read(body, 0, Remaining(ANY))
    except KeyError:  # a tagged field that kio does not know
        return True
    return True


def kio_bytes(value: Any) -> bytes:
    """Return what kio writes for an entity."""
    out = io.BytesIO()
    entity_writer(type(value))(out, value)
    return out.getvalue()


def check_batch(data: bytes) -> bool:
    """Both decoders of records find the same, or both refuse, and Spark's names the place. ``data``
    is one batch of data whose CRC holds."""
    try:
        ours = [(r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in decode_records(data)]
    except CorruptBatch:
        assert "t-3, " in refusal_of(data)
        return False
    # Spark's timestamps are microseconds of 64 bits, so times beyond them are clamped.
    assert rows_of(data) == [
        (offset, min(max(time_ms, -LATEST_MS), LATEST_MS), *rest) for offset, time_ms, *rest in ours
    ]
    return True


def refusal_of(data: bytes) -> str:
    """Why Spark's decoder does not take it; empty where it does."""
    try:
        rows_of(data)
    except CorruptData as error:
        return str(error)
    return ""


def rows_of(data: bytes) -> list[Row]:
    """Return the rows of Spark's decoder in the format of the broker's."""
    found: list[Row] = []
    for item in decode_to_arrow(data, EVERYTHING):
        item.validate(full=True)
        micros = item.column("timestamp").cast(pa.int64()).to_pylist()
        for row, us in zip(item.drop_columns(["timestamp"]).to_pylist(), micros, strict=True):
            headers = tuple((h["key"], h["value"]) for h in row["headers"] or ())
            time_ms = -1 if us is None else us // 1000
            found.append((row["offset"], time_ms, row["key"], row["value"], headers))
    return found
