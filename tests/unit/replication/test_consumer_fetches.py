"""Answers to a consumer's Fetch by the handler over real replicas.

The tests cover errors with offsets, diverging logs, permitted replicas (KIP-392), and the preferred
replica.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.answers import room
from tests.services import services
from tests.unit.api import api_requests as kafka
from tests.unit.replication.replica_nodes import TOPIC, TOPIC_ID, Node, newer, row
from tidemark.configuration.broker_keys import RACK_AWARE_SELECTOR
from tidemark.tiering import TieringState
from tidemark.wire import control
from tidemark_broker.api import describe_log_dirs, fetch
from tidemark_broker.api.client import Client
from tidemark_broker.api.replica_selector import NONE, preferred
from tidemark_broker.api.services import HandlerSettings
from tidemark_broker.api.table import Call
from tidemark_broker.replication.partition import consumer_reads
from tidemark_broker.replication.partition.isr import FollowerProgress
from tidemark_broker.replication.remote import RemoteEnd

Nodes = Callable[[int], Node]
LISTENER = "PLAINTEXT"
#: Of an answer that tells nothing.
NO_OFFSETS = (-1, -1, -1)


def call(node: Node, version: int, selector: str = "") -> Call:
    shared = services(
        node.context.metadata,
        replicas=node.manager,
        purgatory=node.context.purgatory,
        settings=HandlerSettings(replica_selector=selector),
    )
    return Call(shared, version, Client("10.0.0.1:1", LISTENER), room())


async def ask(
    node: Node,
    version: int = 12,
    offset: int = 0,
    *,
    part: dict[str, Any] | None = None,
    selector: str = "",
    wait_ms: int = 0,
    partition_max_bytes: int = 1 << 20,
    **values: Any,
) -> Any:
    """The answer to a Fetch of the one partition."""
    asked = kafka.fetch(
        version,
        TOPIC,
        offset,
        topic_id=TOPIC_ID if version >= 13 else None,
        part=part,
        wait_ms=wait_ms,
        partition_max_bytes=partition_max_bytes,
        **values,
    )
    frame = kafka.request_as(fetch.API.request_type(version), asked)
    answer = await fetch.handle(frame, call(node, version, selector))
    assert answer.error_code is ErrorCode.none
    return answer.responses[0].partitions[0]


def offsets(part: Any) -> tuple[int, int, int]:
    return part.high_watermark, part.last_stable_offset, part.log_start_offset


@pytest.fixture
async def pair(node: Nodes) -> tuple[Node, Node]:
    """Node 1 leads in epoch 1 with three records of it, node 2 has them all."""
    one, two = node(1), node(2)
    await one.lead(1)
    await two.follow(1, 1)
    await one.append(3)
    await two.catch_up(one)
    await two.fetch_once(one)
    return one, two


@pytest.mark.parametrize("offset", [-1, 4])
async def test_an_out_of_range_fetch_is_answered_without_offsets(
    pair: tuple[Node, Node], offset: int
) -> None:
    part = await ask(pair[0], offset=offset)
    assert (part.error_code, part.records) == (ErrorCode.offset_out_of_range, b"")
    assert offsets(part) == NO_OFFSETS


@pytest.mark.parametrize("partition_max_bytes", [0, 1])
async def test_the_first_batch_is_returned_whatever_the_limit(
    pair: tuple[Node, Node], partition_max_bytes: int
) -> None:
    part = await ask(pair[0], partition_max_bytes=partition_max_bytes)
    assert len(part.records) == len(pair[0].bytes()) // 3


@pytest.mark.parametrize(
    ("limits", "offset", "error"),
    [
        ({"max_bytes": 0}, 0, ErrorCode.none),
        ({"max_bytes": -1}, 0, ErrorCode.unknown_server_error),
        ({"partition_max_bytes": -1}, 0, ErrorCode.unknown_server_error),
        ({"max_bytes": -1}, 3, ErrorCode.none),
    ],
)
async def test_less_than_nothing_cannot_be_read(
    pair: tuple[Node, Node], limits: dict[str, int], offset: int, error: ErrorCode
) -> None:
    """Kafka's LogSegment throws, where there is something to read."""
    part = await ask(pair[0], offset=offset, **limits)
    assert part.error_code is error
    assert bool(part.records) is (error is ErrorCode.none and offset == 0)


