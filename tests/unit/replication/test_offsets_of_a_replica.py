"""ListOffsets with Kafka's debugging replica id: start and end of a replica's own log, on the
leader and on followers. Their difference is the lag."""

from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.answers import room
from tests.services import services
from tests.unit.api import api_requests as kafka
from tests.unit.replication.replica_nodes import TOPIC, ReplicaNode, row
from tidemark_broker.api.client import Client
from tidemark_broker.api.records import offset_lookups
from tidemark_broker.api.table import Call
from tidemark_broker.log import LogConfig
from tidemark_broker.replication.partition import consumer_reads, isr_and_high_watermark

Nodes = Callable[[int], ReplicaNode]
VERSION = 9
CONSUMER, DEBUGGING = -1, -2


async def list_offset(
    node: ReplicaNode, timestamp: int, replica_id: int, **part: Any
) -> tuple[ErrorCode, int]:
    body = kafka.list_offsets(VERSION, TOPIC, timestamp, replica_id=replica_id, **part)
    shared = services(
        node.context.metadata, replicas=node.manager, purgatory=node.context.purgatory
    )
    call = Call(shared, VERSION, Client("10.0.0.1:1", "PLAINTEXT"), room())
    frame = kafka.request_as(offset_lookups.LIST_OFFSETS.request_type(VERSION), body)
    (topic,) = (await offset_lookups.list_offsets(frame, call)).topics
    (partition_response,) = topic.partitions
    return partition_response.error_code, partition_response.offset


@pytest.fixture
async def lagging_pair(node: Nodes) -> tuple[ReplicaNode, ReplicaNode]:
    """Return a leader in epoch 1 with five records, and a follower with three. The follower knows
    of no committed record."""
    one, two = node(1), node(2)
    await one.lead(1)
    await two.follow(1, 1)
    await one.append(3)
    await two.catch_up(one)
    # The follower does not fetch these two.
    await one.append(2)
    return one, two


async def test_any_replica_answers_for_its_own_log(
    lagging_pair: tuple[ReplicaNode, ReplicaNode],
) -> None:
    one, two = lagging_pair
    assert await list_offset(one, consumer_reads.LATEST, DEBUGGING) == (ErrorCode.none, 5)
    assert await list_offset(two, consumer_reads.LATEST, DEBUGGING) == (ErrorCode.none, 3)
    assert await list_offset(two, consumer_reads.EARLIEST_LOCAL, DEBUGGING) == (ErrorCode.none, 0)
    # A consumer sees committed records only.
    assert (await list_offset(one, consumer_reads.LATEST, CONSUMER))[1] < 5, (
        "of the leader: the high watermark"
    )


async def test_only_the_leader_answers_consumers_and_timestamps(
    lagging_pair: tuple[ReplicaNode, ReplicaNode],
) -> None:
    _, two = lagging_pair
    refused = (ErrorCode.not_leader_or_follower, -1)
    assert await list_offset(two, consumer_reads.LATEST, CONSUMER) == refused
    assert await list_offset(two, 0, DEBUGGING) == refused
    assert await list_offset(two, consumer_reads.LATEST_TIERED, DEBUGGING) == refused


@pytest.mark.parametrize(
    ("epoch", "error"),
    [(0, ErrorCode.fenced_leader_epoch), (2, ErrorCode.unknown_leader_epoch)],
    ids=["older", "newer"],
)
async def test_another_leader_epoch_is_rejected(
    lagging_pair: tuple[ReplicaNode, ReplicaNode], epoch: int, error: ErrorCode
) -> None:
    reported, _ = await list_offset(
        lagging_pair[1], consumer_reads.LATEST, DEBUGGING, current_leader_epoch=epoch
    )
    assert reported is error


async def test_append_is_committed_while_the_controller_has_not_answered_a_report(
    node: Nodes,
) -> None:
    one = node(1)
    await one.receive(row(replicas=(1,), isr=(1,)))
    # The proposal has the present ISR, and its answer may take long.
    isr_and_high_watermark.report_manifest_created(one.partition)
    assert one.partition.leader is not None
    assert one.partition.leader.pending == (1,)
    await one.append()
    assert one.partition.log.high_watermark == 1


async def test_append_is_not_committed_below_min_isr_beside_placeholders(node: Nodes) -> None:
    one = node(1)
    await one.receive(row(replicas=(1, -1), isr=(1,)))
    one.partition.log.config = LogConfig.of({"min.insync.replicas": "2"})
    await one.append()
    assert one.partition.log.high_watermark == 0
