"""Figures of the tier for programs: JSON, and text for Prometheus' textfile collector."""

import json
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from tidemark.ids import id_text
from tidemark.metrics import usage_table
from tidemark.metrics.families import gauge
from tidemark.metrics.metric import Metric
from tidemark_pipeline.usage.figures import ListedObjects, TopicUsage, Usage, UsageFigures

_LISTED = {
    "objects": "objects",
    "bytes": "size_bytes",
    "unnamed": "unnamed",
    "unnamedBytes": "unnamed_bytes",
    "unknown": "unknown",
    "unknownBytes": "unknown_bytes",
}
_FIGURES = {
    "segments": "segments",
    "logBytes": "log_bytes",
    "storedBytes": "stored_bytes",
    "pendingSegments": "pending_segments",
    "pendingBytes": "pending_bytes",
    "copying": "copying",
    "unmeasured": "unmeasured",
}


def json_text(usage: Usage, *, now_ms: int) -> bytes:
    """Return one JSON object; docs/how-to/usage.md describes its fields."""
    fields = {
        "timeMs": now_ms,
        "by": list(usage.by),
        "topics": [_topic(topic, usage.by) for topic in usage.topics],
        "elsewhere": None if usage.unowned is None else _listed_rows(usage.unowned),
        "rowsLeftOut": usage.rows_left_out,
        "passedOver": usage.passed_over,
        "troubles": usage.troubles,
    }
    return json.dumps(fields, indent=1).encode("utf-8") + b"\n"


def _topic(topic: TopicUsage, by: tuple[str, ...]) -> dict[str, object]:
    return {
        "name": topic.name,
        "topicId": id_text(topic.topic_id),
        "rows": [
            dict(zip(by, row, strict=True)) | _named(figures, _FIGURES)
            for row, figures in sorted(topic.rows.items())
        ],
        "listed": _listed_rows(topic),
        "freed": topic.freed,
    }


def _listed_rows(topic: TopicUsage) -> list[dict[str, object]]:
    by_bucket = sorted(topic.listed.items())
    return [{"bucket": bucket, **_named(listed, _LISTED)} for bucket, listed in by_bucket]


def _named(values: UsageFigures | ListedObjects, names: Mapping[str, str]) -> dict[str, object]:
    return {name: getattr(values, attribute) for name, attribute in names.items()}


def prometheus_text(usage: Usage, *, now_ms: int) -> bytes:
    """Return sums over topics of one name, independent of the requested rows."""
    registry = CollectorRegistry()
    gauges: dict[str, Gauge] = {row.name: gauge(row, registry) for row in usage_table.ALL}
    gauges[usage_table.TIMESTAMP.name].set(now_ms / 1000)
    for row, labels, value in _samples(usage):
        # Two topics may have one name (a deleted one and its successor), so values are added.
        gauges[row.name].labels(*labels).inc(value)
    return generate_latest(registry)


def _samples(usage: Usage) -> Iterator[tuple[Metric, tuple[str, str], int]]:
    """Yield the samples of a usage: metric, labels (topic and bucket or policy), value in bytes."""
    unowned = [] if usage.unowned is None else [usage.unowned]
    for topic in [*usage.topics, *unowned]:
        for bucket, figures in topic.buckets.items():
            where = topic.name, bucket
            yield usage_table.SEGMENTS, where, figures.segments
            yield usage_table.LOG_BYTES, where, figures.log_bytes
            yield usage_table.STORED_BYTES, where, figures.stored_bytes
            yield usage_table.PENDING_BYTES, where, figures.pending_bytes
        for bucket, listed in topic.listed.items():
            where = topic.name, bucket
            yield usage_table.LISTED_BYTES, where, listed.size_bytes
            # Both kinds are bytes that no manifest accounts for.
            lost = listed.unnamed_bytes + listed.unknown_bytes
            yield usage_table.UNNAMED_BYTES, where, lost
        for policy, size_bytes in topic.freed.items():
            yield usage_table.FREEABLE_BYTES, (topic.name, policy), size_bytes
