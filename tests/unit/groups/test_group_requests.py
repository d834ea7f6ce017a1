"""Kafka's requests about groups, as bytes in every version, on a real log."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry

from tests.answers import room
from tests.control_messages import partition_states, topic_state
from tests.unit.api import api_requests as kafka
from tests.unit.groups.members import SETTINGS
from tests.unit.replication.replica_nodes import T0, Node
from tests.user_states import user, user_states
from tidemark.logfiles.names import GROUP_OFFSETS_TOPIC
from tidemark.wire import control
from tidemark.wire.framing import decode_response, encode_request
from tidemark_broker.api.client import Client
from tidemark_broker.api.dispatcher import APIS, Dispatcher
from tidemark_broker.groups.core.settings import GroupSettings, Now
from tidemark_broker.groups.group_coordinator import GroupCoordinator
from tidemark_broker.groups.metrics import GroupCollector
from tidemark_broker.security.user_store import UserStore

LISTENER = "PLAINTEXT"
OFFSETS_ID, TOPIC_ID = uuid.UUID(int=1), uuid.UUID(int=2)
VERSIONS = {api.name: range(api.version_min, api.version_max + 1) for api in APIS}
KEYS = {api.name: api.key for api in APIS}
NONE = ErrorCode.none


def settings(**changes: Any) -> GroupSettings:
    known = {name: getattr(SETTINGS, name) for name in SETTINGS.__dataclass_fields__}
    return GroupSettings(**(known | {"initial_rebalance_delay_ms": 0} | changes))


def row(epoch: int, leader: int = 1, replicas: tuple[int, ...] = (1,)) -> control.PartitionState:
    return control.PartitionState(
        partition=0,
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=epoch,
        replicas=replicas,
        isr=replicas,
        manifest=False,
    )


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(1000):
        if is_so():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it does not come")


class Broker:
    """One that coordinates all groups, and its clients' requests."""

    def __init__(self, folder: Path, users: UserStore | None = None, **changes: Any) -> None:
        self.node = Node(1, folder)
        context = self.node.context
        self.groups = GroupCoordinator(
            settings(**changes),
            cluster=context.metadata,
            purgatory=context.purgatory,
            want=lambda _: None,
            clock=lambda: Now(self.node.now_s, T0),
        )
        context.role_changed.append(self.groups.coordinators.role_changed)
        services: Any = SimpleNamespace(
            cluster=context.metadata,
            groups=self.groups,
            creations=SimpleNamespace(want=lambda _: None),
        )
        self.dispatcher = Dispatcher(services)
        self.users = users

    async def leads(self, epoch: int, **more: Any) -> None:
        """Epoch of ``__consumer_offsets``; there is a topic ``t`` of one partition."""
        brokers = tuple(
            control.BrokerState(broker_id=n, broker_epoch=n, rack=None, fenced=False, listeners=())
            for n in (1, 2)
        )
        await self.node.manager.apply(
            partition_states(
                topic_state(OFFSETS_ID, GROUP_OFFSETS_TOPIC, partitions=(row(epoch, **more),)),
                topic_state(TOPIC_ID, "t", partitions=(row(0, leader=2, replicas=(2,)),)),
                brokers=brokers,
            )
        )

    async def loaded(self) -> None:
        await until(lambda: not self.groups.coordinators.loading)

    async def ask(self, name: str, version: int | None = None, **fields: Any) -> Any:
        """The answer to a request, in the newest version or in that one."""
        version = VERSIONS[name][-1] if version is None else version
        request = kafka.request(KEYS[name], version, **fields)
        frame = encode_request(request, 5, "client")[4:]
        client = Client("10.0.0.1:1", LISTENER, self.users)
        pieces = await self.dispatcher.serve(memoryview(frame), room(), client)
        assert pieces is not None
        answer_type = kafka.answer_type(KEYS[name], version)
        return decode_response(answer_type, b"".join(pieces)[4:])[1]

    async def join(self, member_id: str = "", version: int = 9, **fields: Any) -> Any:
        protocol = kafka.nested(
            11, version, "JoinGroupRequestProtocol", name="range", metadata=b"m"
        )
        return await self.ask(
            "JoinGroup",
            version,
            **{
                "group_id": "g",
                "session_timeout": kafka.duration(10_000),
                "rebalance_timeout": kafka.duration(60_000),
                "member_id": member_id,
                "group_instance_id": None,
                "protocol_type": "consumer",
                "protocols": (protocol,),
                "reason": None,
            }
            | fields,
        )

    async def sync(
        self, member_id: str, generation_id: int, version: int = 5, **assignments: bytes
    ) -> Any:
        given = tuple(
            kafka.nested(14, version, "SyncGroupRequestAssignment", member_id=m, assignment=a)
            for m, a in assignments.items()
        )
        return await self.ask(
            "SyncGroup",
            version,
            group_id="g",
            generation_id=generation_id,
            member_id=member_id,
            group_instance_id=None,
            protocol_type="consumer",
            protocol_name="range",
            assignments=given,
        )

    async def member(self) -> str:
        """The one member of a stable group."""
        member_id = (await self.join()).member_id
        joined = await self.join(member_id)
        assert (joined.error_code, joined.leader) == (NONE, member_id)
        synced = await self.sync(member_id, joined.generation_id, **{member_id: b"all"})
        assert (synced.error_code, synced.assignment) == (NONE, b"all")
        return str(member_id)

    async def commit(
        self,
        member_id: str = "",
        generation_id: int = -1,
        version: int = 10,
        *,
        offset: int = 7,
        partition: int = 0,
        topic: str = "t",
        topic_id: uuid.UUID = TOPIC_ID,
    ) -> ErrorCode:
        part = kafka.nested(
            8,
            version,
            "OffsetCommitRequestPartition",
            partition_index=partition,
            committed_offset=offset,
            committed_leader_epoch=3,
            committed_metadata="text",
        )
        named = kafka.nested(
            8,
            version,
            "OffsetCommitRequestTopic",
            name=topic,
            topic_id=topic_id,
            partitions=(part,),
        )
        answer = await self.ask(
            "OffsetCommit",
            version,
            group_id="g",
            generation_id_or_member_epoch=generation_id,
            member_id=member_id,
            group_instance_id=None,
            topics=(named,),
            retention_time=kafka.duration(-1),
        )
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    async def fetch(self, version: int = 10, *, everything: bool = False, **more: Any) -> Any:
        """The group's part of the answer."""
        kind = "OffsetFetchRequestTopics" if version >= 8 else "OffsetFetchRequestTopic"
        named = kafka.nested(
            9, version, kind, name="t", topic_id=TOPIC_ID, partition_indexes=(0, 1)
        )
        topics = None if everything else (named,)
        if version >= 8:
            group = kafka.nested(
                9, version, "OffsetFetchRequestGroup",
                group_id="g", member_id=None, member_epoch=-1, topics=topics,
            )  # fmt: skip
            answer = await self.ask(
                "OffsetFetch", version, groups=(group,), **({"require_stable": False} | more)
            )
            return answer.groups[0]
        return await self.ask(
            "OffsetFetch",
            version,
            group_id="g",
            topics=topics,
            **({"require_stable": False} | more),
        )


