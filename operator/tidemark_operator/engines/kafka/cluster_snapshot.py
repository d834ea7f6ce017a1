"""Topics and brokers of Apache Kafka as the core's values.

The rows are :class:`~tidemark_operator.controller.state.model.PartitionRow`, as if Tidemark's own
controller had written them, so that counts, statuses and decisions from rows are common code. If a
topic may be under-replicated (KIP-409), replicas that no broker could take yet are placeholders in
the rows; Kafka itself only has the existing ones.
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
from tidemark_operator.controller.state.model import NO_LEADER, BrokerInfo, PartitionRow

#: Kafka does not expose a broker's epoch: all registrations count as the same.
BROKER_EPOCH = 0
#: Name of the only known listener, the one that was connected to.
LISTENER = "KAFKA"


def rows(
    topic: TopicView,
    moves: Mapping[TopicPartition, Reassignment],
    *,
    places: int = 0,
) -> list[PartitionRow]:
    """Return the rows by partition.

    ``places`` is the least number of replicas of each partition, placeholders included.
    """
    return [
        _row(topic, view, moves.get((topic.name, view.partition)), places)
        for view in topic.partitions
    ]


def _row(
    topic: TopicView, view: PartitionView, move: Reassignment | None, places: int
) -> PartitionRow:
    """Return a partition of the Kafka cluster in the form of the controller's own partition rows.

    ``places`` is the desired replication factor. Missing replicas become placeholders (negative
    ids), as Tidemark's own brokers have them.
    """
    adding, removing = ((), ()) if move is None else (move.adding, move.removing)
    # Replicas that a move removes do not count towards the desired number.
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
    """Return a broker as its object (``namespace/name``) shows it."""
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
