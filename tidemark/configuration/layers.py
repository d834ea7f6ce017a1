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
    stands for itself and a broker key for the topic key that it is the default of; the topic key
    wins within a layer.
    """
    merged: dict[str, str] = {}
    for layer in layers:
        for name, key in TOPIC.items():
            value = layer.get(name, _default_in(layer, key))
            if value is not None:
                merged[name] = value
    return merged


def topic_defaults(cluster_config: Mapping[str, str]) -> dict[str, str]:
    """The topic keys for which the Cluster's configuration holds a default."""
    return {
        CLUSTER_DEFAULTS[name].name: value
        for name, value in cluster_config.items()
        if name in CLUSTER_DEFAULTS
    }


def _default_in(layer: Mapping[str, str], key: ConfigKey) -> str | None:
    for synonym in key.synonyms:
        if synonym.name in layer:
            return _scaled(synonym, layer[synonym.name])
    return None


def _scaled(synonym: KeySynonym, text: str) -> str:
    """A negative number means "no limit" in every unit. Raises ValueError that names the key."""
    if synonym.factor == 1:
        return text
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"invalid value {synonym.name}={text!r}") from None
    return text if number < 0 else str(number * synonym.factor)
