"""Fetch requests of consumers, handled over real replicas. The tests cover errors with offsets,
diverging logs, follower fetching (KIP-392), and the preferred replica."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.answers import room
from tests.services import services
from tests.unit.api import api_requests as kafka
from tests.unit.replication.replica_nodes import TOPIC, TOPIC_ID, ReplicaNode, newer, row
from tidemark.configuration.broker_keys import RACK_AWARE_SELECTOR
from tidemark.tiering import TieringState
from tidemark.wire import control
from tidemark_broker.api.client import Client
from tidemark_broker.api.cluster import log_dirs
from tidemark_broker.api.records import fetch
from tidemark_broker.api.records.replica_selector import (
    NONE,
    RemoteReaders,
    preferred,
    serving_replicas,
)
from tidemark_broker.api.services import HandlerSettings, RemoteReadRotation
from tidemark_broker.api.table import Call
from tidemark_broker.replication.partition import consumer_reads
from tidemark_broker.replication.partition.isr_decisions import FollowerProgress
from tidemark_broker.replication.remote import RemoteEnd

Nodes = Callable[[int], ReplicaNode]
LISTENER = "PLAINTEXT"
#: Offsets of a response with an error.
NO_OFFSETS = (-1, -1, -1)


def call(node: ReplicaNode, version: int, selector: str = "") -> Call:
    shared = services(
        node.context.metadata,
        replicas=node.manager,
        purgatory=node.context.purgatory,
        settings=HandlerSettings(replica_selector=selector),
    )
    return Call(shared, version, Client("10.0.0.1:1", LISTENER), room())


async def fetch_partition(
    node: ReplicaNode,
    version: int = 12,
    offset: int = 0,
    *,
    part: dict[str, Any] | None = None,
    selector: str = "",
    wait_ms: int = 0,
    partition_max_bytes: int = 1 << 20,
    **values: Any,
) -> Any:
    """Fetch the one partition. Return its part of the response."""
    body = kafka.fetch(
        version,
        TOPIC,
        offset,
        topic_id=TOPIC_ID if version >= 13 else None,
        part=part,
        wait_ms=wait_ms,
        partition_max_bytes=partition_max_bytes,
        **values,
    )
    # Through the codec, so that fields of other versions are dropped.
    frame = kafka.request_as(fetch.API.request_type(version), body)
    answer = await fetch.handle(frame, call(node, version, selector))
    assert answer.error_code is ErrorCode.none
    return answer.responses[0].partitions[0]


def offsets(part: Any) -> tuple[int, int, int]:
    return part.high_watermark, part.last_stable_offset, part.log_start_offset


@pytest.fixture
async def pair(node: Nodes) -> tuple[ReplicaNode, ReplicaNode]:
    """Return leader 1 in epoch 1 with three records, and follower 2 that has all of them."""
    one, two = node(1), node(2)
    await one.lead(1)
    await two.follow(1, 1)
    await one.append(3)
    await two.catch_up(one)
    # This fetch tells the leader that the follower has everything, so the records are committed
    # on both.
    await two.fetch_once(one)
    return one, two


@pytest.mark.parametrize("offset", [-1, 4])
async def test_an_out_of_range_fetch_is_answered_without_offsets(
    pair: tuple[ReplicaNode, ReplicaNode], offset: int
) -> None:
    part = await fetch_partition(pair[0], offset=offset)
    assert (part.error_code, part.records) == (ErrorCode.offset_out_of_range, b"")
    assert offsets(part) == NO_OFFSETS


@pytest.mark.parametrize("partition_max_bytes", [0, 1])
async def test_the_first_batch_is_returned_regardless_of_the_limit(
    pair: tuple[ReplicaNode, ReplicaNode], partition_max_bytes: int
) -> None:
    part = await fetch_partition(pair[0], partition_max_bytes=partition_max_bytes)
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
async def test_a_negative_limit_is_an_error_if_there_are_records(
    pair: tuple[ReplicaNode, ReplicaNode], limits: dict[str, int], offset: int, error: ErrorCode
) -> None:
    """Kafka's LogSegment.read throws for a negative size, but only if it has records to read."""
    part = await fetch_partition(pair[0], offset=offset, **limits)
    assert part.error_code is error
    assert bool(part.records) is (error is ErrorCode.none and offset == 0)


