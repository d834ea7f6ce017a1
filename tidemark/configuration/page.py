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

Look up the configuration keys of topics, of the cluster, of consumer groups and of brokers.

- Keys have Kafka's names, types, bounds and defaults.
- Admission refuses keys that are not served. An object that already has such a key can still be
  changed.
- A topic's configuration has three layers: the broker's file, the Cluster, the Topic. A later layer
  overrides an earlier one.
- Kafka clients can read all keys, and change those of Topic and Cluster ([Clients](clients.md)).
"""
_TOPIC = """
## A topic's keys

Set them in `Topic.spec.config`. Set a *default for all topics* in `Cluster.spec.config` or in a
broker's file. A name after "or" is valid only in a broker's file.
"""
_FIELDS = """
## Keys that have a field

Admission refuses them in `Topic.spec.config` and names the field.
"""
_NOT_SERVED = """
## Kafka's topic keys that are not served

Admission refuses them for topics, and their defaults for the cluster. It accepts the one value that
describes the actual behaviour.
"""
_CLUSTER = """
## The cluster's keys

Set them in `Cluster.spec.config`, beside the defaults of topics. The last two are also valid in a
broker's file. The Cluster's values override those of the file.
"""
_GROUP = """
## A consumer group's keys

Set them in `Cluster.spec.groups` under the group's name, or with IncrementalAlterConfigs of a
GROUP. They apply to groups of KIP-848's protocol. A value beyond the broker's bounds
(`group.consumer.min...` and `group.consumer.max...`) counts as the bound.
"""
_BROKER = """
## The broker's file

The file is JSON or properties, and `--config` names it. It may contain defaults of topics. The
broker logs unknown keys at the start. An environment variable `TIDEMARK_<KEY>` (upper case, dots as
underscores) overrides the keys down to `log.level`, except `broker.rack`.
"""

Column = tuple[str, Callable[[ConfigKey], str]]


def render() -> str:
    """Return the whole Markdown page: one table for each object that can set keys."""
    # Each table has the keys of one object; a key is described in the first one that can set it.
    served = [key for key in table.TOPIC.values() if key.served and not key.field]
    fields = [key for key in table.TOPIC.values() if key.field]
    cluster = [key for key in table.CLUSTER.values() if key.name not in table.CLUSTER_DEFAULTS]
    broker = [key for key in table.BROKER.values() if key.name not in table.CLUSTER]
    # Columns: a heading, and how to get the cell of a key.
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
