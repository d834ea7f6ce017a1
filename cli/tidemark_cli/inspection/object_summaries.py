"""One-line summaries of objects, shared by ``tidemark status`` and ``tidemark top``."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

from tidemark.message_text import count, numbered
from tidemark_cli.inspection.topic_rows import TopicRows, condition
from tidemark_cli.sizes import size_text


def cluster_line(cluster: dict[str, Any]) -> str:
    """Return the message of Ready, preceded by the reason if the cluster needs attention."""
    ready, stalled = condition(cluster, "Ready"), condition(cluster, "Stalled")
    text = f"cluster {cluster['metadata']['name']}: {ready.get('message', 'not reconciled yet')}"
    is_well = ready.get("status") == "True" and stalled.get("status") != "True"
    return text if is_well or not ready else f"{ready['reason']}: {text}"


def is_named(topic: TopicRows, patterns: Iterable[str]) -> bool:
    """Return whether the topic's name in Kafka or its object name matches a shell pattern."""
    names = (topic.kafka_name, topic.name)
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in names)


def both_names(topic: TopicRows) -> str:
    """Return the name in Kafka, and the object's name if it differs."""
    same = topic.kafka_name == topic.name
    return topic.name if same else f"{topic.kafka_name}\n(object {topic.name})"


def ready_of(obj: dict[str, Any]) -> str:
    """Return the status of the condition Ready."""
    return str(condition(obj, "Ready").get("status", "Unknown"))


def ready_text(obj: dict[str, Any]) -> str:
    """Return "True", or the reason why the object is not ready."""
    status = ready_of(obj)
    return status if status == "True" else str(condition(obj, "Ready").get("reason", status))


def tiering_text(topic: TopicRows) -> str:
    """Return the tiering state and its epoch, and the progress of a disablement."""
    tiering = topic.tiering
    if not tiering:
        return "never"
    text = f"{tiering['state']} (epoch {tiering.get('epoch', 0)})"
    if tiering["state"] == "Disabling":
        pending = tiering.get("pendingBrokers")
        waiting = numbered("broker", pending) if pending else "no broker"
        left = tiering.get("remainingSegments")
        text += f", {tiering.get('policy')}; waiting for {waiting}"
        text += f"; {count(left, 'segment')} left" if left is not None else ""
    return text


def remote_text(topic: TopicRows) -> str:
    """Return the number and size of the segments in the tier."""
    tiering = topic.tiering
    if not tiering or tiering.get("remoteSegments") is None:
        return "-"
    return (
        f"{count(tiering['remoteSegments'], 'segment')}, {size_text(tiering.get('remoteBytes', 0))}"
    )


def figure(value: int | None) -> str:
    """Return a number with thousands separators, or "-" if it is unknown."""
    return "-" if value is None else f"{value:,}"
