"""The long poll of a Fetch: wait in the purgatory until there are ``min_bytes``, then read again.

While it waits nothing is read, and a partition is looked at only when something of it has changed.
What has arrived is estimated from how the logs have grown since the
last pass (as Kafka estimates from positions), and an estimate that proves too high only means
another wait with the time that is left.
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
from tidemark_broker.purgatory import Change, Watch
from tidemark_broker.replication.partition import Partition
from tidemark_broker.replication.partition.consumer_reads import readable_end


class _Before:
    """A partition as it was at the last pass."""

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
        """It may not be read here any more, or not by who named the former leader epoch: the next
        pass says why."""
        is_same = self.partition.leader_epoch == self._leader_epoch
        return not is_same or self._check(UNKNOWN_EPOCH) is not ErrorCode.none

    @property
    def advanced(self) -> bool:
        """More can be read: was committed, or has become stable."""
        return self._readable_end > self._end

    @property
    def _readable_end(self) -> int:
        return readable_end(self.partition.log, read_committed=self._read_committed)

    @property
    def grown_bytes(self) -> int:
        """About how many bytes can be read now that could not be then."""
        return max(1, self.partition.log.size_bytes - self.size_bytes)


async def read_until_enough(
    requests: Sequence[PartitionRequest], call: Call, params: FetchParams
) -> list[Read]:
    """Reads with at least ``min_bytes`` of records, or an answer that must not wait, or whatever
    there is after ``max_wait_s``; never more than the answer's memory has room for, and nothing is
    held while it waits."""
    wished = min(params.max_bytes, sum(max(0, one.max_bytes) for one in requests))
    now, memory = asyncio.get_running_loop().time, call.memory
    deadline = now() + params.max_wait_s
    while True:
        granted = memory.grant(wished) if wished >= 0 else wished
        reads = await read_all(requests, call, params, granted)
        memory.hold(found_bytes(reads))
        missing = min(params.min_bytes, granted) - total_bytes(reads)
        left_s = deadline - now()
        if missing <= 0 or left_s <= 0 or not reads or any(read.settled for read in reads):
            return reads
        watched = [_Before(read.partition, params) for read in reads if read.partition is not None]
        del reads
        memory.hold(0)
        if not await _wait_for(watched, missing, call, left_s):
            deadline = now()


async def _wait_for(watched: Sequence[_Before], missing: int, call: Call, left_s: float) -> bool:
    """Whether it is worth reading again and waiting on; False once time is up."""
    watch, advanced = Watch[_Before](), set[_Before]()

    def enough() -> bool:
        changed = tuple(watch.changed)
        watch.changed.clear()
        if any(each.lost for each in changed):
            return True
        advanced.update(each for each in changed if each.advanced)
        if len(advanced) >= missing:
            return True
        return sum(each.grown_bytes for each in advanced) >= missing

    purgatory, turns = call.services.purgatory, call.turns
    try:
        for each in watched:
            purgatory.watch(watch, (Change.HIGH_WATERMARK, each.partition.tp), each)
            if turns.over:
                await turns.give()
        return await purgatory.wait([watch], enough, left_s, who=call.client.who)
    finally:
        for each in watched:
            purgatory.unwatch(watch, (Change.HIGH_WATERMARK, each.partition.tp))
