"""Kafka's requests about groups, as bytes in every version, on a real log."""

import asyncio
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry

from tests.control_messages import partition_states, topic_state
from tests.loop_turns import many_turns
from tests.unit.api import api_requests as kafka
from tests.unit.groups.group_broker import NONE, VERSIONS, broker, row, until
from tests.unit.replication.replica_nodes import T0
from tidemark.metrics.families import ReadOnlyCollector
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.coordinators.log import TransactionalProducer
from tidemark_broker.groups.core.classic_group import ClassicGroup
from tidemark_broker.groups.core.offsets import CommittedOffset, OffsetKey
from tidemark_broker.groups.core.values import JoinRequest, MemberIdentity, MemberProtocol
from tidemark_broker.log import appending
from tidemark_broker.metrics import group_metrics


async def test_a_group_from_its_first_member_to_its_end(tmp_path: Path) -> None:
    async with broker(tmp_path) as made:
        member = await made.member()
        beat = {"group_id": "g", "generation_id": 1, "member_id": member, "group_instance_id": None}
        assert (await made.ask("Heartbeat", **beat)).error_code is NONE
        assert await made.commit(member, 1) is NONE
        described = (await made.ask(
            "DescribeGroups", groups=("g", "h"), include_authorized_operations=True
        )).groups  # fmt: skip
        assert [item.error_code for item in described] == [NONE, ErrorCode.group_id_not_found]
        (one,) = described[0].members
        assert (one.client_id, one.client_host) == ("client", "/10.0.0.1")
        assert (one.member_metadata, one.member_assignment) == (b"m", b"all")
        # The codes of READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS and ALTER_CONFIGS in AclOperation.
        assert described[0].authorized_operations == sum(1 << n for n in (3, 6, 8, 10, 11))
        listed = await made.ask("ListGroups", states_filter=("stable",), types_filter=("Classic",))
        assert [(g.group_id, g.group_state) for g in listed.groups] == [("g", "Stable")]
        # A group with members cannot be deleted. Its member has to leave first.
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


async def test_empty_group_id_is_rejected(tmp_path: Path) -> None:
    """The coordinator checks the protocol first (KIP-559)."""
    async with broker(tmp_path) as made:
        deleted = await made.ask("OffsetDelete", group_id="", topics=())
        assert deleted.error_code is ErrorCode.invalid_group_id
        member = {"group_id": "", "generation_id": 1, "member_id": "m", "group_instance_id": None}
        for name, error in ((None, "inconsistent_group_protocol"), ("range", "invalid_group_id")):
            synced = await made.ask(
                "SyncGroup", **member, protocol_type="consumer", protocol_name=name, assignments=()
            )
            assert synced.error_code.name == error


async def test_new_leader_of_the_partition_loads_the_group(tmp_path: Path) -> None:
    async with broker(tmp_path) as made:
        member = await made.member()
        assert await made.commit(member, 1) is NONE
        await made.leads(2)
        beat = {"group_id": "g", "generation_id": 1, "member_id": member, "group_instance_id": None}
        # Kafka answers heartbeats with success while the coordinator loads, so that no member
        # rejoins.
        assert (await made.ask("Heartbeat", **beat)).error_code is NONE
        await made.loaded()
        assert (await made.ask("Heartbeat", **beat)).error_code is NONE
        assert (await made.sync(member, 1)).assignment == b"all"
        (topic,) = (await made.fetch()).topics
        first, second = topic.partitions
        assert (first.committed_offset, first.committed_leader_epoch, first.metadata) == (
            7, 3, "text",
        )  # fmt: skip
        assert (second.committed_offset, second.error_code) == (-1, NONE)


async def test_waiting_join_is_answered_when_leadership_moves(tmp_path: Path) -> None:
    async with broker(tmp_path, initial_rebalance_delay_ms=60_000) as made:
        member_id = (await made.join()).member_id
        # The join waits for the initial rebalance delay of 60 s.
        waiting = asyncio.create_task(made.join(member_id))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        await made.leads(2, leader=2, replicas=(1, 2))
        assert (await waiting).error_code is ErrorCode.not_coordinator
        assert (await made.join(member_id)).error_code is ErrorCode.not_coordinator
        assert await made.commit() is ErrorCode.not_coordinator
        assert (await made.fetch()).error_code is ErrorCode.not_coordinator


async def test_join_waits_for_a_request_that_changes_the_group(tmp_path: Path) -> None:
    """An upgrade of the group, for example, takes several steps."""
    async with broker(tmp_path) as made:
        member_id = (await made.join()).member_id
        shard = made.groups.coordinators.shard_of("g")
        assert shard.takes_one_step("g")
        async with shard.turn("g"):
            joining = asyncio.create_task(made.join(member_id))
            await many_turns()
            # The member has not joined, and another group is not affected.
            assert not shard.groups["g"].members
            assert not shard.takes_one_step("g")
            assert shard.takes_one_step("h")
        assert (await joining).error_code is NONE


