"""DescribeLogDirs (35): what this broker's log directory holds, and what the disk has left
(KIP-113, KIP-827).

A broker has one directory. Sizes are those of the local log files, what is in the tier is not
among them. A replica's lag behind its own high watermark is 0 as in Kafka, whose clients mean the
lag of a copy that is moved between directories.
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
    """In bytes; ``offset_lag`` in records."""

    partition_index: int
    partition_size: int
    offset_lag: int
    is_future_key: bool = False


@dataclass(slots=True, kw_only=True)
class DescribeLogDirsTopic:
    """One topic."""

    name: str
    partitions: tuple[DescribeLogDirsPartition, ...]


@dataclass(slots=True, kw_only=True)
class DescribeLogDirsResult:
    """One directory; bytes of the file system that it is on, -1 where it does not say."""

    error_code: ErrorCode
    log_dir: str
    topics: tuple[DescribeLogDirsTopic, ...] = ()
    total_bytes: int = -1
    usable_bytes: int = -1
    is_cordoned: bool = False


@dataclass(slots=True, kw_only=True)
class DescribeLogDirsResponse:
    """``error_code`` from version 3 on; before it nothing is told to who may not know."""

    error_code: ErrorCode
    results: tuple[DescribeLogDirsResult, ...] = ()
    throttle_time: timedelta = ZERO


async def handle(request: DescribeLogDirsRequest, call: Call) -> DescribeLogDirsResponse:
    """Answer for the replicas that are hosted here, or for those of them that are asked for."""
    if not call.client.may(Operation.DESCRIBE, ResourceType.CLUSTER):
        return DescribeLogDirsResponse(error_code=ErrorCode.cluster_authorization_failed)
    log_dir = str(call.services.settings.log_dir)
    try:
        disk = await in_thread(shutil.disk_usage, log_dir)
    except OSError:
        lost = DescribeLogDirsResult(error_code=ErrorCode.kafka_storage_error, log_dir=log_dir)
        return DescribeLogDirsResponse(error_code=ErrorCode.none, results=(lost,))
    hosted = sorted(_wanted(request, call), key=lambda each: each.tp)
    result = DescribeLogDirsResult(
        error_code=ErrorCode.none,
        log_dir=log_dir,
        topics=tuple(await call.turns.all_of(_topics(hosted))),
        total_bytes=disk.total,
        usable_bytes=disk.free,
    )
    return DescribeLogDirsResponse(error_code=ErrorCode.none, results=(result,))


def _wanted(request: DescribeLogDirsRequest, call: Call) -> set[Partition]:
    replicas = call.services.replicas
    if request.topics is None:
        return set(replicas.partitions)
    asked = ((topic.topic, number) for topic in request.topics for number in topic.partitions)
    return {found for each in asked if (found := replicas.get(*each)) is not None}


def _topics(hosted: Iterable[Partition]) -> Iterator[DescribeLogDirsTopic]:
    for topic, replicas in groupby(hosted, lambda each: each.topic):
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
