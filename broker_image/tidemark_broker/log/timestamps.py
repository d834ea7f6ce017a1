"""Timestamp checks of a client's batch: its header is trusted unless it cannot be right.

Retention and look-ups by time use the largest timestamp of a batch. Kafka's ``LogValidator``
computes it from the records of every batch. This broker passes most records through unread and
reads them only if the header shows a problem. Clients may omit the largest timestamp (old Sarama
writes -1), send no timestamps at all, or send times that would be rejected or would expire at once.
Then the records are read (:mod:`tidemark_broker.log.batch_inspection`), and their largest timestamp
is written into the header, as Kafka does.
"""

from tidemark.records.batch import NO_TIMESTAMP, BatchHeader, TimestampType
from tidemark_broker.log.batch_inspection import BatchContents, RecordsInDoubt
from tidemark_broker.log.config import LogConfig
from tidemark_broker.log.errors import InvalidTimestamp, RecordError, RecordTooLarge


def check_timestamps(
    header: BatchHeader, config: LogConfig, now_ms: int, contents: BatchContents | None
) -> None:
    """Check a client batch's timestamps against the topic's ``message.timestamp.*`` settings.

    ``contents``: the records' timestamps, None if they were not read. Raises
    :class:`InvalidTimestamp`, :class:`RecordsInDoubt` if only the records can decide, or
    :class:`RecordTooLarge` if the header is wrong and the records are too large to be read.
    """
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        message = "a client may not set the timestamp type LogAppendTime"
        raise InvalidTimestamp(message, (RecordError(0, message),))
    # The broker overwrites the timestamps, so the client's do not matter.
    if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
        return
    if contents is not None and not contents.unread:
        _check_times(contents, config, now_ms)
    elif not _is_plausible(header, config, now_ms):
        if contents is None:
            raise RecordsInDoubt
        raise RecordTooLarge(
            f"the batch's header has no plausible timestamps, and {contents.unread}: configure "
            "the client to set timestamps, or to send smaller batches"
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
    """Check the smallest and the largest timestamp of a batch's records."""
    smallest_ms, largest_ms = contents.smallest_ms, contents.largest_ms
    # Records without timestamps are allowed, as in Kafka.
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
