"""Topics, leaders and RecordDeletions change during a request: stale facts are discarded."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.operator_shell.shell_world import UNDER_REPLICATED, ShellWorld
from tests.unit.operator_shell.test_record_deletion_reconciler import deleted
from tidemark.ids import id_text
from tidemark.wire.deletions import DeletionPoint, PartitionDeletion, PartitionDeletionResult
from tidemark_operator.controller.state.model import PartitionRow
from tidemark_operator.kube.kinds import RECORD_DELETION, TOPIC
from tidemark_operator.reconcile.record_deletion_reconciler import RecordDeletionReconciler
from tidemark_operator.reconcile.topic_reconciler import TopicReconciler

TIMED_OUT = int(ErrorCode.request_timed_out.value)
D = ShellWorld.key(RECORD_DELETION, "d")
T = ShellWorld.key(TOPIC, "t")
ALL = {"topicRef": {"name": "t"}, "all": {"beforeOffset": -1}}


class SentDeletions(NamedTuple):
    """Deletion that was sent to a leader."""

    node_id: int
    topic_id: UUID
    deletions: Sequence[PartitionDeletion]


@pytest.fixture
async def world() -> AsyncIterator[ShellWorld]:
    """World whose two brokers each lead one of two partitions with 100 records."""
    made = ShellWorld()
    made.make_cluster(UNDER_REPLICATED)
    made.make_broker(1)
    made.make_broker(2)
    made.make_topic(partitions=2)
    async with made.term():
        await made.start_broker(1)
        await made.start_broker(2)
        await TopicReconciler(made.services).reconcile(T)
        answers = made.engine.answers
        answers["deletion_points"] = points_at(100)
        answers["delete_records"] = deleted
        assert {row.leader for row in rows(made).values()} == {1, 2}
        yield made


def points_at(high_watermark: int) -> Any:
    """Return an answerer for logs that start at 0 and belong to the leader's epoch."""
    return lambda _, queries: [
        DeletionPoint(
            partition=query.partition,
            log_start_offset=0,
            high_watermark=high_watermark,
            offset=high_watermark if query.before_offset < 0 else query.before_offset,
            last_epoch=query.leader_epoch,
            size_bytes=0,
        )
        for query in queries
    ]


def late(_: int, deletions: Sequence[PartitionDeletion]) -> list[PartitionDeletionResult]:
    """Answer that some replica needs longer, so the request is repeated."""
    return [
        PartitionDeletionResult(partition=deletion.partition, error_code=TIMED_OUT)
        for deletion in deletions
    ]


def topic_id(world: ShellWorld) -> UUID:
    return world.services.state.topics["ns/t"].id


def rows(world: ShellWorld) -> Mapping[int, PartitionRow]:
    return dict(world.services.state.rows_of(topic_id(world)))


def bump_leader_epoch(world: ShellWorld, *partitions: int) -> None:
    for part in partitions:
        row = rows(world)[part]
        world.services.state.put_row(replace(row, leader_epoch=row.leader_epoch + 1))


async def make_topic_again(world: ShellWorld) -> None:
    """Delete the topic completely, and create another one of the same name."""
    reconciler, services, old = TopicReconciler(world.services), world.services, topic_id(world)
    world.delete(TOPIC, "t")
    await reconciler.reconcile(T)
    await reconciler.reconcile(T)
    # All brokers confirm the removal of the former topic's replicas.
    services.deletions._confirmed[old] = {
        node: broker.directory_id for node, broker in services.state.brokers.items()
    }
    await reconciler.reconcile(T)
    world.make_topic(partitions=2)
    await reconciler.reconcile(T)
    await reconciler.reconcile(T)
    assert topic_id(world) != old
    assert set(rows(world)) == {0, 1}


def make_deletion_again(world: ShellWorld, before: int) -> None:
    """Replace the RecordDeletion, as ``kubectl replace --force`` does."""
    world.delete(RECORD_DELETION, "d")
    world.make(RECORD_DELETION, "d", partition_0(before))


def partition_0(before: int) -> dict[str, Any]:
    return {"topicRef": {"name": "t"}, "partitions": [{"partition": 0, "beforeOffset": before}]}


def meanwhile(
    world: ShellWorld, method: str, event: Callable[[], object], *, call: int = 1
) -> list[SentDeletions]:
    """Let ``event`` happen before the answer of the given call; return the sent deletions."""
    sent: list[SentDeletions] = []
    count = 0

    def wrapped(name: str) -> Any:
        real = getattr(world.engine, name)

        async def intercepted(*arguments: Any) -> Any:
            nonlocal count
            if name == "delete_records":
                sent.append(SentDeletions(*arguments[:3]))
            await asyncio.sleep(0)  # the other leader receives its request
            answer = await real(*arguments)
            if name == method:
                count += 1
                if count == call and isinstance(done := event(), Awaitable):
                    await done
            return answer

        return intercepted

    for name in {method, "delete_records"}:
        setattr(world.engine, name, wrapped(name))
    return sent


def offsets(command: SentDeletions) -> dict[int, int]:
    return {deletion.partition: deletion.offset for deletion in command.deletions}


async def run(world: ShellWorld, turns: int) -> None:
    for _ in range(turns):
        await RecordDeletionReconciler(world.services).reconcile(D)


async def test_recreated_topic_loses_no_records(world: ShellWorld) -> None:
    old = topic_id(world)
    # The leaders time out, so that the command would be repeated.
    world.engine.answers["delete_records"] = late
    sent = meanwhile(world, "delete_records", lambda: make_topic_again(world))
    world.make(RECORD_DELETION, "d", ALL)
    await run(world, 3)
    assert {item.topic_id for item in sent} == {old}
    assert world.condition(RECORD_DELETION, "d", "Succeeded")[1] == "TopicReplaced"


