"""Configuration keys of one consumer group (Kafka's ``GroupConfig``), with the broker keys that are
their defaults for all groups.

``tests/conformance/test_configuration_keys.py`` compares them with Kafka's classes.
"""

from tidemark.configuration.key import ConfigKey, KeySynonym, Scope
from tidemark.configuration.values import Number, integer

SESSION_TIMEOUT_MS = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL_MS = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL_MS = "consumer.assignment.interval.ms"


def _key(name: str, type_: Number, default: int, meaning: str) -> ConfigKey:
    return ConfigKey(
        name=name,
        type=type_,
        default=str(default),
        scopes=frozenset({Scope.GROUP}),
        meaning=meaning,
        synonyms=(KeySynonym(f"group.{name}"),),
    )


GROUP_KEYS = (
    _key(
        SESSION_TIMEOUT_MS,
        integer(1),
        45_000,
        "Time without a heartbeat after which a member is removed.",
    ),
    _key(HEARTBEAT_INTERVAL_MS, integer(1), 5000, "Heartbeat interval of members."),
    _key(
        ASSIGNMENT_INTERVAL_MS,
        integer(0),
        1000,
        "Minimum time between two target assignments, regardless of joins and leaves.",
    ),
)
