"""Fetches, and the other requests that ask what a topic holds."""

from collections.abc import Iterator
from typing import Any

from tests.conformance.oracle.case import COMPACT, EMPTY, READ, T0, Build, Row, row
from tests.conformance.oracle.entities import id_of
from tests.conformance.oracle.sides import SideWorld
from tests.unit.api import api_requests as kafka

_BY_ID = 13


def _fetch(topic: str, *offsets: int, **values: Any) -> Build:
    def build(world: SideWorld, version: int) -> Any:
        topic_id = world.id_of(topic) if version >= _BY_ID else None
        return kafka.fetch(version, topic, *offsets, topic_id=topic_id, **values)

    return build


def fetch_rows() -> Iterator[Row]:
    # READ has three records, so offset 3 is the end and 4 is out of range.
    at_once: dict[str, Build] = {
        "from the start": _fetch(READ, 0),
        "in the middle": _fetch(READ, 1),
        "at the end": _fetch(READ, 3),
        "past the end": _fetch(READ, 4),
        "below zero": _fetch(READ, -1),
        "unknown topic": _fetch("nope", 0),
        "unknown partition": _fetch(READ, 0, 0),
        "empty partitions": _fetch(EMPTY, 0, 0),
        "max bytes 0": _fetch(READ, 0, max_bytes=0),
        "max bytes -1": _fetch(READ, 0, max_bytes=-1),
        "partition max bytes 0": _fetch(READ, 0, partition_max_bytes=0),
        "partition max bytes -1": _fetch(READ, 0, partition_max_bytes=-1),
        "read committed": _fetch(READ, 0, isolation_level=1),
    }
    for what, build in at_once.items():
        yield Row("Fetch", 1, what, build, since=4)
    # Fetch sessions (KIP-227): epoch 0 opens one, -1 ends one, others continue one.
    sessions = {
        "id 0, epoch 0": (0, 0),
        "id 0, epoch -1": (0, -1),
        "id 0, epoch 5": (0, 5),
        "id 0, epoch -2": (0, -2),
        "unknown id, epoch 0": (4711, 0),
        "unknown id, epoch -1": (4711, -1),
        "unknown id, epoch 1": (4711, 1),
    }
    for what, (session_id, epoch) in sessions.items():
        build = _fetch(READ, 0, session_id=session_id, session_epoch=epoch)
        yield Row("Fetch", 1, f"session {what}", build, since=7)
    # The epoch of the request is current, older or newer than the leader's (KIP-320).
    for epoch in (0, 1, 1000):
        part = {"current_leader_epoch": epoch}
        yield Row("Fetch", 1, f"leader epoch {epoch}", _fetch(READ, 0, part=part), since=9)
        part = {"last_fetched_epoch": epoch}
        for offset in (2, 9):
            what = f"last fetched epoch {epoch} at {offset}"
            yield Row("Fetch", 1, what, _fetch(READ, offset, part=part), since=12)
    # Replica ids: 99 is no replica of this cluster, -2 is Kafka's debugging consumer.
    yield Row("Fetch", 1, "as a follower", _fetch(READ, 0, replica_id=99), since=4)
    yield Row("Fetch", 1, "to debug", _fetch(READ, 0, replica_id=-2), since=4)


def offset_rows() -> Iterator[Row]:
    """Further requests for offsets, topics and partitions."""
    # Special timestamps: latest -1, earliest -2, max -3, earliest local -4, last tiered -5. -6 and
    # -7 are not assigned in every version.
    for timestamp in (-1, -2, -3, -4, -5, -6, -7, 0, T0, T0 + 1, T0 + 2, T0 + 3):
        for topic in (READ, EMPTY, "nope"):
            yield _list_offsets(f"{timestamp} of {topic}", topic, timestamp=timestamp)
    for epoch in (0, 1000):
        yield _list_offsets(f"in leader epoch {epoch}", READ, timestamp=-1,
                            current_leader_epoch=epoch)  # fmt: skip
        # OffsetForLeaderEpoch with an epoch that is undefined, current, or not reached.
        for wanted in (-1, 0, 1000):
            part = {"partition": 0, "current_leader_epoch": epoch, "leader_epoch": wanted}
            yield row("OffsetForLeaderEpoch", 23, f"{wanted} in {epoch}", {
                "replica_id": -1, "topics": ({"topic": READ, "partitions": (part,)},),
            })  # fmt: skip
    names = {"two": (READ, EMPTY), "unknown": ("nope",), "illegal": ("a b", "..")}
    for what, asked in names.items():
        topics = tuple({"name": name, "topic_id": None} for name in asked)
        yield row("Metadata", 3, f"of {what}", {"topics": topics})
    yield row("Metadata", 3, "of all", {"topics": None}, since=1)
    for topic in (READ, "nope"):
        asked_id = {"name": None, "topic_id": id_of(topic)}
        yield row("Metadata", 3, f"by the id of {topic}", {"topics": (asked_id,)}, since=12)
    yield row("Metadata", 3, "with what may be done", {
        "topics": ({"name": READ},), "include_topic_authorized_operations": True,
        "include_cluster_authorized_operations": True,
    }, since=8)  # fmt: skip
    # Nothing below 0, beyond the end, or in a compacted topic may be deleted. -2 is invalid, -1
    # means the high watermark.
    for topic, offset in ((READ, 0), (READ, 99), (READ, -2), ("nope", 0), (COMPACT, 0)):
        part = {"partition_index": 0, "offset": offset}
        yield row("DeleteRecords", 21, f"{offset} of {topic}", {
            "topics": ({"name": topic, "partitions": (part,)},), "timeout": 5000,
        })  # fmt: skip
    # KIP-966: pages by a limit and a cursor.
    pages = {
        "all": (2000, None),
        "one partition": (1, None),
        "none": (0, None),
        "from a cursor": (2000, (EMPTY, 1)),
        "from beyond all": (2000, ("zzz", 0)),
        "from a partition below zero": (2000, (EMPTY, -1)),
    }
    for what, (limit, cursor) in pages.items():
        yield row("DescribeTopicPartitions", 75, what, {
            "topics": ({"name": EMPTY}, {"name": READ}), "response_partition_limit": limit,
            "cursor": cursor and {"topic_name": cursor[0], "partition_index": cursor[1]},
        })  # fmt: skip
    yield row("DescribeLogDirs", 35, f"of {READ}", {
        "topics": ({"topic": READ, "partitions": (0, 5)}, {"topic": "nope", "partitions": (0,)}),
    })  # fmt: skip


def _list_offsets(what: str, topic: str, **part: int) -> Row:
    asked = {"partition_index": 0, "current_leader_epoch": -1, **part}
    return row("ListOffsets", 2, what, {
        "replica_id": -1, "timeout": 5000, "topics": ({"name": topic, "partitions": (asked,)},),
    })  # fmt: skip
