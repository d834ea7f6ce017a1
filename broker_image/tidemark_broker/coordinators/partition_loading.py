"""Replay of a coordinator's partition, from its first record to the start of the epoch.

Runs in a thread, since a log may be long; nothing else uses the state until then. The tier is not
involved: internal topics are compacted, and compacted topics are not tiered.
"""

import struct
from collections.abc import Callable
from typing import NamedTuple, Protocol

from tidemark.records.batch import BatchHeader, CorruptBatch, check_crc, iter_headers
from tidemark.records.decode import decode_records
from tidemark_broker.coordinators.log import CoordinatorRecord, TransactionalProducer
from tidemark_broker.log import PartitionLog, reading
from tidemark_broker.replication.threads import ThreadPool

READ_BYTES = 1024 * 1024
#: A control record's key: version, and abort (0) or commit (1).
_MARKER = struct.Struct(">hh")
_COMMIT = 1

in_loading_thread = ThreadPool("coordinators that load", threads=2)


class Replayed(Protocol):
    """Target of the replay, called in a thread."""

    def replay(
        self, record: CoordinatorRecord, producer: TransactionalProducer | None, offset: int
    ) -> None:
        """Apply one record, of ``producer``'s transaction if set.

        Raises ``ValueError`` for an unreadable record; the coordinator then does not become active.
        """

    def replay_marker(self, producer: TransactionalProducer, *, committed: bool) -> None:
        """Apply the end of a transaction."""


class Loaded(NamedTuple):
    """Amount that was read."""

    records: int
    bytes_read: int


def load(
    log: PartitionLog, into: Replayed, end_offset: int, given_up: Callable[[], bool]
) -> Loaded:
    """Replay all records below ``end_offset`` of a log into ``into``. Blocks.

    Stops early once ``given_up`` returns True. Raises :class:`CorruptBatch` and errors of the log.
    """
    records = bytes_read = 0
    offset = log.log_start_offset
    while offset < end_offset and not given_up():
        # Reading stops at the epoch's start: later records are applied as they are appended.
        read = reading.read(
            log, offset, max_bytes=READ_BYTES, up_to_offset=end_offset, min_one=True
        )
        if not read.data:
            break
        view = memoryview(read.data)
        for position, header in iter_headers(view):
            # The checksum is verified, since a damaged record would change the state silently.
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
        # Compaction needs keys, so a record without one is damage.
        if record.key is None:
            raise CorruptBatch(f"the record at offset {record.offset} has no key")
        if not header.is_control:
            into.replay(CoordinatorRecord(record.key, record.value), producer, record.offset)
        elif producer is not None and len(record.key) >= _MARKER.size:
            _, kind = _MARKER.unpack_from(record.key)
            into.replay_marker(producer, committed=kind == _COMMIT)
    return header.count
