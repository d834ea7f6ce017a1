"""Records of the topic, and the rows that its table must have."""

import hashlib
from collections.abc import Iterable
from typing import Any

from tidemark.records.builder import Record, build_batch
from tidemark_pipeline.export.export_progress import WriteMode

_KEYS = 40
#: (partition, offset, key, value)
Row = tuple[int, int, bytes, bytes | None]


def row(offset: int) -> Row:
    """Return a row of a partition with repeating keys; one record in five has no value."""
    key = b"key %d" % (offset * 7 % _KEYS)
    return 0, offset, key, None if offset % 5 == 3 else b"value %d" % offset


def batch(start: int, count: int) -> bytes:
    """As a segment has it."""
    records = [
        Record(key, value, (), offset)
        for _, offset, key, value in map(row, range(start, start + count))
    ]
    return build_batch(records, base_offset=start, leader_epoch=1)


def expected(end: int, mode: WriteMode) -> list[Row]:
    """All records below ``end``, or the last ones of their keys."""
    rows = [row(offset) for offset in range(end)]
    if mode is WriteMode.APPEND:
        return rows
    # The last record of each key. A record without a value deletes the key.
    last: dict[bytes, Row] = {row_[2]: row_ for row_ in rows}
    return sorted(item for item in last.values() if item[3] is not None)


def digest(rows: Iterable[Any]) -> str:
    """Return the digest of rows in order."""
    text = "\n".join(
        f"{p} {o} {bytes(k).hex()} {'-' if v is None else bytes(v).hex()}" for p, o, k, v in rows
    )
    return hashlib.sha256(text.encode()).hexdigest()
