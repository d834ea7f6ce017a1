"""Invariant 1: each ISR member, and so each leader, has all acknowledged records.

Brokers are logs of (leader epoch, number). A leader acknowledges what its whole ISR has, including
members that it has proposed without an answer yet. It acknowledges nothing while its ISR is below
min.insync.replicas or its row has eligible leaders. Brokers die, restart with and without proof
(then losing what was not synced), return on an empty disk, and report how far their logs reach.
Their AlterPartitions arrive late.
"""

import dataclasses

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.effort import examples
from tests.unit.controller.controller_world import (
    ControllerWorld,
    broker,
    numbered_uuid,
    report_log,
    row,
    topic,
)
from tidemark.wire.control import AlterPartitionRequest, IsrChange
from tidemark_operator.controller import elections, isr, reassignment

NODES = (1, 2, 3)
Record = tuple[int, int]


class ReplicationMachine(RuleBasedStateMachine):
    """One partition on three brokers with min.insync.replicas 1.

    The only member of an ISR never loses acknowledged records, since that loss is allowed.
    """

    min_isr = 1
    replicas: tuple[int, ...] = NODES

    def __init__(self) -> None:
        super().__init__()
        config = {"min.insync.replicas": str(self.min_isr)}
        self.world = ControllerWorld(
            brokers=[broker(node) for node in NODES],
            topics=[topic(config=config)],
            rows=[row(self.replicas)],
        )
        self.logs: dict[int, list[Record]] = {node: [] for node in NODES}
        self.synced: dict[int, int] = dict.fromkeys(NODES, 0)
        self.running = set(NODES)
        self.following: dict[int, int] = {}
        # AlterPartition requests that are still in the network.
        self.proposals: list[AlterPartitionRequest] = []
        self.acknowledged: list[Record] = []
        self.clean: dict[int, bool] = {}
        # Brokers whose acknowledged records were lost, as far as the invariant covers it.
        self.lost: set[int] = set()
        self.leaders_min_isr = self.min_isr
        self.directories: dict[int, int] = {}
        self.starts = 0
        self.written = 0
        self.serve(set(NODES))

    # ---- actions of brokers

    def _produce(self) -> None:
        made = self.world.row()
        if made.leader in self.running:
            self.written += 1
            self.logs[made.leader].append((made.leader_epoch, self.written))

    def _fetch(self, node: int) -> None:
        """Follow the leader: truncate where the logs differ, then append the rest."""
        made = self.world.row()
        if node == made.leader or made.leader not in self.running or node not in self.running:
            return
        if node not in made.replicas:
            return
        ahead, behind = self.logs[made.leader], self.logs[node]
        # The first difference of the two logs: the follower truncates there.
        same = next(
            (i for i, (a, b) in enumerate(zip(ahead, behind, strict=False)) if a != b), None
        )
        keep = min(len(ahead), len(behind)) if same is None else same
        self.logs[node] = [*behind[:keep], *ahead[keep:]]
        self.synced[node] = min(self.synced[node], keep)
        self.following[node] = made.leader_epoch

    def _acknowledge(self) -> None:
        made = self.world.row()
        if made.leader not in self.running:
            return
        if len(made.isr) < self.leaders_min_isr or made.elr or made.last_known_elr:
            return
        members = set(made.isr)
        # Proposed members count for the high watermark before the controller has answered.
        for request in self.proposals:
            if request.changes[0].partition_epoch == made.partition_epoch:
                members.update(request.changes[0].new_isr)
        followers = members - {made.leader}
        # A follower that has not fetched in this epoch may still have a divergent log.
        if not all(self.following.get(node) == made.leader_epoch for node in followers):
            return
        high_watermark = min(len(self.logs[node]) for node in members)
        if high_watermark > len(self.acknowledged):
            self.acknowledged = self.logs[made.leader][:high_watermark]

    @rule(fetching=st.sets(st.sampled_from(NODES), min_size=1))
    def serve(self, fetching: set[int]) -> None:
        self._produce()
        for node in sorted(fetching):
            self._fetch(node)
        self._acknowledge()

    @rule(node=st.sampled_from(NODES))
    def sync(self, node: int) -> None:
        self.synced[node] = len(self.logs[node])

    @rule(members=st.sets(st.sampled_from(NODES)), at_once=st.booleans())
    def propose(self, members: set[int], at_once: bool) -> None:
        """Propose any smaller ISR, or one with replicas that reached the high watermark."""
        made = self.world.row()
        if made.leader not in self.running:
            return
        # A replica may join once its log reaches the high watermark, as in Kafka's Partition.
        caught_up = {
            node
            for node in members
            if self.following.get(node) == made.leader_epoch
            and node in self.running
            and len(self.logs[node]) >= len(self.acknowledged)
        }
        new_isr_members = (
            {made.leader} | (members & set(made.isr)) | (caught_up & set(made.replicas))
        )
        change = IsrChange(
            topic_id=numbered_uuid(1),
            partition=0,
            leader_epoch=made.leader_epoch,
            partition_epoch=made.partition_epoch,
            new_isr=tuple(sorted(new_isr_members)),
            remote_manifest=False,
        )
        epoch = self.world.state.brokers[made.leader].broker_epoch
        self.proposals.append(
            AlterPartitionRequest(broker_id=made.leader, broker_epoch=epoch, changes=(change,))
        )
        # Otherwise the proposal stays in the network, and a later rule delivers it.
        if at_once:
            self.hand_over(self.proposals.pop())

    @precondition(lambda self: self.proposals)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        self.hand_over(self.proposals.pop(data.draw(st.integers(0, len(self.proposals) - 1))))

    def hand_over(self, request: AlterPartitionRequest) -> None:
        draft = self.world.draft()
        isr.alter_partition(draft, request)
        self.world.commit(draft)

    # ---- failures and restarts

    @rule(node=st.sampled_from(NODES))
    def session_ends(self, node: int) -> None:
        draft = self.world.draft()
        elections.fence(draft, [node], reason="test")
        self.world.commit(draft)

    @rule(node=st.sampled_from(NODES), clean=st.booleans())
    def stop(self, node: int, clean: bool) -> None:
        if node in self.running:
            self.running.discard(node)
            self.following.pop(node, None)
            self.clean[node] = clean

    @rule(node=st.sampled_from(NODES), new_disk=st.booleans(), soon=st.booleans())
    def start(self, node: int, new_disk: bool, soon: bool) -> None:
        if node in self.running:
            return
        self.starts += 1
        clean = self.clean[node]
        known = self.world.state.brokers[node]
        directory = None
        # An empty disk, if the invariant covers that loss. Otherwise everything was synced.
        if new_disk and self.may_lose(node, 0):
            directory, self.synced[node] = 9_000 + self.starts, 0
        elif clean or not self.may_lose(node, self.synced[node]):
            self.synced[node] = len(self.logs[node])
        self.logs[node] = self.logs[node][: self.synced[node]]
        if directory is not None:
            self.directories[node] = directory
        self.world.register(
            node,
            incarnation=50_000 + self.starts,
            directory=self.directories.get(node),
            previous=known.broker_epoch if clean else -1,
        )
        self.running.add(node)
        if soon:
            self.world.beat(node)

    def may_lose(self, node: int, left: int) -> bool:
        """Return whether invariant 1 covers the truncation of a log.

        If so, the broker's copy counts as lost until the broker is in the ISR again.
        """
        acknowledged = len(self.acknowledged)
        self.lost.difference_update(self.world.row().isr)
        loses = self.logs[node][:acknowledged] == self.acknowledged and left < acknowledged
        # Without acknowledged records, any loss is allowed.
        if not loses:
            return True
        if not self.is_covered(node):
            return False
        self.lost.add(node)
        return True

    def is_covered(self, node: int) -> bool:
        """Return whether a further loss of acknowledged records, on this broker, is covered."""
        if self.min_isr == 1:
            return set(self.world.row().isr) != {node}
        return len(self.lost | {node}) < self.min_isr

    @precondition(lambda self: self.world.state.partitions.awaiting_logs)
    @rule(node=st.sampled_from(NODES))
    def report(self, node: int) -> None:
        """Answer a pending request of the controller for the end of a broker's log."""
        if node in self.running and self.world.replica_logs.unanswered(self.world.state, node):
            log = self.logs[node]
            report_log(self.world, node, log[-1][0] if log else -1, len(log))

    @rule(
        node=st.sampled_from(NODES), clean=st.booleans(), new_disk=st.booleans(), soon=st.booleans()
    )
    def restart(self, node: int, clean: bool, new_disk: bool, soon: bool) -> None:
        self.stop(node, clean)
        self.start(node, new_disk, soon)

    @rule(node=st.sampled_from(NODES))
    def heartbeat(self, node: int) -> None:
        if node in self.running:
            self.world.beat(node)

    @rule()
    def balance(self) -> None:
        draft = self.world.draft()
        elections.balance_leaders(draft, limit=1)
        self.world.commit(draft)

    # ---- invariants

    @invariant()
    def isr_and_eligible_leaders_have_every_acknowledged_record(self) -> None:
        made = self.world.row()
        for node in made.isr + made.elr:
            assert self.logs[node][: len(self.acknowledged)] == self.acknowledged

    @invariant()
    def the_leader_is_live_and_in_sync(self) -> None:
        made = self.world.row()
        assert made.leader == -1 or self.world.state.is_live(made.leader)
        assert made.leader == -1 or made.leader in made.isr
        assert set(made.isr) <= set(made.replicas)
        assert len(made.holders) == len(set(made.holders))


