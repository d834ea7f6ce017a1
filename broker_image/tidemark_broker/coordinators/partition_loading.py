"""What a coordinator's partition holds, read from its first record to where the epoch began.

It runs in a thread, since a log may be long; what it fills is used by nobody else until then. The
tier is never involved: internal topics are compacted, and what is compacted is not tiered.
"""

import struct
from collections.abc import Callable
from typing import NamedTuple, Protocol

from tidemark.records.batch import BatchHeader, CorruptBatch, check_crc, iter_headers
from tidemark.records.decode import decode_records
from tidemark_broker.coordinators.log import CoordinatorRecord, TransactionalProducer
from tidemark_broker.log import PartitionLog
from tidemark_broker.replication.threads import Threads

READ_BYTES = 1024 * 1024
#: A control record's key: its version, and whether the transaction is aborted (0) or committed.
_MARKER = struct.Struct(">hh")
_COMMIT = 1

in_loading_thread = Threads("coordinators that load", threads=2)


class Replayed(Protocol):
    """What records are replayed into: in a thread while it loads."""

    def replay(
        self, record: CoordinatorRecord, producer: TransactionalProducer | None, offset: int
    ) -> None:
        """One record at that offset, in the transaction of ``producer`` or in none. Raises
        ValueError for what cannot be read: the coordinator does not become active then."""

    def replay_marker(self, producer: TransactionalProducer, *, committed: bool) -> None:
        """The producer's transaction has ended."""


class Loaded(NamedTuple):
    """What was read."""

    records: int
    bytes_read: int


def load(
    log: PartitionLog, into: Replayed, end_offset: int, given_up: Callable[[], bool]
) -> Loaded:
    """T: replay all below ``end_offset``, unless nobody wants it any more. Raises
    :class:`CorruptBatch` and errors of the log."""
    records = bytes_read = 0
    offset = log.log_start_offset
    while offset < end_offset and not given_up():
        read = log.read(offset, max_bytes=READ_BYTES, up_to_offset=end_offset, min_one=True)
        if not read.data:
            break
        view = memoryview(read.data)
        for position, header in iter_headers(view):
            check_crc(view, position, header)
            records += _replay(view[position : position + header.size_bytes], header, into)
        offset = read.next_offset
        bytes_read += len(read.data)
    return Loaded(records, bytes_read)


def _replay(batch: memoryview, header: BatchHeader, into: Replayed) -> int:
    producer = None
    if header.is_transactional:
        producer = TransactionalProducer(header.producer_id, header.producer_epoch)
    for record in decode_records(batch):
        if record.key is None:
            raise CorruptBatch(f"the record at offset {record.offset} has no key")
        if not header.is_control:
            into.replay(CoordinatorRecord(record.key, record.value), producer, record.offset)
        elif producer is not None and len(record.key) >= _MARKER.size:
            _, kind = _MARKER.unpack_from(record.key)
            into.replay_marker(producer, committed=kind == _COMMIT)
    return header.count