@pytest.mark.parametrize(
    ("epoch", "offset", "error", "diverging"),
    [
        (1, 3, ErrorCode.none, None),
        (1, 4, ErrorCode.none, (1, 3)),
        (0, 2, ErrorCode.none, (0, 0)),
        (2, 2, ErrorCode.offset_out_of_range, None),
        (0, -1, ErrorCode.offset_out_of_range, None),
    ],
)
async def test_where_a_consumers_log_parts_from_the_leaders(
    pair: tuple[Node, Node],
    epoch: int,
    offset: int,
    error: ErrorCode,
    diverging: tuple[int, int] | None,
) -> None:
    """KIP-595's order: the epoch comes before the range, the log start before the epoch's end."""
    part = await ask(pair[0], offset=offset, part={"last_fetched_epoch": epoch})
    assert part.error_code is error
    told = (part.diverging_epoch.epoch, part.diverging_epoch.end_offset)
    assert told == (diverging or (-1, -1))
    assert (offsets(part) == NO_OFFSETS) is (error is not ErrorCode.none)


@pytest.mark.parametrize(
    ("version", "error"), [(10, ErrorCode.not_leader_or_follower), (11, ErrorCode.none)]
)
async def test_a_follower_serves_consumers_that_know_of_follower_fetching(
    pair: tuple[Node, Node], version: int, error: ErrorCode
) -> None:
    one, two = pair
    part = await ask(two, version)
    assert part.error_code is error
    if error is ErrorCode.none:
        assert part.records == one.bytes()
        assert offsets(part) == (3, 3, 0)


@pytest.mark.parametrize(
    ("offset", "epoch", "error"),
    [
        (0, 0, ErrorCode.fenced_leader_epoch),
        (0, 2, ErrorCode.unknown_leader_epoch),
        (4, 1, ErrorCode.not_leader_or_follower),
        (-1, 1, ErrorCode.offset_out_of_range),
    ],
)
async def test_a_follower_sends_to_the_leader_what_it_cannot_answer(
    pair: tuple[Node, Node], offset: int, epoch: int, error: ErrorCode
) -> None:
    part = await ask(pair[1], 16, offset, part={"current_leader_epoch": epoch})
    assert part.error_code is error
    hinted = error in (ErrorCode.fenced_leader_epoch, ErrorCode.not_leader_or_follower)
    assert part.current_leader.leader_id == (1 if hinted else -1)


async def test_a_follower_serves_committed_records_and_wakes_waiting_fetches(
    pair: tuple[Node, Node],
) -> None:
    one, two = pair
    await one.append()
    await two.fetch_once(one)  # brings the record
    part = await ask(two, offset=3)
    assert (part.records, part.high_watermark) == (b"", 3)
    handled = call(two, 12)
    request = kafka.request_as(fetch.API.request_type(12), kafka.fetch(12, TOPIC, 3, wait_ms=9000))
    waiting = asyncio.ensure_future(fetch.handle(request, handled))
    while not two.context.purgatory.size:  # noqa: ASYNC110 - until it waits
        await asyncio.sleep(0)
    await two.fetch_once(one)  # and this one that it is committed
    async with asyncio.timeout(5):
        answer = await waiting
    assert answer.responses[0].partitions[0].records


def located(node: Node, **racks: str) -> None:
    """As the controller would say where brokers are: ``_1="a"``."""
    metadata = node.context.metadata
    listener = control.Endpoint(name=LISTENER, host="h", port=9)
    metadata.brokers = {
        number: replace(broker, rack=racks.get(f"_{number}"), listeners=(listener,))
        for number, broker in metadata.brokers.items()
    }


@pytest.mark.parametrize(
    ("selector", "rack_id", "version", "sent_to"),
    [
        (RACK_AWARE_SELECTOR, "b", 11, 2),
        (RACK_AWARE_SELECTOR, "a", 11, -1),
        (RACK_AWARE_SELECTOR, "c", 11, -1),
        (RACK_AWARE_SELECTOR, "", 11, -1),
        ("", "b", 11, -1),
    ],
)
async def test_a_consumer_is_sent_to_its_rack(
    pair: tuple[Node, Node], selector: str, rack_id: str, version: int, sent_to: int
) -> None:
    one, _ = pair
    located(one, _1="a", _2="b", _3="c")
    part = await ask(one, version, selector=selector, rack_id=rack_id)
    assert part.preferred_read_replica == sent_to
    assert bool(part.records) is (sent_to == -1)
    assert offsets(part) == (3, 3, 0)


async def test_the_cluster_decides_whether_consumers_fetch_from_their_rack(
    pair: tuple[Node, Node],
) -> None:
    one, _ = pair
    located(one, _1="a", _2="b")
    one.context.metadata.cluster_config = {"replica.selector.class": RACK_AWARE_SELECTOR}
    assert (await ask(one, rack_id="b")).preferred_read_replica == 2


