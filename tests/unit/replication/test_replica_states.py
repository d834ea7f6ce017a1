"""``ReplicaStates``: a broker's report of the states that controllers pushed to it."""

import dataclasses
import uuid
from collections.abc import Callable

import pytest

from tests.unit.replication.replica_nodes import TOPIC, TOPIC_ID, ReplicaNode, row
from tidemark.tiering import NEVER_TIERED
from tidemark.wire import control, framing
from tidemark_broker.control.replica_states import pages
from tidemark_broker.replication.hosting.replica_manager import StoredReplica
from tidemark_broker.replication.partition import prefix_rule
from tidemark_operator.listener.connection import UNPROVEN_BYTES_MAX

Nodes = Callable[[int], ReplicaNode]
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


async def _reported(node: ReplicaNode) -> control.TopicState:
    (page,) = await pages(node.manager)
    assert page.is_last
    (topic,) = page.topics
    return topic


async def test_a_broker_reports_its_pushed_states_after_a_restart(node: Nodes) -> None:
    one = node(1)
    await one.receive(MOVING, tiering_state=1, tiered_epoch=3)
    before = await _reported(one)
    assert (before.topic_id, before.name) == (TOPIC_ID, TOPIC)
    assert (before.tiering_state, before.tiered_epoch) == (1, 3)
    assert before.partitions == (dataclasses.replace(MOVING, has_all_records=True),)
    assert before.partition_count == 1
    await one.stop()
    after = await _reported(node(1))
    # After a restart the partition count is unknown, because only the broker's own rows are on
    # the disk.
    assert after == dataclasses.replace(before, partition_count=-1)


async def test_a_replica_is_incomplete_after_a_crash_until_it_joins_the_isr(
    node: Nodes,
) -> None:
    one = node(1)
    await one.receive(row(leader=2, partition_epoch=7, isr=(2,)))
    # As after a crash: the log may have lost its tail.
    one.partition.doubt = prefix_rule.UNCLEAN_SHUTDOWN
    assert not (await _reported(one)).partitions[0].has_all_records
    await one.receive(row(leader=2, partition_epoch=8, isr=(1, 2)))
    assert (await _reported(one)).partitions[0].has_all_records


async def test_a_topic_reports_the_highest_known_number_of_partitions(node: Nodes) -> None:
    """The number includes partitions of other brokers, which a backup may not have."""
    one = node(1)
    remote_row = row(partition=3, leader=2, replicas=(2,), isr=(2,))
    await one.receive(row(), remote_row, partition_count=4)
    reported = await _reported(one)
    assert ([part.partition for part in reported.partitions], reported.partition_count) == ([0], 4)


async def test_a_replica_that_does_not_open_is_reported_from_its_state_file(node: Nodes) -> None:
    one = node(1)
    await one.receive(MOVING)
    await one.append(3)
    await one.stop()
    (segment,) = one.log_folder.glob("*.log")
    segment.unlink()
    segment.mkdir()
    restarted = node(1)
    assert restarted.manager.get(TOPIC, 0) is None
    assert (await _reported(restarted)).partitions == (MOVING,)


async def test_a_replica_with_an_unreadable_state_file_is_reported_without_a_state(
    node: Nodes,
) -> None:
    one = node(1)
    await one.receive(MOVING)
    await one.stop()
    # Not valid JSON: the partition is known from the folder's name only.
    (one.log_folder / "partition.state").write_text("{")
    (state,) = (await _reported(node(1))).partitions
    assert (state.partition, state.leader_epoch, state.replicas) == (0, -1, ())


async def test_a_broker_without_replicas_reports_that_it_has_none(node: Nodes) -> None:
    (page,) = await pages(node(1).manager)
    assert (page.topics, page.is_last) == ((), True)


class ManyReplicas:
    """Replica manager of a broker with these numbers of topics and partitions."""

    def __init__(self, topics: int, partitions: int) -> None:
        self._held = [
            StoredReplica(
                topic=f"{number:0249d}",
                topic_id=uuid.UUID(int=number),
                partition=partition,
                row=dataclasses.replace(MOVING, partition=partition),
                tiering=NEVER_TIERED,
            )
            for number in range(topics)
            for partition in range(partitions)
        ]

    def open_replicas(self) -> list[StoredReplica]:
        return self._held

    def unopened_replicas(self) -> list[StoredReplica]:
        return []


@pytest.mark.parametrize(("topics", "partitions"), [(1000, 1), (2, 3000)])
async def test_pages_are_small_and_together_complete(topics: int, partitions: int) -> None:
    many = ManyReplicas(topics, partitions)
    made = await pages(many)  # type: ignore[arg-type]
    assert [page.is_last for page in made] == [*([False] * (len(made) - 1)), True]
    reported = [
        (topic.topic_id, state.partition)
        for page in made
        for topic in page.topics
        for state in topic.partitions
    ]
    assert reported == [(item.topic_id, item.partition) for item in many.open_replicas()]
    # The operator accepts only small requests before a broker has proved its identity.
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