@asynccontextmanager
async def broker(folder: Path, *grants: str, **changes: Any) -> AsyncIterator[Broker]:
    users = None
    if grants:
        users = UserStore()
        users.apply(user_states(user("ANONYMOUS", *grants)))
    made = Broker(folder, users, **changes)
    task = asyncio.create_task(made.groups.run())
    try:
        await made.leads(1)
        await made.loaded()
        yield made
    finally:
        await made.groups.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await made.node.stop()


async def test_a_group_from_its_first_member_to_its_end(tmp_path: Path) -> None:
    async with broker(tmp_path) as made:
        member = await made.member()
        beat = {"group_id": "g", "generation_id": 1, "member_id": member, "group_instance_id": None}
        assert (await made.ask("Heartbeat", **beat)).error_code is NONE
        assert await made.commit(member, 1) is NONE
        described = (await made.ask(
            "DescribeGroups", groups=("g", "h"), include_authorized_operations=True
        )).groups  # fmt: skip
        assert [each.error_code for each in described] == [NONE, ErrorCode.group_id_not_found]
        (one,) = described[0].members
        assert (one.client_id, one.client_host) == ("client", "/10.0.0.1")
        assert (one.member_metadata, one.member_assignment) == (b"m", b"all")
        assert described[0].authorized_operations == sum(1 << n for n in (3, 6, 8, 10, 11))
        listed = await made.ask("ListGroups", states_filter=("stable",), types_filter=("Classic",))
        assert [(g.group_id, g.group_state) for g in listed.groups] == [("g", "Stable")]
        deleted = await made.ask("DeleteGroups", groups_names=("g",))
        assert deleted.results[0].error_code is ErrorCode.non_empty_group
        leaving = kafka.nested(
            13, 5, "MemberIdentity", member_id=member, group_instance_id=None, reason=None
        )
        left = await made.ask("LeaveGroup", group_id="g", members=(leaving,))
        assert (left.error_code, left.members[0].error_code) == (NONE, NONE)
        deleted = await made.ask("DeleteGroups", groups_names=("g",))
        assert deleted.results[0].error_code is NONE
        assert (await made.ask("ListGroups")).groups == ()


