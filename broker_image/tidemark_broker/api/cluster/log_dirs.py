"""DescribeLogDirs (35) and AlterReplicaLogDirs (34): the log directory of a broker (KIP-113).

DescribeLogDirs, versions 1 to 5:

- 2: flexible
- 3: error of the whole request
- 4: total and usable bytes of the file system (KIP-827)
- 5: whether the directory is cordoned (KIP-1066)

AlterReplicaLogDirs has versions 1 and 2 (flexible).

Behaviour:

- A broker has one directory, which is never cordoned. A replica is already in it, which is a
  success as in Kafka, or the requested directory does not exist.
- Sizes are those of the local log files and do not include the tier.
- A replica's lag behind its own high watermark is 0, as in Kafka: clients use the field for copies
  that move between directories.
"""

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from kio.schema.alter_replica_log_dirs.v2.request import AlterReplicaLogDirsRequest
from kio.schema.describe_log_dirs.v5.request import DescribeLogDirsRequest
from kio.schema.errors import ErrorCode

from tidemark.wire.users import Operation, ResourceType
from tidemark_broker.api.schema import ThrottledAnswer
from tidemark_broker.api.table import Api, Call
from tidemark_broker.replication.partition import Partition
from tidemark_broker.replication.threads import in_thread

# ---------------------------------------------------------------- DescribeLogDirs


@dataclass(slots=True, kw_only=True)
class DescribeLogDirsPartition:
    """One replica. Size in bytes, ``offset_lag`` in records."""

    partition_index: int
    partition_size: int
    offset_lag: int
    is_future_key: bool = False


@dataclass(slots=True, kw_only=True)
class DescribeLogDirsTopic:
    name: str
    partitions: tuple[DescribeLogDirsPartition, ...]


@dataclass(slots=True, kw_only=True)
class DescribeLogDirsResult:
    """One directory. The file system's bytes are -1 if unknown."""

    error_code: ErrorCode
    log_dir: str
    topics: tuple[DescribeLogDirsTopic, ...] = ()
    total_bytes: int = -1
    usable_bytes: int = -1
    is_cordoned: bool = False


@dataclass(slots=True, kw_only=True)
class DescribeLogDirsResponse(ThrottledAnswer):
    """Answer with one directory.

    ``error_code`` is sent from version 3. Before it, an unauthorized client receives no
    directories.
    """

    error_code: ErrorCode
    results: tuple[DescribeLogDirsResult, ...] = ()


async def describe_log_dirs(request: DescribeLogDirsRequest, call: Call) -> DescribeLogDirsResponse:
    """Return size and lag of this broker's replicas, and the free space of its log directory.

    Without a list of topics all hosted replicas are included. Needs DESCRIBE on the cluster.
    """
    if not call.client.may(Operation.DESCRIBE, ResourceType.CLUSTER):
        return DescribeLogDirsResponse(error_code=ErrorCode.cluster_authorization_failed)
    log_dir = str(call.services.settings.log_dir)
    # statvfs may block on a failing disk, so it runs in a thread.
    try:
        disk = await in_thread(shutil.disk_usage, log_dir)
    except OSError:
        # As in Kafka, a failed directory is listed with an error and without topics.
        lost = DescribeLogDirsResult(error_code=ErrorCode.kafka_storage_error, log_dir=log_dir)
        return DescribeLogDirsResponse(error_code=ErrorCode.none, results=(lost,))
    # Sorted by topic, because groupby only joins neighbours.
    hosted = sorted(_selected(request, call), key=lambda replica: replica.tp)
    result = DescribeLogDirsResult(
        error_code=ErrorCode.none,
        log_dir=log_dir,
        topics=tuple(await call.time_slice.collect(_described_topics(hosted))),
        total_bytes=disk.total,
        usable_bytes=disk.free,
    )
    return DescribeLogDirsResponse(error_code=ErrorCode.none, results=(result,))


def _selected(request: DescribeLogDirsRequest, call: Call) -> set[Partition]:
    replicas = call.services.replicas
    if request.topics is None:
        return set(replicas.partitions)
    requested = ((topic.topic, number) for topic in request.topics for number in topic.partitions)
    return {found for tp in requested if (found := replicas.get(*tp)) is not None}


def _described_topics(hosted: Iterable[Partition]) -> Iterator[DescribeLogDirsTopic]:
    for topic, replicas in groupby(hosted, lambda replica: replica.topic):
        yield DescribeLogDirsTopic(name=topic, partitions=tuple(map(_partition, replicas)))


def _partition(replica: Partition) -> DescribeLogDirsPartition:
    return DescribeLogDirsPartition(
        partition_index=replica.partition,
        partition_size=replica.log.size_bytes,
        offset_lag=max(0, replica.high_watermark - replica.next_offset),
    )


DESCRIBE = Api(describe_log_dirs, versions=(1, 5), open_ended=True, waits=True)


# ---------------------------------------------------------------- AlterReplicaLogDirs


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
class AlterReplicaLogDirsResponse(ThrottledAnswer):
    results: tuple[AlterReplicaLogDirTopicResult, ...]


async def alter_log_dirs(
    request: AlterReplicaLogDirsRequest, call: Call
) -> AlterReplicaLogDirsResponse:
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
    return AlterReplicaLogDirsResponse(results=tuple(_altered_topics(found)))


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


def _altered_topics(
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


ALTER = Api(alter_log_dirs, versions=(1, 2))
