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
    """A broker key that is the default of a topic key for all topics; one of its units is
    ``factor`` of the topic key's."""

    name: str
    factor: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """``default`` is a text, as a manifest would give it; None: there is none, the key is required
    or its absence means something. ``kafka_default`` where Kafka's is another. ``synonyms`` come in
    Kafka's order, the first that is set wins, and the first may be set in the Cluster.
    ``field`` is what a Topic's manifest has in place of the key; ``not_served`` says why nothing
    does what the key says ("": it is served)."""

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
        """Whether something does what the key says."""
        return not self.not_served

    @property
    def reason(self) -> str:
        """Return why the key is refused, as the continuation of a message that starts with its
        name.
        """
        other = f", except with the value {self.only}" if self.only else ""
        return f"is not served{other}: {self.not_served}"

    @property
    def default_value(self) -> object:
        """Return the parsed default; raises ValueError if there is none."""
        if self.default is None:
            raise ValueError(f"{self.name} has no default")
        return self.type.parse(self.default)
