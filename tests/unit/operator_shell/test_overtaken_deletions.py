"""A RecordDeletion whose world changes while a broker is asked: nothing is sent, or written, on the
strength of what was so before."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.operator_shell.shell_world import UNDER_REPLICATED, ShellWorld
from tidemark.ids import id_text
from tidemark.logfiles.leader_epochs import EpochEnd
from tidemark_operator.controller.deletion_values import ListedOffset
from tidemark_operator.controller.model import PartitionRow
from tidemark_operator.engines.base import DeletionAnswer
from tidemark_operator.kube.kinds import RECORD_DELETION, TOPIC
from tidemark_operator.reconcile.record_deletions import RecordDeletionReconciler
from tidemark_operator.reconcile.topics import TopicReconciler

D = ShellWorld.key(RECORD_DELETION, "d")
T = ShellWorld.key(TOPIC, "t")
ALL = {"topicRef": {"name": "t"}, "all": {"beforeOffset": -1}}


@pytest.fixture
async def world() -> AsyncIterator[ShellWorld]:
    """Two brokers, each leads one of two partitions with 100 records."""
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
        answers["list_offsets"] = lambda _, asked: {
            part: ListedOffset(error_code=0, offset=0 if timestamp == -2 else 100)
            for part, timestamp in asked.items()
        }
        answers["epoch_ends"] = lambda _, asked: {
            part: EpochEnd(epoch, 100) for part, epoch in asked.items()
        }
        answers["delete_records"] = lambda _, offsets: {
            part: DeletionAnswer(ErrorCode.none, offset) for part, offset in offsets.items()
        }
        assert {row.leader for row in rows(made).values()} == {1, 2}
        yield made


def topic_id(world: ShellWorld) -> UUID:
    return world.services.state.topics["ns/t"].id


def rows(world: ShellWorld) -> Mapping[int, PartitionRow]:
    return dict(world.services.state.rows_of(topic_id(world)))


def elect_anew(world: ShellWorld, *partitions: int) -> None:
    for part in partitions:
        row = rows(world)[part]
        world.services.state.put_row(replace(row, leader_epoch=row.leader_epoch + 1))


async def make_topic_again(world: ShellWorld) -> None:
    """kubectl delete, kubectl create."""
    reconciler, services, old = TopicReconciler(world.services), world.services, topic_id(world)
    world.delete(TOPIC, "t")
    await reconciler.reconcile(T)
    await reconciler.reconcile(T)
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
    """kubectl replace --force."""
    world.delete(RECORD_DELETION, "d")
    world.make(RECORD_DELETION, "d", partition_0(before))


def partition_0(before: int) -> dict[str, Any]:
    return {"topicRef": {"name": "t"}, "partitions": [{"partition": 0, "beforeOffset": before}]}


@dataclass(frozen=True)
class Sent:
    """One DeleteRecords, and what the operator itself knew as it sent it."""

    node_id: int
    offsets: dict[int, int]
    topic_id: UUID
    leader_epochs: dict[int, int]


def meanwhile(
    world: ShellWorld, method: str, event: Callable[[], object], *, call: int = 1
) -> list[Sent]:
    """``event`` happens while the call of that number is under way; what is sent to be deleted."""
    sent: list[Sent] = []
    count = 0

    def wrapped(name: str) -> Any:
        real = getattr(world.engine, name)

        async def asked(node_id: int, topic: str, values: Mapping[int, int], *more: Any) -> Any:
            nonlocal count
            if name == "delete_records":
                epochs = {part: row.leader_epoch for part, row in rows(world).items()}
                sent.append(Sent(node_id, dict(values), topic_id(world), epochs))
            answer = await real(node_id, topic, values, *more)
            if name == method:
                count += 1
                if count == call and isinstance(done := event(), Awaitable):
                    await done
            return answer

        return asked

    for name in {method, "delete_records"}:
        setattr(world.engine, name, wrapped(name))
    return sent


async def run(world: ShellWorld, turns: int) -> None:
    for _ in range(turns):
        await RecordDeletionReconciler(world.services).reconcile(D)


async def test_another_topic_of_that_name_loses_nothing(world: ShellWorld) -> None:
    old = topic_id(world)
    sent = meanwhile(world, "delete_records", lambda: make_topic_again(world))
    world.make(RECORD_DELETION, "d", ALL)
    await run(world, 3)
    assert {each.topic_id for each in sent} == {old}
    assert world.condition(RECORD_DELETION, "d", "Succeeded")[1] == "TopicReplaced"


async def test_another_topic_gets_no_offsets_of_the_former_one(world: ShellWorld) -> None:
    meanwhile(world, "list_offsets", lambda: make_topic_again(world), call=4)
    world.make(RECORD_DELETION, "d", ALL)
    await run(world, 1)
    assert "resolved" not in world.status(RECORD_DELETION, "d")
    await run(world, 1)
    assert world.status(RECORD_DELETION, "d")["topicId"] == id_text(topic_id(world))


async def test_another_topic_is_not_what_was_asked_about(world: ShellWorld) -> None:
    world.make(RECORD_DELETION, "d", ALL)
    await run(world, 1)
    old = topic_id(world)
    elect_anew(world, 0, 1)
    sent = meanwhile(world, "epoch_ends", lambda: make_topic_again(world))
    await run(world, 1)
    assert {each.topic_id for each in sent} <= {old}


async def test_who_is_elected_while_another_broker_is_asked_is_asked_first(
    world: ShellWorld,
) -> None:
    """It may have lost its tail in a crash."""
    world.make(RECORD_DELETION, "d", ALL)
    await run(world, 1)
    second = next(part for part, row in rows(world).items() if row.leader == 2)
    world.engine.answers["epoch_ends"] = lambda _, asked: {
        part: EpochEnd(epoch, 30) for part, epoch in asked.items()
    }
    sent = meanwhile(world, "delete_records", lambda: elect_anew(world, second))
    await run(world, 1)
    assert [each.node_id for each in sent] == [1]


async def test_an_answer_of_a_former_epoch_allows_nothing(world: ShellWorld) -> None:
    world.make(RECORD_DELETION, "d", ALL)
    await run(world, 1)
    elect_anew(world, 0, 1)
    asked_in = {part: row.leader_epoch for part, row in rows(world).items()}
    sent = meanwhile(world, "epoch_ends", lambda: elect_anew(world, 0, 1))
    await run(world, 1)
    for each in sent:
        assert all(each.leader_epochs[part] > asked_in[part] for part in each.offsets)
    assert len(sent) <= 1, "the second broker is asked in its present epoch"


async def test_a_request_made_again_does_not_get_the_offsets_of_the_former_one(
    world: ShellWorld,
) -> None:
    sent = meanwhile(world, "list_offsets", lambda: make_deletion_again(world, before=5))
    world.make(RECORD_DELETION, "d", ALL)
    await run(world, 5)
    assert [(each.node_id, each.offsets) for each in sent] == [(1, {0: 5})]


async def test_a_request_made_again_does_not_end_with_the_former_one(world: ShellWorld) -> None:
    sent = meanwhile(world, "delete_records", lambda: make_deletion_again(world, before=90))
    world.make(RECORD_DELETION, "d", partition_0(5))
    await run(world, 6)
    assert sent[-1].offsets == {0: 90}
    assert world.status(RECORD_DELETION, "d")["resolved"][0]["offset"] == 90


@pytest.mark.parametrize("how", ["deleted", "paused"])
async def test_who_takes_a_request_back_stops_it(world: ShellWorld, how: str) -> None:
    def take_back() -> None:
        if how == "deleted":
            world.delete(RECORD_DELETION, "d")
        else:
            world.annotate(RECORD_DELETION, "d", **{"tidemark.dev/paused": "true"})

    sent = meanwhile(world, "delete_records", take_back)
    world.make(RECORD_DELETION, "d", ALL)
    await run(world, 3)
    assert len(sent) == 1