@pytest.mark.parametrize(
    ("epoch", "offset", "error", "diverging"),
    [
        (1, 3, ErrorCode.none, None),
        # Behind the leader's end in its own epoch, and an epoch that the leader never had: both
        # diverge. A newer epoch is unknown to the leader, so the range decides.
        (1, 4, ErrorCode.none, (1, 3)),
        (0, 2, ErrorCode.none, (0, 0)),
        (2, 2, ErrorCode.offset_out_of_range, None),
        (0, -1, ErrorCode.offset_out_of_range, None),
    ],
)
async def test_a_diverging_epoch_is_reported_before_range_errors(
    pair: tuple[ReplicaNode, ReplicaNode],
    epoch: int,
    offset: int,
    error: ErrorCode,
    diverging: tuple[int, int] | None,
) -> None:
    """KIP-595 checks the epoch before the range, and the log start before the epoch's end."""
    part = await fetch_partition(pair[0], offset=offset, part={"last_fetched_epoch": epoch})
    assert part.error_code is error
    reported = (part.diverging_epoch.epoch, part.diverging_epoch.end_offset)
    assert reported == (diverging or (-1, -1))
    assert (offsets(part) == NO_OFFSETS) is (error is not ErrorCode.none)


@pytest.mark.parametrize(
    ("version", "error"), [(10, ErrorCode.not_leader_or_follower), (11, ErrorCode.none)]
)
async def test_a_follower_serves_fetches_from_version_11_on(
    pair: tuple[ReplicaNode, ReplicaNode], version: int, error: ErrorCode
) -> None:
    one, two = pair
    part = await fetch_partition(two, version)
    assert part.error_code is error
    if error is ErrorCode.none:
        assert part.records == one.bytes()
        assert offsets(part) == (3, 3, 0)


@pytest.mark.parametrize(
    ("epoch", "error", "leader"),
    [(0, ErrorCode.fenced_leader_epoch, 1), (2, ErrorCode.unknown_leader_epoch, -1)],
)
async def test_a_follower_names_the_leader_of_a_newer_epoch(
    pair: tuple[ReplicaNode, ReplicaNode], epoch: int, error: ErrorCode, leader: int
) -> None:
    part = await fetch_partition(pair[1], 16, 0, part={"current_leader_epoch": epoch})
    # KIP-951: the response names the current leader.
    assert (part.error_code, part.current_leader.leader_id) == (error, leader)


@pytest.mark.parametrize("offset", [4, -1])
@pytest.mark.parametrize("epoch", [1, -1])
async def test_a_follower_redirects_to_the_leader_for_an_offset_that_it_lacks(
    pair: tuple[ReplicaNode, ReplicaNode], offset: int, epoch: int
) -> None:
    """Offset 4 may exist on the leader, and only the leader rejects one below its log start."""
    part = await fetch_partition(pair[1], 11, offset, part={"current_leader_epoch": epoch})
    # Errors keep consumers of franz-go there, and reset the position of kafkajs.
    assert (part.error_code, part.preferred_read_replica) == (ErrorCode.none, 1)
    assert part.records == b""
    part = await fetch_partition(pair[0], 11, offset, part={"current_leader_epoch": epoch})
    assert (part.error_code, part.preferred_read_replica) == (ErrorCode.offset_out_of_range, -1)


async def test_a_follower_without_a_leader_answers_with_an_error(
    pair: tuple[ReplicaNode, ReplicaNode],
) -> None:
    await pair[1].follow(-1, 2)
    part = await fetch_partition(pair[1], 11, 4)
    assert part.error_code is ErrorCode.not_leader_or_follower


async def test_a_follower_serves_committed_records_and_wakes_waiting_fetches(
    pair: tuple[ReplicaNode, ReplicaNode],
) -> None:
    one, two = pair
    await one.append()
    await two.fetch_once(one)  # returns the record, not yet committed
    part = await fetch_partition(two, offset=3)
    assert (part.records, part.high_watermark) == (b"", 3)
    # A consumer waits on the follower for the record to be committed.
    handled = call(two, 12)
    request = kafka.request_as(fetch.API.request_type(12), kafka.fetch(12, TOPIC, 3, wait_ms=9000))
    waiting = asyncio.ensure_future(fetch.handle(request, handled))
    while not two.context.purgatory.size:  # noqa: ASYNC110 - until it waits
        await asyncio.sleep(0)
    await two.fetch_once(one)  # raises the follower's high watermark
    async with asyncio.timeout(5):
        answer = await waiting
    assert answer.responses[0].partitions[0].records


def set_racks(node: ReplicaNode, **racks: str) -> None:
    """Set racks and listeners of the brokers in the node's metadata: ``_1="a"``."""
    metadata = node.context.metadata
    listener = control.Endpoint(name=LISTENER, host="h", port=9)
    metadata.brokers = {
        number: replace(broker, rack=racks.get(f"_{number}"), listeners=(listener,))
        for number, broker in metadata.brokers.items()
    }


