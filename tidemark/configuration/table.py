"""Looking up in the table: by name, by place, and which topic key a broker key is the default of."""

import dataclasses
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from tidemark.configuration.broker_keys import BROKER_KEYS, CLUSTER_KEYS
from tidemark.configuration.key import ConfigKey, Scope
from tidemark.configuration.topic_keys import TOPIC_KEYS


def _by_name(keys: Iterable[ConfigKey]) -> Mapping[str, ConfigKey]:
    return MappingProxyType({key.name: key for key in keys})


#: Every topic key, those with a field of their own and those that are not served included.
TOPIC = _by_name(TOPIC_KEYS)

#: What a broker key in the Cluster's configuration is the default of: broker key -> topic key.
CLUSTER_DEFAULTS: Mapping[str, ConfigKey] = MappingProxyType(
    {key.synonyms[0].name: key for key in TOPIC_KEYS if key.synonyms}
)

_OWN = _by_name((*CLUSTER_KEYS, *BROKER_KEYS))

#: Every key of ``Cluster.spec.config``, by the name that it has there.
CLUSTER = _by_name(
    (
        *(key for key in _OWN.values() if Scope.CLUSTER in key.scopes),
        *(
            dataclasses.replace(key, name=name, field="", synonyms=())
            for name, key in CLUSTER_DEFAULTS.items()
        ),
    )
)

#: Every key of the broker's file that is no default of topics.
BROKER = _by_name(key for key in _OWN.values() if Scope.BROKER in key.scopes)
