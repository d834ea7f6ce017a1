"""The leader's book-keeping of one partition: followers, ISR under change, epoch start.

State only; every decision is in :mod:`isr`. One AlterPartition is in flight at a time: while
``pending`` is set, the maximal ISR is the committed one plus whatever it adds.
"""

from tidemark.wire import control
from tidemark_broker.replication import isr
from tidemark_broker.replication.isr import FetchSeen, FollowerProgress


class LeaderRole:
    """Exists for one leader epoch. ``row`` is the committed state of the partition."""

    __slots__ = ("epoch", "epoch_start_offset", "followers", "node_id", "pending", "row")

    def __init__(
        self,
        *,
        node_id: int,
        row: control.PartitionState,
        epoch_start_offset: int,
        now_s: float,
        before: "LeaderRole | None" = None,
    ) -> None:
        self.node_id = node_id
        self.row = row
        self.epoch = row.leader_epoch
        self.epoch_start_offset = epoch_start_offset
        self.pending: tuple[int, ...] | None = None
        known = {} if before is None else before.followers
        self.followers: dict[int, FollowerProgress] = {
            node: isr.at_new_epoch(known.get(node), in_isr=node in row.isr, now_s=now_s)
            for node in self._follower_ids(row)
        }

    def _follower_ids(self, row: control.PartitionState) -> list[int]:
        return [node for node in row.replicas if node >= 0 and node != self.node_id]

    def adopt(self, row: control.PartitionState, now_s: float) -> None:
        """The same epoch with another ISR or replica set.

        A newer partition epoch settles a change under way: it is that change, or has made it
        stale. The same one leaves it pending: it may be committed at this moment.
        """
        if row.partition_epoch != self.row.partition_epoch:
            self.pending = None
        left = set(self.row.isr) - set(row.isr)
        self.row = row
        self.followers = {
            node: self._known(node, left=node in left)
            or isr.at_new_epoch(None, in_isr=node in row.isr, now_s=now_s)
            for node in self._follower_ids(row)
        }

    def _known(self, node: int, *, left: bool) -> FollowerProgress | None:
        known = self.followers.get(node)
        return isr.after_leaving(known) if known is not None and left else known

    def seen(self, node: int, fetch: FetchSeen) -> FollowerProgress:
        """A follower fetched; gives what was known of it before."""
        before = self.followers[node]
        self.followers[node] = isr.after_fetch(before, fetch)
        return before

    @property
    def maximal_isr(self) -> frozenset[int]:
        """Committed members and those that a change under way adds."""
        return frozenset(self.row.isr) | frozenset(self.pending or ())
