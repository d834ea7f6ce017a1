"""A topic's effective configuration: what the topic sets, over the broker's and cluster's defaults.

Kafka's broker keys name defaults of topic keys (``log.retention.ms`` for ``retention.ms``); the
table is Kafka's ``TopicConfig``/``ServerTopicConfigSynonyms`` for the keys the broker obeys.
"""

from collections.abc import Mapping

_HOUR_MS = 3_600_000
_MINUTE_MS = 60_000

#: topic key -> broker keys that give its default, the first that is set wins, and their unit
SYNONYMS: Mapping[str, tuple[tuple[str, int], ...]] = {
    "segment.bytes": (("log.segment.bytes", 1),),
    "segment.ms": (("log.roll.ms", 1), ("log.roll.hours", _HOUR_MS)),
    "index.interval.bytes": (("log.index.interval.bytes", 1),),
    "segment.index.bytes": (("log.index.size.max.bytes", 1),),
    "retention.ms": (
        ("log.retention.ms", 1),
        ("log.retention.minutes", _MINUTE_MS),
        ("log.retention.hours", _HOUR_MS),
    ),
    "retention.bytes": (("log.retention.bytes", 1),),
    "local.retention.ms": (("log.local.retention.ms", 1),),
    "local.retention.bytes": (("log.local.retention.bytes", 1),),
    "max.message.bytes": (("message.max.bytes", 1),),
    "min.insync.replicas": (("min.insync.replicas", 1),),
    "flush.messages": (("log.flush.interval.messages", 1),),
    "flush.ms": (("log.flush.interval.ms", 1),),
    "file.delete.delay.ms": (("log.segment.delete.delay.ms", 1),),
}
_TEXT_SYNONYMS: Mapping[str, str] = {
    "cleanup.policy": "log.cleanup.policy",
    "message.timestamp.type": "log.message.timestamp.type",
}


def effective(*layers: Mapping[str, str]) -> dict[str, str]:
    """Merge configuration layers, weakest first: broker file, cluster, topic.

    In each layer a topic key stands for itself and a broker key for the topic key it defaults;
    the topic key wins within a layer.
    """
    merged: dict[str, str] = {}
    for layer in layers:
        merged.update(_from_broker_keys(layer))
        merged.update({key: value for key, value in layer.items() if _is_topic_key(key)})
    return merged


def _is_topic_key(key: str) -> bool:
    return not key.startswith("log.")


def _from_broker_keys(layer: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for topic_key, sources in SYNONYMS.items():
        for broker_key, factor in sources:
            if broker_key in layer:
                found[topic_key] = _scaled(layer[broker_key], factor)
                break
    for topic_key, broker_key in _TEXT_SYNONYMS.items():
        if broker_key in layer:
            found[topic_key] = layer[broker_key]
    return found


def _scaled(text: str, factor: int) -> str:
    """A negative number means "no limit" in every unit."""
    if factor == 1:
        return text
    number = int(text)
    return text if number < 0 else str(number * factor)