async def test_a_new_leader_of_the_partition_goes_on(tmp_path: Path) -> None:
    async with broker(tmp_path) as made:
        member = await made.member()
        assert await made.commit(member, 1) is NONE
        await made.leads(2)
        beat = {"group_id": "g", "generation_id": 1, "member_id": member, "group_instance_id": None}
        assert (await made.ask("Heartbeat", **beat)).error_code is NONE  # though it loads
        await made.loaded()
        assert (await made.ask("Heartbeat", **beat)).error_code is NONE
        assert (await made.sync(member, 1)).assignment == b"all"
        (topic,) = (await made.fetch()).topics
        first, second = topic.partitions
        assert (first.committed_offset, first.committed_leader_epoch, first.metadata) == (
            7, 3, "text",
        )  # fmt: skip
        assert (second.committed_offset, second.error_code) == (-1, NONE)


async def test_who_waits_hears_that_another_broker_leads(tmp_path: Path) -> None:
    async with broker(tmp_path, initial_rebalance_delay_ms=60_000) as made:
        member_id = (await made.join()).member_id
        waiting = asyncio.create_task(made.join(member_id))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        await made.leads(2, leader=2, replicas=(1, 2))
        assert (await waiting).error_code is ErrorCode.not_coordinator
        assert (await made.join(member_id)).error_code is ErrorCode.not_coordinator
        assert await made.commit() is ErrorCode.not_coordinator
        assert (await made.fetch()).error_code is ErrorCode.not_coordinator


async def test_a_commit_that_is_not_replicated_is_no_success(tmp_path: Path) -> None:
    async with broker(tmp_path, commit_timeout_ms=50) as made:
        await made.leads(2, replicas=(1, 2))
        await made.loaded()
        assert await made.commit() is ErrorCode.coordinator_not_available
        assert (await made.fetch()).error_code is ErrorCode.coordinator_not_available
        await made.leads(3)
        await made.loaded()
        assert (await made.fetch()).topics[0].partitions[0].committed_offset == 7


@pytest.mark.parametrize("version", VERSIONS["JoinGroup"])
async def test_every_version_of_a_member(tmp_path: Path, version: int) -> None:
    sync_version = min(version, 5)
    async with broker(tmp_path) as made:
        joined = await made.join(version=version)
        if version >= 4:
            assert joined.error_code is ErrorCode.member_id_required
            joined = await made.join(joined.member_id, version=version)
        member = joined.member_id
        assert (joined.error_code, joined.leader, joined.protocol_name) == (NONE, member, "range")
        assert [each.metadata for each in joined.members] == [b"m"]
        synced = await made.sync(member, 1, sync_version, **{member: b"a"})
        assert (synced.error_code, synced.assignment) == (NONE, b"a")
        again = await made.sync(member, 9, sync_version)
        assert again.error_code is ErrorCode.illegal_generation
        beat = await made.ask(
            "Heartbeat", min(version, 4), group_id="g", generation_id=1, member_id=member,
            group_instance_id=None,
        )  # fmt: skip
        assert beat.error_code is NONE