async def test_recreated_topic_gets_no_offsets_of_the_former_one(world: ShellWorld) -> None:
    # The topic is replaced after both leaders have answered, before the status is written.
    meanwhile(world, "deletion_points", lambda: make_topic_again(world), call=2)
    world.make(RECORD_DELETION, "d", ALL)
    await run(world, 1)
    assert "resolved" not in world.status(RECORD_DELETION, "d")
    await run(world, 1)
    assert world.status(RECORD_DELETION, "d")["topicId"] == id_text(topic_id(world))


async def test_a_broker_elected_meanwhile_receives_its_leader_epoch(world: ShellWorld) -> None:
    """With the epoch, the new leader can check that its log has the records that were meant.

    It may have lost its tail in a crash.
    """
    world.make(RECORD_DELETION, "d", ALL)
    # The first pass freezes the offsets and leader epochs in the status.
    await run(world, 1)
    frozen = {part: row.leader_epoch for part, row in rows(world).items()}
    world.engine.answers["delete_records"] = late
    sent = meanwhile(world, "delete_records", lambda: bump_leader_epoch(world, 0, 1))
    # Then the leaders change while the deletion is in flight.
    await run(world, 2)
    # Differences to the frozen epochs: only the addressed leader's epoch may advance.
    epochs = [
        (
            deletion.partition,
            deletion.leader_epoch - frozen[deletion.partition],
            deletion.last_epoch - frozen[deletion.partition],
        )
        for command in sent
        for deletion in command.deletions
    ]
    assert sorted(epochs[:2]) == [(0, 0, 0), (1, 0, 0)]
    assert sorted(epochs[2:]) == [(0, 1, 0), (1, 1, 0)]


async def test_the_answer_of_a_former_leader_is_requested_again(world: ShellWorld) -> None:
    # The answer about partition 0 is of the epoch before the election.
    meanwhile(world, "deletion_points", lambda: bump_leader_epoch(world, 0))
    world.make(RECORD_DELETION, "d", ALL)
    await run(world, 1)
    assert "resolved" not in world.status(RECORD_DELETION, "d")
    await run(world, 1)
    resolved = world.status(RECORD_DELETION, "d")["resolved"]
    assert resolved[0]["leaderEpoch"] == rows(world)[0].leader_epoch


async def test_recreated_deletion_gets_no_offsets_of_the_former_one(
    world: ShellWorld,
) -> None:
    # The former object wanted all records deleted, the new one only those before offset 5.
    sent = meanwhile(world, "deletion_points", lambda: make_deletion_again(world, before=5))
    world.make(RECORD_DELETION, "d", ALL)
    await run(world, 5)
    assert [(item.node_id, offsets(item)) for item in sent] == [(1, {0: 5})]


async def test_recreated_deletion_does_not_end_with_the_former_one(world: ShellWorld) -> None:
    sent = meanwhile(world, "delete_records", lambda: make_deletion_again(world, before=90))
    world.make(RECORD_DELETION, "d", partition_0(5))
    await run(world, 6)
    assert offsets(sent[-1]) == {0: 90}
    assert world.status(RECORD_DELETION, "d")["resolved"][0]["offset"] == 90


@pytest.mark.parametrize("how", ["deleted", "paused"])
async def test_a_withdrawn_deletion_stops(world: ShellWorld, how: str) -> None:
    def take_back() -> None:
        if how == "deleted":
            world.delete(RECORD_DELETION, "d")
        else:
            world.annotate(RECORD_DELETION, "d", **{"tidemark.dev/paused": "true"})

    world.engine.answers["delete_records"] = late
    sent = meanwhile(world, "delete_records", take_back)
    world.make(RECORD_DELETION, "d", ALL)
    await run(world, 3)
    assert sorted(item.node_id for item in sent) == [1, 2], "one request for each leader"


async def test_leaders_are_queried_concurrently(world: ShellWorld) -> None:
    """Requests to both leaders are in flight before the first answer."""
    under_way, most = 0, 0

    def slowly(name: str) -> Any:
        real = getattr(world.engine, name)

        async def intercepted(*arguments: Any) -> Any:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0)
            # Both requests are counted before either continues.
            under_way -= 1
            return await real(*arguments)

        return intercepted

    for name in ("deletion_points", "delete_records"):
        setattr(world.engine, name, slowly(name))
    world.make(RECORD_DELETION, "d", ALL)
    await run(world, 1)
    assert most == 2
    most = 0
    await run(world, 2)
    assert most == 2
    assert world.condition(RECORD_DELETION, "d", "Succeeded")[0] == "True"


async def test_progress_of_one_leader_counts_while_another_is_unreachable(
    world: ShellWorld,
) -> None:
    world.make(RECORD_DELETION, "d", ALL)
    await run(world, 1)
    # Broker 2 disconnects between the resolution and the deletion.
    world.engine.reachable.discard(2)
    await run(world, 1)
    reached = {
        rows(world)[part["partition"]].leader: part.get("lowWatermark")
        for part in world.status(RECORD_DELETION, "d")["partitions"]
    }
    assert reached == {1: 100, 2: None}
    message = world.condition(RECORD_DELETION, "d", "Succeeded")[2]
    assert message.endswith("; broker 2 has no command connection"), "not in the log only"


async def test_the_status_does_not_change_while_a_leader_is_away(world: ShellWorld) -> None:
    world.make(RECORD_DELETION, "d", ALL)
    await run(world, 1)
    world.engine.reachable.discard(2)
    await run(world, 1)
    before = world.server.find(RECORD_DELETION, "d")
    assert before is not None
    await run(world, 3)
    assert world.server.find(RECORD_DELETION, "d") == before
