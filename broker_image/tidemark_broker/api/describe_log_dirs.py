"""DescribeLogDirs (35): sizes of the replicas in the log directory, and free disk space (KIP-113,
KIP-827).

A broker has one directory. Sizes are those of the local log files and do not include the tier. As
in Kafka, a replica's lag behind its own high watermark is 0: clients use the field for copies that
move between directories.
"""

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby

from kio.schema.describe_log_dirs.v5.request import DescribeLogDirsRequest
from kio.schema.errors import ErrorCode

from tidemark_broker.api.schema import ZERO
from tidemark_broker.api.table import Api, Call
from tidemark_broker.replication.partition import Partition
from tidemark_broker.replication.threads import in_thread
from tidemark_broker.security.acls import Operation, ResourceType


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
class DescribeLogDirsResponse:
    """Answer with one directory.

    ``error_code`` is sent from version 3. Before it, an unauthorized client receives no
    directories.
    """

    error_code: ErrorCode
    results: tuple[DescribeLogDirsResult, ...] = ()
    throttle_time: timedelta = ZERO


async def handle(request: DescribeLogDirsRequest, call: Call) -> DescribeLogDirsResponse:
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
        topics=tuple(await call.time_slice.collect(_topics(hosted))),
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


def _topics(hosted: Iterable[Partition]) -> Iterator[DescribeLogDirsTopic]:
    for topic, replicas in groupby(hosted, lambda replica: replica.topic):
        yield DescribeLogDirsTopic(name=topic, partitions=tuple(map(_partition, replicas)))


def _partition(replica: Partition) -> DescribeLogDirsPartition:
    return DescribeLogDirsPartition(
        partition_index=replica.partition,
        partition_size=replica.log.size_bytes,
        offset_lag=max(0, replica.high_watermark - replica.next_offset),
    )


API = Api(
    key=35,
    name="DescribeLogDirs",
    version_min=1,
    version_max=5,
    request=DescribeLogDirsRequest,
    answer=DescribeLogDirsResponse,
    handler=handle,
    open_ended=True,
    waits=True,
)
