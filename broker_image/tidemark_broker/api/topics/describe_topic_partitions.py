"""DescribeTopicPartitions (75): metadata in pages, for admin clients (KIP-966). Version 0.

Behaviour:

- Topics are in the order of their names, with a limited number of partitions per page. The cursor
  of an answer says where the next request continues.
- A topic that the client may not describe is left out of a list of all topics. By name it is
  TOPIC_AUTHORIZATION_FAILED.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from kio.schema.describe_topic_partitions.v0.request import (
    Cursor as RequestedCursor,
)
from kio.schema.describe_topic_partitions.v0.request import (
    DescribeTopicPartitionsRequest,
)
from kio.schema.errors import ErrorCode

from tidemark.logfiles.names import INTERNAL_TOPICS
from tidemark.wire import control
from tidemark.wire.users import Operation, ResourceType
from tidemark_broker.api.endpoints import reachable
from tidemark_broker.api.schema import NOT_ASKED, ThrottledAnswer
from tidemark_broker.api.table import Api, Call, missing_topic
from tidemark_broker.api.topics.metadata import MetadataResponsePartition
from tidemark_broker.replication.metadata import TopicMetadata


@dataclass(slots=True, kw_only=True)
class DescribeTopicPartitionsResponsePartition(MetadataResponsePartition):
    """One partition as in Metadata, with the replicas of KIP-966."""

    eligible_leader_replicas: tuple[int, ...]
    last_known_elr: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class DescribeTopicPartitionsResponseTopic:
    """One topic with the partitions that fit on the page."""

    error_code: ErrorCode
    name: str
    topic_id: uuid.UUID | None = None
    is_internal: bool = False
    partitions: tuple[DescribeTopicPartitionsResponsePartition, ...] = ()
    topic_authorized_operations: int = NOT_ASKED


@dataclass(slots=True, kw_only=True)
class Cursor:
    """Position at which the next request continues."""

    topic_name: str
    partition_index: int


@dataclass(slots=True, kw_only=True)
class DescribeTopicPartitionsResponse(ThrottledAnswer):
    """One page. ``next_cursor`` is None on the last page."""

    topics: tuple[DescribeTopicPartitionsResponseTopic, ...]
    next_cursor: Cursor | None = None


async def handle(
    request: DescribeTopicPartitionsRequest, call: Call
) -> DescribeTopicPartitionsResponse:
    """Return one page of topics and partitions, from the cursor of the request on."""
    cursor, topics = request.cursor, call.services.cluster.topics
    requested: set[str] = {topic.name for topic in request.topics}
    # A cursor outside the requested topics would return a page that the client cannot use.
    if cursor is not None and not _is_good(cursor, requested):
        refused = ErrorCode.invalid_request
        return DescribeTopicPartitionsResponse(
            topics=tuple(
                DescribeTopicPartitionsResponseTopic(error_code=refused, name=topic.name)
                for topic in request.topics
            )
        )
    first = "" if cursor is None else cursor.topic_name
    candidates = {name for name in requested or topics if name >= first}
    denied = await call.denied(Operation.DESCRIBE, candidates)
    # If the cursor's topic became hidden, the page starts with the next topic.
    starts_at = 0 if cursor is None or first in denied else cursor.partition_index
    most = call.services.settings.partitions_described_max
    limit = max(min(request.response_partition_limit, most), 1)  # 0 would page without end
    page = _Page(call, limit)
    for name in sorted(candidates - denied):
        if not page.take(name, starts_at if name == first else 0, is_named=bool(requested)):
            break
        # Let other requests run between topics.
        await call.time_slice.renew_if_over()
    # Hidden topics are appended to each page; they have no partitions and need no cursor.
    failed = ErrorCode.topic_authorization_failed
    hidden = sorted(denied) if requested else []
    return DescribeTopicPartitionsResponse(
        topics=(
            *page.topics,
            *(
                DescribeTopicPartitionsResponseTopic(error_code=failed, name=name)
                for name in hidden
            ),
        ),
        next_cursor=page.next_cursor,
    )


def _is_good(cursor: RequestedCursor, requested: set[str]) -> bool:
    return cursor.partition_index >= 0 and (not requested or cursor.topic_name in requested)


class _Page:
    """One response while it is being filled with topics."""

    def __init__(self, call: Call, limit: int) -> None:
        self._call = call
        self._left = limit
        self._live = frozenset(reachable(call.services.cluster, call.client.listener))
        self.topics: list[DescribeTopicPartitionsResponseTopic] = []
        self.next_cursor: Cursor | None = None

    def take(self, name: str, starts_at: int, *, is_named: bool) -> bool:
        """Add the partitions of one topic from number ``starts_at`` on, as many as fit on the page.

        Return whether the page has room for another topic. If not, ``next_cursor`` is set.
        ``is_named``: the request names the topic, so a missing one is an error instead of being
        left out.
        """
        if self._left <= 0:
            self.next_cursor = Cursor(topic_name=name, partition_index=0)
            return False
        view = self._call.services.cluster.topics.get(name)
        if view is None:
            if is_named:
                self.topics.append(
                    DescribeTopicPartitionsResponseTopic(
                        error_code=missing_topic(name),
                        name=name,
                        is_internal=name in INTERNAL_TOPICS,
                        topic_authorized_operations=self._call.client.operations(
                            ResourceType.TOPIC, name
                        ),
                    )
                )
            return True
        # Rows are in the order of their numbers, so a cut at the limit leaves a contiguous rest.
        rows = [row for row in view.partitions.values() if row.partition >= starts_at]
        taken = rows[: self._left]
        self._left -= len(taken)
        self.topics.append(self._topic(view, taken))
        if len(taken) < len(rows):
            self.next_cursor = Cursor(topic_name=name, partition_index=rows[len(taken)].partition)
        return self.next_cursor is None

    def _topic(
        self, view: TopicMetadata, rows: Sequence[control.PartitionState]
    ) -> DescribeTopicPartitionsResponseTopic:
        return DescribeTopicPartitionsResponseTopic(
            error_code=ErrorCode.none,
            name=view.name,
            topic_id=view.topic_id,
            is_internal=view.name in INTERNAL_TOPICS,
            partitions=tuple(_partition(row, self._live) for row in rows),
            topic_authorized_operations=self._call.client.operations(ResourceType.TOPIC, view.name),
        )


def _partition(
    row: control.PartitionState, live: frozenset[int]
) -> DescribeTopicPartitionsResponsePartition:
    return DescribeTopicPartitionsResponsePartition(
        error_code=ErrorCode.none,
        partition_index=row.partition,
        leader_id=row.leader if row.leader in live else -1,
        leader_epoch=row.leader_epoch,
        replica_nodes=row.replicas,
        isr_nodes=row.isr,
        eligible_leader_replicas=row.elr,
        last_known_elr=row.last_known_elr,
        offline_replicas=tuple(node for node in row.replicas if node not in live),
    )


API = Api(handle, versions=(0, 0), open_ended=True)
