"""How objects are told in a line: what ``tidemark status`` and ``tidemark top`` say alike."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

from tidemark_cli.local.topic_rows import TopicRows, condition

#: Conditions of a Topic that need a look beside Ready, where they are this.
_NOT_WELL = {
    "Stalled": "True",
    "TierIntegrity": "False",
    "RemoteIntegrity": "False",
    "TieringSettled": "False",
    "FullyReplicated": "False",
}
#: Told otherwise: a disablement by its progress, a damaged object by the condition of that name.
_TOLD_OTHERWISE = ("Disabling", "TierIntegrity")
#: The conditions that are told at all.
TOLD = frozenset({"Ready", *_NOT_WELL})


def cluster_line(cluster: dict[str, Any]) -> str:
    """What its Ready says; with the reason where that needs somebody."""
    ready, stalled = condition(cluster, "Ready"), condition(cluster, "Stalled")
    text = f"cluster {cluster['metadata']['name']}: {ready.get('message', 'not looked at yet')}"
    is_well = ready.get("status") == "True" and stalled.get("status") != "True"
    return text if is_well or not ready else f"{ready['reason']}: {text}"


def is_named(topic: TopicRows, patterns: Iterable[str]) -> bool:
    """Does its name, in Kafka or as an object, match one of the shell patterns?"""
    names = (topic.kafka_name, topic.name)
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in names)


def both_names(topic: TopicRows) -> str:
    """Kafka's, and the object's where it is another one."""
    same = topic.kafka_name == topic.name
    return topic.name if same else f"{topic.kafka_name}\n(object {topic.name})"


def ready_of(found: dict[str, Any]) -> str:
    """Status of the condition Ready."""
    return str(condition(found, "Ready").get("status", "Unknown"))


def why_not_ready(found: dict[str, Any]) -> str:
    """Why a broker is fenced, or what is wrong with a user or a topic."""
    ready = condition(found, "Ready")
    return "" if ready.get("status") == "True" else str(ready.get("message", ""))


def messages(topic: TopicRows) -> list[str]:
    """What Ready says, and what other conditions say that need somebody."""
    ready = str(topic.condition("Ready").get("message", ""))
    return [ready, *_beside_ready(topic, ready)]


def troubles(topic: TopicRows) -> list[str]:
    """Of the messages those that need somebody, or time: none of a topic that is well."""
    ready = why_not_ready(topic.obj)
    said = str(topic.condition("Ready").get("message", ""))
    return [*filter(None, [ready]), *_beside_ready(topic, said)]


def _beside_ready(topic: TopicRows, ready: str) -> list[str]:
    found = []
    for kind, trouble in _NOT_WELL.items():
        told = topic.condition(kind)
        text = str(told.get("message", ""))
        if told.get("status") != trouble or told.get("reason") in _TOLD_OTHERWISE:
            continue
        if text != ready:
            found.append(f"{kind}: {text}")
    return list(dict.fromkeys(found))


def tiering_text(topic: TopicRows) -> str:
    """The state and its epoch; how far a disablement is."""
    tiering = topic.tiering
    if not tiering:
        return "never"
    text = f"{tiering['state']} (epoch {tiering.get('epoch', 0)})"
    if tiering["state"] == "Disabling":
        waiting = ", ".join(map(str, tiering.get("pendingBrokers") or []))
        left = tiering.get("remainingSegments")
        text += f", {tiering.get('policy')}; waits for brokers {waiting or 'none'}"
        text += f"; {left} segments left" if left is not None else ""
    return text


def remote_text(topic: TopicRows) -> str:
    """What lies in the tier."""
    tiering = topic.tiering
    if not tiering or tiering.get("remoteSegments") is None:
        return "-"
    return f"{tiering['remoteSegments']} segments, {tiering.get('remoteBytes', 0):,} bytes"


def figure(value: int | None) -> str:
    """A number for people; - for one that is not known."""
    return "-" if value is None else f"{value:,}"
