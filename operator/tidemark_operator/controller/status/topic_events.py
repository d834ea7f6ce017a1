"""Events of a Topic in addition to its conditions: offline, online again, damage found by an audit.

A condition is the present state; an Event is a change with its time. It is derived from two
successive stored statuses, so that nothing is emitted twice, and nothing for a moment that no
status shows. A topic that is being created, or grows, was never offline.
"""

from tidemark.message_text import quoted
from tidemark.reason_table import TIER
from tidemark.reasons import Reason
from tidemark_operator.controller.state.events import Event, normal, warning
from tidemark_operator.controller.state.model import Json, TopicInfo
from tidemark_operator.controller.status.conditions import FALSE, READY, TRUE, find
from tidemark_operator.controller.status.remote_integrity import REMOTE_INTEGRITY
from tidemark_operator.controller.tiering_disablement import policy_name

_STARTING = Reason.LEADERS_STARTING
_MISSING = Reason.BROKERS_MISSING
#: Fields and keys in one Event.
_SHOWN_MAX = 5
#: Reasons of Ready=False for a topic that was served before.
_OUTAGES = frozenset(
    {
        Reason.PARTITIONS_OFFLINE,
        Reason.ELECTION_PENDING,
        Reason.LAST_COPY_MISSING,
        Reason.STORAGE_FAILED,
    }
    | TIER.keys()
)


def damage_news(topic: TopicInfo, status: Json) -> tuple[Event, ...]:
    """Return the Event of damage that ``status`` is the first to show."""
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


def manifest_changes(before: TopicInfo | None, after: TopicInfo) -> tuple[Event, ...]:
    """Return the Event ConfigChanged of a changed manifest, with old and new values.

    Empty for another object of that name. A topic's configuration has no secrets: admission accepts
    only known keys, and none of them is a password.
    """
    # After a takeover the former manifest is unknown.
    if before is None or before.uid != after.uid:
        return ()
    old, new = _declared(before), _declared(after)
    changed = [
        f"{name}: {_value(old.get(name))} -> {_value(new.get(name))}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]
    if not changed:
        return ()
    # The rest is counted, so that the Event stays short.
    more = len(changed) - _SHOWN_MAX
    shown = [*changed[:_SHOWN_MAX], *([f"{more} more"] if more > 0 else [])]
    text = f"topic {after.name}: {'; '.join(shown)}"
    return (normal("Topic", after.key, "ConfigChanged", text),)


def _declared(topic: TopicInfo) -> dict[str, str]:
    """Return what a manifest declares, by the names of its fields and by Kafka's keys.

    The configuration has the fields of tiering by their keys, such as remote.storage.enable.
    """
    policy = topic.tiering_spec.policy
    fields = {
        "partitions": str(topic.partitions),
        "replicationFactor": str(topic.replication_factor),
        "deletionPolicy": topic.deletion_policy.value,
    }
    if topic.deletion_grace:
        fields["deletionGracePeriod"] = topic.deletion_grace
    if policy is not None:
        fields["tiering.disablePolicy"] = policy_name(policy)
    return {**topic.config, **fields}


def _value(text: str | None) -> str:
    return "not set" if text is None else repr(quoted(text))


class Outages:
    """Offline Topics by object key, of one term; at most one entry per Topic."""

    def __init__(self) -> None:
        self._out: set[str] = set()

    def news(self, topic: TopicInfo, status: Json) -> tuple[Event, ...]:
        """Return the Events for the start or end of a Topic's outage.

        ``status`` is the new status; ``topic.status`` is the one that it replaces.
        """
        old, new = find(topic.status, READY) or {}, find(status, READY) or {}
        # After a takeover the outage may be known from the stored status only.
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
        """Forget a deleted Topic."""
        self._out.discard(key)


def _is_out(ready: Json) -> bool:
    return ready.get("status") == FALSE and ready.get("reason") in _OUTAGES


def _was_given_up(old: Json, new: Json) -> bool:
    """Return whether leaders stopped answering that had acknowledged the same generation."""
    return (
        new.get("reason") == _STARTING
        and old.get("status") == TRUE
        and old.get("observedGeneration") == new.get("observedGeneration")
    )