class ClusterOfTwoInSync(ReplicationMachine):
    """Cluster with min.insync.replicas 2, where any one broker may lose acknowledged records."""

    min_isr = 2


class ClusterOfAChangingMinimum(ReplicationMachine):
    """Cluster whose min.insync.replicas changes to and fro.

    The leader receives a change late or early and may have acknowledged by the other value. So what
    both values cover may be lost, and a replica may refuse for a while.
    """

    @rule(min_isr=st.sampled_from((1, 2)))
    def change(self, min_isr: int) -> None:
        topic_info = self.world.view()
        config = {"min.insync.replicas": str(min_isr)}
        self.world.state.put_topic(dataclasses.replace(topic_info, config=config))

    @rule()
    def reconcile(self) -> None:
        draft = self.world.draft()
        elections.settle_topic(draft, self.world.view())
        self.world.commit(draft)

    @rule(min_isr=st.sampled_from((1, 2)))
    def leader_receives_min_isr(self, min_isr: int) -> None:
        self.leaders_min_isr = min_isr

    @rule(node=st.sampled_from(NODES), refuses=st.booleans())
    def storage(self, node: int, refuses: bool) -> None:
        key = self.world.row().key
        news = self.world.state.storage_failures.put(node, frozenset({key} if refuses else ()))
        draft = self.world.draft()
        elections.storage_changed(draft, node, news)
        self.world.commit(draft)

    def is_covered(self, node: int) -> bool:
        # While the minimum changes, only one loss is covered, and not that of the last member.
        return set(self.world.row().isr) != {node} and not self.lost - {node}


