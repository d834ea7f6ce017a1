"""Reads of a Fetch from the tier.

All such partitions of a request are read concurrently. If other partitions have data for the
client, the reads may take ``remote.fetch.max.wait.ms`` (Kafka's DelayedRemoteFetch always waits so
long). A request that would be answered empty waits as long as its client does, if that is longer. A
late partition is answered empty, and the client fetches it again. A tier that fails gives
KAFKA_STORAGE_ERROR, which consumers retry. A tier whose content differs from what was copied gives
CORRUPT_MESSAGE, as Kafka's RemoteLogInputStream raises CorruptRecordException. A follower redirects
the consumer to the leader instead: the failure may be its own, and the leader reports damage.
"""

import asyncio
import time
from collections.abc import Sequence

from kio.schema.errors import ErrorCode

from tidemark_broker.api.records.fetch_response import Read, total_bytes
from tidemark_broker.api.services import HandlerServices
from tidemark_broker.replication.partition import Partition, consumer_reads
from tidemark_broker.replication.remote import (
    RemoteDataCorrupt,
    RemoteLog,
    RemoteOffsetOutOfRange,
    RemoteUnavailable,
)
from tidemark_broker.replication.types import FetchResult, RemoteFetchNeed


async def read_remote(
    reads: Sequence[Read], services: HandlerServices, client_deadline_s: float
) -> None:
    """Read the partitions' records from remote storage concurrently, and replace their results.

    ``client_deadline_s`` is the monotonic time until which the client waits.
    """
    needed = [(read, read.result.remote) for read in reads if read.result.remote is not None]
    if not needed:
        return
    # With nothing else to send, waiting as long as the client avoids an empty answer and a new
    # read.
    deadline_s = time.monotonic() + services.settings.remote_wait_ms / 1000
    if not _something_at_hand(reads):
        deadline_s = max(deadline_s, client_deadline_s)
    if len(needed) == 1:
        # A task of its own would take longer than the rest of this function.
        await _fill(*needed[0], services.replicas.remote, deadline_s)
    else:
        async with asyncio.TaskGroup() as group:
            for read, need in needed:
                group.create_task(_fill(read, need, services.replicas.remote, deadline_s))
    # The slowest read may have taken long, and the results of the others waited for it. The handler
    # checks the leadership and the log start of all partitions afterwards. Reads of the tier also
    # need a follower whose log start is recent, as when they began.
    for read, _ in needed:
        read.result = _redirected_if_outdated(read)
    # Each read returns at least one whole batch, so together they may exceed the limit.
    keep_to_limits(reads, needed)


def _something_at_hand(reads: Sequence[Read]) -> bool:
    """True if there are records, or an answer that the client should get at once."""
    return total_bytes(reads) > 0 or any(
        read.settled for read in reads if read.result.remote is None
    )


def keep_to_limits(reads: Sequence[Read], needed: Sequence[tuple[Read, RemoteFetchNeed]]) -> None:
    """Drop tier reads that exceed their limit because they are not the first batch (KIP-74).

    Concurrent reads do not know of each other, so each returns at least one whole batch.
    """
    limits = {id(read): need.max_bytes for read, need in needed}
    begun = False
    for read in reads:
        size = len(read.result.data)
        if begun and size > limits.get(id(read), size):
            read.result = read.result._replace(data=b"")
        begun = begun or size > 0


async def _fill(
    read: Read, need: RemoteFetchNeed, remote: RemoteLog[Partition] | None, deadline_s: float
) -> None:
    read.result = await _read(read, need, remote, deadline_s)


async def _read(
    read: Read, need: RemoteFetchNeed, remote: RemoteLog[Partition] | None, deadline_s: float
) -> FetchResult:
    """Read one partition from remote storage until the monotonic time ``deadline_s``.

    ``need`` contains the offset and the maximum size. Return the records, an empty result if they
    did not arrive in time, or an error.
    """
    local, partition = read.result._replace(remote=None), read.partition
    if remote is None or partition is None:
        # Without a remote log manager nothing can be in the tier: the metadata is stale.
        return _failed(partition, ErrorCode.kafka_storage_error)
    try:
        found = await remote.read(partition, need.offset, need.max_bytes, deadline_s)
    # The local result has no error, so the client fetches the partition again.
    except TimeoutError:
        return local
    except RemoteOffsetOutOfRange:
        return _failed(partition, ErrorCode.offset_out_of_range)
    except RemoteUnavailable as error:
        corrupt = isinstance(error, RemoteDataCorrupt)
        code = ErrorCode.corrupt_message if corrupt else ErrorCode.kafka_storage_error
        return _failed(partition, code)
    return local._replace(data=found.data, aborted=found.aborted)


def _redirected_if_outdated(read: Read) -> FetchResult:
    """Return the result, or a redirection from a follower that cannot know what is deleted."""
    partition = read.partition
    if partition is None or read.result.error is not ErrorCode.none:
        return read.result
    if not (partition.is_leader or partition.has_leader_contact):
        return consumer_reads.to_leader(partition)
    return read.result


def _failed(partition: Partition | None, error: ErrorCode) -> FetchResult:
    """Return the error on the leader, and a redirection to the leader on a follower."""
    if partition is None or partition.is_leader:
        return FetchResult(error=error)
    return consumer_reads.to_leader(partition)