async def test_large_request_of_a_member_waits_for_a_limited_time(tmp_path: Path) -> None:
    async with broker(tmp_path, initial_rebalance_delay_ms=60_000) as made:
        request = JoinRequest(
            group_id="g",
            who=MemberIdentity(""),
            client_id="client",
            client_host="/10.0.0.1",
            rebalance_timeout_ms=60_000,
            session_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=(MemberProtocol("range", b"m"),),
            needs_member_id=False,
            may_skip_assignment=False,
            new_id="id",
            answer=lambda _: None,
        )
        late = await made.groups.join(lambda deliver: replace(request, answer=deliver), 0.01)
        assert late.error is ErrorCode.rebalance_in_progress


async def test_unreplicated_commit_times_out(tmp_path: Path) -> None:
    async with broker(tmp_path, commit_timeout_ms=50) as made:
        # Broker 2 is in the ISR and fetches nothing, so that the high watermark does not advance.
        await made.leads(2, replicas=(1, 2))
        await made.loaded()
        assert await made.commit() is ErrorCode.coordinator_not_available
        assert (await made.fetch()).error_code is ErrorCode.coordinator_not_available
        # Without the follower, the record is committed: the answer was a timeout, not a failure.
        await made.leads(3)
        await made.loaded()
        assert (await made.fetch()).topics[0].partitions[0].committed_offset == 7


async def test_no_client_sees_a_transactions_end_before_it_is_replicated(tmp_path: Path) -> None:
    producer = TransactionalProducer(7, 1)
    async with broker(tmp_path, commit_timeout_ms=50) as made:
        shard = made.groups.coordinators.shard_of("g")
        of, kept = OffsetKey("t", 0), CommittedOffset(
            offset=7, leader_epoch=0, metadata="", commit_timestamp_ms=0
        )  # fmt: skip
        shard.groups["g"] = ClassicGroup("g")
        # The offset belongs to an open transaction.
        shard.offsets.put("g", of, kept, producer)
        unstable = (await made.fetch(require_stable=True)).topics[0].partitions[0]
        assert unstable.error_code is ErrorCode.unstable_offset_commit
        assert (await made.fetch()).topics[0].partitions[0].committed_offset == -1
        partition = shard.log.partition
        high_watermark = partition.high_watermark
        # The marker is appended, but the high watermark does not cover it yet.
        made.groups.ready_for_marker(0)
        appending.append_as_leader(
            partition.log, kafka.batch(b"as long as a marker"), leader_epoch=1, now_ms=T0
        )
        made.groups.marker_appended(0, producer, committed=True)
        assert (await made.fetch()).error_code is ErrorCode.coordinator_not_available
        assert partition.high_watermark == high_watermark
        # The marker is replicated. From here on the offset is visible.
        partition.log.advance_high_watermark(partition.next_offset)
        assert (await made.fetch()).topics[0].partitions[0].committed_offset == 7
        # This broker does not lead partition 1 of the topic.
        with pytest.raises(CoordinatorError):
            made.groups.ready_for_marker(1)


@pytest.mark.parametrize("version", VERSIONS["JoinGroup"])
async def test_every_version_of_a_member(tmp_path: Path, version: int) -> None:
    sync_version = min(version, 5)
    async with broker(tmp_path) as made:
        joined = await made.join(version=version)
        # MEMBER_ID_REQUIRED exists from version 4 on (KIP-394).
        if version >= 4:
            assert joined.error_code is ErrorCode.member_id_required
            joined = await made.join(joined.member_id, version=version)
        member = joined.member_id
        assert (joined.error_code, joined.leader, joined.protocol_name) == (NONE, member, "range")
        assert [item.metadata for item in joined.members] == [b"m"]
        synced = await made.sync(member, 1, sync_version, **{member: b"a"})
        assert (synced.error_code, synced.assignment) == (NONE, b"a")
        stale = await made.sync(member, 9, sync_version)
        assert stale.error_code is ErrorCode.illegal_generation
        beat = await made.ask(
            "Heartbeat", min(version, 4), group_id="g", generation_id=1, member_id=member,
            group_instance_id=None,
        )  # fmt: skip
        assert beat.error_code is NONE


