"""Metadata and DescribeCluster in every version."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.integration.api.api_broker import CLUSTER_ID, NODE, ApiBroker
from tests.unit.api import api_requests as kafka
from tidemark.tiering import TieringState
from tidemark_broker.api.topics.metadata import API
from tidemark_broker.replication.partition import Role, roles

VERSIONS = range(14)


async def _metadata(
    broker: ApiBroker,
    version: int,
    topics: tuple[tuple[str | None, uuid.UUID | None], ...] | None,
) -> Any:
    return await broker.ask(kafka.metadata(version, topics), kafka.answer_type(3, version))


@pytest.mark.parametrize("version", VERSIONS)
async def test_all_topics(broker: ApiBroker, version: int) -> None:
    topic_id = await broker.create("flights", partitions=2, replicas=(NODE, 3, -1))
    await broker.create("other")
    answer = await _metadata(broker, version, () if version == 0 else None)
    assert [topic.name for topic in answer.topics] == ["flights", "other"]
    flights = answer.topics[0]
    assert flights.error_code is ErrorCode.none
    assert [part.partition_index for part in flights.partitions] == [0, 1]
    part = flights.partitions[0]
    assert part.leader_id == NODE
    if version == 0:  # which leaves out unreachable brokers
        assert part.error_code is ErrorCode.replica_not_available
        assert part.replica_nodes == part.isr_nodes == (NODE,)
    else:
        assert part.error_code is ErrorCode.none
        assert part.replica_nodes == (NODE, 3, -1)
        assert part.isr_nodes == (NODE, 3)
    if version >= 5:
        assert part.offline_replicas == (3, -1)
    if version >= 10:
        assert flights.topic_id == topic_id
    # broker 3 is fenced: clients are not sent there
    assert [(node.node_id, node.port) for node in answer.brokers] == [(NODE, broker.port), (2, 9)]
    if version >= 1:
        assert answer.controller_id == NODE
        assert answer.brokers[0].rack == "r1"
    if version >= 2:
        assert answer.cluster_id == CLUSTER_ID


@pytest.mark.parametrize("version", VERSIONS)
async def test_fenced_brokers_are_listed_if_none_is_unfenced(
    broker: ApiBroker, version: int
) -> None:
    """As while a cluster restarts.

    From an answer without brokers librdkafka forgets all of them, and requests no metadata for five
    minutes (its issue 5301).
    """
    await broker.create("flights")
    # All brokers are fenced, as while a cluster restarts.
    await broker.fence(NODE, 2)
    answer = await _metadata(broker, version, () if version == 0 else None)
    assert [(node.node_id, node.port) for node in answer.brokers] == [
        (NODE, broker.port), (2, 9), (3, 9)
    ]  # fmt: skip
    (part,) = answer.topics[0].partitions
    assert part.error_code is ErrorCode.leader_not_available
    assert part.leader_id == -1
    if version >= 1:
        assert answer.controller_id == -1


@pytest.mark.parametrize("version", range(1, 14))
async def test_metadata_without_topics(broker: ApiBroker, version: int) -> None:
    await broker.create("flights")
    answer = await _metadata(broker, version, ())
    # From version 1 an empty list means no topics; null means all of them.
    assert answer.topics == ()
    assert len(answer.brokers) == 2


@pytest.mark.parametrize("version", VERSIONS)
async def test_unknown_and_illegal_names_are_not_created(broker: ApiBroker, version: int) -> None:
    names = ("nope", "no spaces", "..", "x" * 250)
    answer = await _metadata(broker, version, tuple((name, None) for name in names))
    assert [topic.error_code for topic in answer.topics] == [
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_topic_exception,
        ErrorCode.invalid_topic_exception,
        ErrorCode.invalid_topic_exception,
    ]
    assert [topic.name for topic in answer.topics] == list(names)
    # Metadata never creates topics here: auto-creation is refused.
    assert broker.manager.metadata.topics == {}


async def test_by_topic_id(broker: ApiBroker) -> None:
    topic_id = await broker.create("flights")
    unknown = uuid.uuid4()
    answer = await _metadata(broker, 12, ((None, topic_id), (None, unknown)))
    assert (answer.topics[0].name, answer.topics[0].topic_id) == ("flights", topic_id)
    assert answer.topics[1].error_code is ErrorCode.unknown_topic_id
    assert (answer.topics[1].name, answer.topics[1].topic_id) == (None, unknown)


@pytest.mark.parametrize("version", [10, 11])
async def test_ids_are_rejected_before_their_version(broker: ApiBroker, version: int) -> None:
    topic_id = await broker.create("flights")
    answer = await _metadata(broker, version, (("flights", topic_id), (None, topic_id)))
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [
        ("flights", ErrorCode.invalid_request),
        ("", ErrorCode.invalid_request),
    ]


async def test_unreachable_leader_is_not_available(broker: ApiBroker) -> None:
    await broker.create("offline", leader=-1)
    await broker.create("fenced", replicas=(NODE, 3), leader=3)
    answer = await _metadata(broker, 9, None)
    for topic in answer.topics:
        (part,) = topic.partitions
        assert part.error_code is ErrorCode.leader_not_available
        assert part.leader_id == -1


async def test_elected_leader_is_unavailable_until_it_leads(broker: ApiBroker) -> None:
    """The controller's decision is known before the log is open.

    A client that arrived in between would receive NOT_LEADER_OR_FOLLOWER from the broker that
    Metadata named.
    """
    await broker.create("opening")
    partition = broker.manager.get("opening", 0)
    assert partition is not None
    # The row says that this broker leads, but the replica does not yet.
    partition.role = Role.IDLE
    ((part,),) = [topic.partitions for topic in (await _metadata(broker, 9, None)).topics]
    assert (part.error_code, part.leader_id) == (ErrorCode.leader_not_available, -1)
    partition.role = Role.LEADER
    ((part,),) = [topic.partitions for topic in (await _metadata(broker, 9, None)).topics]
    assert (part.error_code, part.leader_id) == (ErrorCode.none, NODE)


@contextlib.asynccontextmanager
async def _opening(
    broker: ApiBroker, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[asyncio.Task[Any], asyncio.Event]]:
    """A request for a topic whose logs are being opened, until the event is set."""
    opened, apply = asyncio.Event(), roles.apply

    async def late(*args: Any, **named: Any) -> Any:
        # Opening the logs waits for the event, as on a slow disk.
        await opened.wait()
        return await apply(*args, **named)

    monkeypatch.setattr(roles, "apply", late)
    creation = asyncio.create_task(broker.create("opening"))
    await asyncio.sleep(0)
    pending_request = asyncio.create_task(_metadata(broker, 9, (("opening", None),)))
    # Other topics are answered in the meantime.
    assert (await _metadata(broker, 9, (("another", None),))).topics[0].partitions == ()
    assert not pending_request.done()
    yield pending_request, opened
    await creation


async def test_metadata_waits_for_logs_that_are_being_opened(
    broker: ApiBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _opening(broker, monkeypatch) as (pending_request, opened):
        opened.set()
        ((part,),) = [topic.partitions for topic in (await pending_request).topics]
        assert (part.error_code, part.leader_id) == (ErrorCode.none, NODE)


async def test_broker_removed_while_metadata_waits_is_not_listed(
    broker: ApiBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _opening(broker, monkeypatch) as (pending_request, opened):
        metadata = broker.manager.metadata
        # A broker disappears while the request waits: its answer is the current state.
        metadata.brokers = {node: row for node, row in metadata.brokers.items() if node != 2}
        opened.set()
        assert [node.node_id for node in (await pending_request).brokers] == [NODE]


@pytest.mark.parametrize("version", range(9, 14))
async def test_tiered_epoch_and_state_travel_as_tagged_fields(
    broker: ApiBroker, version: int
) -> None:
    await broker.create("flights", tiering_state=TieringState.DISABLING, tiered_epoch=4)
    await broker.create("plain", tiering_state=TieringState.NONE, tiered_epoch=-1)
    answer = await broker.ask(kafka.metadata(version, None), API.answer_type(version))
    flights, plain = answer.topics
    assert (flights.tiered_epoch, flights.tiered_state) == (4, TieringState.DISABLING)
    assert (plain.tiered_epoch, plain.tiered_state) == (-1, TieringState.NONE)


@pytest.mark.parametrize("version", range(3))
async def test_describe_cluster(broker: ApiBroker, version: int) -> None:
    await broker.create("t")
    request = kafka.request(
        60, version, include_cluster_authorized_operations=False, include_fenced_brokers=False
    )
    answer = await broker.ask(request, kafka.answer_type(60, version))
    assert answer.error_code is ErrorCode.none
    assert answer.cluster_id == CLUSTER_ID
    assert answer.controller_id == NODE
    assert [node.broker_id for node in answer.brokers] == [NODE, 2]


async def test_describe_cluster_with_fenced_brokers_and_without_controllers(
    broker: ApiBroker,
) -> None:
    await broker.create("t")
    request = kafka.request(
        60, 2, include_cluster_authorized_operations=False, include_fenced_brokers=True
    )
    answer = await broker.ask(request, kafka.answer_type(60, 2))
    assert [(node.broker_id, node.is_fenced) for node in answer.brokers] == [
        (1, False),
        (2, False),
        (3, True),
    ]
    # Endpoint type 2 requests controllers (KIP-919), which are no Kafka endpoints here.
    request = kafka.request(60, 1, include_cluster_authorized_operations=False, endpoint_type=2)
    answer = await broker.ask(request, kafka.answer_type(60, 1))
    assert answer.error_code is ErrorCode.mismatched_endpoint_type
