"""Two parsers of the same bytes find the same in them: kio and our walk, Spark and the brokers.

Each check tells whether the bytes were taken; anything else that it raises is a finding.
"""

from typing import Any

import pyarrow as pa

from tests.fuzz import frames
from tidemark.records.batch import CorruptBatch
from tidemark.records.decode import decode_records
from tidemark.wire.bounds import end_of_entity
from tidemark.wire.framing import FrameError, decode, reader_of
from tidemark.wire.tolerant_reader import read_entity
from tidemark_pipeline.errors import CorruptData
from tidemark_pipeline.read.decode import ByteSource
from tidemark_pipeline.read.decode import decode as decode_to_arrow

EVERYTHING = ByteSource("t", 3, "remote", -(2**63), 2**63 - 1)
#: The last time that microseconds of 64 bits can tell.
LATEST_MS = (2**63 - 1) // 1000
Row = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def check_message(entity_type: Any, body: bytes) -> bool:
    """Check that all three readers of messages agree, unless the walk refuses the message."""
    try:
        value = decode(entity_type, body)
    except FrameError:
        return False
    end = end_of_entity(entity_type, body)
    # The walk decides how much of a frame is read, so it has to agree with kio on the end.
    assert read_entity(entity_type, body, 0) == (value, end)
    assert frames.elements_of(value) <= len(body)
    try:
        assert reader_of(entity_type)(body, 0) == (value, end)
    except KeyError:  # a tagged field that kio does not know
        return True
    return True


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
