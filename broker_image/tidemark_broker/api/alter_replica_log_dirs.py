"""AlterReplicaLogDirs (34): move replicas to another log directory of their broker (KIP-113).

A broker has one directory. A replica is already in it, which is a success as in Kafka, or the
directory does not exist.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby

from kio.schema.alter_replica_log_dirs.v2.request import AlterReplicaLogDirsRequest
from kio.schema.errors import ErrorCode

from tidemark_broker.api.schema import ZERO
from tidemark_broker.api.table import Api, Call
from tidemark_broker.security.acls import Operation, ResourceType


@dataclass(slots=True, kw_only=True)
class AlterReplicaLogDirPartitionResult:
    """Result of one replica of this broker."""

    partition_index: int
    error_code: ErrorCode


@dataclass(slots=True, kw_only=True)
class AlterReplicaLogDirTopicResult:
    topic_name: str
    partitions: tuple[AlterReplicaLogDirPartitionResult, ...]


@dataclass(slots=True, kw_only=True)
class AlterReplicaLogDirsResponse:
    results: tuple[AlterReplicaLogDirTopicResult, ...]
    throttle_time: timedelta = ZERO


async def handle(request: AlterReplicaLogDirsRequest, call: Call) -> AlterReplicaLogDirsResponse:
    """Answer for each named replica whether it is in the requested log directory.

    A broker has one directory, so no replica ever moves.
    """
    # A later directory for the same partition replaces an earlier one, as in Kafka.
    targets = {
        (topic.name, number): directory.path
        for directory in request.dirs
        for topic in directory.topics
        for number in topic.partitions
    }
    may = call.client.may(Operation.ALTER, ResourceType.CLUSTER)
    # Kafka's response repeats the error of the whole request for each replica. It is built in time
    # slices, so that other requests run in between.
    found = await call.time_slice.collect(
        (topic, number, _error(topic, number, path, call))
        if may
        else (topic, number, ErrorCode.cluster_authorization_failed)
        for (topic, number), path in targets.items()
    )
    return AlterReplicaLogDirsResponse(results=tuple(_topics(found)))


def _error(topic: str, number: int, path: str, call: Call) -> ErrorCode:
    """Return the error of one replica, checked in the order of
    ``ReplicaManager.alterReplicaLogDirs``.
    """
    services = call.services
    # A broker has exactly one directory, so any other path is unknown.
    if path != str(services.settings.log_dir):
        return ErrorCode.log_dir_not_found
    if services.replicas.get(topic, number) is not None:
        return ErrorCode.none
    view = services.cluster.topics.get(topic)
    if view is None or number not in view.partitions:
        return ErrorCode.unknown_topic_or_partition
    return ErrorCode.replica_not_available


def _topics(
    found: Iterable[tuple[str, int, ErrorCode]],
) -> Iterator[AlterReplicaLogDirTopicResult]:
    for name, parts in groupby(sorted(found), lambda result: result[0]):
        yield AlterReplicaLogDirTopicResult(
            topic_name=name,
            partitions=tuple(
                AlterReplicaLogDirPartitionResult(partition_index=number, error_code=error)
                for _, number, error in parts
            ),
        )


API = Api(
    key=34,
    name="AlterReplicaLogDirs",
    version_min=1,
    version_max=2,
    request=AlterReplicaLogDirsRequest,
    answer=AlterReplicaLogDirsResponse,
    handler=handle,
)
