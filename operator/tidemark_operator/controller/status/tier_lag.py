"""TieringLagging of a Topic: whether committed records wait for the tier longer than its maximum
lag permits, or copying is paused.

Leaders report the append time of their oldest waiting record once it is too old. The message
contains times in whole minutes and rounded numbers, so that a lag that persists does not write the
status with every report.
"""

from collections.abc import Iterator, Sequence

from tidemark.configuration.table import TOPIC
from tidemark.configuration.topic_keys import COPY_PAUSED, MAX_LAG_BYTES, MAX_LAG_MS
from tidemark.message_text import numbered
from tidemark.reasons import Reason
from tidemark.tiering import Tiering
from tidemark.wire.control import PartitionStatus
from tidemark_operator.controller.state.model import TopicInfo
from tidemark_operator.controller.status.conditions import (
    ConditionValue,
    approximate_bytes,
    condition,
    time_text,
)

TIERING_LAGGING = "TieringLagging"
_MINUTE_MS = 60_000


def tier_lag(
    topic: TopicInfo, tiering: Tiering, reports: Sequence[PartitionStatus], *, fails: bool
) -> list[ConditionValue]:
    """Return the condition TieringLagging; an empty list for a topic without a maximum lag.

    ``reports``: the latest ones of the leaders. ``fails``: the condition TieringSettled has the
    cause of a lag.
    """
    paused = topic.config.get(COPY_PAUSED) == "true"
    limits = list(_limits(topic))
    if not tiering.copies or not (limits or paused):
        return []
    # Only leaders know how long records wait.
    late = [report for report in reports if report.lagging_since_ms >= 0]
    # A pause is deliberate, but it has no limit: it is shown until it ends.
    if paused:
        text = f"copying is paused by spec.tiering.paused. {_gap(late)} To resume, remove the field"
        return [condition(TIERING_LAGGING, True, Reason.COPYING_PAUSED, text)]
    limit = " and ".join(limits)
    if not late:
        text = f"committed records are in the tier within {limit}"
        return [condition(TIERING_LAGGING, False, Reason.WITHIN_MAX_LAG, text)]
    # An error of the leader is shown by another condition. Otherwise the copies are too slow.
    cause = (
        "The condition TieringSettled has the cause"
        if fails
        else "Check for a slow store, busy copiers (remote.log.manager.copier.thread.pool.size), "
        "the copy quota, open transactions and a long localRetention, or raise spec.tiering.maxLag"
    )
    text = f"the maximum lag of {limit} is exceeded. {_gap(late)} {cause}"
    return [condition(TIERING_LAGGING, True, Reason.MAX_LAG_EXCEEDED, text)]


def _limits(topic: TopicInfo) -> Iterator[str]:
    """Yield the limits that the topic or its Cluster sets, as texts."""
    ms, size = (_limit(topic, key) for key in (MAX_LAG_MS, MAX_LAG_BYTES))
    if ms is not None:
        yield f"{ms // 1000} s" if ms % 1000 == 0 else f"{ms} ms"
    if size is not None:
        yield approximate_bytes(size)


def _limit(topic: TopicInfo, key: str) -> int | None:
    text = topic.config.get(key, "")
    return int(text) if text.isdecimal() and text != TOPIC[key].default else None


def _gap(late: Sequence[PartitionStatus]) -> str:
    """Return which records wait for the tier, as a sentence."""
    if not late:
        return "No records wait."
    since_ms = min(report.lagging_since_ms for report in late) // _MINUTE_MS * _MINUTE_MS
    offsets = sum(
        report.high_watermark - max(report.highest_remote_offset + 1, report.log_start_offset)
        for report in late
    )
    # A power of two, so that the message stays the same for a while.
    about = 1 << max(0, offsets.bit_length() - 1)
    partitions = numbered("partition", (report.partition for report in late))
    return (
        f"Records of {partitions} from {time_text(since_ms)} on are not in the tier "
        f"(about {about} offsets)."
    )