@pytest.mark.parametrize("version", VERSIONS["LeaveGroup"])
async def test_every_version_of_leaving(tmp_path: Path, version: int) -> None:
    async with broker(tmp_path) as made:
        member = await made.member()
        for expected in (NONE, ErrorCode.unknown_member_id):
            named: dict[str, Any] = {"member_id": member}
            if version >= 3:
                one = kafka.nested(
                    13, version, "MemberIdentity",
                    member_id=member, group_instance_id=None, reason=None,
                )  # fmt: skip
                named = {"members": (one,)}
            left = await made.ask("LeaveGroup", version, group_id="g", **named)
            error = left.members[0].error_code if version >= 3 else left.error_code
            assert error is expected


@pytest.mark.parametrize("version", VERSIONS["OffsetCommit"])
async def test_every_version_of_a_commit(tmp_path: Path, version: int) -> None:
    async with broker(tmp_path) as made:
        assert await made.commit(version=version) is NONE
        part = (await made.fetch()).topics[0].partitions[0]
        assert (part.committed_offset, part.metadata) == (7, "text")
        assert part.committed_leader_epoch == (3 if version in range(6, 11) else -1)
        unknown = ErrorCode.unknown_topic_or_partition
        assert await made.commit(version=version, partition=1) is unknown
        no_topic = ErrorCode.unknown_topic_id if version == 10 else unknown
        asked = {"topic": "nothing", "topic_id": uuid.UUID(int=99)}
        assert await made.commit(version=version, **asked) is no_topic  # type: ignore[arg-type]
        gone = ErrorCode.group_id_not_found if version >= 9 else ErrorCode.illegal_generation
        await made.ask("DeleteGroups", groups_names=("g",))
        assert await made.commit("m", 1, version=version) is gone


@pytest.mark.parametrize("version", VERSIONS["OffsetFetch"])
async def test_every_version_of_a_fetch(tmp_path: Path, version: int) -> None:
    async with broker(tmp_path) as made:
        nothing = (await made.fetch(version)).topics[0].partitions
        assert [(each.committed_offset, each.metadata) for each in nothing] == [(-1, "")] * 2
        assert await made.commit() is NONE
        asked = (await made.fetch(version)).topics[0].partitions
        assert [each.committed_offset for each in asked] == [7, -1]
        if version >= 2:
            (topic,) = (await made.fetch(version, everything=True)).topics
            assert [each.committed_offset for each in topic.partitions] == [7]


@pytest.mark.parametrize("version", VERSIONS["DescribeGroups"])
async def test_every_version_of_a_description(tmp_path: Path, version: int) -> None:
    async with broker(tmp_path) as made:
        await made.member()
        answer = await made.ask(
            "DescribeGroups", version, groups=("g", "h"), include_authorized_operations=False
        )
        one, none = answer.groups
        assert (one.group_state, one.protocol_type, one.protocol_data) == (
            "Stable", "consumer", "range",
        )  # fmt: skip
        assert none.group_state == "Dead"
        assert none.error_code is (ErrorCode.group_id_not_found if version == 6 else NONE)


@pytest.mark.parametrize("version", VERSIONS["ListGroups"])
async def test_every_version_of_the_list(tmp_path: Path, version: int) -> None:
    async with broker(tmp_path) as made:
        await made.member()
        answer = await made.ask("ListGroups", version, states_filter=(), types_filter=())
        assert [(g.group_id, g.protocol_type) for g in answer.groups] == [("g", "consumer")]
        if version >= 4:
            other = await made.ask("ListGroups", version, states_filter=("Empty",), types_filter=())
            assert other.groups == ()
        if version >= 5:
            assert answer.groups[0].group_type == "classic"
            other = await made.ask("ListGroups", version, states_filter=(), types_filter=("share",))
            assert other.groups == ()


