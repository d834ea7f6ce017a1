"""Automatic topic creation by a broker: content, time and batching of its requests."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence

import pytest
from kio.schema.errors import ErrorCode

from tidemark.wire import control
from tidemark.wire.topics import CHANGES_MAX, TopicChange, TopicChangeResult
from tidemark_broker.config_entries import ConfigError
from tidemark_broker.replication.metadata import MetadataCache
from tidemark_broker.topic_changes.creations import (
    WAITING_MAX,
    Creations,
    TopicRequests,
    creation_of,
)
from tidemark_broker.topic_changes.forwarder import ChangeForwarder, Requester

GROUPS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"


class RecordingForwarder(ChangeForwarder):
    """Forwarder that records its requests; ``error`` is its answer."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, list[str | None]]] = []
        self.error = ErrorCode.none

    async def change(
        self,
        changes: Sequence[TopicChange],
        requester: Requester,
        *,
        timeout_s: float,
        validate_only: bool = False,
    ) -> list[TopicChangeResult]:
        self.requests.append((requester.principal, [change.name for change in changes]))
        assert all(change.automatic for change in changes)
        failed = TopicChangeResult(error_code=int(self.error), error_message="", topic_id=None)
        return [failed] * len(changes)


class CreationWorld:
    """Running topic creation with a controllable clock."""

    def __init__(self) -> None:
        self.controller = RecordingForwarder()
        self.cluster = MetadataCache("c")
        self.now_s = 100.0
        self.creations = Creations(self.controller, self.cluster, {}, monotonic=lambda: self.now_s)

    def push(self, *topics: str, **config: str) -> None:
        """Push a state with these topics."""
        self.cluster.apply(
            control.PartitionStatesRequest(
                controller_id="op",
                controller_epoch=1,
                full=True,
                cluster_id="c",
                cluster_config=tuple(
                    control.ConfigEntry(name=name.replace("_", "."), value=value)
                    for name, value in config.items()
                ),
                remote_storage="",
                store_id="",
                brokers=(),
                topics=tuple(_state(name) for name in topics),
                removals=(),
            )
        )

    async def requests(self) -> list[tuple[str, list[str | None]]]:
        """Return all requests once none is pending."""
        for _ in range(5):
            await asyncio.sleep(0)
        return self.controller.requests


def _state(name: str) -> control.TopicState:
    return control.TopicState(
        topic_id=uuid.uuid5(uuid.NAMESPACE_URL, name),
        name=name,
        config=(),
        tiering_state=0,
        tiered_epoch=-1,
        disable_policy=0,
        partitions=(),
    )


@pytest.fixture
async def world() -> AsyncIterator[CreationWorld]:
    made = CreationWorld()
    running = asyncio.create_task(made.creations.run())
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_repeated_needs_are_requested_once(world: CreationWorld) -> None:
    for _ in range(10):
        world.creations.request(GROUPS)
    world.creations.request(TRANSACTIONS)
    assert await world.requests() == [("a broker", [GROUPS, TRANSACTIONS])]
    # The first request is still unanswered by a pushed state.
    world.creations.request(GROUPS)
    assert len(await world.requests()) == 1


async def test_repeated_requests_back_off(world: CreationWorld) -> None:
    world.controller.error = ErrorCode.not_controller
    request_times = []
    for tick in range(200):
        world.now_s = 100.0 + tick * 0.1
        world.creations.request(GROUPS)
        if len(await world.requests()) > len(request_times):
            request_times.append(round(tick * 0.1, 1))
    # The pause doubles from 0.5 s.
    assert request_times == [0.0, 0.5, 1.5, 3.5, 7.5, 15.5]


async def test_an_existing_topic_is_not_requested(world: CreationWorld) -> None:
    world.push(GROUPS)
    world.creations.request(GROUPS)
    assert await world.requests() == []


async def test_user_topic_is_created_if_auto_create_is_enabled(world: CreationWorld) -> None:
    world.creations.request("orders", principal="User:alice")
    assert await world.requests() == []
    world.push(auto_create_topics_enable="true")
    world.creations.request("orders", principal="User:alice")
    world.creations.request("__cluster_metadata")
    assert await world.requests() == [("User:alice", ["orders"])]


def test_pending_names_are_limited_per_user() -> None:
    pending = TopicRequests()
    accepted = {
        user: sum(pending.add(f"{user}{number}", user, 0.0) for number in range(WAITING_MAX))
        for user in ("User:alice", "User:bob", "User:carl")
    }
    # One user may use at most half of the room.
    half = WAITING_MAX // 2
    assert accepted == {"User:alice": half, "User:bob": half, "User:carl": 0}, "others have room"
    assert len(pending.take(0.0)) == CHANGES_MAX
    assert pending.add("more", "User:alice", 0.0)
    assert not pending.add("more of bob's", "User:bob", 0.0)


def test_coordinator_topics_follow_the_broker_config() -> None:
    requests = creation_of(
        TRANSACTIONS,
        {
            "transaction.state.log.num.partitions": "7",
            "transaction.state.log.replication.factor": "2",
            "transaction.state.log.min.isr": "1",
        },
    )
    assert (requests.partitions, requests.replication_factor) == (7, 2)
    config = {setting.name: setting.value for setting in requests.settings}
    assert config == {
        "cleanup.policy": "compact",
        "min.insync.replicas": "1",
        "segment.bytes": "104857600",
        "unclean.leader.election.enable": "false",
    }
    groups = creation_of(GROUPS, {})
    # Kafka's defaults of offsets.topic.num.partitions and replication.factor.
    assert (groups.partitions, groups.replication_factor) == (50, 3)
    with pytest.raises(ConfigError, match=r"offsets[.]topic[.]num[.]partitions='none'"):
        creation_of(GROUPS, {"offsets.topic.num.partitions": "none"})


def test_internal_topics_precede_client_topics() -> None:
    pending = TopicRequests()
    for number in range(WAITING_MAX):
        assert pending.add(f"t{number}", f"User:{number % 2}", 100.0)
    assert not pending.add("one-more", "User:bob", 100.0)
    assert pending.add(GROUPS, "", 100.0)
    batch = pending.take(100.0)
    assert list(batch)[:2] == [GROUPS, "t0"]
    assert len(batch) == CHANGES_MAX
