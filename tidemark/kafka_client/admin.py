"""Administration of a Kafka cluster over its protocol: topics, partitions, placement, the cluster.

A request has many items, and its answer a result for each: results are by name, a
:class:`RequestFailure` for an item that failed. A request that failed as a whole raises
:class:`~tidemark.kafka_client.client.KafkaError`. Versions are those that Apache Kafka has served
since 4.0.
"""

import datetime
import uuid
from collections.abc import Iterable, Mapping, Sequence

from kio.schema.alter_partition_reassignments.v0 import request as reassign_request
from kio.schema.alter_partition_reassignments.v0.response import (
    AlterPartitionReassignmentsResponse,
)
from kio.schema.create_partitions.v3 import request as grow_request
from kio.schema.create_partitions.v3.response import CreatePartitionsResponse
from kio.schema.create_topics.v7 import request as create_request
from kio.schema.create_topics.v7.response import CreateTopicsResponse
from kio.schema.delete_topics.v6 import request as delete_request
from kio.schema.delete_topics.v6.response import DeleteTopicsResponse
from kio.schema.describe_cluster.v2.request import DescribeClusterRequest
from kio.schema.describe_cluster.v2.response import DescribeClusterResponse
from kio.schema.errors import ErrorCode
from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsRequest
from kio.schema.list_partition_reassignments.v0.response import ListPartitionReassignmentsResponse
from kio.schema.metadata.v12.response import MetadataResponse, MetadataResponseTopic
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i16, i32, i32Timedelta

from tidemark.kafka_client import requests
from tidemark.kafka_client.access import BrokerAddress
from tidemark.kafka_client.client import KafkaClient
from tidemark.kafka_client.errors import Unreachable
from tidemark.kafka_client.values import (
    ClusterView,
    NewTopic,
    Node,
    PartitionView,
    Reassignment,
    RequestFailure,
    TopicPartition,
    TopicView,
)

#: Time after which the cluster gives up on a request; what it has begun continues.
TIMEOUT_S = 30
_TIMEOUT = i32Timedelta.parse(datetime.timedelta(seconds=TIMEOUT_S))
_ANSWER_S = TIMEOUT_S + 5.0
#: Time limit of reads, which change nothing: a short one, so that an outage is reported soon.
_LOOK_S = 10.0
#: The same for reads that a controller answers: longer than the failover of a controller.
_FORWARDED_LOOK_S = 20.0


