"""The timestamps of a batch that a client sent: its header is believed unless it cannot be right.

Retention and look-ups by time go by the largest timestamp of a batch. Kafka's ``LogValidator``
computes it from the records of every batch; we pass records through unread, and look at them only
where the header itself says that something is wrong: clients leave the largest timestamp out (old
Sarama writes -1), send no timestamps at all, or times that would be refused, or by which retention
would let the batch go at once. Then the records are read once, in a thread, and what they say is
written into the header, as Kafka does.
"""

from dataclasses import dataclass

from tidemark.records.batch import NO_TIMESTAMP, BatchHeader, Buffer, CorruptBatch, TimestampType
from tidemark.records.codecs import UnpackedTooLarge
from tidemark.records.decode import UnpackLimits, decode_timestamps
from tidemark_broker.log.config import LogConfig
from tidemark_broker.log.errors import InvalidRecords, InvalidTimestamp, RecordTooLarge

#: What a broker unpacks of one batch, or for one look-up, at most: a few KiB may unpack to
#: gigabytes.
UNPACKED_BYTES_MAX = 16 * 1024 * 1024
#: How many records it looks at in that: a quarter of a second's work.
RECORDS_MAX = 250_000


def unpack_limits() -> UnpackLimits:
    """For one batch that is appended, or one look-up by time."""
    return UnpackLimits(UNPACKED_BYTES_MAX, RECORDS_MAX)


class TimestampsInDoubt(Exception):
    """The header cannot be right: append again with what :func:`record_times` says."""


@dataclass(frozen=True, slots=True)
class RecordTimes:
    """Smallest and largest timestamp (ms) of the records that have one; -1 where none has."""

    smallest_ms: int
    largest_ms: int


def record_times(data: Buffer) -> RecordTimes:
    """T: read the records of one batch, whose CRC holds. :class:`InvalidRecords` if they are none,
    :class:`RecordTooLarge` if they unpack to more than a broker looks into."""
    smallest = largest = NO_TIMESTAMP
    try:
        for _, timestamp_ms in decode_timestamps(data, unpack_limits()):
            if timestamp_ms != NO_TIMESTAMP:
                smallest = timestamp_ms if smallest == NO_TIMESTAMP else min(smallest, timestamp_ms)
                largest = max(largest, timestamp_ms)
    except UnpackedTooLarge as error:
        raise RecordTooLarge(
            f"the batch's header has no timestamps that can be right, and {error}: have the client "
            "set timestamps, or send smaller batches"
        ) from error
    except CorruptBatch as error:
        raise InvalidRecords(str(error)) from error
    return RecordTimes(smallest, largest)


def check_timestamps(
    header: BatchHeader, config: LogConfig, now_ms: int, times: RecordTimes | None
) -> None:
    """Raise :class:`InvalidTimestamp` for what ``message.timestamp.*`` forbids; without ``times``
    :class:`TimestampsInDoubt` where only the records can tell."""
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        raise InvalidTimestamp("a client may not set the timestamp type LogAppendTime")
    if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
        return
    if times is not None:
        _check_times(times, config, now_ms)
    elif not _is_plausible(header, config, now_ms):
        raise TimestampsInDoubt


def _is_plausible(header: BatchHeader, config: LogConfig, now_ms: int) -> bool:
    first, largest = header.base_timestamp, header.max_timestamp
    return (
        0 <= first <= largest
        and now_ms - first <= config.message_timestamp_before_max_ms
        and largest - now_ms <= config.message_timestamp_after_max_ms
        and not (config.deletes and 0 <= config.retention_ms < now_ms - largest)
    )


def _check_times(times: RecordTimes, config: LogConfig, now_ms: int) -> None:
    if times.smallest_ms < NO_TIMESTAMP:
        raise InvalidTimestamp(f"a record has the timestamp {times.smallest_ms}")
    if times.largest_ms == NO_TIMESTAMP:
        return
    if now_ms - times.smallest_ms > config.message_timestamp_before_max_ms:
        raise InvalidTimestamp(
            f"timestamp {times.smallest_ms} is older than message.timestamp.before.max.ms="
            f"{config.message_timestamp_before_max_ms} allows"
        )
    if times.largest_ms - now_ms > config.message_timestamp_after_max_ms:
        raise InvalidTimestamp(
            f"timestamp {times.largest_ms} is further ahead than message.timestamp.after.max.ms="
            f"{config.message_timestamp_after_max_ms} allows"
        )
