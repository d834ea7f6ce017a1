"""What may be appended: pure checks over batch headers, for leaders and for followers.

A leader refuses what Kafka's ``LogValidator``, ``UnifiedLog`` and ``ProduceRequest`` refuse, with
their error codes, as far as the header tells; records are not parsed (see
:mod:`tidemark_broker.log.timestamps` for the exception).
"""

from collections.abc import Iterator, Sequence

from tidemark.logfiles.leader_epochs import UNKNOWN_EPOCH
from tidemark.records.batch import (
    HEADER_BYTES,
    MAGIC,
    NO_PRODUCER_ID,
    BatchHeader,
    Buffer,
    CorruptBatch,
    check_crc,
    iter_headers,
    read_header,
)
from tidemark.records.codecs import Codec, most_unpacked
from tidemark.records.decode import RECORD_BYTES_MIN
from tidemark_broker.log.config import LogConfig
from tidemark_broker.log.errors import (
    CorruptRecords,
    InvalidRecords,
    OffsetOutOfRange,
    RecordTooLarge,
    UnsupportedCompression,
)
from tidemark_broker.log.producer_entry import AppendOrigin, ProducerBatch, producer_batch
from tidemark_broker.log.timestamps import RecordTimes, check_timestamps
from tidemark_broker.log.walk import BatchAt

_MAGIC_POSITION = 16
_CODECS = frozenset(Codec)


def check_leader_batch(
    data: Buffer,
    config: LogConfig,
    now_ms: int,
    times: RecordTimes | None,
    origin: AppendOrigin = AppendOrigin.CLIENT,
) -> BatchHeader:
    """The header of what a client sent: exactly one good batch v2, or an error that says why not.
    :class:`TimestampsInDoubt` where ``times`` are needed to say so."""
    if len(data) > _MAGIC_POSITION and data[_MAGIC_POSITION] < MAGIC:
        raise InvalidRecords(
            f"message format {data[_MAGIC_POSITION]} is not accepted: use a client of Kafka 0.11 "
            "or newer (record batches of version 2)"
        )
    try:
        header = read_header(data)
        if header.size_bytes < len(data):
            raise InvalidRecords("a produce request carries exactly one record batch per partition")
        _check_size(header.size_bytes, config)
        check_crc(data, 0, header)
    except CorruptBatch as error:
        raise CorruptRecords(str(error)) from error
    _check_producer(header, origin)
    _check_count(header)
    check_timestamps(header, config, now_ms, times)
    return header


def _check_producer(header: BatchHeader, origin: AppendOrigin) -> None:
    if header.is_control:
        raise InvalidRecords("clients may not write control records")
    if header.producer_id <= NO_PRODUCER_ID:
        if header.is_transactional:
            raise InvalidRecords("transactional records need a producer id")
        return
    if header.producer_epoch < 0:
        raise InvalidRecords(f"epoch {header.producer_epoch} of the producer {header.producer_id}")
    if header.base_sequence < 0 and origin is AppendOrigin.CLIENT:
        raise InvalidRecords(
            f"sequence number {header.base_sequence} of the producer {header.producer_id}"
        )


def _check_count(header: BatchHeader) -> None:
    """As far as the header alone tells: can these be so many records? A reader would find out, for
    every consumer and every job anew."""
    if header.base_offset != 0:
        raise InvalidRecords(f"the base offset is {header.base_offset}, a client's is 0")
    if header.count <= 0 or header.last_offset_delta != header.count - 1:
        raise InvalidRecords(
            f"{header.count} records, but the last offset delta is {header.last_offset_delta}"
        )
    if header.codec not in _CODECS:
        raise UnsupportedCompression(f"compression type {header.codec} does not exist")
    packed = header.size_bytes - HEADER_BYTES
    if not packed or header.count * RECORD_BYTES_MIN > most_unpacked(header.codec, packed):
        raise InvalidRecords(f"{header.count} records do not fit into {packed} bytes")


def _check_size(size_bytes: int, config: LogConfig) -> None:
    for key, limit in (
        ("max.message.bytes", config.max_message_bytes),
        ("segment.bytes", config.segment_bytes),
    ):
        if size_bytes > limit:
            raise RecordTooLarge(f"a batch of {size_bytes} bytes is above {key}={limit}")


def check_follower_batches(
    data: Buffer, latest_epoch: int
) -> tuple[list[BatchAt], list[ProducerBatch]]:
    """The batches a leader sent: CRCs checked, each continuing the one before, epochs not falling;
    and what those of producers tell of them.

    A partial batch at the end (as older brokers send) is left out; positions are within ``data``.
    """
    batches: list[BatchAt] = []
    produced: list[ProducerBatch] = []
    try:
        for position, header in iter_headers(data):
            check_crc(data, position, header)
            if header.producer_id > NO_PRODUCER_ID:
                batch = memoryview(data)[position : position + header.size_bytes]
                known = producer_batch(header, batch)
                if known is not None:
                    produced.append(known)
            batches.append(
                BatchAt(
                    position,
                    header.size_bytes,
                    header.base_offset,
                    header.last_offset,
                    header.partition_leader_epoch,
                    header.max_timestamp,
                )
            )
    except CorruptBatch as error:
        raise CorruptRecords(str(error)) from error
    if not batches and len(data):
        raise CorruptRecords(f"no whole record batch in {len(data)} bytes")
    _check_continuity(batches, latest_epoch)
    return batches, produced


def _check_continuity(batches: Sequence[BatchAt], latest_epoch: int) -> None:
    expected = batches[0].base_offset if batches else 0
    for batch in batches:
        if batch.base_offset != expected:
            raise CorruptRecords(
                f"offset {batch.base_offset} follows, {expected} would continue the log"
            )
        if batch.leader_epoch != UNKNOWN_EPOCH and batch.leader_epoch < latest_epoch:
            raise CorruptRecords(
                f"leader epoch {batch.leader_epoch} at offset {batch.base_offset} "
                f"behind epoch {latest_epoch}"
            )
        latest_epoch = max(latest_epoch, batch.leader_epoch)
        expected = batch.last_offset + 1


def check_read_range(offset: int, local_start: int, end: int) -> None:
    """Raise :class:`OffsetOutOfRange` unless ``local_start <= offset <= end``."""
    if not local_start <= offset <= end:
        raise OffsetOutOfRange(f"offset {offset} is not within {local_start} to {end}")


def runs_for_segments(
    batches: Sequence[BatchAt], room_bytes: int, segment_bytes: int
) -> Iterator[tuple[int, int]]:
    """Cut a follower's append into (first, last exclusive) runs that each fit a segment.

    The first run may fill ``room_bytes`` (unless its first batch is larger: it begins a new
    segment then); a batch larger than a segment is a run of its own.
    """
    first, used = 0, 0
    if batches and batches[0].size_bytes > room_bytes:
        room_bytes = segment_bytes
    for number, batch in enumerate(batches):
        if number > first and used + batch.size_bytes > room_bytes:
            yield first, number
            first, used, room_bytes = number, 0, segment_bytes
        used += batch.size_bytes
    if batches:
        yield first, len(batches)