class Admin:
    """Administration requests through a client; stores nothing but the brokers' addresses."""

    def __init__(self, client: KafkaClient) -> None:
        self.client = client

    async def describe_cluster(self) -> ClusterView:
        """Return all registered brokers, fenced ones included (KIP-1073)."""
        request = DescribeClusterRequest(
            include_cluster_authorized_operations=False, include_fenced_brokers=True
        )
        answer = await self.client.request_any(request, DescribeClusterResponse, _LOOK_S)
        if answer.error_code:
            raise Unreachable(f"DescribeCluster: {_failure(answer.error_code)}")
        nodes = tuple(
            Node(int(node.broker_id), node.host, int(node.port), node.rack, node.is_fenced)
            for node in answer.brokers
        )
        self.client.set_nodes({node.node_id: BrokerAddress(node.host, node.port) for node in nodes})
        return ClusterView(answer.cluster_id, int(answer.controller_id), nodes)

    # ------------------------------------------------------------ topics

    async def topics(self, names: Iterable[str] | None = None) -> dict[str, TopicView]:
        """Return the existing topics among ``names``, with their partitions.

        ``names`` None: all topics. Raises Unreachable if the state of a topic is not available at
        present.
        """
        # Each topic once, in the given order.
        named = None if names is None else [*dict.fromkeys(names)]
        if named == []:
            return {}
        answer = await self.client.request_any(requests.metadata(named), MetadataResponse)
        found: dict[str, TopicView] = {}
        # Topics that do not exist are left out; any other error makes the whole answer unusable.
        for topic in answer.topics:
            if topic.error_code in {ErrorCode.unknown_topic_or_partition}:
                continue
            if topic.error_code or topic.name is None or topic.topic_id is None:
                raise Unreachable(f"topic {topic.name}: {_failure(topic.error_code)}")
            found[str(topic.name)] = _view(topic)
        return found

    async def create_topics(
        self, topics: Sequence[NewTopic]
    ) -> dict[str, uuid.UUID | RequestFailure]:
        """Create topics with explicit assignments; return topic id or failure by name."""
        request = create_request.CreateTopicsRequest(
            topics=tuple(_creatable(topic) for topic in topics),
            timeout=_TIMEOUT,
            validate_only=False,
        )
        answer = await self.client.request_any(request, CreateTopicsResponse, _ANSWER_S)
        return {
            str(topic.name): _failure(topic.error_code, topic.error_message)
            if topic.error_code or topic.topic_id is None
            else topic.topic_id
            for topic in answer.topics
        }

    async def add_partitions(
        self, added: Mapping[str, tuple[int, Sequence[Sequence[int]]]]
    ) -> dict[str, RequestFailure | None]:
        """Add partitions to topics; return the failure by name, None for success.

        ``added``: by topic, the new number of partitions, and the replicas of each new partition.
        """
        request = grow_request.CreatePartitionsRequest(
            topics=tuple(
                grow_request.CreatePartitionsTopic(
                    name=TopicName(name),
                    count=i32(count),
                    assignments=tuple(
                        grow_request.CreatePartitionsAssignment(broker_ids=_ids(brokers))
                        for brokers in assignment
                    ),
                )
                for name, (count, assignment) in added.items()
            ),
            timeout=_TIMEOUT,
            validate_only=False,
        )
        # The time limit is that of the cluster, plus some seconds for the answer itself.
        answer = await self.client.request_any(request, CreatePartitionsResponse, _ANSWER_S)
        return {
            str(result.name): outcome(result.error_code, result.error_message)
            for result in answer.results
        }

    async def delete_topics(
        self, ids: Sequence[uuid.UUID]
    ) -> dict[uuid.UUID, RequestFailure | None]:
        """Delete topics by id, so that a new topic of the same name is not deleted (KIP-516)."""
        request = delete_request.DeleteTopicsRequest(
            topics=tuple(delete_request.DeleteTopicState(name=None, topic_id=id_) for id_ in ids),
            timeout=_TIMEOUT,
        )
        answer = await self.client.request_any(request, DeleteTopicsResponse, _ANSWER_S)
        return {
            response.topic_id: outcome(response.error_code, response.error_message)
            for response in answer.responses
            if response.topic_id is not None
        }

    # ------------------------------------------------------------ placement

    async def reassign(
        self, targets: Mapping[TopicPartition, Sequence[int] | None]
    ) -> dict[TopicPartition, RequestFailure | None]:
        """Start or cancel reassignments of partitions (KIP-455); return their failures or None.

        ``targets``: the replicas that a partition is to have; None cancels a reassignment in
        progress. The request returns before the replicas have caught up.
        """
        # The request groups partitions by topic.
        by_topic: dict[str, list[reassign_request.ReassignablePartition]] = {}
        for (topic, partition), replicas in targets.items():
            by_topic.setdefault(topic, []).append(
                reassign_request.ReassignablePartition(
                    partition_index=i32(partition),
                    replicas=None if replicas is None else _ids(replicas),
                )
            )
        request = reassign_request.AlterPartitionReassignmentsRequest(
            timeout=_TIMEOUT,
            topics=tuple(
                reassign_request.ReassignableTopic(name=TopicName(name), partitions=tuple(parts))
                for name, parts in by_topic.items()
            ),
        )
        answer = await self.client.request_any(
            request, AlterPartitionReassignmentsResponse, _ANSWER_S
        )
        # An error of the whole request applies to every partition.
        if answer.error_code:
            failure = _failure(answer.error_code, answer.error_message)
            return dict.fromkeys(targets, failure)
        return {
            (str(topic.name), int(partition.partition_index)): outcome(
                partition.error_code, partition.error_message
            )
            for topic in answer.responses
            for partition in topic.partitions
        }

    async def reassignments(self) -> dict[TopicPartition, Reassignment]:
        """Return all reassignments in progress, whichever client started them.

        By partition: all replicas, those being added, and those being removed.
        """
        request = ListPartitionReassignmentsRequest(timeout=_TIMEOUT, topics=None)
        answer = await self.client.request_any(
            request, ListPartitionReassignmentsResponse, _FORWARDED_LOOK_S
        )
        # Only the request as a whole can fail, not a single partition.
        if answer.error_code:
            failed = _failure(answer.error_code, answer.error_message)
            raise Unreachable(f"ListPartitionReassignments: {failed}")
        return {
            (str(topic.name), int(partition.partition_index)): Reassignment(
                _numbers(partition.replicas),
                _numbers(partition.adding_replicas),
                _numbers(partition.removing_replicas),
            )
            for topic in answer.topics
            for partition in topic.partitions
        }


def outcome(code: ErrorCode, message: str | None) -> RequestFailure | None:
    """Return the failure, None if the code means success."""
    return _failure(code, message) if code else None


def _failure(code: ErrorCode, message: str | None = None) -> RequestFailure:
    return RequestFailure(code, message or "")


def _ids(brokers: Iterable[int]) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(broker) for broker in brokers)


def _numbers(brokers: Iterable[BrokerId]) -> tuple[int, ...]:
    return tuple(int(broker) for broker in brokers)


def _creatable(topic: NewTopic) -> create_request.CreatableTopic:
    """Return a topic as CreateTopics describes it."""
    return create_request.CreatableTopic(
        name=TopicName(topic.name),
        # With explicit assignments both counts must be -1.
        num_partitions=i32(-1),
        replication_factor=i16(-1),
        assignments=tuple(
            create_request.CreatableReplicaAssignment(
                partition_index=i32(partition), broker_ids=_ids(brokers)
            )
            for partition, brokers in enumerate(topic.assignment)
        ),
        configs=tuple(
            create_request.CreatableTopicConfig(name=key, value=value)
            for key, value in sorted(topic.config.items())
        ),
    )


def _view(topic: MetadataResponseTopic) -> TopicView:
    """Return a topic's id and partitions from a Metadata response."""
    assert topic.topic_id is not None
    partitions = (
        PartitionView(
            partition=int(partition.partition_index),
            leader=int(partition.leader_id),
            leader_epoch=int(partition.leader_epoch),
            replicas=_numbers(partition.replica_nodes),
            isr=_numbers(partition.isr_nodes),
        )
        for partition in topic.partitions
    )
    return TopicView(
        name=str(topic.name),
        topic_id=topic.topic_id,
        internal=topic.is_internal,
        partitions=tuple(sorted(partitions, key=lambda item: item.partition)),
    )