class ClusterThatMoves(ReplicationMachine):
    """Cluster whose two replicas move to other brokers, one move after another, or cancelled
    (KIP-455).

    A broker without a replica deletes its log sooner or later.
    """

    replicas = (1, 2)

    @rule(order=st.permutations(NODES), count=st.integers(0, 3), at_once=st.booleans())
    def reassign(self, order: list[int], count: int, at_once: bool) -> None:
        """Move to a random target of at least min.insync.replicas brokers, or cancel the move."""
        target = tuple(order[: max(count, self.min_isr) if count else 0])
        draft = self.world.draft()
        reassignment.reassign(draft, self.world.view(), {0: target})
        self.world.commit(draft)
        # The broker may delete its log at once, or keep it as long as it likes.
        if at_once:
            self.delete_removed_logs()

    @rule()
    def finish(self) -> None:
        draft = self.world.draft()
        reassignment.finish(draft)
        self.world.commit(draft)
        self.delete_removed_logs()

    @rule()
    def delete_removed_logs(self) -> None:
        """Delete the logs of the running brokers whose replica was removed."""
        for node in self.running.difference(self.world.row().replicas):
            self.logs[node], self.synced[node] = [], 0
            self.following.pop(node, None)

    @invariant()
    def some_replica_has_the_records(self) -> None:
        made = self.world.row()
        assert made.isr or made.elr or made.last_known_elr
        assert set(made.holders) <= set(made.replicas)
        assert set(made.adding + made.removing) <= set(made.replicas)


class ClusterThatMovesTwoInSync(ClusterThatMoves):
    """Cluster that moves, with min.insync.replicas 2."""

    min_isr = 2
    is_covered = ClusterOfTwoInSync.is_covered


ReplicationMachine.TestCase.settings = settings(max_examples=examples(50), stateful_step_count=30)
ClusterOfTwoInSync.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=40)
TestCluster = ReplicationMachine.TestCase
TestClusterOfTwoInSync = ClusterOfTwoInSync.TestCase
ClusterOfAChangingMinimum.TestCase.settings = ClusterOfTwoInSync.TestCase.settings
TestClusterOfAChangingMinimum = ClusterOfAChangingMinimum.TestCase
ClusterThatMoves.TestCase.settings = ReplicationMachine.TestCase.settings
TestClusterThatMoves = ClusterThatMoves.TestCase
ClusterThatMovesTwoInSync.TestCase.settings = ReplicationMachine.TestCase.settings
TestClusterThatMovesTwoInSync = ClusterThatMovesTwoInSync.TestCase


def test_late_proposal_does_not_admit_a_restarted_replica() -> None:
    """KIP-903: the proposal relies on the former process and arrives after its restart."""
    brokers = ReplicationMachine()
    brokers.propose({1, 2}, at_once=True)
    assert brokers.world.row().isr == (1, 2)
    # Broker 3 catches up, and its admission is proposed but still in flight.
    brokers.serve({2, 3})
    brokers.propose({1, 2, 3}, at_once=False)
    brokers.restart(3, clean=False, new_disk=False, soon=True)
    assert brokers.logs[3] == []
    brokers.hand_over(brokers.proposals.pop())
    assert brokers.world.row().isr == (1, 2)
    brokers.isr_and_eligible_leaders_have_every_acknowledged_record()


def test_a_proposal_of_a_former_isr_is_void() -> None:
    brokers = ReplicationMachine()
    brokers.propose({1, 2, 3}, at_once=False)
    brokers.propose({1, 2}, at_once=True)
    brokers.serve({2})
    brokers.hand_over(brokers.proposals.pop())
    assert brokers.world.row().isr == (1, 2)
    brokers.isr_and_eligible_leaders_have_every_acknowledged_record()
