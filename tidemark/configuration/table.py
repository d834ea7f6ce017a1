"""Lookups in the table of configuration keys.

Keys are found by name and by the object that may set them. Broker keys that are defaults of topic
keys are found by the topic key.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from tidemark.configuration.broker_keys import BROKER_KEYS, CLUSTER_KEYS, PER_LISTENER
from tidemark.configuration.group_keys import GROUP_KEYS
from tidemark.configuration.key import ConfigKey, Scope
from tidemark.configuration.topic_keys import TOPIC_KEYS


def _by_name(keys: Iterable[ConfigKey]) -> Mapping[str, ConfigKey]:
    return MappingProxyType({key.name: key for key in keys})


#: Every topic key, those with a field of their own and those that are not served included.
TOPIC = _by_name(TOPIC_KEYS)

#: Broker keys of the Cluster's configuration that are defaults: broker key -> topic key.
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

#: Keys of it that Kafka's clients may set: only the defaults of topics are dynamic there.
DYNAMIC = MappingProxyType({name: CLUSTER[name] for name in CLUSTER_DEFAULTS})

#: Every key of the broker's file that is no default of topics.
BROKER = _by_name(key for key in _OWN.values() if Scope.BROKER in key.scopes)

#: Every key of one consumer group.
GROUP = _by_name(GROUP_KEYS)

_TOPIC_DEFAULTS = {synonym.name for key in TOPIC.values() if key.served for synonym in key.synonyms}


_OF_LISTENER = re.compile(r"listener[.]name[.][a-z0-9_-]+[.](?P<key>.+)")


def listener_key(listener: str, name: str) -> str:
    """Return the key that sets ``name`` for one listener only (KIP-103)."""
    return f"listener.name.{listener.lower()}.{name}"


def unread_in_broker_file(names: Iterable[str]) -> tuple[str, ...]:
    """Return those of the keys that have no effect in a broker's file."""
    read = {*BROKER, *_TOPIC_DEFAULTS, *(name for name, key in TOPIC.items() if key.served)}
    return tuple(sorted(name for name in set(names) - read if not _is_of_listener(name)))


def _is_of_listener(name: str) -> bool:
    match = _OF_LISTENER.fullmatch(name)
    return match is not None and match["key"] in PER_LISTENER