async def test_offsets_are_deleted_one_by_one(tmp_path: Path) -> None:
    async with broker(tmp_path) as made:
        parts = tuple(
            kafka.nested(47, 0, "OffsetDeleteRequestPartition", partition_index=n) for n in (0, 1)
        )
        topic = kafka.nested(47, 0, "OffsetDeleteRequestTopic", name="t", partitions=parts)
        answer = await made.ask("OffsetDelete", group_id="g", topics=(topic,))
        assert answer.error_code is ErrorCode.group_id_not_found
        assert await made.commit() is NONE
        answer = await made.ask("OffsetDelete", group_id="g", topics=(topic,))
        assert [each.error_code for each in answer.topics[0].partitions] == [
            NONE,
            ErrorCode.unknown_topic_or_partition,
        ]
        assert (await made.fetch(everything=True)).topics == ()


async def test_offsets_of_a_former_topic_are_none_of_the_new_one(tmp_path: Path) -> None:
    async with broker(tmp_path) as made:
        assert await made.commit() is NONE
        cluster = made.node.context.metadata
        again = topic_state(uuid.UUID(int=3), "t", partitions=(row(0, leader=2, replicas=(2,)),))
        cluster.apply(partition_states(again))
        part = (await made.fetch(9)).topics[0].partitions[0]
        assert part.committed_offset == -1
        shard = made.groups.coordinators.shard_of("g")
        await until(lambda: not shard.offsets.of_group("g"))  # they go: that one was deleted


async def test_the_figures(tmp_path: Path) -> None:
    async with broker(tmp_path) as made:
        await made.member()
        registry = CollectorRegistry()
        registry.register(GroupCollector(made.groups))

        def figure(name: str, **labels: str) -> float | None:
            return registry.get_sample_value(f"tidemark_broker_{name}", labels)

        assert figure("groups", state="Stable") == 1
        assert figure("groups", state="Empty") == 0
        assert figure("group_members") == 1
        assert (figure("groups_bytes") or 0) > 1000
        assert made.groups.room.used_bytes == figure("groups_bytes")
        await made.leads(2, leader=2, replicas=(1, 2))
        assert made.groups.room.used_bytes == 0


DENIED = ErrorCode.group_authorization_failed
NO_TOPIC = ErrorCode.topic_authorization_failed


async def test_who_may_not_use_the_group(tmp_path: Path) -> None:
    async with broker(tmp_path, "ALLOW ALL TOPIC *", "ALLOW ALL GROUP other") as made:
        assert (await made.join()).error_code is DENIED
        assert (await made.sync("m", 1)).error_code is DENIED
        for name, fields in (
            ("Heartbeat", {"generation_id": 1, "member_id": "m", "group_instance_id": None}),
            ("LeaveGroup", {"members": ()}),
            ("OffsetDelete", {"topics": ()}),
        ):
            assert (await made.ask(name, group_id="g", **fields)).error_code is DENIED
        assert await made.commit() is DENIED
        assert (await made.fetch()).error_code is DENIED
        first_version = (await made.fetch(1)).topics[0].partitions
        assert [each.error_code for each in first_version] == [DENIED, DENIED]
        described = await made.ask(
            "DescribeGroups", groups=("g",), include_authorized_operations=True
        )
        assert described.groups[0].error_code is DENIED
        deleted = await made.ask("DeleteGroups", groups_names=("g",))
        assert deleted.results[0].error_code is DENIED


async def test_who_may_not_use_the_topic(tmp_path: Path) -> None:
    async with broker(tmp_path, "ALLOW ALL GROUP *") as made:
        assert await made.commit() is NO_TOPIC
        assert [e.error_code for e in (await made.fetch()).topics[0].partitions] == [NO_TOPIC] * 2
        assert (await made.fetch(everything=True)).topics == ()
        assert [g.group_id for g in (await made.ask("ListGroups")).groups] == []
        await made.join()
        assert [g.group_id for g in (await made.ask("ListGroups")).groups] == ["g"]


async def test_requests_without_a_group(tmp_path: Path) -> None:
    async with broker(tmp_path) as made:
        invalid = ErrorCode.invalid_group_id
        assert (await made.join(group_id="")).error_code is invalid
        beat = {"group_id": "", "generation_id": 1, "member_id": "m", "group_instance_id": None}
        assert (await made.ask("Heartbeat", **beat)).error_code is invalid
        left = await made.ask("LeaveGroup", group_id="", members=())
        assert left.error_code is invalid