@pytest.mark.parametrize(
    # Broker 2 is in rack b. Rack a is the leader's own, broker 3 in c has no replica, and the
    # last consumer names no rack.
    ("selector", "rack_id", "version", "sent_to"),
    [
        (RACK_AWARE_SELECTOR, "b", 11, 2),
        (RACK_AWARE_SELECTOR, "a", 11, -1),
        (RACK_AWARE_SELECTOR, "c", 11, -1),
        (RACK_AWARE_SELECTOR, "", 11, -1),
        ("", "b", 11, -1),
    ],
)
async def test_a_consumer_is_redirected_to_a_replica_in_its_rack(
    pair: tuple[ReplicaNode, ReplicaNode], selector: str, rack_id: str, version: int, sent_to: int
) -> None:
    one, _ = pair
    set_racks(one, _1="a", _2="b", _3="c")
    part = await fetch_partition(one, version, selector=selector, rack_id=rack_id)
    assert part.preferred_read_replica == sent_to
    # A redirect carries no records (ReplicaSelector, KIP-392).
    assert bool(part.records) is (sent_to == -1)
    assert offsets(part) == (3, 3, 0)


async def test_the_replica_selector_is_a_cluster_wide_setting(
    pair: tuple[ReplicaNode, ReplicaNode],
) -> None:
    one, _ = pair
    set_racks(one, _1="a", _2="b")
    one.context.metadata.cluster_config = {"replica.selector.class": RACK_AWARE_SELECTOR}
    assert (await fetch_partition(one, rack_id="b")).preferred_read_replica == 2


@pytest.mark.parametrize("obstacle", ["fenced", "out of the ISR"])
async def test_no_consumer_is_redirected_to_a_replica_that_may_lag(
    pair: tuple[ReplicaNode, ReplicaNode], obstacle: str
) -> None:
    one, _ = pair
    if obstacle == "out of the ISR":
        known = one.partition.row
        assert known is not None
        await one.receive(newer(known, isr=(1,)))
    set_racks(one, _1="a", _2="b")
    if obstacle == "fenced":
        one.fence(2)
    part = await fetch_partition(one, selector=RACK_AWARE_SELECTOR, rack_id="b")
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
        # Broker 9 is in another rack, the next ones lack offset 10 locally.
        ({2: at(50), 9: at(99)}, 2),
        ({2: at(9)}, NONE),
        ({2: at(60, local_start=11)}, NONE),
        ({2: at(60, local_start=-1)}, NONE),
        ({}, NONE),
    ],
    ids=["most", "newest", "largest id", "elsewhere", "behind", "in the tier", "unknown", "none"],
)
def test_the_preferred_replica_is_the_most_caught_up_in_the_rack(
    followers: dict[int, FollowerProgress], chosen: int
) -> None:
    racks = {2: "b", 3: "b", 9: "z"}
    assert preferred("b", 10, leader_rack="a", racks=racks, followers=followers) == chosen
    assert preferred("b", 10, leader_rack="b", racks=racks, followers=followers) == NONE


@pytest.mark.parametrize(
    ("rack", "beyond_rack", "chosen"),
    [
        ("a", True, {1, 3}),
        ("b", True, {2}),
        ("b", False, {2}),
        ("c", True, {1, 2, 3, 4}),
        ("c", False, {1}),
        ("", True, {1, 2, 3, 4}),
    ],
)
def test_remote_reads_are_spread_over_the_consumers_rack(
    rack: str, beyond_rack: bool, chosen: set[int]
) -> None:
    # Broker 4 has no rack.
    racks = {1: "a", 2: "b", 3: "a", 4: None}
    readers = RemoteReaders(rack, beyond_rack)
    assert set(serving_replicas(readers, racks=racks, own=1)) == chosen


@pytest.mark.parametrize(
    ("rack", "beyond_rack", "chosen"),
    [
        ("a", False, {1, 3}),
        ("b", False, {2}),
        ("c", False, {5, 6}),
        ("c", True, {1, 2, 3, 5, 6}),
        ("d", False, {6}),
        ("", False, {5, 6}),
        ("", True, {1, 2, 3, 5, 6}),
    ],
)
def test_readers_serve_remote_reads_of_consumers_without_a_replica_in_their_rack(
    rack: str, beyond_rack: bool, chosen: set[int]
) -> None:
    racks = {1: "a", 2: "b", 3: "a", 5: None, 6: "d"}
    readers = RemoteReaders(rack, beyond_rack)
    # Reader 7 cannot be reached at the consumer's listener.
    found = serving_replicas(readers, racks=racks, own=1, dedicated={5, 6, 7})
    assert set(found) == chosen


