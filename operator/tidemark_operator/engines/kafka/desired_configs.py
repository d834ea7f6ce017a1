"""Which own values a topic of Apache Kafka is to have, from its manifest and the state of its
tiering (KIP-950), and what is to be altered for that.

Only keys that the manifest names, by a field or in ``config``, are ours; and those that stood there
before, which are recorded in ``status.configKeys`` before they are set. All others are left alone.

Kafka's two switches (KIP-950 as it was shipped) stand for the policies: with Retain the topic stays
tiered and nothing is copied any more, for which Kafka demands that local retention is the topic's
own; with Delete it is tiered no more and what was copied is deleted.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tidemark.configuration.table import TOPIC
from tidemark.tiering import Tiering
from tidemark_operator.controller.model import TopicInfo

ENABLE, COPY_DISABLE = "remote.storage.enable", "remote.log.copy.disable"
DELETE_ON_DISABLE = "remote.log.delete.on.disable"
SWITCHES = (ENABLE, COPY_DISABLE, DELETE_ON_DISABLE)
LOCAL_RETENTION = ("local.retention.ms", "local.retention.bytes")
#: KIP-73: ``partition:broker`` of replicas that are throttled.
THROTTLED = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
#: Keys that our own brokers know alone.
_NOT_KAFKAS = frozenset({"remote.log.disable.policy"})
_AS_TOTAL = "-2"


@dataclass(frozen=True, slots=True)
class Wanted:
    """``values`` have to stand; ``absent`` have to be without a value of the topic's own."""

    values: Mapping[str, str]
    absent: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Difference:
    """What is to be altered."""

    set: Mapping[str, str]
    unset: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.set or self.unset)


def wanted(
    topic: TopicInfo, tiering: Tiering, throttled: Mapping[str, str] | None = None
) -> Wanted:
    """``tiering``: as it is persisted. ``throttled``: replicas of moves that are under way."""
    plain = {
        key: value
        for key, value in topic.config.items()
        if key not in SWITCHES and key not in LOCAL_RETENTION and key not in _NOT_KAFKAS
    }
    tiered = _tiered(topic, tiering)
    values = {**(throttled or {}), **plain, **tiered.values}
    return Wanted(dict(sorted(values.items())), tiered.absent)


def _tiered(topic: TopicInfo, tiering: Tiering) -> Wanted:
    if not tiering.ever_tiered:
        return Wanted({})
    if tiering.copies:
        local = {key: topic.config[key] for key in LOCAL_RETENTION if key in topic.config}
        return Wanted({ENABLE: "true", **local}, frozenset({COPY_DISABLE, DELETE_ON_DISABLE}))
    if tiering.deletes:
        values = {ENABLE: "false", DELETE_ON_DISABLE: "true"}
        return Wanted(values, frozenset({COPY_DISABLE, *LOCAL_RETENTION}))
    values = {ENABLE: "true", COPY_DISABLE: "true", **dict.fromkeys(LOCAL_RETENTION, _AS_TOTAL)}
    return Wanted(values, frozenset({DELETE_ON_DISABLE}))


def difference(found: Mapping[str, str], asked: Wanted, ours: Collection[str]) -> Difference:
    """``found``: the topic's own values; ``ours``: keys that were ever set for this manifest. What
    amounts to the same is left as it is: a topic that is taken over is not touched. A key that was
    ours is taken away even where it is not seen: a look may be older than what has set it, and what
    is not on record any more would stay for ever."""
    changed = {key: value for key, value in asked.values.items() if not _stands(key, value, found)}
    dropped = {
        key
        for key, value in found.items()
        if key in asked.absent and (key not in SWITCHES or value != "false")
    }
    dropped.update(ours)
    return Difference(changed, tuple(sorted(dropped.difference(asked.values))))


def _stands(key: str, value: str, found: Mapping[str, str]) -> bool:
    if key in found:
        return _same(key, found[key], value)
    # Kafka has seen to it, as long as nothing is copied: what it has by default is the same.
    return key in LOCAL_RETENTION and value == _AS_TOTAL and found.get(COPY_DISABLE) == "true"


def _same(key: str, one: str, other: str) -> bool:
    """Kafka answers what it made of a text: ``7`` for ``007``."""
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
    """Whether the switches, as a broker has them by now, are those of a disablement."""
    expected = {ENABLE: "false", DELETE_ON_DISABLE: "true"}
    if not tiering.deletes:
        expected = {ENABLE: "true", COPY_DISABLE: "true"}
    return all(values.get(key) == value for key, value in expected.items())


def throttles(moving: Collection[tuple[int, Collection[int], Collection[int]]]) -> dict[str, str]:
    """For moves that are under way, each as (partition, replicas that are there, replicas that are
    added): the values of KIP-73's two keys; {} for none."""
    leaders = [f"{part}:{node}" for part, there, _ in sorted(moving) for node in sorted(there)]
    followers = [f"{part}:{node}" for part, _, added in sorted(moving) for node in sorted(added)]
    if not followers:
        return {}
    return dict(zip(THROTTLED, (",".join(leaders), ",".join(followers)), strict=True))
