"""OffsetFetch (9): committed offsets of groups, for named partitions or for all.

Versions 1 to 10:

- 2: all offsets of a group (null topics), and an error of the group
- 3: throttle time
- 5: leader epoch (KIP-320)
- 6: flexible
- 7: only stable offsets, on request (KIP-447)
- 8: several groups (KIP-709)
- 9: member id and epoch, for groups of the consumer protocol (KIP-848)
- 10: topics by id

Behaviour:

- An offset that was committed to an earlier topic of the same name does not count.
- From version 10 a list of all offsets leaves out topics without an id.
- A list of all offsets that does not fit in memory is COORDINATOR_LOAD_IN_PROGRESS, and the client
  retries.
"""

import uuid
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.offset_fetch.v10 import request as v10

from tidemark.wire.users import Operation, ResourceType
from tidemark_broker.api.schema import ThrottledAnswer
from tidemark_broker.api.table import Api, Call
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.groups.core.offsets import CommittedOffset, OffsetKey

#: From these versions a group has an error of its own, several groups are requested, and topics
#: have ids.
_GROUPS_ERROR_SINCE, _BATCHED_SINCE, _BY_ID_SINCE = 2, 8, 10
#: Member id and epoch of a request that has neither.
_NOBODY = (None, -1)
#: Kafka's value for a partition without a committed offset.
_NOTHING = -1
#: Approximate size of an offset in an answer.
_OFFSET_BYTES = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequestTopic:
    """Topic of versions until 7."""

    name: str
    partition_indexes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequestTopics(v10.OffsetFetchRequestTopics):
    """Topic with a name until version 9."""

    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequestGroup(v10.OffsetFetchRequestGroup):
    """One group. ``topics`` None requests all of its offsets."""

    topics: tuple[OffsetFetchRequestTopics, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequest(v10.OffsetFetchRequest):
    """Request with one group until version 7."""

    groups: tuple[OffsetFetchRequestGroup, ...] = ()
    group_id: str = ""
    topics: tuple[OffsetFetchRequestTopic, ...] | None = None


@dataclass(slots=True, kw_only=True)
class OffsetFetchResponsePartition:
    """One partition, -1 without a committed offset."""

    partition_index: int
    committed_offset: int = _NOTHING
    committed_leader_epoch: int = -1
    metadata: str | None = ""
    error_code: ErrorCode = ErrorCode.none


@dataclass(slots=True, kw_only=True)
class OffsetFetchResponseTopic:
    """One topic, with the identification of the request."""

    name: str
    topic_id: uuid.UUID | None = None
    partitions: tuple[OffsetFetchResponsePartition, ...]


@dataclass(slots=True, kw_only=True)
class OffsetFetchResponseGroup:
    group_id: str
    topics: tuple[OffsetFetchResponseTopic, ...] = ()
    error_code: ErrorCode = ErrorCode.none


@dataclass(slots=True, kw_only=True)
class OffsetFetchResponse(ThrottledAnswer):
    """Answer: ``groups`` from version 8, the other fields before."""

    groups: tuple[OffsetFetchResponseGroup, ...] = ()
    topics: tuple[OffsetFetchResponseTopic, ...] = ()
    error_code: ErrorCode = ErrorCode.none


class _Requested(NamedTuple):
    """Requested partitions of one topic, by name or by id."""

    name: str
    topic_id: uuid.UUID | None
    partitions: Sequence[int]


@dataclass(frozen=True, slots=True)
class _Known:
    """Committed offsets of one group.

    ``unstable`` contains the partitions whose offsets an open transaction may change.
    """

    offsets: dict[OffsetKey, CommittedOffset]
    unstable: Set[OffsetKey]

    def of(self, of: OffsetKey, topic_id: uuid.UUID | None) -> OffsetFetchResponsePartition:
        """Return the committed offset of one partition in the form of the response.

        ``topic_id`` is that of the current topic. An offset committed to an earlier topic of the
        same name does not count.
        """
        # The client retries until the transaction has ended (KIP-447).
        if of in self.unstable:
            return OffsetFetchResponsePartition(
                partition_index=of.partition, error_code=ErrorCode.unstable_offset_commit
            )
        # Both ids are known and differ if the topic was deleted and created again.
        known = self.offsets.get(of)
        if known is None or (None not in (known.topic_id, topic_id) and known.topic_id != topic_id):
            return OffsetFetchResponsePartition(partition_index=of.partition)
        return OffsetFetchResponsePartition(
            partition_index=of.partition,
            committed_offset=known.offset,
            committed_leader_epoch=known.leader_epoch,
            metadata=known.metadata,
        )


async def handle(request: OffsetFetchRequest, call: Call) -> OffsetFetchResponse:
    """Return the committed offsets of one or more groups."""
    stable = request.require_stable
    # Older versions contain one group in the request itself.
    if call.version >= _BATCHED_SINCE:
        groups = []
        for group in request.groups:
            requested = _requested(group.topics)
            who = (group.member_id, group.member_epoch)
            groups.append(await _group(group.group_id, requested, call, who, require_stable=stable))
            # Let other requests run between groups.
            await call.time_slice.renew_if_over()
        return OffsetFetchResponse(groups=tuple(groups))
    requested = _requested(request.topics)
    one = await _group(request.group_id, requested, call, _NOBODY, require_stable=stable)
    return OffsetFetchResponse(topics=one.topics, error_code=one.error_code)


def _requested(topics: Sequence[Any] | None) -> list[_Requested] | None:
    """Return the topics of a request or of one of its groups; only the latter have ids."""
    if topics is None:
        return None
    return [
        _Requested(topic.name, getattr(topic, "topic_id", None), topic.partition_indexes)
        for topic in topics
    ]


async def _group(
    group_id: str,
    requested: list[_Requested] | None,
    call: Call,
    who: tuple[str | None, int],
    *,
    require_stable: bool,
) -> OffsetFetchResponseGroup:
    """Return the offsets of one group. ``requested`` None means all of its offsets.

    ``who`` is the member id and epoch of the requester (from version 9), which must be current.
    """
    if not call.client.may(Operation.DESCRIBE, ResourceType.GROUP, group_id):
        return await _refused(group_id, requested, call, ErrorCode.group_authorization_failed)
    try:
        # Only groups of the consumer protocol (KIP-848) check the member's epoch.
        refusal = call.services.groups.may_fetch(group_id, *who)
        if refusal is not ErrorCode.none:
            return await _refused(group_id, requested, call, refusal)
        offsets, pending = await call.services.groups.offsets(group_id)
    except CoordinatorError as error:
        return await _refused(group_id, requested, call, error.error_code)
    # Without require_stable the client accepts offsets that a transaction may change (KIP-447).
    known = _Known(offsets, pending if require_stable else frozenset())
    if requested is None:
        # Only a list of all offsets can be much larger than its request.
        if not call.has_room(call.memory.reserved_bytes + len(offsets) * _OFFSET_BYTES):
            later = ErrorCode.coordinator_load_in_progress  # the client retries
            return await _refused(group_id, requested, call, later)
        topics = await _all(known, call)
    else:
        topics = await _named(known, requested, call)
    return OffsetFetchResponseGroup(group_id=group_id, topics=tuple(topics))


async def _refused(
    group_id: str, requested: list[_Requested] | None, call: Call, error: ErrorCode
) -> OffsetFetchResponseGroup:
    """Return an error of the group, or of each partition in versions without a group error."""
    if call.version >= _GROUPS_ERROR_SINCE:
        return OffsetFetchResponseGroup(group_id=group_id, error_code=error)
    topics = []
    for topic in requested or ():
        partitions = await call.time_slice.collect(_errors(topic, error))
        topics.append(OffsetFetchResponseTopic(name=topic.name, partitions=tuple(partitions)))
    return OffsetFetchResponseGroup(group_id=group_id, topics=tuple(topics), error_code=error)


def _errors(requested: _Requested, error: ErrorCode) -> Iterator[OffsetFetchResponsePartition]:
    for number in requested.partitions:
        yield OffsetFetchResponsePartition(partition_index=number, error_code=error)


async def _named(
    known: _Known, requested: list[_Requested], call: Call
) -> list[OffsetFetchResponseTopic]:
    """Return the offsets of the requested partitions, in the order of the request."""
    cluster = call.services.cluster
    # Each requested topic with its current metadata, None for an unknown topic.
    found = []
    for topic in requested:
        view = cluster.topics.get(topic.name)
        if call.version >= _BY_ID_SINCE:
            view = None if topic.topic_id is None else cluster.by_id(topic.topic_id)
        found.append((topic, view))
    # All names are authorized together, including those resolved from ids.
    names = {topic.name if view is None else view.name for topic, view in found}
    denied = await call.denied(Operation.DESCRIBE, names)
    topics = []
    for topic, view in found:
        name = topic.name if view is None else view.name
        # Kafka reports an unknown id per partition, and an unknown name as no offset.
        if view is None and call.version >= _BY_ID_SINCE:
            parts = _errors(topic, ErrorCode.unknown_topic_id)
        elif name in denied:
            parts = _errors(topic, ErrorCode.topic_authorization_failed)
        else:
            topic_id = None if view is None else view.topic_id
            parts = _parts(known, name, topic_id, topic.partitions)
        partitions = await call.time_slice.collect(parts)
        topics.append(
            OffsetFetchResponseTopic(
                name=topic.name, topic_id=topic.topic_id, partitions=tuple(partitions)
            )
        )
    return topics


def _parts(
    known: _Known, name: str, topic_id: uuid.UUID | None, partitions: Sequence[int]
) -> Iterator[OffsetFetchResponsePartition]:
    for number in partitions:
        yield known.of(OffsetKey(name, number), topic_id)


async def _all(known: _Known, call: Call) -> list[OffsetFetchResponseTopic]:
    """Return the group's offsets of all topics that the client may describe.

    From version 10 topics without an id are left out, because a response identifies topics by id.
    """
    by_topic: dict[str, list[int]] = {}
    # Pending offsets are listed as well, since the client must know that they are unstable.
    for of in (*known.offsets, *known.unstable):
        by_topic.setdefault(of.topic, []).append(of.partition)
        await call.time_slice.renew_if_over()
    denied = await call.denied(Operation.DESCRIBE, by_topic)
    topics = []
    for name, numbers in sorted(by_topic.items()):
        view = call.services.cluster.topics.get(name)
        topic_id = None if view is None else view.topic_id
        if name in denied or (topic_id is None and call.version >= _BY_ID_SINCE):
            continue
        ordered = sorted(set(numbers))
        partitions = await call.time_slice.collect(_parts(known, name, topic_id, ordered))
        topics.append(
            OffsetFetchResponseTopic(name=name, topic_id=topic_id, partitions=tuple(partitions))
        )
    return topics


API = Api(handle, versions=(1, 10), open_ended=True, waits=True)