def test_consumers_of_remote_records_take_turns() -> None:
    turns = RemoteReadRotation()
    # A single consumer stays where it is, and later ones are spread evenly.
    assert [turns.next({1, 2, 3}, own=2) for _ in range(7)] == [2, 3, 1, 2, 3, 1, 2]
    # The counts of another partition's consumers matter as well.
    assert turns.next({2, 3}, own=2) == 3


def test_leaders_with_few_consumers_spread_them_over_all_replicas() -> None:
    nodes = range(1, 5)
    turns = {node: RemoteReadRotation() for node in nodes}
    chosen = [turns[own].next(nodes, own) for own in nodes for _ in range(3)]
    assert Counter(chosen) == dict.fromkeys(nodes, 3)


def test_a_connection_remembers_where_it_reads_remote_records() -> None:
    client = Client("10.0.0.1:1", LISTENER)
    assert not client.is_assigned_here("p0", 0.0)
    client.assign_here("p0", until_s=10.0)
    assert client.is_assigned_here("p0", 9.9)
    assert not client.is_assigned_here("p0", 10.0)
    # The number of remembered partitions is bounded. All others are served here then, because a
    # redirection that is not remembered would be repeated.
    for number in range(1_000):
        client.assign_here(number, until_s=20.0)
    assert client.is_assigned_here(999, 15.0)
    assert client.is_assigned_here("p0", 15.0)
    assert not client.is_assigned_here("p0", 20.0)


@pytest.mark.parametrize("asks_for", ["all", "one", "none"])
async def test_describe_log_dirs_reports_the_requested_replicas(
    pair: tuple[ReplicaNode, ReplicaNode], asks_for: str
) -> None:
    one, _ = pair
    version = 5
    topics = {"all": None, "none": ()}.get(
        asks_for,
        (kafka.nested(35, version, "DescribableLogDirTopic", topic=TOPIC, partitions=(0, 1)),),
    )
    handled = call(one, version)
    # The response also has the total and usable bytes of the file system (KIP-827).
    settings = replace(handled.services.settings, log_dir=one.folder)
    handled.services = replace(handled.services, settings=settings)
    answer = await log_dirs.describe_log_dirs(kafka.request(35, version, topics=topics), handled)
    (result,) = answer.results
    assert (answer.error_code, result.error_code) == (ErrorCode.none, ErrorCode.none)
    assert result.log_dir == str(one.folder)
    assert result.total_bytes >= result.usable_bytes > 0
    described = [
        (topic.name, part.partition_index, part.partition_size, part.offset_lag)
        for topic in result.topics
        for part in topic.partitions
    ]
    assert described == ([] if asks_for == "none" else [(TOPIC, 0, len(one.bytes()), 0)])


async def test_a_missing_log_directory_is_a_storage_error(
    pair: tuple[ReplicaNode, ReplicaNode], tmp_path: Path
) -> None:
    handled = call(pair[0], 5)
    settings = replace(handled.services.settings, log_dir=tmp_path / "gone")
    handled.services = replace(handled.services, settings=settings)
    answer = await log_dirs.describe_log_dirs(kafka.request(35, 5, topics=None), handled)
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
async def test_the_earliest_pending_upload_offset(
    node: Nodes, is_tiered: bool, end: RemoteEnd | None, offset: int
) -> None:
    one = node(1)
    tiering = {"tiering_state": int(TieringState.ENABLED), "tiered_epoch": 1} if is_tiered else {}
    await one.receive(row(leader=1, leader_epoch=1, partition_epoch=1), **tiering)
    await one.append(3)
    # ListOffsets -6 (KIP-1023): one above the copied offsets, -1 without tiering.
    one.partition.remote_end = end
    found = await consumer_reads.list_offset(one.partition, consumer_reads.EARLIEST_PENDING_UPLOAD)
    assert (found.error, found.offset) == (ErrorCode.none, offset)
    assert found.leader_epoch == (1 if offset >= 0 else -1)


async def test_the_earliest_pending_upload_offset_is_unknown_before_the_tier_is_read(
    node: Nodes,
) -> None:
    one = node(1)
    tiering = {"tiering_state": int(TieringState.ENABLED), "tiered_epoch": 1}
    await one.receive(row(leader=1, leader_epoch=1, partition_epoch=1), **tiering)
    await one.append(3)
    state = one.partition.log
    state.bounds = state.bounds._replace(local_start=2)
    found = await consumer_reads.list_offset(one.partition, consumer_reads.EARLIEST_PENDING_UPLOAD)
    assert (found.error, found.offset) == (ErrorCode.none, -1)
