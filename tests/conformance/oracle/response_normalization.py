"""Answers as values that can be compared: what is another thing on each side by nature stands as a
word, and lists that have no order are in one."""

import dataclasses
import datetime
import enum
import json
import re
import uuid
from collections.abc import Iterator
from typing import Any

from tests.conformance.oracle.sides import SideWorld
from tidemark.records.batch import HEADER_BYTES, MAGIC

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
        "usable_bytes", "coordinator_epoch", "message", "last_timestamp", "transaction_start_time",
        "transaction_start_time_ms",
    }
)  # fmt: skip
_ABSENT = (None, "", -1)
#: 0 is none as well.
_NUMBERS_FROM_1 = frozenset({"session_id", "port"})
#: What a coordinator puts behind a client's or an instance's id.
_MEMBER = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
_CRC, _LEADER_EPOCH, _PRODUCER_ID, _TIMES = (17, 21), (12, 16), (43, 51), (27, 43)
_CONTROL = 0x20


def normal(value: Any, world: SideWorld, name: str = "") -> Any:
    """``value`` with what is particular to a side left out."""
    if name == "throttle_time":
        return 0
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: normal(getattr(value, field.name), world, field.name)
            for field in dataclasses.fields(value)
        }
    if isinstance(value, tuple):
        made = [normal(item, world, name) for item in value]
        # Configurations are compared by key: a broker may list them in any order.
        if name == "configs":
            return {item["name"]: item for item in made}
        # Lists of parts have no order in Kafka's protocol. Lists of numbers may have one.
        is_open = any(isinstance(item, dict) for item in made)
        return sorted(made, key=lambda item: json.dumps(item, sort_keys=True)) if is_open else made
    # A topic's id differs on each side, so it is compared by the topic's name.
    if isinstance(value, uuid.UUID):
        names = {topic_id: topic for topic, topic_id in world.topic_ids.items()}
        return f"<id of {names.get(value, 'another topic')}>"
    return _scalar(value, world, name)


def _scalar(value: Any, world: SideWorld, name: str) -> Any:
    if name in _OWN:
        return _told(value, name)
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
    if isinstance(value, str):
        # The coordinator appends a random UUID to a member's id.
        return _MEMBER.sub("-<member>", value)
    return _bytes(value) if isinstance(value, bytes) else value


def _told(value: Any, name: str) -> Any:
    # A negative base offset is an error, and has to be the same.
    if name == "base_offset" and value < 0:
        return value
    is_absent = value in _ABSENT or (value == 0 and name in _NUMBERS_FROM_1)
    return "<absent>" if is_absent else f"<{name}>"


def _bytes(data: bytes) -> str:
    """Record batches without what a leader writes into them, and without the producer's id; of a
    marker that ends a transaction without its time."""
    made, position = bytearray(data), 0
    while position + HEADER_BYTES <= len(made) and made[position + 16] == MAGIC:
        end = position + 12 + int.from_bytes(made[position + 8 : position + 12], "big")
        others = [_LEADER_EPOCH]
        # A batch with a producer id: the id is this side's own, and the CRC covers it.
        if made[position + 43 : position + 51] != b"\xff" * 8:
            others += [_CRC, _PRODUCER_ID]
        if made[position + 22] & _CONTROL:
            others += [_TIMES, (end - position - 5, end - position - 1)]  # its coordinator's epoch
        for first, last in others:
            made[position + first : position + last] = bytes(last - first)
        position = end
    return made.hex()


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(path, ours, Kafka's) of each place where the two are not the same."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted(ours.keys() | theirs.keys()):
            below = f"{path}.{key}" if path else key
            yield from differences(ours.get(key), theirs.get(key), below)
    # Lists of different lengths are one difference as a whole.
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for one, other in zip(ours, theirs, strict=True):
            yield from differences(one, other, f"{path}[]")
    elif ours != theirs:
        yield path, ours, theirs
