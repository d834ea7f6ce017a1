"""``docs/reference/configuration.md``, made from the table.

python -m tidemark.configuration.page [--check] FILE
"""

import sys
from collections.abc import Callable, Iterable, Sequence

from tidemark.configuration import table
from tidemark.configuration.key import ConfigKey
from tidemark.configuration.problems import not_served
from tidemark.configuration.values import BOOLEAN, INT32_MAX, INT64_MAX, TEXT, Number
from tidemark.generated import command

_HEAD = """# Configuration

<!-- Generated from tidemark/configuration by `make pages`. Do not edit. -->

The keys are Kafka's, with Kafka's types, bounds and defaults
(`tests/conformance/test_configuration_keys.py`). What is not served is refused at admission, with a
message that says so; an object that had such a key before can be written on
(`tests/integration/admission/test_not_served.py`). Three layers make a topic's configuration, the
later winning: the broker's file, the Cluster, the Topic (`tests/unit/configuration/test_keys.py`).
Kafka's clients are told of them, and may set what stands in these objects ([Clients](clients.md)).
"""
_TOPIC = """
## A topic's keys

In `Topic.spec.config`; as *default for all topics* in `Cluster.spec.config` or in a broker's file
(in a broker's file also those behind "or").
"""
_FIELDS = """
## Keys that have a field of their own

They are refused in `Topic.spec.config`, with the name of the field.
"""
_NOT_SERVED = """
## Kafka's topic keys that are not served

Refused for topics, and their defaults for the cluster. The one value that describes what happens
anyway is accepted.
"""
_CLUSTER = """
## The cluster's keys

In `Cluster.spec.config`, beside the defaults of topics. The last two may also stand in a broker's
file, where the Cluster's go before them.
"""
_GROUP = """
## A consumer group's keys

In `Cluster.spec.groups`, under the group's name, or by Kafka's clients (IncrementalAlterConfigs of
a GROUP): for groups of KIP-848's protocol. A value that is beyond the broker's bounds for it
(`group.consumer.min...` and `group.consumer.max...`) counts as the nearest that is not.
"""
_BROKER = """
## The broker's file

JSON or properties, given with `--config`; defaults of topics may stand here, too. A key that
nothing reads is logged at the start. An environment variable `TIDEMARK_<KEY>` (upper case, dots as
underscores) overrides those down to `log.level`, except `broker.rack`.
"""

Column = tuple[str, Callable[[ConfigKey], str]]


def render() -> str:
    """The whole page."""
    served = [key for key in table.TOPIC.values() if key.served and not key.field]
    fields = [key for key in table.TOPIC.values() if key.field]
    cluster = [key for key in table.CLUSTER.values() if key.name not in table.CLUSTER_DEFAULTS]
    broker = [key for key in table.BROKER.values() if key.name not in table.CLUSTER]
    names: Column = ("key", _name)
    meaning: Column = ("meaning", lambda key: key.meaning)
    synonyms: Column = ("default for all topics", _synonyms)
    common: list[Column] = [("type", _type), ("default", _default)]
    parts = (
        _HEAD,
        _TOPIC,
        _table(served, [names, *common, synonyms, meaning]),
        _FIELDS,
        _table(fields, [names, ("field", lambda key: f"`{key.field}`"), synonyms, meaning]),
        _NOT_SERVED,
        _table(
            not_served(table.TOPIC).values(),
            [names, ("accepted", _only), ("why", lambda key: key.not_served)],
        ),
        _CLUSTER,
        _table(cluster, [names, *common, meaning]),
        _GROUP,
        _table(table.GROUP.values(), [names, *common, synonyms, meaning]),
        _BROKER,
        _table(broker, [names, *common, meaning]),
    )
    return "".join(parts)


def _table(keys: Iterable[ConfigKey], columns: Sequence[Column]) -> str:
    rows = [
        [title for title, _ in columns],
        ["---"] * len(columns),
        *([cell(key) for _, cell in columns] for key in keys),
    ]
    return "\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _name(key: ConfigKey) -> str:
    return f"`{key.name}`"


def _type(key: ConfigKey) -> str:
    if key.type in (BOOLEAN, TEXT):
        return key.type.name
    if not isinstance(key.type, Number):
        return f"{key.type.name}: {key.type.requirement.removeprefix('must be ')}"
    minimum, maximum = key.type.minimum, key.type.maximum
    bounds = f"from {minimum}" if maximum in (INT32_MAX, INT64_MAX) else f"{minimum} to {maximum}"
    return f"{key.type.name}, {bounds}"


def _default(key: ConfigKey) -> str:
    if key.default is None:
        return "none"
    kafka = f" (Kafka: {key.kafka_default})" if key.kafka_default is not None else ""
    return f"`{key.default}`{kafka}" if key.default else "empty"


def _synonyms(key: ConfigKey) -> str:
    return " or ".join(f"`{synonym.name}`" for synonym in key.synonyms)


def _only(key: ConfigKey) -> str:
    return f"`{key.only}`" if key.only else "none"


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; exit status 1 when ``--check`` finds a difference."""
    return command(lambda path: {path: render()}, "make pages", arguments)


if __name__ == "__main__":
    sys.exit(main())