@pytest.mark.parametrize("version", VERSIONS["LeaveGroup"])
async def test_every_version_of_leaving(tmp_path: Path, version: int) -> None:
    async with broker(tmp_path) as made:
        member = await made.member()
        # The second request finds the member removed.
        for expected in (NONE, ErrorCode.unknown_member_id):
            named: dict[str, Any] = {"member_id": member}
            # From version 3 on, a request names several members (KIP-345).
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
        # Version 6 introduced the leader epoch (KIP-320).
        assert part.committed_leader_epoch == (3 if version in range(6, 11) else -1)
        unknown = ErrorCode.unknown_topic_or_partition
        assert await made.commit(version=version, partition=1) is unknown
        # Version 10 has topic ids instead of names.
        no_topic = ErrorCode.unknown_topic_id if version == 10 else unknown
        absent = {"topic": "nothing", "topic_id": uuid.UUID(int=99)}
        assert await made.commit(version=version, **absent) is no_topic  # type: ignore[arg-type]
        # KIP-848 added the error for groups that do not exist, in version 9.
        deleted = ErrorCode.group_id_not_found if version >= 9 else ErrorCode.illegal_generation
        await made.ask("DeleteGroups", groups_names=("g",))
        assert await made.commit("m", 1, version=version) is deleted


@pytest.mark.parametrize("version", VERSIONS["OffsetFetch"])
async def test_every_version_of_a_fetch(tmp_path: Path, version: int) -> None:
    async with broker(tmp_path) as made:
        nothing = (await made.fetch(version)).topics[0].partitions
        assert [(item.committed_offset, item.metadata) for item in nothing] == [(-1, "")] * 2
        assert await made.commit() is NONE
        fetched = (await made.fetch(version)).topics[0].partitions
        assert [item.committed_offset for item in fetched] == [7, -1]
        # From version 2 on, a request may ask for all partitions with offsets.
        if version >= 2:
            (topic,) = (await made.fetch(version, everything=True)).topics
            assert [partition.committed_offset for partition in topic.partitions] == [7]


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
        # Version 6 introduced an error for unknown groups (KIP-1043). Before, they were dead.
        assert none.error_code is (ErrorCode.group_id_not_found if version == 6 else NONE)


@pytest.mark.parametrize("version", VERSIONS["ListGroups"])
async def test_every_version_of_the_list(tmp_path: Path, version: int) -> None:
    async with broker(tmp_path) as made:
        await made.member()
        answer = await made.ask("ListGroups", version, states_filter=(), types_filter=())
        assert [(g.group_id, g.protocol_type) for g in answer.groups] == [("g", "consumer")]
        # Version 4 introduced the filter by state (KIP-518).
        if version >= 4:
            other = await made.ask("ListGroups", version, states_filter=("Empty",), types_filter=())
            assert other.groups == ()
        # Version 5 introduced the filter by type (KIP-848).
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
        # Topic t has only partition 0.
        assert [partition.error_code for partition in answer.topics[0].partitions] == [
            NONE,
            ErrorCode.unknown_topic_or_partition,
        ]
        assert (await made.fetch(everything=True)).topics == ()


async def test_join_with_too_many_protocols_is_rejected(tmp_path: Path) -> None:
    async with broker(tmp_path) as made:
        protocol = kafka.nested(11, 9, "JoinGroupRequestProtocol", name="range", metadata=b"")
        joined = await made.join(protocols=(protocol,) * 101)
        assert joined.error_code is ErrorCode.invalid_request


async def test_a_thousand_members_leave_at_once(tmp_path: Path) -> None:
    """The members leave in batches; each one still has its own result."""
    async with broker(tmp_path) as made:
        member = await made.member()
        leaving = tuple(
            kafka.nested(
                13, 5, "MemberIdentity", member_id=value, group_instance_id=None, reason=None
            )
            for value in (*("nobody",) * 900, member, *("nobody",) * 50)
        )
        # The member is in the middle: its result must keep its position among the batches.
        left = await made.ask("LeaveGroup", group_id="g", members=leaving)
        errors = [item.error_code for item in left.members]
        assert errors.count(ErrorCode.unknown_member_id) == 950
        assert errors[900] is NONE
        shard = made.groups.coordinators.shard_of("g")
        assert not shard.groups["g"].members


async def test_offsets_of_a_deleted_topic_do_not_apply_to_its_successor(tmp_path: Path) -> None:
    async with broker(tmp_path) as made:
        assert await made.commit() is NONE
        cluster = made.node.context.metadata
        recreated = topic_state(
            uuid.UUID(int=3), "t", partitions=(row(0, leader=2, replicas=(2,)),)
        )
        cluster.apply(partition_states(recreated))
        part = (await made.fetch(9)).topics[0].partitions[0]
        assert part.committed_offset == -1
        # A complete state without the first topic id means that its topic was deleted.
        cluster.apply(partition_states(knows_all=True))
        shard = made.groups.coordinators.shard_of("g")
        await until(lambda: not shard.offsets.of_group("g"))


