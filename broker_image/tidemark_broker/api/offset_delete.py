"""OffsetDelete (47): delete a group's offsets of topics that it no longer consumes (KIP-496)."""

from dataclasses import dataclass
from datetime import timedelta

from kio.schema.errors import ErrorCode
from kio.schema.offset_delete.v0.request import OffsetDeleteRequest

from tidemark_broker.admission.time_slice import in_parts
from tidemark_broker.api.schema import ZERO
from tidemark_broker.api.table import Api, Call
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.groups.core.offsets import OffsetKey
from tidemark_broker.security.acls import Operation, ResourceType


@dataclass(slots=True, kw_only=True)
class OffsetDeleteResponsePartition:
    partition_index: int
    error_code: ErrorCode


@dataclass(slots=True, kw_only=True)
class OffsetDeleteResponseTopic:
    """One topic, with the identification of the request."""

    name: str
    partitions: tuple[OffsetDeleteResponsePartition, ...]


@dataclass(slots=True, kw_only=True)
class OffsetDeleteResponse:
    """Results in the order of the request, none with an error of the whole request."""

    error_code: ErrorCode = ErrorCode.none
    topics: tuple[OffsetDeleteResponseTopic, ...] = ()
    throttle_time: timedelta = ZERO


async def handle(request: OffsetDeleteRequest, call: Call) -> OffsetDeleteResponse:
    """Delete a group's committed offsets of partitions that it does not consume (KIP-496)."""
    if not call.client.may(Operation.DELETE, ResourceType.GROUP, request.group_id):
        return OffsetDeleteResponse(error_code=ErrorCode.group_authorization_failed)
    if not request.group_id:
        return OffsetDeleteResponse(error_code=ErrorCode.invalid_group_id)
    denied = await call.denied(Operation.READ, (topic.name for topic in request.topics))
    errors: dict[OffsetKey, ErrorCode] = {}
    deletable = []
    # Each partition is checked by itself. Only an error of the group fails the whole request.
    for topic in request.topics:
        view = call.services.cluster.topics.get(topic.name)
        for part in topic.partitions:
            of = OffsetKey(topic.name, part.partition_index)
            if topic.name in denied:
                errors[of] = ErrorCode.topic_authorization_failed
            elif view is None or part.partition_index not in view.partitions:
                errors[of] = ErrorCode.unknown_topic_or_partition
            else:
                deletable.append(of)
            # Let other requests run, since a request may name thousands of partitions.
            await call.time_slice.renew_if_over()
    error = await _delete(request.group_id, deletable, errors, call)
    if error is not ErrorCode.none:
        return OffsetDeleteResponse(error_code=error)
    # Answers are in the order of the request, whatever the order of the deletions.
    topics = []
    for topic in request.topics:
        partitions = await call.time_slice.collect(
            OffsetDeleteResponsePartition(
                partition_index=part.partition_index,
                error_code=errors[OffsetKey(topic.name, part.partition_index)],
            )
            for part in topic.partitions
        )
        topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=tuple(partitions)))
    return OffsetDeleteResponse(topics=tuple(topics))


async def _delete(
    group_id: str,
    deletable: list[OffsetKey],
    errors: dict[OffsetKey, ErrorCode],
    call: Call,
) -> ErrorCode:
    """Delete the offsets in parts, and set the error code of each in ``errors``.

    Return the error of the request as a whole, NONE if there is none.
    """
    try:
        for part in in_parts(deletable) if deletable else ():
            made = await call.services.groups.delete_offsets(group_id, part)
            # A single code means that the group itself cannot be changed.
            if isinstance(made, ErrorCode):
                return made
            errors.update(zip(part, made, strict=True))
            await call.time_slice.renew_if_over()
    except CoordinatorError as error:
        return error.error_code
    return ErrorCode.none


API = Api(
    key=47,
    name="OffsetDelete",
    version_min=0,
    version_max=0,
    request=OffsetDeleteRequest,
    answer=OffsetDeleteResponse,
    handler=handle,
)
