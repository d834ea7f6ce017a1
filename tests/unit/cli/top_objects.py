"""Objects as the API server has them, for the tests of ``tidemark top``."""

import uuid
from collections.abc import Iterable
from typing import Any

from tidemark.ids import id_text
from tidemark_cli.top.object_index import BROKER, CLUSTER, SLICE, TOPIC, ObjectIndex
from tidemark_operator.controller.state.model import PartitionRow
from tidemark_operator.controller.state.rows import encode_row, slice_of


def topic_id(number: int) -> uuid.UUID:
    return uuid.UUID(int=number + 1)


def condition(kind: str, status: str, message: str = "", reason: str = "R") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def topic(
    name: str,
    number: int | None = 0,
    *,
    conditions: Iterable[dict[str, str]] = (condition("Ready", "True", "served"),),
    spec: dict[str, Any] | None = None,
    **status: Any,
) -> dict[str, Any]:
    """Return a Topic with the id of ``number``; None leaves the status without an id."""
    own_id = {} if number is None else {"topicId": id_text(topic_id(number))}
    return {
        "metadata": {"name": name, "managedFields": [{"manager": "m" * 100}]},
        "spec": {"partitions": 1, **(spec or {})},
        "status": {**own_id, "conditions": list(conditions), **status},
    }


def row(number: int, partition: int = 0, **fields: Any) -> PartitionRow:
    """Return a row that broker 1 leads, with broker 2 in sync."""
    replicas = fields.pop("replicas", (1, 2))
    return PartitionRow(
        topic_id=topic_id(number),
        partition=partition,
        replicas=replicas,
        isr=fields.pop("isr", tuple(replica for replica in replicas if replica >= 0)),
        leader=fields.pop("leader", 1),
        leader_epoch=4,
        **fields,
    )


def piece(name: str, rows: Iterable[PartitionRow]) -> dict[str, Any]:
    return {"metadata": {"name": name}, "partitions": [encode_row(row_) for row_ in rows]}


def pieces(rows: Iterable[PartitionRow]) -> list[dict[str, Any]]:
    """Return slices, with each row in the slice that it belongs to."""
    by_slice: dict[int, list[PartitionRow]] = {}
    for row_ in rows:
        by_slice.setdefault(slice_of(row_.topic_id, row_.partition), []).append(row_)
    return [piece(f"main-{number:02d}", found) for number, found in sorted(by_slice.items())]


def broker(node_id: int, **status: Any) -> dict[str, Any]:
    ready = status.pop("conditions", [condition("Ready", "True", "live")])
    return {
        "metadata": {"name": f"broker-{node_id}"},
        "spec": {"nodeId": node_id},
        "status": {"conditions": ready, **status},
    }


def export(name: str, **status: Any) -> dict[str, Any]:
    ready = status.pop("conditions", [condition("Ready", "True", "the job is running")])
    return {
        "metadata": {"name": name},
        "spec": {"topicRef": {"name": "orders"}, "table": {"name": "lake.orders"}},
        "status": {"conditions": ready, **status},
    }


def cluster() -> dict[str, Any]:
    ready = [condition("Ready", "True", "2 brokers live")]
    return {"metadata": {"name": "main"}, "status": {"conditions": ready}}


def many(count: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return topics of one partition, every hundredth without a leader, and their slices."""
    topics = [topic(f"orders-{number:05d}", number) for number in range(count)]
    return topics, pieces(row(n, leader=-1 if n % 100 == 7 else 1) for n in range(count))


def holding(
    topics: Iterable[dict[str, Any]], slices: Iterable[dict[str, Any]], brokers: int = 2
) -> ObjectIndex:
    object_index = ObjectIndex()
    object_index.put(CLUSTER, [cluster()])
    object_index.put(BROKER, [broker(node_id) for node_id in range(1, brokers + 1)])
    object_index.put(TOPIC, topics)
    object_index.put(SLICE, slices)
    return object_index
