"""Metadata (3): brokers, topics, leaders. Nothing is created by asking.

Placeholders (KIP-409) stand among the replicas and the offline ones, never in the ISR. A partition
without a leader that clients can reach is LEADER_NOT_AVAILABLE. Version 10 and above carry topic
ids, 12 can be asked by id; 9 and above KIP-950's tiered epoch and state as tagged fields.
"""

import re
from collections.abc import Iterable
from typing import Any

from kio.schema.errors import ErrorCode

from tidemark.wire import control
from tidemark_broker.api.endpoints import reachable
from tidemark_broker.api.metadata_schema import KEY, metadata_shapes
from tidemark_broker.api.schema import ZERO
from tidemark_broker.api.table import Api, Call
from tidemark_broker.replication.metadata import TopicView

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._\-]{1,249}")


async def handle(request: Any, call: Call) -> Any:
    """Answer for all topics, or for those asked for."""
    cluster = call.services.cluster
    broker = call.shapes.of("MetadataResponseBroker")
    listener = call.services.settings.listener
    live = reachable(cluster, listener)
    return call.shapes.answer(
        throttle_time=ZERO,
        brokers=tuple(
            broker(node_id=node, host=end.host, port=end.port, rack=cluster.brokers[node].rack)
            for node, end in live.items()
        ),
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id,
        topics=tuple(_topics(request, call, frozenset(live))),
        error_code=ErrorCode.none,
    )


def _topics(request: Any, call: Call, live: frozenset[int]) -> Iterable[Any]:
    everything = request.topics is None or (call.version == 0 and not request.topics)
    if everything:
        for _, view in sorted(call.services.cluster.topics.items()):
            yield _topic(view, call, live)
        return
    for asked in dict.fromkeys(_asked(topic) for topic in request.topics):
        yield _one(asked, call, live)


def _asked(topic: Any) -> tuple[str | None, Any]:
    """(name, id) of a topic asked for; one of them is set."""
    return topic.name, getattr(topic, "topic_id", None)


def _one(asked: tuple[str | None, Any], call: Call, live: frozenset[int]) -> Any:
    name, topic_id = asked
    cluster = call.services.cluster
    if name is None:
        view = None if topic_id is None else cluster.by_id(topic_id)
        missing = ErrorCode.unknown_topic_id
    else:
        view = cluster.topics.get(name)
        legal = _LEGAL_NAME.fullmatch(name) and name not in (".", "..")
        missing = (
            ErrorCode.unknown_topic_or_partition if legal else ErrorCode.invalid_topic_exception
        )
    if view is not None:
        return _topic(view, call, live)
    return call.shapes.of("MetadataResponseTopic")(
        error_code=missing,
        name=name if name is not None or call.version >= 12 else "",
        topic_id=topic_id,
        is_internal=False,
        partitions=(),
    )


def _topic(view: TopicView, call: Call, live: frozenset[int]) -> Any:
    return call.shapes.of("MetadataResponseTopic")(
        error_code=ErrorCode.none,
        name=view.name,
        topic_id=view.topic_id,
        is_internal=view.name in INTERNAL_TOPICS,
        partitions=tuple(_partition(row, call, live) for row in view.partitions.values()),
        tiered_epoch=view.tiering.epoch,
        tiered_state=view.tiering.state,
    )


def _partition(row: control.PartitionState, call: Call, live: frozenset[int]) -> Any:
    led = row.leader in live
    return call.shapes.of("MetadataResponsePartition")(
        error_code=ErrorCode.none if led else ErrorCode.leader_not_available,
        partition_index=row.partition,
        leader_id=row.leader if led else -1,
        leader_epoch=row.leader_epoch,
        replica_nodes=row.replicas,
        isr_nodes=row.isr,
        offline_replicas=tuple(node for node in row.replicas if node not in live),
    )


API = Api(
    key=KEY,
    name="Metadata",
    version_min=0,
    version_max=12,
    handler=handle,
    shapes=metadata_shapes,
)