@pytest.mark.parametrize("what", ["fenced", "out of the ISR"])
async def test_no_consumer_is_redirected_to_a_replica_that_may_lag(
    pair: tuple[Node, Node], what: str
) -> None:
    one, _ = pair
    if what == "out of the ISR":
        known = one.partition.row
        assert known is not None
        await one.told(newer(known, isr=(1,)))
    located(one, _1="a", _2="b")
    if what == "fenced":
        one.fence(2)
    part = await ask(one, selector=RACK_AWARE_SELECTOR, rack_id="b")
    assert part.preferred_read_replica == -1


def at(next_offset: int, local_start: int = 0, caught_up_s: float = 0.0) -> FollowerProgress:
    return FollowerProgress(
        next_offset=next_offset, local_log_start_offset=local_start, last_caught_up_s=caught_up_s
    )


@pytest.mark.parametrize(
    ("followers", "chosen"),
    [
        ({2: at(50), 3: at(60)}, 3),
        ({2: at(60, caught_up_s=2.0), 3: at(60, caught_up_s=1.0)}, 2),
        ({2: at(60), 3: at(60)}, 3),
        ({2: at(50), 9: at(99)}, 2),
        ({2: at(9)}, NONE),
        ({2: at(60, local_start=11)}, NONE),
        ({2: at(60, local_start=-1)}, NONE),
        ({}, NONE),
    ],
    ids=["most", "newest", "largest id", "elsewhere", "behind", "in the tier", "unknown", "none"],
)
def test_which_replica_of_the_rack(followers: dict[int, FollowerProgress], chosen: int) -> None:
    racks = {2: "b", 3: "b", 9: "z"}
    assert preferred("b", 10, leader_rack="a", racks=racks, followers=followers) == chosen
    assert preferred("b", 10, leader_rack="b", racks=racks, followers=followers) == NONE


@pytest.mark.parametrize("asks_for", ["all", "one", "none"])
async def test_what_the_log_directory_holds(pair: tuple[Node, Node], asks_for: str) -> None:
    one, _ = pair
    version = 5
    topics = {"all": None, "none": ()}.get(
        asks_for,
        (kafka.nested(35, version, "DescribableLogDirTopic", topic=TOPIC, partitions=(0, 1)),),
    )
    handled = call(one, version)
    settings = replace(handled.services.settings, log_dir=one.folder)
    handled.services = replace(handled.services, settings=settings)
    answer = await describe_log_dirs.handle(kafka.request(35, version, topics=topics), handled)
    (result,) = answer.results
    assert (answer.error_code, result.error_code) == (ErrorCode.none, ErrorCode.none)
    assert result.log_dir == str(one.folder)
    assert result.total_bytes >= result.usable_bytes > 0
    held = [
        (topic.name, part.partition_index, part.partition_size, part.offset_lag)
        for topic in result.topics
        for part in topic.partitions
    ]
    assert held == ([] if asks_for == "none" else [(TOPIC, 0, len(one.bytes()), 0)])


async def test_a_missing_log_directory(pair: tuple[Node, Node], tmp_path: Path) -> None:
    handled = call(pair[0], 5)
    settings = replace(handled.services.settings, log_dir=tmp_path / "gone")
    handled.services = replace(handled.services, settings=settings)
    answer = await describe_log_dirs.handle(kafka.request(35, 5, topics=None), handled)
    assert [result.error_code for result in answer.results] == [ErrorCode.kafka_storage_error]


@pytest.mark.parametrize(
    ("is_tiered", "end", "offset"),
    [
        (False, None, -1),
        (True, None, 0),
        (True, RemoteEnd(1, 1), 2),
    ],
    ids=["not tiered", "nothing copied", "copied"],
)
async def test_the_earliest_offset_that_is_not_in_the_tier(
    node: Nodes, is_tiered: bool, end: RemoteEnd | None, offset: int
) -> None:
    one = node(1)
    tiering = {"tiering_state": int(TieringState.ENABLED), "tiered_epoch": 1} if is_tiered else {}
    await one.told(row(leader=1, leader_epoch=1, partition_epoch=1), **tiering)
    await one.append(3)
    one.partition.remote_end = end
    found = await consumer_reads.list_offset(one.partition, consumer_reads.EARLIEST_PENDING_UPLOAD)
    assert (found.error, found.offset) == (ErrorCode.none, offset)
    assert found.leader_epoch == (1 if offset >= 0 else -1)


async def test_a_log_that_begins_in_a_tier_of_which_nothing_is_known(node: Nodes) -> None:
    one = node(1)
    tiering = {"tiering_state": int(TieringState.ENABLED), "tiered_epoch": 1}
    await one.told(row(leader=1, leader_epoch=1, partition_epoch=1), **tiering)
    await one.append(3)
    state = one.partition.log.state
    state.bounds = state.bounds._replace(local_start=2)
    found = await consumer_reads.list_offset(one.partition, consumer_reads.EARLIEST_PENDING_UPLOAD)
    assert (found.error, found.offset) == (ErrorCode.none, -1)
