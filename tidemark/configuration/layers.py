"""A topic's effective configuration: what the topic sets, over the defaults of cluster and broker.

Kafka's broker keys name defaults of topic keys (``log.retention.ms`` for ``retention.ms``, and
``log.retention.hours`` in another unit).
"""

from collections.abc import Mapping

from tidemark.configuration.key import ConfigKey, KeySynonym
from tidemark.configuration.table import CLUSTER_DEFAULTS, TOPIC


def effective(*layers: Mapping[str, str]) -> dict[str, str]:
    """Merge configuration layers, weakest first: broker file, cluster, topic.

    The result has topic keys only, and only those that some layer sets. In each layer a topic key
    takes precedence over the broker keys that are its defaults.
    """
    merged: dict[str, str] = {}
    for layer in layers:
        for name, key in TOPIC.items():
            value = layer.get(name, _default_in(layer, key))
            if value is not None:
                merged[name] = value
    return merged


def topic_defaults(cluster_config: Mapping[str, str]) -> dict[str, str]:
    """Return the topic keys that have a default in the Cluster's configuration."""
    return {
        CLUSTER_DEFAULTS[name].name: value
        for name, value in cluster_config.items()
        if name in CLUSTER_DEFAULTS
    }


def _default_in(layer: Mapping[str, str], key: ConfigKey) -> str | None:
    # Synonyms are in Kafka's order of precedence (log.retention.ms before log.retention.hours).
    for synonym in key.synonyms:
        if synonym.name in layer:
            return _scaled(synonym, layer[synonym.name])
    return None


def _scaled(synonym: KeySynonym, text: str) -> str:
    """Convert a value to the unit of the topic key. Raises ValueError that names the key."""
    if synonym.factor == 1:
        return text
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"invalid value {synonym.name}={text!r}") from None
    # A negative number means "no limit" in every unit.
    return text if number < 0 else str(number * synonym.factor)
