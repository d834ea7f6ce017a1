"""Deleted topics leave nothing in the operator's memory.

The size of the operator's tables does not depend on how many topics were created and deleted.
"""

from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from tests.container_sizes import elements, grown
from tests.unit.operator_shell.shell_world import ShellWorld
from tidemark.wire import control
from tidemark.wire.control import DeleteRemoteTopicResponse
from tidemark_operator.controller.status import cluster_status
from tidemark_operator.kube.kinds import CLUSTER, TOPIC, Key
from tidemark_operator.reconcile.cluster_reconciler import ClusterReconciler
from tidemark_operator.reconcile.topic_reconciler import TopicReconciler
from tidemark_operator.term.pacemaker import COLLECT_TURNS, Pacemaker

WARM, MANY = 5, 60
#: Tables with limits of their own: the last deleted objects, and the brokers of each slice.
BOUNDED = {".objects._deleted._entries", ".state.slices.hosted"}
FIGURES = (
    "log_start_offset",
    "local_log_start_offset",
    "high_watermark",
    "next_offset",
    "highest_remote_offset",
    "low_watermark",
    "local_bytes",
    "remaining_segments",
    "remaining_bytes",
)


@pytest.fixture
async def world() -> AsyncIterator[ShellWorld]:
    made = ShellWorld()
    made.make_cluster()
    for node_id in (1, 2):
        made.make_broker(node_id)
    async with made.term():
        for node_id in (1, 2):
            await made.start_broker(node_id)
        made.engine.answers["empty_tier"] = lambda *_: DeleteRemoteTopicResponse(error_code=0)
        yield made


class TopicChurn:
    """Creator and deleter of topics, in the roles of users and brokers."""

    def __init__(self, world: ShellWorld) -> None:
        self.world = world
        self.topics = TopicReconciler(world.services)
        self.pacemaker = Pacemaker(world.services, world.questions)

    async def one(self, name: str) -> None:
        world, services = self.world, self.world.services
        key = ShellWorld.key(TOPIC, name)
        world.make_topic(name, replicas=2, partitions=2)
        await self._settle(key)
        topic_id = services.state.topics[f"ns/{name}"].id
        self._report(topic_id)
        world.delete(TOPIC, name)
        # Tombstone, empty tier, confirmed removal, released finalizer: a pass for each.
        for _ in range(4):
            await self._settle(key)
            self._confirm(topic_id)
        assert world.server.find(TOPIC, name) is None
        # Long enough for the periodic collection of tombstones.
        await self.pacemaker._turn(COLLECT_TURNS)
        await self._settle(key)

    async def _settle(self, key: Key) -> None:
        for _ in range(2):
            await self.topics.reconcile(key)
            for node_id in self.world.services.state.brokers:
                self.world.acknowledge(node_id)
        await self.world.quiet()
        queue = self.world.services.queue
        while queue.depth:
            queue.done(await queue.get())

    def table_sizes(self) -> dict[str, int]:
        """Return the operator's memory without the records of the test doubles."""
        world = self.world
        for notes in (world.events.emitted, world.journal, world.engine.requests, world.api.calls):
            notes.clear()
        return elements((world.services, self.topics, world.questions, world.reflector))

    def _report(self, topic_id: UUID) -> None:
        """Report a remote segment of the leader, and a follower with failed storage."""
        services = self.world.services
        row = services.state.rows_of(topic_id)[0]
        figures = dict.fromkeys(FIGURES, 0)
        report = control.PartitionStatus(
            topic_id=topic_id,
            partition=0,
            leader_epoch=row.leader_epoch,
            remote_segments=1,
            remote_bytes=1000,
            error_reason="",
            error_message="",
            **figures,  # type: ignore[arg-type]
        )
        services.state.reports[row.key] = report
        services.state.storage_failures.put(row.hosts[-1], frozenset({row.key}))

    def _confirm(self, topic_id: UUID) -> None:
        services = self.world.services
        # Partition -1 removes the whole topic.
        removal = control.Removal(topic_id=topic_id, partition=-1, partition_epoch=-1)
        for node_id, broker in services.state.brokers.items():
            request = control.PartitionStatesRequest(
                controller_id="op",
                controller_epoch=services.state.controller_epoch,
                full=False,
                cluster_id="",
                cluster_config=(),
                remote_storage="",
                store_id="",
                brokers=(),
                topics=(),
                removals=(removal,),
            )
            # An answer without errors confirms the removal.
            response = control.PartitionStatesResponse(
                error_code=0, broker_epoch=broker.broker_epoch, errors=()
            )
            services.deletions.take(services.state, node_id, request, response)


async def test_memory_does_not_grow_with_deleted_topics(
    world: ShellWorld,
) -> None:
    churn = TopicChurn(world)
    # The first topics create the tables themselves, and fill what is bounded.
    for number in range(WARM):
        await churn.one(f"warm-{number}")
    before = churn.table_sizes()
    for number in range(MANY):
        await churn.one(f"many-{number}")
    # Growth per topic, not a fixed number, is what counts as a leak.
    assert not set(grown(before, churn.table_sizes(), MANY)) - BOUNDED
    assert not world.services.state.reports
    assert not list(world.services.state.storage_failures.all())
    assert not world.services.state.tombstones


async def test_the_bytes_of_a_deleted_topic_are_not_counted(world: ShellWorld) -> None:
    churn = TopicChurn(world)
    world.make_topic(replicas=2)
    await churn.topics.reconcile(ShellWorld.key(TOPIC, "t"))
    topic_id = world.services.state.topics["ns/t"].id
    churn._report(topic_id)
    status = cluster_status(world.services.state, generation=1, now_ms=0).status
    assert status["remoteBytes"] == 1000
    world.edit(TOPIC, "t", deletionPolicy="Orphan")
    world.delete(TOPIC, "t")
    await churn.topics.reconcile(ShellWorld.key(TOPIC, "t"))
    await ClusterReconciler(world.services).reconcile(world.services.cluster_key)
    assert world.status(CLUSTER, "main")["remoteBytes"] == 0