async def test_group_metrics(tmp_path: Path) -> None:
    async with broker(tmp_path) as made:
        await made.member()
        registry = CollectorRegistry()
        registry.register(ReadOnlyCollector(lambda: group_metrics(made.groups)))

        def figure(name: str, **labels: str) -> float | None:
            return registry.get_sample_value(f"tidemark_broker_{name}", labels)

        assert figure("groups", state="Stable") == 1
        assert figure("groups", state="Empty") == 0
        assert figure("group_members") == 1
        assert (figure("groups_bytes") or 0) > 1000
        assert made.groups.room.used_bytes == figure("groups_bytes")
        # The broker no longer leads the partition, and frees the memory of its groups.
        await made.leads(2, leader=2, replicas=(1, 2))
        assert made.groups.room.used_bytes == 0


DENIED = ErrorCode.group_authorization_failed
NO_TOPIC = ErrorCode.topic_authorization_failed


async def test_requests_without_permission_on_the_group(tmp_path: Path) -> None:
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
        # Before version 2, an answer has errors of partitions only.
        first_version = (await made.fetch(1)).topics[0].partitions
        assert [item.error_code for item in first_version] == [DENIED, DENIED]
        described = await made.ask(
            "DescribeGroups", groups=("g",), include_authorized_operations=True
        )
        assert described.groups[0].error_code is DENIED
        deleted = await made.ask("DeleteGroups", groups_names=("g",))
        assert deleted.results[0].error_code is DENIED


async def test_requests_without_permission_on_the_topic(tmp_path: Path) -> None:
    async with broker(tmp_path, "ALLOW ALL GROUP *") as made:
        assert await made.commit() is NO_TOPIC
        assert [e.error_code for e in (await made.fetch()).topics[0].partitions] == [NO_TOPIC] * 2
        assert (await made.fetch(everything=True)).topics == ()
        assert [g.group_id for g in (await made.ask("ListGroups")).groups] == []
        await made.join()
        assert [g.group_id for g in (await made.ask("ListGroups")).groups] == ["g"]


async def test_oversized_answers_are_retriable(tmp_path: Path) -> None:
    """Any client may name the same large group as often as it likes."""
    later = ErrorCode.coordinator_load_in_progress
    async with broker(tmp_path) as made:
        assert await made.commit(await made.member(), 1) is NONE
        # 1 MiB has room for some hundred descriptions of the group.
        made.answer_bytes = 1 << 20
        described = await made.ask(
            "DescribeGroups", groups=("g",) * 1000, include_authorized_operations=False
        )
        errors = [item.error_code for item in described.groups]
        assert errors[0] is NONE
        assert 100 < errors.count(later) < 900
        group = kafka.nested(
            9, 10, "OffsetFetchRequestGroup",
            group_id="g", member_id=None, member_epoch=-1, topics=None,
        )  # fmt: skip
        # There is room for no answer, and the first one is sent in any case.
        made.answer_bytes = 1
        fetched = await made.ask("OffsetFetch", groups=(group,) * 900, require_stable=False)
        assert {item.error_code for item in fetched.groups} == {NONE, later}
        # 500 further groups exceed the smallest list.
        made.groups.coordinators.shard_of("g").groups.update(
            {f"g{number}": ClassicGroup(f"g{number}") for number in range(500)}
        )
        assert (await made.ask("ListGroups")).error_code is later
        made.answer_bytes = 1 << 20
        assert len((await made.ask("ListGroups")).groups) == 501


async def test_requests_with_an_empty_group_id_are_rejected(tmp_path: Path) -> None:
    async with broker(tmp_path) as made:
        invalid = ErrorCode.invalid_group_id
        assert (await made.join(group_id="")).error_code is invalid
        beat = {"group_id": "", "generation_id": 1, "member_id": "m", "group_instance_id": None}
        assert (await made.ask("Heartbeat", **beat)).error_code is invalid
        left = await made.ask("LeaveGroup", group_id="", members=())
        assert left.error_code is invalid


async def test_one_client_that_makes_up_groups_leaves_room_for_others(tmp_path: Path) -> None:
    async with broker(tmp_path, bytes_max=100_000) as made:

        async def commit(peer: str, group_id: str) -> ErrorCode:
            made.peer = peer
            return await made.commit(group_id=group_id)

        errors = [await commit("10.0.0.1:1", f"g{number}") for number in range(200)]
        refused = errors.index(ErrorCode.group_max_size_reached)
        # One address may use half of the memory, whatever the port of its connection.
        assert set(errors[:refused]) == {NONE}
        assert made.groups.room.used_bytes < 60_000
        assert await commit("10.0.0.1:2", "more") is ErrorCode.group_max_size_reached
        assert await commit("10.0.0.2:1", "other") is NONE
        assert await commit("10.0.0.1:1", "g0") is NONE, "existing groups continue"
