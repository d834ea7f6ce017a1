"""ListOffsets of Kafka's debugging replica id: where a replica's own log begins and ends, on the
leader and on a follower, from which its lag follows."""

from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.answers import room
from tests.services import services
from tests.unit.api import api_requests as kafka
from tests.unit.replication.replica_nodes import TOPIC, Node
from tidemark_broker.api import list_offsets
from tidemark_broker.api.client import Client
from tidemark_broker.api.table import Call
from tidemark_broker.replication.partition import consumer_reads

Nodes = Callable[[int], Node]
VERSION = 9
CONSUMER, DEBUGGING = -1, -2


async def ask(node: Node, timestamp: int, replica_id: int, **part: Any) -> tuple[ErrorCode, int]:
    asked = kafka.list_offsets(VERSION, TOPIC, timestamp, replica_id=replica_id, **part)
    shared = services(
        node.context.metadata, replicas=node.manager, purgatory=node.context.purgatory
    )
    call = Call(shared, VERSION, Client("10.0.0.1:1", "PLAINTEXT"), room())
    frame = kafka.request_as(list_offsets.API.request_type(VERSION), asked)
    (topic,) = (await list_offsets.handle(frame, call)).topics
    (told,) = topic.partitions
    return told.error_code, told.offset


@pytest.fixture
async def behind(node: Nodes) -> tuple[Node, Node]:
    """Return a leader in epoch 1 with five records, and a follower with three.

    The follower knows no committed record.
    """
    one, two = node(1), node(2)
    await one.lead(1)
    await two.follow(1, 1)
    await one.append(3)
    await two.catch_up(one)
    await one.append(2)
    return one, two


async def test_the_end_of_a_log_is_answered_by_any_replica(behind: tuple[Node, Node]) -> None:
    one, two = behind
    assert await ask(one, consumer_reads.LATEST, DEBUGGING) == (ErrorCode.none, 5)
    assert await ask(two, consumer_reads.LATEST, DEBUGGING) == (ErrorCode.none, 3)
    assert await ask(two, consumer_reads.EARLIEST_LOCAL, DEBUGGING) == (ErrorCode.none, 0)
    assert (await ask(one, consumer_reads.LATEST, CONSUMER))[1] < 5, (
        "of the leader: the high watermark"
    )


async def test_consumers_and_times_stay_with_the_leader(behind: tuple[Node, Node]) -> None:
    _, two = behind
    refused = (ErrorCode.not_leader_or_follower, -1)
    assert await ask(two, consumer_reads.LATEST, CONSUMER) == refused
    assert await ask(two, 0, DEBUGGING) == refused
    assert await ask(two, consumer_reads.LATEST_TIERED, DEBUGGING) == refused


@pytest.mark.parametrize(
    ("epoch", "error"),
    [(0, ErrorCode.fenced_leader_epoch), (2, ErrorCode.unknown_leader_epoch)],
    ids=["older", "newer"],
)
async def test_another_leader_epoch_is_refused(
    behind: tuple[Node, Node], epoch: int, error: ErrorCode
) -> None:
    told, _ = await ask(behind[1], consumer_reads.LATEST, DEBUGGING, current_leader_epoch=epoch)
    assert told is error
