"""Consumer groups over Kafka's protocol: their state, members, committed offsets and deletion.

Requests about a group go to its coordinator, which is one of the brokers. They are repeated while
the coordinator moves or loads.
"""

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from kio.schema.consumer_group_describe.v0.request import ConsumerGroupDescribeRequest
from kio.schema.consumer_group_describe.v0.response import ConsumerGroupDescribeResponse
from kio.schema.consumer_protocol_assignment.v0.data import ConsumerProtocolAssignment
from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.delete_groups.v2.response import DeleteGroupsResponse
from kio.schema.describe_groups.v5.request import DescribeGroupsRequest
from kio.schema.describe_groups.v5.response import DescribeGroupsResponse
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.schema.find_coordinator.v4.response import FindCoordinatorResponse
from kio.schema.list_groups.v5.request import ListGroupsRequest
from kio.schema.list_groups.v5.response import ListGroupsResponse
from kio.schema.offset_commit.v9 import request as commit_request
from kio.schema.offset_commit.v9.response import OffsetCommitResponse
from kio.schema.offset_fetch.v9 import request as offsets_request
from kio.schema.offset_fetch.v9.response import OffsetFetchResponse
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i8, i32, i64

from tidemark.backoff import Backoff
from tidemark.kafka_client.admin import Admin
from tidemark.kafka_client.client import KafkaClient
from tidemark.kafka_client.errors import ClusterRefused, KafkaError, Unreachable
from tidemark.kafka_client.values import RequestFailure, TopicPartition
from tidemark.wire.framing import FrameError, decode

R = TypeVar("R")
CLASSIC, CONSUMER = "classic", "consumer"
_GROUP = i8(0)
_VERSION_BYTES = struct.calcsize(">h")
#: The first group of a cluster waits for the topic ``__consumer_offsets``.
_PATIENCE_S = 30.0
_RETRY = Backoff(first_s=0.1, most_s=1.0)
#: Answers of a broker that is not, or not yet, the coordinator.
MOVED = frozenset(
    {
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
    }
)


class UnknownGroup(KafkaError):
    """The group does not exist."""


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """Group of a listing. ``protocol``: classic, consumer (KIP-848) or another type."""

    name: str
    state: str
    protocol: str


@dataclass(frozen=True, slots=True)
class Member:
    """Member of a group with its assigned partitions."""

    member_id: str
    client_id: str
    host: str
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class GroupView:
    """Group with its members. ``assignor``: "" if it has none."""

    name: str
    state: str
    protocol: str
    assignor: str
    members: tuple[Member, ...]


