"""Long poll of a Fetch: wait in the purgatory for ``min_bytes``, then read again.

Nothing is read while it waits, and only changed partitions are evaluated. The available bytes are
estimated from the growth of the logs since the last pass (Kafka estimates from positions). An
estimate that is too high only causes another wait for the remaining time.
"""

import asyncio
from collections.abc import Sequence

from kio.schema.errors import ErrorCode

from tidemark.logfiles.leader_epochs import UNKNOWN_EPOCH
from tidemark_broker.api.fetch_read import (
    FetchParams,
    Read,
    found_bytes,
    may_read,
    read_all,
    total_bytes,
)
from tidemark_broker.api.fetch_session import PartitionRequest
from tidemark_broker.api.table import Call
from tidemark_broker.purgatory import PartitionChange, Watch
from tidemark_broker.replication.partition import Partition
from tidemark_broker.replication.partition.consumer_reads import readable_end


class _Snapshot:
    """State of a partition at the last pass."""

    __slots__ = ("_check", "_end", "_leader_epoch", "_read_committed", "partition", "size_bytes")

    def __init__(self, partition: Partition, params: FetchParams) -> None:
        self._check = may_read(partition, params)
        self.partition = partition
        self._leader_epoch = partition.leader_epoch
        self._read_committed = params.read_committed
        self._end = self._readable_end
        self.size_bytes = partition.log.size_bytes

    @property
    def lost(self) -> bool:
        """True if the partition may no longer be read here, or its leader epoch has changed.

        The next pass finds the error.
        """
        is_same = self.partition.leader_epoch == self._leader_epoch
        return not is_same or self._check(UNKNOWN_EPOCH) is not ErrorCode.none

    @property
    def advanced(self) -> bool:
        """True if more records are readable: committed, or stable with read_committed."""
        return self._readable_end > self._end

    @property
    def _readable_end(self) -> int:
        return readable_end(self.partition.log, read_committed=self._read_committed)

    @property
    def grown_bytes(self) -> int:
        """Approximate number of bytes that have become readable."""
        # At least 1: an advanced partition always counts, even if retention shrank its log.
        return max(1, self.partition.log.size_bytes - self.size_bytes)


async def read_until_enough(
    requests: Sequence[PartitionRequest], call: Call, params: FetchParams
) -> list[Read]:
    """Read until there are ``min_bytes`` of records, or ``max_wait_s`` has passed.

    Returns earlier if a partition has an error, a redirection, or records on disk or in remote
    storage. The reads never exceed the memory granted for the response. No records are held during
    a wait.
    """
    wished = min(params.max_bytes, sum(max(0, one.max_bytes) for one in requests))
    now, memory = asyncio.get_running_loop().time, call.memory
    deadline = now() + params.max_wait_s
    while True:
        # A negative limit is the client's error and is answered by the read, so it takes no memory.
        granted = memory.grant(wished) if wished >= 0 else wished
        reads = await read_all(requests, call, params, granted)
        memory.set_reserved(found_bytes(reads))
        # The answer may get less memory than min_bytes, and must not wait for more than fits.
        missing = min(params.min_bytes, granted) - total_bytes(reads)
        left_s = deadline - now()
        if missing <= 0 or left_s <= 0 or not reads or any(read.settled for read in reads):
            return reads
        # Records are released before the wait, or idle consumers would hold memory for their poll
        # time.
        watched = [
            _Snapshot(read.partition, params) for read in reads if read.partition is not None
        ]
        del reads
        memory.set_reserved(0)
        if not await _wait_for(watched, missing, call, left_s):
            deadline = now()


async def _wait_for(watched: Sequence[_Snapshot], missing: int, call: Call, left_s: float) -> bool:
    """Wait until about ``missing`` bytes have become readable, at most ``left_s`` seconds.

    Return True to read again, also if a partition can no longer be read here. False means that the
    time is up, or that the purgatory is full.
    """
    # A watch collects the changed partitions, so a wake-up does not evaluate all of them.
    watch, advanced = Watch[_Snapshot](), set[_Snapshot]()

    def enough() -> bool:
        """Return whether to stop waiting: enough bytes are readable, or a partition failed."""
        changed = tuple(watch.changed)
        watch.changed.clear()
        if any(snapshot.lost for snapshot in changed):
            return True
        advanced.update(snapshot for snapshot in changed if snapshot.advanced)
        # Each advanced partition has at least one byte, which spares the sum.
        if len(advanced) >= missing:
            return True
        return sum(snapshot.grown_bytes for snapshot in advanced) >= missing

    purgatory, time_slice = call.services.purgatory, call.time_slice
    # Watches are removed even if the client disconnects during their registration.
    try:
        for snapshot in watched:
            purgatory.watch(
                watch, (PartitionChange.HIGH_WATERMARK, snapshot.partition.tp), snapshot
            )
            if time_slice.is_over:
                await time_slice.renew()
        return await purgatory.wait([watch], enough, left_s, who=call.client.identity)
    finally:
        for snapshot in watched:
            purgatory.unwatch(watch, (PartitionChange.HIGH_WATERMARK, snapshot.partition.tp))
