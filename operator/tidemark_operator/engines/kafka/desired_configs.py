"""Desired own values of an Apache Kafka topic, from its spec and its tiering state (KIP-950).

Managed keys are those that the spec names, by a field or in ``config``, and those that it named
before, which are recorded in ``status.configKeys`` before they are set. All others are left alone.

Kafka's two switches (KIP-950 as released) implement the policies. With Retain the topic stays
tiered and nothing more is copied; Kafka requires that local retention equals the topic's own. With
Delete the topic is no longer tiered and copied data is deleted.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tidemark.configuration.table import TOPIC
from tidemark.configuration.topic_keys import (
    COPY_PAUSED,
    MAX_LAG_BYTES,
    MAX_LAG_MS,
    REMOTE_COMPRESSION,
)
from tidemark.tiering import Tiering
from tidemark_operator.controller.state.model import TopicInfo

ENABLE, COPY_DISABLE = "remote.storage.enable", "remote.log.copy.disable"
DELETE_ON_DISABLE = "remote.log.delete.on.disable"
SWITCHES = (ENABLE, COPY_DISABLE, DELETE_ON_DISABLE)
LOCAL_RETENTION = ("local.retention.ms", "local.retention.bytes")
#: KIP-73: ``partition:broker`` of throttled replicas.
THROTTLED = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
#: Keys that only Tidemark's own brokers know.
_NOT_KAFKAS = frozenset(
    {"remote.log.disable.policy", MAX_LAG_MS, MAX_LAG_BYTES, COPY_PAUSED, REMOTE_COMPRESSION}
)
_AS_TOTAL = "-2"


@dataclass(frozen=True, slots=True)
class DesiredConfigs:
    """Desired values; ``absent`` keys must have no value of the topic's own."""

    values: Mapping[str, str]
    absent: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Difference:
    """Own values of a topic to set and to remove."""

    set: Mapping[str, str]
    unset: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.set or self.unset)


def of_topic(
    topic: TopicInfo, tiering: Tiering, throttled: Mapping[str, str] | None = None
) -> DesiredConfigs:
    """Return the configuration that a Topic's spec requires of the topic in Apache Kafka.

    ``tiering`` is the persisted tiering state, which may lag behind the spec during a disablement.
    ``throttled``: throttle keys of reassignments in progress (KIP-73).
    """
    # Tiering and local retention follow the persisted state; other keys follow the spec.
    plain = {
        key: value
        for key, value in topic.config.items()
        if key not in SWITCHES and key not in LOCAL_RETENTION and key not in _NOT_KAFKAS
    }
    tiered = _tiered(topic, tiering)
    values = {**(throttled or {}), **plain, **tiered.values}
    return DesiredConfigs(dict(sorted(values.items())), tiered.absent)


def _tiered(topic: TopicInfo, tiering: Tiering) -> DesiredConfigs:
    """Return the configuration of Kafka's releases for a tiering state."""
    if not tiering.ever_tiered:
        return DesiredConfigs({})
    # Kafka refuses local retention in a topic that is not tiered, so it is set with the switch.
    if tiering.copies:
        local = {key: topic.config[key] for key in LOCAL_RETENTION if key in topic.config}
        return DesiredConfigs(
            {ENABLE: "true", **local}, frozenset({COPY_DISABLE, DELETE_ON_DISABLE})
        )
    if tiering.deletes:
        values = {ENABLE: "false", DELETE_ON_DISABLE: "true"}
        return DesiredConfigs(values, frozenset({COPY_DISABLE, *LOCAL_RETENTION}))
    values = {ENABLE: "true", COPY_DISABLE: "true", **dict.fromkeys(LOCAL_RETENTION, _AS_TOTAL)}
    return DesiredConfigs(values, frozenset({DELETE_ON_DISABLE}))


def difference(
    found: Mapping[str, str], desired: DesiredConfigs, managed: Collection[str]
) -> Difference:
    """Return the configuration changes that bring a topic to its desired values.

    ``found`` are the topic's own values in Kafka. ``managed`` are the keys that the operator has
    ever set for this spec. Equal values are left as they are, so an adopted topic is not changed. A
    key in ``managed`` that is no longer desired is removed even if ``found`` lacks it: the read may
    be older than the write that set it, and an unrecorded key would stay forever.
    """
    changed = {
        key: value for key, value in desired.values.items() if not _stands(key, value, found)
    }
    # Keys that must be absent are removed; a switch that is "false" has the same effect.
    dropped = {
        key
        for key, value in found.items()
        if key in desired.absent and (key not in SWITCHES or value != "false")
    }
    # Remove what an earlier version of the spec had set, except keys that are still desired.
    dropped.update(managed)
    return Difference(changed, tuple(sorted(dropped.difference(desired.values))))


def _stands(key: str, value: str, found: Mapping[str, str]) -> bool:
    if key in found:
        return _same(key, found[key], value)
    # While nothing is copied Kafka enforces this, so its default has the same effect.
    return key in LOCAL_RETENTION and value == _AS_TOTAL and found.get(COPY_DISABLE) == "true"


def _same(key: str, one: str, other: str) -> bool:
    """Return whether two texts have one value: Kafka answers ``7`` for ``007``."""
    if one == other:
        return True
    known = TOPIC.get(key)
    if known is None:
        return False
    try:
        return known.type.parse(one) == known.type.parse(other)
    except ValueError:
        return False


def in_force(tiering: Tiering, values: Mapping[str, str]) -> bool:
    """Return whether a broker's switches in force are those of a disablement."""
    expected = {ENABLE: "false", DELETE_ON_DISABLE: "true"}
    if not tiering.deletes:
        expected = {ENABLE: "true", COPY_DISABLE: "true"}
    return all(values.get(key) == value for key, value in expected.items())


#: Partition, present replicas, added replicas.
Move: TypeAlias = tuple[int, Collection[int], Collection[int]]


def throttles(moves: Iterable[Move]) -> dict[str, str]:
    """Return the values of KIP-73's two keys for moves in progress; {} for none.

    A partition to which no replica is added copies nothing.
    """
    moving = sorted((move for move in moves if move[2]), key=lambda move: move[0])
    leaders = [f"{part}:{node}" for part, present, _ in moving for node in sorted(present)]
    followers = [f"{part}:{node}" for part, _, added in moving for node in sorted(added)]
    if not followers:
        return {}
    return dict(zip(THROTTLED, (",".join(leaders), ",".join(followers)), strict=True))
