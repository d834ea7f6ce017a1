"""``ReplicaStates``: a broker's report of the states that it received."""

import dataclasses
import uuid
from collections.abc import Callable

import pytest

from tests.unit.replication.replica_nodes import TOPIC, TOPIC_ID, Node, row
from tidemark.tiering import NEVER_TIERED
from tidemark.wire import control, framing
from tidemark_broker.control.replica_states import pages
from tidemark_broker.replication.hosting.replica_manager import HeldReplica
from tidemark_broker.replication.partition import prefix_rule
from tidemark_operator.listener.request_limits import UNPROVEN_BYTES_MAX

Nodes = Callable[[int], Node]
MOVING = row(
    leader_epoch=4,
    partition_epoch=7,
    replicas=(1, 2, 3),
    adding=(3,),
    removing=(2,),
    elr=(2,),
    isr=(1,),
    has_eligible_leaders=True,
)


async def _said(node: Node) -> control.TopicState:
    (page,) = await pages(node.manager)
    assert page.is_last
    (topic,) = page.topics
    return topic


async def test_a_broker_reports_its_pushed_states_after_a_restart(node: Nodes) -> None:
    one = node(1)
    await one.told(MOVING, tiering_state=1, tiered_epoch=3)
    before = await _said(one)
    assert (before.topic_id, before.name) == (TOPIC_ID, TOPIC)
    assert (before.tiering_state, before.tiered_epoch) == (1, 3)
    assert before.partitions == (dataclasses.replace(MOVING, is_whole=True),)
    assert before.partition_count == 1
    await one.stop()
    after = await _said(node(1))
    assert after == dataclasses.replace(before, partition_count=-1)


async def test_a_replica_is_not_whole_after_a_crash_until_its_leader_has_taken_it_in(
    node: Nodes,
) -> None:
    one = node(1)
    await one.told(row(leader=2, partition_epoch=7, isr=(2,)))
    one.partition.doubt = prefix_rule.UNCLEAN_SHUTDOWN
    assert not (await _said(one)).partitions[0].is_whole
    await one.told(row(leader=2, partition_epoch=8, isr=(1, 2)))
    assert (await _said(one)).partitions[0].is_whole


async def test_a_topic_reports_the_highest_known_number_of_partitions(node: Nodes) -> None:
    """Those that other brokers have, too; a backup may not know of them."""
    one = node(1)
    elsewhere = row(partition=3, leader=2, replicas=(2,), isr=(2,))
    await one.told(row(), elsewhere, partition_count=4)
    said = await _said(one)
    assert ([part.partition for part in said.partitions], said.partition_count) == ([0], 4)


async def test_a_replica_that_does_not_open_is_reported_with_its_files_state(node: Nodes) -> None:
    one = node(1)
    await one.told(MOVING)
    await one.append(3)
    await one.stop()
    (segment,) = one.log_folder.glob("*.log")
    segment.unlink()
    segment.mkdir()
    again = node(1)
    assert again.manager.get(TOPIC, 0) is None
    assert (await _said(again)).partitions == (MOVING,)


async def test_a_replica_whose_file_cannot_be_read_is_named_without_a_state(node: Nodes) -> None:
    one = node(1)
    await one.told(MOVING)
    await one.stop()
    (one.log_folder / "partition.state").write_text("{")
    (state,) = (await _said(node(1))).partitions
    assert (state.partition, state.leader_epoch, state.replicas) == (0, -1, ())


async def test_a_broker_without_replicas_reports_that_it_has_none(node: Nodes) -> None:
    (page,) = await pages(node(1).manager)
    assert (page.topics, page.is_last) == ((), True)


class Many:
    """Broker with these numbers of topics and partitions."""

    def __init__(self, topics: int, partitions: int) -> None:
        self._held = [
            HeldReplica(
                topic=f"{number:0249d}",
                topic_id=uuid.UUID(int=number),
                partition=partition,
                row=dataclasses.replace(MOVING, partition=partition),
                tiering=NEVER_TIERED,
            )
            for number in range(topics)
            for partition in range(partitions)
        ]

    def held(self) -> list[HeldReplica]:
        return self._held

    def held_unopened(self) -> list[HeldReplica]:
        return []


@pytest.mark.parametrize(("topics", "partitions"), [(1000, 1), (2, 3000)])
async def test_pages_are_small_and_together_they_are_everything(
    topics: int, partitions: int
) -> None:
    many = Many(topics, partitions)
    made = await pages(many)  # type: ignore[arg-type]
    assert [page.is_last for page in made] == [*([False] * (len(made) - 1)), True]
    said = [
        (topic.topic_id, state.partition)
        for page in made
        for topic in page.topics
        for state in topic.partitions
    ]
    assert said == [(item.topic_id, item.partition) for item in many.held()]
    for number, page in enumerate(made):
        request = control.ReplicaStatesRequest(
            broker_id=1,
            incarnation_id=TOPIC_ID,
            page=number,
            is_last=page.is_last,
            topics=page.topics,
        )
        frame = framing.encode_request(request, 1, "broker-1")
        assert len(frame) < UNPROVEN_BYTES_MAX
    assert len(made) > 1
