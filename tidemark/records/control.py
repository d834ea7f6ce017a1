"""Control records: the markers by which a transaction ends in a log.

Key: version i16 (0), type i16 (0 abort, 1 commit; other types are no markers). Value: version i16
(0), coordinator epoch i32. A marker is the one record of a batch that is transactional and control,
and has the producer's id and epoch.
"""

import struct
from typing import NamedTuple

from tidemark.records.batch import Buffer, CorruptBatch
from tidemark.records.builder import Record, build_batch
from tidemark.records.decode import decode_records

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_ABORT, _COMMIT = 0, 1
#: A batch with a marker unpacks to no more.
_UNPACKED_BYTES_MAX = 4096


class EndMarker(NamedTuple):
    """End of a transaction, with the coordinator's epoch."""

    is_commit: bool
    coordinator_epoch: int


def build_end_marker(
    marker: EndMarker, *, producer_id: int, producer_epoch: int, timestamp_ms: int
) -> bytes:
    """Return the batch that ends the transaction of a producer.

    As Kafka's ``MemoryRecords.withEndTransactionMarker``.
    """
    # The key has the marker's version and type; a reader decides by it alone.
    record = Record(
        _KEY.pack(0, _COMMIT if marker.is_commit else _ABORT),
        _VALUE.pack(0, marker.coordinator_epoch),
        (),
        timestamp_ms,
    )
    return build_batch(
        [record],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def read_end_marker(batch: Buffer) -> EndMarker | None:
    """Return the marker in a control batch.

    None if the batch has another kind of control record or, after compaction, no record. Raises
    :class:`CorruptBatch` if the record cannot be read.
    """
    first = next(decode_records(batch, limit_bytes=_UNPACKED_BYTES_MAX), None)
    if first is None:
        return None
    try:
        _, kind = _KEY.unpack_from(first.key or b"")
        if kind not in (_ABORT, _COMMIT):
            return None
        _, coordinator_epoch = _VALUE.unpack_from(first.value or b"")
    except struct.error as error:
        raise CorruptBatch(f"the marker at offset {first.offset} cannot be read") from error
    return EndMarker(kind == _COMMIT, coordinator_epoch)
