"""What Apache Kafka says of its topics and brokers, as the core's values.

The rows are those of :class:`~tidemark_operator.controller.model.PartitionRow`, as if our own
controller had written them: so whatever is counted, told and decided from rows is one code. Where
a topic may be under-replicated (KIP-409), replicas that no broker could take yet are placeholders
in the picture; Kafka itself knows only those that are there.
"""

from collections.abc import Mapping

from tidemark.kafka_client.values import (
    Node,
    PartitionView,
    Reassignment,
    TopicPartition,
    TopicView,
)
from tidemark.wire.control import Endpoint
from tidemark_operator.controller.model import NO_LEADER, BrokerInfo, PartitionRow

#: Kafka does not tell a broker's epoch: one registration is as good as another.
BROKER_EPOCH = 0
#: The name of the one listener that is known: the one that was asked.
LISTENER = "KAFKA"


def rows(
    topic: TopicView,
    moves: Mapping[TopicPartition, Reassignment],
    *,
    places: int = 0,
) -> list[PartitionRow]:
    """By partition. ``places``: so many replicas each partition is to have at least, placeholders
    included."""
    return [
        _row(topic, each, moves.get((topic.name, each.partition)), places)
        for each in topic.partitions
    ]


def _row(
    topic: TopicView, view: PartitionView, move: Reassignment | None, places: int
) -> PartitionRow:
    adding, removing = ((), ()) if move is None else (move.adding, move.removing)
    staying = sum(replica not in removing for replica in view.replicas)
    missing = max(0, places - staying)
    return PartitionRow(
        topic_id=topic.topic_id,
        partition=view.partition,
        replicas=(*view.replicas, *(-1 - index for index in range(missing))),
        isr=view.isr,
        leader=view.leader if view.leader >= 0 else NO_LEADER,
        leader_epoch=max(view.leader_epoch, 0),
        adding=adding,
        removing=removing,
        name=topic.name if view.partition == 0 else "",
    )


def broker(node: Node, key: str, status: Mapping[str, object], generation: int) -> BrokerInfo:
    """A broker as its object (``namespace/name``) shows it."""
    return BrokerInfo(
        node_id=node.node_id,
        key=key,
        reported_rack=node.rack,
        broker_epoch=BROKER_EPOCH,
        listeners=(Endpoint(name=LISTENER, host=node.host, port=node.port),),
        fenced=node.fenced,
        generation=generation,
        status=status,
    )
