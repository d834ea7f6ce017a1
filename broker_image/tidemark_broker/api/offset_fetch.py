"""OffsetFetch (9): where a group goes on, for partitions that are named or for all."""

import uuid
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.offset_fetch.v10 import request as v10

from tidemark_broker.api.schema import ZERO
from tidemark_broker.api.table import Api, Call
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.groups.core.offsets import CommittedOffset, TopicPartition
from tidemark_broker.security.acls import Operation, ResourceType

#: Since these versions an error is that of the group, several groups are asked for, topics have
#: their ids.
_GROUPS_ERROR_SINCE, _BATCHED_SINCE, _BY_ID_SINCE = 2, 8, 10
_NOBODY = (None, -1)
_NOTHING = -1
#: What an offset weighs in an answer, about.
_OFFSET_BYTES = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequestTopic:
    """Until version 7."""

    name: str
    partition_indexes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequestTopics(v10.OffsetFetchRequestTopics):
    """Named until version 9."""

    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequestGroup(v10.OffsetFetchRequestGroup):
    """``topics`` None: all that it has committed."""

    topics: tuple[OffsetFetchRequestTopics, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequest(v10.OffsetFetchRequest):
    """One group until version 7."""

    groups: tuple[OffsetFetchRequestGroup, ...] = ()
    group_id: str = ""
    topics: tuple[OffsetFetchRequestTopic, ...] | None = None


@dataclass(slots=True, kw_only=True)
class OffsetFetchResponsePartition:
    """-1 where nothing was committed."""

    partition_index: int
    committed_offset: int = _NOTHING
    committed_leader_epoch: int = -1
    metadata: str | None = ""
    error_code: ErrorCode = ErrorCode.none


@dataclass(slots=True, kw_only=True)
class OffsetFetchResponseTopic:
    """As the request names it."""

    name: str
    topic_id: uuid.UUID | None = None
    partitions: tuple[OffsetFetchResponsePartition, ...]


@dataclass(slots=True, kw_only=True)
class OffsetFetchResponseGroup:
    """One group."""

    group_id: str
    topics: tuple[OffsetFetchResponseTopic, ...] = ()
    error_code: ErrorCode = ErrorCode.none


@dataclass(slots=True, kw_only=True)
class OffsetFetchResponse:
    """``groups`` from version 8 on, the other fields until then."""

    groups: tuple[OffsetFetchResponseGroup, ...] = ()
    topics: tuple[OffsetFetchResponseTopic, ...] = ()
    error_code: ErrorCode = ErrorCode.none
    throttle_time: timedelta = ZERO


class _Asked(NamedTuple):
    """Partitions of one topic, by its name or by its id."""

    name: str
    topic_id: uuid.UUID | None
    partitions: Sequence[int]


@dataclass(frozen=True, slots=True)
class _Known:
    """What a group has committed, and which of it a transaction may still change."""

    offsets: dict[TopicPartition, CommittedOffset]
    unstable: Set[TopicPartition]

    def of(self, of: TopicPartition, topic_id: uuid.UUID | None) -> OffsetFetchResponsePartition:
        """One of them. What was committed to a former topic of that name is nothing."""
        if of in self.unstable:
            return OffsetFetchResponsePartition(
                partition_index=of.partition, error_code=ErrorCode.unstable_offset_commit
            )
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
    """One group after the other."""
    stable = request.require_stable
    if call.version >= _BATCHED_SINCE:
        groups = []
        for each in request.groups:
            asked = _asked(each.topics)
            who = (each.member_id, each.member_epoch)
            groups.append(await _group(each.group_id, asked, call, who, require_stable=stable))
            await call.turns.pause()
        return OffsetFetchResponse(groups=tuple(groups))
    asked = _asked_by_name(request.topics)
    one = await _group(request.group_id, asked, call, _NOBODY, require_stable=stable)
    return OffsetFetchResponse(topics=one.topics, error_code=one.error_code)


def _asked(topics: Sequence[OffsetFetchRequestTopics] | None) -> list[_Asked] | None:
    if topics is None:
        return None
    return [_Asked(each.name, each.topic_id, each.partition_indexes) for each in topics]


def _asked_by_name(topics: Sequence[OffsetFetchRequestTopic] | None) -> list[_Asked] | None:
    if topics is None:
        return None
    return [_Asked(each.name, None, each.partition_indexes) for each in topics]


async def _group(
    group_id: str,
    asked: list[_Asked] | None,
    call: Call,
    who: tuple[str | None, int],
    *,
    require_stable: bool,
) -> OffsetFetchResponseGroup:
    """``who`` asks, as which member and in which epoch (since version 9)."""
    if not call.client.may(Operation.DESCRIBE, ResourceType.GROUP, group_id):
        return await _refused(group_id, asked, call, ErrorCode.group_authorization_failed)
    try:
        refusal = call.services.groups.may_fetch(group_id, *who)
        if refusal is not ErrorCode.none:
            return await _refused(group_id, asked, call, refusal)
        offsets, pending = await call.services.groups.offsets(group_id)
    except CoordinatorError as error:
        return await _refused(group_id, asked, call, error.error_code)
    known = _Known(offsets, pending if require_stable else frozenset())
    if asked is None:
        if not call.has_room(call.memory.held_bytes + len(offsets) * _OFFSET_BYTES):
            later = ErrorCode.coordinator_load_in_progress  # it is to be asked for again
            return await _refused(group_id, asked, call, later)
        topics = await _all(known, call)
    else:
        topics = await _named(known, asked, call)
    return OffsetFetchResponseGroup(group_id=group_id, topics=tuple(topics))


async def _refused(
    group_id: str, asked: list[_Asked] | None, call: Call, error: ErrorCode
) -> OffsetFetchResponseGroup:
    """Each partition has the error where the group has none of its own."""
    if call.version >= _GROUPS_ERROR_SINCE:
        return OffsetFetchResponseGroup(group_id=group_id, error_code=error)
    topics = []
    for each in asked or ():
        partitions = await call.turns.all_of(_errors(each, error))
        topics.append(OffsetFetchResponseTopic(name=each.name, partitions=tuple(partitions)))
    return OffsetFetchResponseGroup(group_id=group_id, topics=tuple(topics), error_code=error)


def _errors(asked: _Asked, error: ErrorCode) -> Iterator[OffsetFetchResponsePartition]:
    for number in asked.partitions:
        yield OffsetFetchResponsePartition(partition_index=number, error_code=error)


async def _named(known: _Known, asked: list[_Asked], call: Call) -> list[OffsetFetchResponseTopic]:
    cluster = call.services.cluster
    found = []
    for each in asked:
        view = cluster.topics.get(each.name)
        if call.version >= _BY_ID_SINCE:
            view = None if each.topic_id is None else cluster.by_id(each.topic_id)
        found.append((each, view))
    names = {each.name if view is None else view.name for each, view in found}
    denied = await call.denied(Operation.DESCRIBE, names)
    topics = []
    for each, view in found:
        name = each.name if view is None else view.name
        if view is None and call.version >= _BY_ID_SINCE:
            parts = _errors(each, ErrorCode.unknown_topic_id)
        elif name in denied:
            parts = _errors(each, ErrorCode.topic_authorization_failed)
        else:
            topic_id = None if view is None else view.topic_id
            parts = _parts(known, name, topic_id, each.partitions)
        partitions = await call.turns.all_of(parts)
        topics.append(
            OffsetFetchResponseTopic(
                name=each.name, topic_id=each.topic_id, partitions=tuple(partitions)
            )
        )
    return topics


def _parts(
    known: _Known, name: str, topic_id: uuid.UUID | None, partitions: Sequence[int]
) -> Iterator[OffsetFetchResponsePartition]:
    for number in partitions:
        yield known.of(TopicPartition(name, number), topic_id)


async def _all(known: _Known, call: Call) -> list[OffsetFetchResponseTopic]:
    """Of all topics that the client may describe; from version 10 on those that have an id."""
    by_topic: dict[str, list[int]] = {}
    for of in (*known.offsets, *known.unstable):
        by_topic.setdefault(of.topic, []).append(of.partition)
        if call.turns.over:
            await call.turns.give()
    denied = await call.denied(Operation.DESCRIBE, by_topic)
    topics = []
    for name, numbers in sorted(by_topic.items()):
        view = call.services.cluster.topics.get(name)
        topic_id = None if view is None else view.topic_id
        if name in denied or (topic_id is None and call.version >= _BY_ID_SINCE):
            continue
        wanted = sorted(set(numbers))
        partitions = await call.turns.all_of(_parts(known, name, topic_id, wanted))
        topics.append(
            OffsetFetchResponseTopic(name=name, topic_id=topic_id, partitions=tuple(partitions))
        )
    return topics


API = Api(
    key=9,
    name="OffsetFetch",
    version_min=1,
    version_max=10,
    request=OffsetFetchRequest,
    answer=OffsetFetchResponse,
    handler=handle,
    open_ended=True,
    waits=True,
)
