"""What a person is told of a Topic beside its conditions: that it is offline, that it is back, that
an audit of the tier has found damage.

A condition says how things are; an Event, that they have changed, and when. It is told from one
status that was written to the next, so that nothing is told twice, and nothing of a moment that no
status shows. A topic that is being made, or grows, was never away.
"""

from collections.abc import Sequence

from tidemark.reasons import Reason
from tidemark.wire.control import ConfigEntry
from tidemark_operator.controller.events import Event, normal, warning
from tidemark_operator.controller.model import Json, TopicInfo
from tidemark_operator.controller.status.conditions import FALSE, READY, TRUE, find
from tidemark_operator.controller.status.reasons import TIER
from tidemark_operator.controller.status.remote_integrity import REMOTE_INTEGRITY

_STARTING = Reason.LEADERS_STARTING
_MISSING = Reason.BROKERS_MISSING
#: Keys that one Event names.
_SHOWN_MAX = 5
#: Why Ready is False of a topic that was served.
_OUTAGES = frozenset(
    {
        Reason.PARTITIONS_OFFLINE,
        Reason.ELECTION_PENDING,
        Reason.LAST_COPY_MISSING,
        Reason.STORAGE_FAILED,
    }
    | {entry.reason for entry in TIER}
)


def damage_news(topic: TopicInfo, status: Json) -> tuple[Event, ...]:
    """What an audit found wrong, told when ``status`` says so first."""
    old, new = find(topic.status, REMOTE_INTEGRITY) or {}, find(status, REMOTE_INTEGRITY) or {}
    if new.get("status") != FALSE or old.get("status") == FALSE:
        return ()
    return (warning("Topic", topic.key, str(new["reason"]), str(new["message"])),)


def waiting_news(topic: TopicInfo, status: Json) -> tuple[Event, ...]:
    """Return the Event of a topic that starts to wait for brokers with ``status``."""
    old, new = find(topic.status, READY) or {}, find(status, READY) or {}
    if new.get("reason") != _MISSING or old.get("reason") == _MISSING:
        return ()
    return (warning("Topic", topic.key, _MISSING, str(new["message"])),)


def config_changes(before: Sequence[ConfigEntry], after: Sequence[ConfigEntry]) -> str:
    """Return the keys that differ between two configurations, with new values; "" for none."""
    old = {entry.name: entry.value for entry in before}
    new = {entry.name: entry.value for entry in after}
    changed = [
        f"{name} is {new[name]!r}" if name in new else f"{name} is no longer set"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]
    more = len(changed) - _SHOWN_MAX
    return "; ".join([*changed[:_SHOWN_MAX], *([f"{more} more"] if more > 0 else [])])


class Outages:
    """Which Topics are offline, by object key; of one term, and no more than there are Topics."""

    def __init__(self) -> None:
        self._out: set[str] = set()

    def news(self, topic: TopicInfo, status: Json) -> tuple[Event, ...]:
        """What is to be told now that ``status`` was written over the Topic's own."""
        old, new = find(topic.status, READY) or {}, find(status, READY) or {}
        if _is_out(old):
            self._out.add(topic.key)
        if _is_out(new) or _was_given_up(old, new):
            self._out.add(topic.key)
            if new["reason"] == old.get("reason"):
                return ()
            return (warning("Topic", topic.key, str(new["reason"]), str(new["message"])),)
        if new.get("status") == TRUE and topic.key in self._out:
            self._out.discard(topic.key)
            text = f"topic {topic.name} is available again: every partition has a leader"
            return (normal("Topic", topic.key, "TopicOnline", text),)
        return ()

    def forget(self, key: str) -> None:
        """The Topic is gone."""
        self._out.discard(key)


def _is_out(ready: Json) -> bool:
    return ready.get("status") == FALSE and ready.get("reason") in _OUTAGES


def _was_given_up(old: Json, new: Json) -> bool:
    """Its leaders do not answer, though they did for the same generation."""
    return (
        new.get("reason") == _STARTING
        and old.get("status") == TRUE
        and old.get("observedGeneration") == new.get("observedGeneration")
    )