class Groups:
    """Requests about groups through a client."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._admin = Admin(client)
        self._coordinators: dict[str, int] = {}

    async def listing(self) -> tuple[list[GroupEntry], list[str]]:
        """Return all groups by name, and the problems of brokers that did not answer."""
        cluster = await self._admin.describe_cluster()
        groups: dict[str, GroupEntry] = {}
        problems: list[str] = []
        # Each broker lists the groups that it coordinates.
        for node in (node for node in cluster.nodes if not node.fenced):
            try:
                answer = await self._client.request_node(
                    node.node_id, ListGroupsRequest(), ListGroupsResponse
                )
            except Unreachable as error:
                problems.append(f"broker {node.node_id}: {error}")
                continue
            if answer.error_code:
                problems.append(f"broker {node.node_id}: {answer.error_code.name.upper()}")
            for group in answer.groups:
                name = str(group.group_id)
                groups[name] = GroupEntry(name, group.group_state, group.group_type.lower())
        return [groups[name] for name in sorted(groups)], problems

    async def describe(self, group: str) -> GroupView:
        """Return a group with its members. Raises :class:`UnknownGroup`, ``KafkaError``."""
        listed, problems = await self.listing()
        found = next((item for item in listed if item.name == group), None)
        if found is None and problems:
            raise Unreachable("; ".join(problems))
        # Kafka describes an unknown classic group as Dead, so the listing decides.
        if found is None:
            raise UnknownGroup(f"group {group} does not exist")
        describe = self._describe_consumer if found.protocol == CONSUMER else self._describe_classic
        return await self._persist(group, lambda node_id: describe(node_id, group))

    async def committed(self, group: str) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group; empty for an unknown one."""
        request = offsets_request.OffsetFetchRequest(
            groups=(offsets_request.OffsetFetchRequestGroup(group_id=GroupId(group), topics=None),)
        )

        async def look(node_id: int) -> dict[TopicPartition, int]:
            answer = await self._client.request_node(node_id, request, OffsetFetchResponse)
            result = answer.groups[0]
            _check(result.error_code, group, absent=ErrorCode.group_id_not_found)
            return {
                (str(topic.name), int(part.partition_index)): int(part.committed_offset)
                for topic in result.topics
                for part in topic.partitions
                if int(part.committed_offset) >= 0 and not part.error_code
            }

        return await self._persist(group, look)

    async def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int],
        *,
        member_id: str = "",
        epoch: int = -1,
    ) -> dict[TopicPartition, RequestFailure]:
        """Commit offsets; return the failures by partition.

        Without a member the group must have no members.
        """
        by_topic: dict[str, list[commit_request.OffsetCommitRequestPartition]] = {}
        for (topic, partition), offset in offsets.items():
            by_topic.setdefault(topic, []).append(
                commit_request.OffsetCommitRequestPartition(
                    partition_index=i32(partition),
                    committed_offset=i64(offset),
                    committed_metadata="",
                )
            )
        request = commit_request.OffsetCommitRequest(
            group_id=GroupId(group),
            generation_id_or_member_epoch=i32(epoch),
            member_id=member_id,
            topics=tuple(
                commit_request.OffsetCommitRequestTopic(
                    name=TopicName(topic), partitions=tuple(parts)
                )
                for topic, parts in by_topic.items()
            ),
        )

        async def send(node_id: int) -> dict[TopicPartition, RequestFailure]:
            answer = await self._client.request_node(node_id, request, OffsetCommitResponse)
            failures = {
                (str(topic.name), int(part.partition_index)): RequestFailure(part.error_code)
                for topic in answer.topics
                for part in topic.partitions
                if part.error_code
            }
            # The coordinator answers the same for every partition if it is none.
            for failure in failures.values():
                if failure.code in MOVED:
                    raise CoordinatorMoved(failure.code.name.upper())
            return failures

        return await self._persist(group, send)

    async def delete(self, group: str) -> None:
        """Delete a group without members, with its offsets.

        Raises :class:`UnknownGroup`, ``KafkaError``.
        """
        request = DeleteGroupsRequest(groups_names=(GroupId(group),))

        async def send(node_id: int) -> None:
            answer = await self._client.request_node(node_id, request, DeleteGroupsResponse)
            code = answer.results[0].error_code
            if code == ErrorCode.group_id_not_found:
                raise UnknownGroup(f"group {group} does not exist")
            _check(code, group)

        await self._persist(group, send)

    async def coordinator(self, group: str) -> int:
        """Return the broker that coordinates a group, until :meth:`forget`.

        Raises ``KafkaError``.
        """
        if group in self._coordinators:
            return self._coordinators[group]
        await self._admin.describe_cluster()
        request = FindCoordinatorRequest(key_type=_GROUP, coordinator_keys=(group,))
        answer = await self._client.request_any(request, FindCoordinatorResponse)
        found = answer.coordinators[0]
        _check(found.error_code, group)
        self._coordinators[group] = int(found.node_id)
        return self._coordinators[group]

    def forget(self, group: str) -> None:
        """Look the coordinator of a group up again with the next request."""
        self._coordinators.pop(group, None)

    # ------------------------------------------------------------ inside

    async def _persist(self, group: str, request: Callable[[int], Awaitable[R]]) -> R:
        """Send a request to the coordinator of a group, and repeat it if the coordinator moves."""
        deadline = time.monotonic() + _PATIENCE_S
        pause = _RETRY
        while True:
            try:
                return await request(await self.coordinator(group))
            except CoordinatorMoved as error:
                self.forget(group)
                if time.monotonic() > deadline:
                    text = f"group {group} has no coordinator for {_PATIENCE_S:.0f} s: {error}"
                    raise Unreachable(text) from error
            # A repetition is harmless, as its effect is the same.
            except Unreachable:
                self.forget(group)
                if time.monotonic() > deadline:
                    raise
            pause = pause.failed(time.monotonic())
            await asyncio.sleep(pause.pause_s(pause.failures))

    async def _describe_consumer(self, node_id: int, group: str) -> GroupView:
        """Describe a group of KIP-848."""
        request = ConsumerGroupDescribeRequest(
            group_ids=(GroupId(group),), include_authorized_operations=False
        )
        answer = await self._client.request_node(node_id, request, ConsumerGroupDescribeResponse)
        found = answer.groups[0]
        # The coordinator may have moved since the listing.
        _check(found.error_code, group)
        # What members have now: the target may differ until they have given partitions up.
        members = tuple(
            Member(
                member.member_id,
                member.client_id,
                member.client_host,
                frozenset(
                    (str(topic.topic_name), int(partition))
                    for topic in member.assignment.topic_partitions
                    for partition in topic.partitions
                ),
            )
            for member in found.members
        )
        return GroupView(group, found.group_state, CONSUMER, found.assignor_name, members)

    async def _describe_classic(self, node_id: int, group: str) -> GroupView:
        """Describe a group whose members distribute the partitions themselves."""
        request = DescribeGroupsRequest(
            groups=(GroupId(group),), include_authorized_operations=False
        )
        answer = await self._client.request_node(node_id, request, DescribeGroupsResponse)
        found = answer.groups[0]
        _check(found.error_code, group)
        members = tuple(
            Member(
                member.member_id,
                member.client_id,
                member.client_host,
                _assigned(member.member_assignment),
            )
            for member in found.members
        )
        return GroupView(group, found.group_state, CLASSIC, found.protocol_data, members)


class CoordinatorMoved(KafkaError):
    """The broker is not, or not yet, the coordinator."""


def _check(code: ErrorCode, group: str, absent: ErrorCode = ErrorCode.none) -> None:
    """Raise the error of an answer about a group; ``absent`` is no error."""
    if code in {ErrorCode.none, absent}:
        return
    if code in MOVED:
        raise CoordinatorMoved(code.name.upper())
    raise ClusterRefused(f"group {group}: {code.name.upper()}")


def _assigned(assignment: bytes) -> frozenset[TopicPartition]:
    """Return the partitions in a classic member's assignment; none if it has another format."""
    try:
        value = decode(ConsumerProtocolAssignment, assignment, _VERSION_BYTES)
    # Groups of other programs, such as Kafka Connect, have formats of their own.
    except FrameError:
        return frozenset()
    return frozenset(
        (str(entry.topic), int(partition))
        for entry in value.assigned_partitions
        for partition in entry.partitions
    )
