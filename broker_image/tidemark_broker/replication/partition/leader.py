"""Leader's bookkeeping of one partition: followers, ISR under change, epoch start.

It is state only; :mod:`isr_decisions` makes every decision. One AlterPartition is in flight at a
time: while ``pending`` is set, the maximal ISR is the committed one plus the members it adds.

A follower's fetch session (KIP-227) fetches all its partitions in each round, though a request
names only those that changed. The effect on the others is computed on demand, so a round costs
nothing for an idle partition.
"""

from collections.abc import Iterable, Mapping, Set

from tidemark.wire import control
from tidemark_broker.replication.partition import isr_decisions
from tidemark_broker.replication.partition.isr_decisions import FollowerFetch, FollowerProgress

#: Seconds since its last successful fetch in which a follower reads the tier for consumers.
FOLLOWER_CONTACT_S = 3.0
#: Seconds in which the leader counts on that. It is longer because both clocks may differ in rate,
#: and because a follower answers some time after it has looked at its clock.
LEADER_CONTACT_S = 5.0


class FetchRounds:
    """Time of a follower session's last fetch, in monotonic seconds; shared by all its
    partitions.

    The leader records the arrival of the request, the follower when it sent it.
    """

    __slots__ = ("last_s",)

    def __init__(self) -> None:
        self.last_s = float("-inf")


class LeaderRole:
    """State of one leader epoch. ``row`` is the committed state of the partition."""

    __slots__ = (
        "_rounds", "_started_s", "epoch", "epoch_start_offset", "followers", "node_id", "pending",
        "removed", "row",
    )  # fmt: skip

    def __init__(
        self,
        *,
        node_id: int,
        row: control.PartitionState,
        epoch_start_offset: int,
        now_s: float,
        before: "LeaderRole | None" = None,
    ) -> None:
        """Start a leader epoch.

        ``row``: partition state with that epoch. ``epoch_start_offset``: log end when the epoch
        began. ``now_s``: monotonic seconds. ``before``: state of this broker's former leader epoch,
        None if it did not lead.
        """
        self.node_id = node_id
        self.row = row
        self.epoch = row.leader_epoch
        self.epoch_start_offset = epoch_start_offset
        self._started_s = now_s
        #: ISR of the AlterPartition in flight, None for none.
        self.pending: tuple[int, ...] | None = None
        #: Time of the last request of each follower's fetch session.
        self._rounds: dict[int, FetchRounds] = {}
        known = {} if before is None else {**before.removed, **before.progress()}
        # Log starts survive an epoch: the low watermark must not forget them.
        self.followers: dict[int, FollowerProgress] = {
            node: isr_decisions.at_new_epoch(known.get(node), in_isr=node in row.isr, now_s=now_s)
            for node in self._follower_ids(row)
        }
        #: Last progress of replicas that were removed from the partition.
        self.removed: dict[int, FollowerProgress] = {
            node: progress for node, progress in known.items() if node not in self.followers
        }

    def _follower_ids(self, row: control.PartitionState) -> list[int]:
        return [node for node in row.replicas if node >= 0 and node != self.node_id]

    def adopt(self, row: control.PartitionState, now_s: float) -> None:
        """Adopt another ISR or replica set of the same leader epoch.

        A newer partition epoch ends a pending proposal: it is that change, or has made it stale.
        The same epoch leaves it pending, because the controller may commit it at this moment.
        """
        if row.partition_epoch != self.row.partition_epoch:
            self.pending = None
        self.stop_waiting_for(set(self.row.isr) - set(row.isr))
        self.row = row
        # Read before the sessions below are dropped: a removed replica counts until its last round.
        known = {**self.removed, **{node: self._progress_of(node) for node in self.followers}}
        self.followers = {
            node: self.followers.get(node)
            or isr_decisions.at_new_epoch(None, in_isr=node in row.isr, now_s=now_s)
            for node in self._follower_ids(row)
        }
        # A removed replica may serve reads of the tier until its command arrives.
        self.removed = {
            node: progress for node, progress in known.items() if node not in self.followers
        }
        self._rounds = {
            node: rounds for node, rounds in self._rounds.items() if node in self.followers
        }

    def stop_waiting_for(self, nodes: Iterable[int]) -> None:
        """Let followers hold back the high watermark no longer, until they have caught up again.

        They have left the ISR, or the controller does not admit them. Such a replica may have
        fetched at the log end without being able to follow, for example because its disk fails.
        """
        for node in nodes:
            # Its session still counts, because it may serve reads of the tier (:mod:`log_start`).
            if node in self.followers:
                self.followers[node] = isr_decisions.after_leaving(self.followers[node])

    def record_fetch(self, node: int, fetch: FollowerFetch) -> FollowerProgress:
        """Record a follower's fetch; return its former progress."""
        before = self._progress_of(node)
        self.followers[node] = isr_decisions.after_fetch(before, fetch)
        return before

    def follow_session(self, node: int, rounds: FetchRounds) -> None:
        """Count every later round of that session as a fetch at the follower's current offset."""
        self._rounds[node] = rounds

    def left_session(self, node: int) -> None:
        """End the effect of a session's rounds on this partition, up to the last one."""
        if node in self._rounds and node in self.followers:
            self.followers[node] = self._progress_of(node)
        self._rounds.pop(node, None)

    def progress(self) -> Mapping[int, FollowerProgress]:
        """Return each follower's progress, up to the last round of its session."""
        for node, rounds in self._rounds.items():
            if rounds.last_s > self.followers[node].last_fetch_s:
                return {node: self._progress_of(node) for node in self.followers}
        return self.followers

    def in_contact(self, now_s: float) -> Set[int]:
        """Return the followers that may serve reads of the tier to consumers, alive or not.

        They have fetched recently, from this leader or from its predecessor. A removed replica is
        one of them until its command has arrived.
        """
        nodes = {
            node
            for node, progress in {**self.removed, **self.progress()}.items()
            if now_s - progress.last_fetch_s < LEADER_CONTACT_S
        }
        if now_s - self._started_s < LEADER_CONTACT_S:
            nodes |= self.followers.keys()
        return nodes

    def _progress_of(self, node: int) -> FollowerProgress:
        progress, rounds = self.followers[node], self._rounds.get(node)
        if rounds is None or rounds.last_s <= progress.last_fetch_s:
            return progress
        return isr_decisions.at_rest(progress, rounds.last_s)

    @property
    def maximal_isr(self) -> frozenset[int]:
        """Committed members and those that a pending change adds."""
        isr = frozenset(self.row.isr)
        return isr.union(self.pending) if self.pending else isr

    @property
    def electable(self) -> frozenset[int]:
        """Replicas that may win a clean election: possible ISR members.

        While the row has eligible leaders (KIP-966), which it does not name, all followers count.
        """
        if self.row.has_eligible_leaders:
            return self.maximal_isr.union(self.followers)
        return self.maximal_isr
