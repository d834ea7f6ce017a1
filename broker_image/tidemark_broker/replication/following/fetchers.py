"""Assignment of followed partitions to fetchers: one :class:`ReplicaFetcher` for each leading
broker."""

import asyncio

from tidemark_broker.replication.following.fetcher import FetcherContext, ReplicaFetcher
from tidemark_broker.replication.partition import Partition
from tidemark_broker.replication.types import TopicPartition
from tidemark_broker.tasks import cancel


class Fetchers:
    """Fetchers by leader, and their tasks."""

    def __init__(self, context: FetcherContext) -> None:
        """Create it without fetchers."""
        self.context = context
        #: Fetcher and its task, by the leader's broker id.
        self._fetchers: dict[int, tuple[ReplicaFetcher, asyncio.Task[None]]] = {}
        self._leader_of: dict[TopicPartition, int] = {}
        # Cancelled tasks are kept until they end: a connection may take time to close.
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def count(self) -> int:
        """Number of followed partitions."""
        return len(self._leader_of)

    def unresponsive(self) -> tuple[int, ...]:
        """Return the leaders whose response to a fetch is overdue."""
        return tuple(
            leader_id for leader_id, (fetcher, _) in self._fetchers.items() if fetcher.is_overdue
        )

    def follow(self, partition: Partition, leader_id: int) -> None:
        """Fetch a partition from ``leader_id`` from now on."""
        # Leave the former leader first, so that only one fetcher has the partition.
        if self._leader_of.get(partition.tp, leader_id) != leader_id:
            self.unfollow(partition.tp)
        self._leader_of[partition.tp] = leader_id
        self._fetcher(leader_id).add(partition)

    def unfollow(self, tp: TopicPartition) -> None:
        """Stop fetching a partition; a task without partitions ends."""
        leader_id = self._leader_of.pop(tp, None)
        if leader_id is None:
            return
        fetcher, task = self._fetchers[leader_id]
        fetcher.remove(tp)
        if not fetcher.partitions:
            del self._fetchers[leader_id]
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            task.cancel()

    def _fetcher(self, leader_id: int) -> ReplicaFetcher:
        """Return the fetcher of a leader; if there is none yet, create it and start its task."""
        known = self._fetchers.get(leader_id)
        if known is not None:
            return known[0]
        # One connection serves all partitions of a leader.
        fetcher = ReplicaFetcher(leader_id, self.context)
        task = asyncio.get_running_loop().create_task(
            fetcher.run(), name=f"fetcher of broker {leader_id}"
        )
        self._fetchers[leader_id] = (fetcher, task)
        return fetcher

    async def close(self) -> None:
        """End all tasks and wait for them."""
        fetchers, self._fetchers = self._fetchers, {}
        self._leader_of.clear()
        # Tasks that are ending are not cancelled again, which would end their wait for a thread.
        await cancel(task for _, task in fetchers.values())
        await asyncio.gather(*self._ending, return_exceptions=True)
        await self.context.from_tier.close()
