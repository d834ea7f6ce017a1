"""Requests for the ends of brokers' logs repeat until all are known; the longest leads
(KIP-966).
"""

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.operator_shell.shell_world import ShellWorld
from tidemark.wire.control import ReplicaLog, ReplicaLogInfoResponse
from tidemark_operator.controller.state.model import PartitionRow
from tidemark_operator.kube.errors import Conflict
from tidemark_operator.kube.kinds import TOPIC
from tidemark_operator.reconcile.topic_reconciler import TopicReconciler
from tidemark_operator.slices import committer

BOTH = {1: 900, 2: 1000}


class PowerCutWorld(ShellWorld):
    """World with a topic on brokers 1 and 2, after a power cut of both.

    ``ends`` has the log end offset by broker, or None if its storage fails.
    """

    def __init__(self, ends: dict[int, int | None]) -> None:
        super().__init__()
        self.ends = ends
        self.lost: dict[int, range] = {}

    async def begin(self) -> None:
        for node_id in (1, 2):
            await self.start_broker(node_id)
        await TopicReconciler(self.services).reconcile(self.key(TOPIC, "t"))
        await self.quiet()
        self.engine.answers["replica_logs"] = self._answer
        # Both restart as new processes without a clean shutdown, so neither stays in the ISR.
        for node_id in (1, 2):
            self.engine.reachable.clear()
            await self.start_broker(node_id, incarnation=10 + node_id)
        self.engine.requests.clear()
        self.engine.reachable = {1, 2}

    def _answer(self, node_id: int, keys: Any) -> ReplicaLogInfoResponse:
        end, refused = self.ends[node_id], int(ErrorCode.kafka_storage_error)
        lost = self.lost.get(node_id, range(0))
        logs = tuple(
            ReplicaLog(
                topic_id=topic_id,
                partition=partition,
                error_code=refused if end is None else 0,
                leader_epoch=self.row.leader_epoch,
                last_epoch=0,
                next_offset=end or 0,
                lost_start_offset=lost.start,
                lost_end_offset=lost.stop,
            )
            for topic_id, partition in keys
        )
        broker = self.services.state.brokers[node_id]
        return ReplicaLogInfoResponse(error_code=0, broker_epoch=broker.broker_epoch, logs=logs)

    async def ask(self) -> list[int]:
        """Return the brokers that received a request."""
        self.engine.requests.clear()
        self.questions.ask()
        await self.quiet()
        return sorted(node_id for _, node_id, _ in self.engine.requests)

    @property
    def row(self) -> PartitionRow:
        (key,) = self.services.state.partitions.keys_on(1)
        row = self.services.state.row(key)
        assert row is not None
        return row


async def test_the_longest_log_leads_once_all_have_answered() -> None:
    async with power_cut(BOTH).term() as world:
        await world.begin()
        assert world.row.leader == -1
        assert await world.ask() == [1, 2]
        assert world.row.leader == 2
        assert await world.ask() == []


async def test_an_unreachable_broker_is_queried_once_reachable() -> None:
    async with power_cut(BOTH).term() as world:
        await world.begin()
        # With one of two answers, broker 1 could still have the longer log.
        world.engine.reachable = {2}
        assert await world.ask() == [2]
        assert world.row.leader == -1
        world.engine.reachable = {1, 2}
        assert 1 in await world.ask()
        assert world.row.leader == 2


async def test_refusing_storage_is_retried() -> None:
    async with power_cut({1: 900, 2: None}).term() as world:
        await world.begin()
        # The answer of broker 1 is kept: only broker 2 is queried again.
        assert await world.ask() == [1, 2]
        assert await world.ask() == [2]
        assert world.row.leader == -1
        world.ends[2] = 1000
        assert await world.ask() == [2]
        assert world.row.leader == 2


async def test_an_election_that_could_not_be_stored_is_decided_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answers are kept, so that no broker is queried a second time."""
    monkeypatch.setattr(committer, "AGAIN_S", 0)
    async with power_cut(BOTH).term() as world:
        await world.begin()
        # Every attempt to store the election meets a conflict, for one decision.
        modified = Conflict(409, "modified")
        world.api.fail("replace PartitionSlice", modified, times=committer.RETAKEN_MAX)
        assert await world.ask() == [1, 2]
        assert world.row.leader == 2


async def test_lost_records_are_an_event_of_the_topic() -> None:
    async with power_cut(BOTH).term() as world:
        await world.begin()
        world.lost[1] = range(900, 1000)
        await world.ask()
        (event,) = [item for item in world.events.emitted if item.reason == "RecordsLost"]
        assert event.key == "ns/t"
        assert "900" in event.message


def power_cut(ends: dict[int, Any]) -> PowerCutWorld:
    world = PowerCutWorld(ends)
    world.make_cluster()
    world.make_broker(1)
    world.make_broker(2)
    world.make_topic(replicas=2, config={"min.insync.replicas": "2"})
    return world
