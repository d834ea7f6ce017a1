"""Description of one configuration key.

A key is *served* if Tidemark implements it. A key that is not served is described too, so that it
can be refused with the cause. If one of its values describes the actual behaviour (``only``), that
value is accepted.
"""

import enum
from dataclasses import dataclass

from tidemark.configuration.values import ValueType


class Scope(enum.Enum):
    """Objects that may set a key."""

    TOPIC = "Topic.spec.config"
    CLUSTER = "Cluster.spec.config"
    BROKER = "the broker's file"
    GROUP = "Cluster.spec.groups"


@dataclass(frozen=True, slots=True)
class KeySynonym:
    """Broker key that is the default of a topic key for all topics.

    ``factor``: size of its unit in units of the topic key (3600000 for hours).
    """

    name: str
    factor: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """Configuration key.

    - ``default``: text as in a manifest. None if the key is required, or its absence has a meaning.
    - ``kafka_default``: Kafka's default, if it differs.
    - ``synonyms``: in Kafka's order of precedence. The first one may be set in the Cluster.
    - ``field``: field of a manifest that replaces the key.
    - ``not_served``: why Tidemark does not implement the key; "" if it does.
    - ``only``: the one accepted value of a key that is not implemented.
    """

    name: str
    type: ValueType
    default: str | None
    scopes: frozenset[Scope]
    meaning: str = ""
    kafka_default: str | None = None
    synonyms: tuple[KeySynonym, ...] = ()
    field: str = ""
    not_served: str = ""
    only: str = ""

    @property
    def served(self) -> bool:
        """Whether Tidemark implements the key."""
        return not self.not_served

    @property
    def reason(self) -> str:
        """Reason of a rejection, as a clause after the key's name."""
        other = f", except with the value {self.only}" if self.only else ""
        return f"is not served{other}: {self.not_served}"

    @property
    def default_value(self) -> object:
        """Parsed default. Raises ValueError if there is none."""
        if self.default is None:
            raise ValueError(f"{self.name} has no default")
        return self.type.parse(self.default)
