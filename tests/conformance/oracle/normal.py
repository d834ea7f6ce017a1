"""Answers as values that can be compared: what is another thing on each side by nature stands as a
word, and lists that have no order are in one."""

import dataclasses
import datetime
import enum
import json
import uuid
from collections.abc import Iterator
from typing import Any

from tests.conformance.oracle.sides import World

#: Fields that hold a broker's id, or several.
_NODES = frozenset(
    {
        "node_id", "broker_id", "leader_id", "controller_id", "coordinator_id", "replica_nodes",
        "isr_nodes", "offline_replicas", "preferred_read_replica", "replicas",
    }
)  # fmt: skip
_EPOCHS = frozenset({"leader_epoch", "current_leader_epoch"})
#: Of a place, a moment or a wording: whether they are there is all that counts.
_OWN = frozenset(
    {
        "cluster_id", "error_message", "batch_index_error_message", "host", "port", "rack",
        "log_append_time", "base_offset", "log_dir", "session_id", "producer_id", "total_bytes",
        "usable_bytes", "coordinator_epoch", "message",
    }
)  # fmt: skip
_ABSENT = (None, "", 0, -1)
_LEADER_EPOCH_AT = 12


def normal(value: Any, world: World, name: str = "") -> Any:
    """``value`` with what is particular to a side left out."""
    if name == "throttle_time":
        return 0
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            each.name: normal(getattr(value, each.name), world, each.name)
            for each in dataclasses.fields(value)
        }
    if isinstance(value, tuple):
        made = [normal(each, world, name) for each in value]
        is_open = any(isinstance(each, dict) for each in made)
        return sorted(made, key=lambda each: json.dumps(each, sort_keys=True)) if is_open else made
    if isinstance(value, uuid.UUID):
        names = {topic_id: topic for topic, topic_id in world.topic_ids.items()}
        return f"<id of {names[value]}>" if value in names else str(value)
    return _scalar(value, world, name)


def _scalar(value: Any, world: World, name: str) -> Any:
    if name in _OWN:
        return "<absent>" if value in _ABSENT and name != "base_offset" else _told(value, name)
    if name in _NODES and value == world.node_id:
        return "<node>"
    if name in _EPOCHS and value == world.leader_epoch:
        return "<epoch>"
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    return _bytes(value) if isinstance(value, bytes) else value


def _told(value: Any, name: str) -> Any:
    if name == "base_offset" and value < 0:
        return value
    return f"<{name}>"


def _bytes(data: bytes) -> str:
    """Record batches without the epoch that a leader writes into them."""
    made, position = bytearray(data), 0
    while position + 61 <= len(made) and made[position + 16] == 2:
        at = position + _LEADER_EPOCH_AT
        made[at : at + 4] = bytes(4)
        position += 12 + int.from_bytes(made[position + 8 : position + 12], "big")
    return made.hex()


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(path, ours, Kafka's) of each place where the two are not the same."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted(ours.keys() | theirs.keys()):
            below = f"{path}.{key}" if path else key
            yield from differences(ours.get(key), theirs.get(key), below)
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for one, other in zip(ours, theirs, strict=True):
            yield from differences(one, other, f"{path}[]")
    elif ours != theirs:
        yield path, ours, theirs
