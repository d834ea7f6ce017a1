"""The timestamps of a batch that a client sent: its header is believed unless it cannot be right.

Retention and look-ups by time go by the largest timestamp of a batch. Kafka's ``LogValidator``
computes it from the records of every batch; we pass most records through unread, and look at them
where the header itself says that something is wrong: clients leave the largest timestamp out (old
Sarama writes -1), send no timestamps at all, or times that would be refused, or by which retention
would let the batch go at once. Then the records are read
(:mod:`tidemark_broker.log.batch_inspection`), and what they say is written into the header, as
Kafka does.
"""

from tidemark.records.batch import NO_TIMESTAMP, BatchHeader, TimestampType
from tidemark_broker.log.batch_inspection import BatchContents, RecordsInDoubt
from tidemark_broker.log.config import LogConfig
from tidemark_broker.log.errors import InvalidTimestamp, RecordError, RecordTooLarge


def check_timestamps(
    header: BatchHeader, config: LogConfig, now_ms: int, contents: BatchContents | None
) -> None:
    """Raise :class:`InvalidTimestamp` for what ``message.timestamp.*`` forbids,
    :class:`RecordTooLarge` where the header is wrong and the records are too many to be read;
    without ``contents`` :class:`RecordsInDoubt` where only the records can tell."""
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        message = "a client may not set the timestamp type LogAppendTime"
        raise InvalidTimestamp(message, (RecordError(0, message),))
    if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
        return
    if contents is not None and not contents.unread:
        _check_times(contents, config, now_ms)
    elif not _is_plausible(header, config, now_ms):
        if contents is None:
            raise RecordsInDoubt
        raise RecordTooLarge(
            f"the batch's header has no timestamps that can be right, and {contents.unread}: have "
            "the client set timestamps, or send smaller batches"
        )


def _is_plausible(header: BatchHeader, config: LogConfig, now_ms: int) -> bool:
    first, largest = header.base_timestamp, header.max_timestamp
    return (
        0 <= first <= largest
        and now_ms - first <= config.message_timestamp_before_max_ms
        and largest - now_ms <= config.message_timestamp_after_max_ms
        and not (config.deletes and 0 <= config.retention_ms < now_ms - largest)
    )


def _check_times(contents: BatchContents, config: LogConfig, now_ms: int) -> None:
    smallest_ms, largest_ms = contents.smallest_ms, contents.largest_ms
    if smallest_ms == NO_TIMESTAMP:
        return
    if now_ms - smallest_ms > config.message_timestamp_before_max_ms:
        raise _invalid(
            contents.smallest_at,
            f"timestamp {smallest_ms} is older than message.timestamp.before.max.ms="
            f"{config.message_timestamp_before_max_ms} allows",
        )
    if largest_ms - now_ms > config.message_timestamp_after_max_ms:
        raise _invalid(
            contents.largest_at,
            f"timestamp {largest_ms} is further ahead than message.timestamp.after.max.ms="
            f"{config.message_timestamp_after_max_ms} allows",
        )


def _invalid(batch_index: int, message: str) -> InvalidTimestamp:
    return InvalidTimestamp(message, (RecordError(batch_index, message),))
