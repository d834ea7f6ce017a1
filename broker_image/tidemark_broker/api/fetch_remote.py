"""The part of a Fetch that lies in the tier only.

All such partitions of a request are read at once, for ``remote.fetch.max.wait.ms`` at most and not
for the client's own wait (kafka-facts 2.13). One that is late is answered empty and asked for again;
one whose tier does not answer gets KAFKA_STORAGE_ERROR, which consumers retry.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import replace

from kio.schema.errors import ErrorCode

from tidemark_broker.api.fetch_read import Read
from tidemark_broker.api.ports import RemotePort, Services
from tidemark_broker.replication.remote import RemoteOffsetOutOfRange, RemoteUnavailable
from tidemark_broker.replication.types import FetchResult, RemoteFetchNeed

logger = logging.getLogger(__name__)


async def read_remote(reads: Sequence[Read], services: Services) -> None:
    """Fill in what is in the tier; on return no read needs it any more."""
    needed = [(read, read.result.remote) for read in reads if read.result.remote is not None]
    if not needed:
        return
    deadline_s = time.monotonic() + services.settings.remote_wait_ms / 1000
    async with asyncio.TaskGroup() as group:
        for read, need in needed:
            group.create_task(_fill(read, need, services.replicas.remote, deadline_s))
    _keep_to_limits(reads, needed)


def _keep_to_limits(reads: Sequence[Read], needed: Sequence[tuple[Read, RemoteFetchNeed]]) -> None:
    """Only the first batch of a whole answer may be larger than what was asked for (KIP-74). The
    tier always gives a whole batch, as the reads do not know of each other."""
    limits = {id(read): need.max_bytes for read, need in needed}
    begun = False
    for read in reads:
        size = len(read.result.data)
        if begun and size > limits.get(id(read), size):
            read.result = replace(read.result, data=b"")
        begun = begun or size > 0


async def _fill(
    read: Read, need: RemoteFetchNeed, remote: RemotePort | None, deadline_s: float
) -> None:
    read.result = await _read(read, need, remote, deadline_s)


async def _read(
    read: Read, need: RemoteFetchNeed, remote: RemotePort | None, deadline_s: float
) -> FetchResult:
    local = replace(read.result, remote=None)
    if remote is None:
        return replace(local, error=ErrorCode.kafka_storage_error)
    try:
        async with asyncio.timeout(max(0.0, deadline_s - time.monotonic())):
            found = await remote.read(read.partition, need.offset, need.max_bytes, deadline_s)
    except TimeoutError:
        return local
    except RemoteOffsetOutOfRange:
        return replace(local, error=ErrorCode.offset_out_of_range)
    except RemoteUnavailable as error:
        logger.warning(
            "%s-%d: offset %d cannot be read from the tier: %s",
            read.asked.topic,
            read.asked.partition,
            need.offset,
            error,
        )
        return replace(local, error=ErrorCode.kafka_storage_error)
    return replace(local, data=found.data)
