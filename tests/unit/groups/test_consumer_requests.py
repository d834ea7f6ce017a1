"""KIP-848's requests as bytes in every version, on a real log."""

import uuid
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.control_messages import partition_states, topic_state
from tests.unit.api import api_requests as kafka
from tests.unit.groups.group_broker import NONE, TOPIC_ID, VERSIONS, GroupBroker, broker, row
from tidemark_broker.groups.core.settings import Migration

MEMBER = "member-1"


async def beat(made: GroupBroker, epoch: int, version: int = 1, **more: Any) -> Any:
    fields: dict[str, Any] = {
        "group_id": "g",
        "member_id": MEMBER,
        "member_epoch": epoch,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": kafka.duration(-1),
        "subscribed_topic_names": None,
        "server_assignor": None,
        "topic_partitions": None,
    }
    if version >= 1:
        fields["subscribed_topic_regex"] = None
    return await made.ask("ConsumerGroupHeartbeat", version, **(fields | more))


async def join(made: GroupBroker, version: int = 1, **more: Any) -> Any:
    fields = {
        "rebalance_timeout": kafka.duration(60_000),
        "subscribed_topic_names": ("t",),
        "topic_partitions": (),
    }
    return await beat(made, 0, version, **(fields | more))


async def describe(made: GroupBroker, version: int = 1, group_id: str = "g") -> Any:
    answer = await made.ask(
        "ConsumerGroupDescribe", version, group_ids=(group_id,), include_authorized_operations=True
    )
    (group,) = answer.groups
    return group


@pytest.mark.parametrize("version", VERSIONS["ConsumerGroupHeartbeat"])
async def test_a_member_joins_stays_and_leaves(tmp_path: Path, version: int) -> None:
    async with broker(tmp_path) as made:
        joined = await join(made, version, server_assignor="range")
        assert (joined.error_code, joined.member_epoch) == (NONE, 1)
        (assigned,) = joined.assignment.topic_partitions
        assert (assigned.topic_id, assigned.partitions) == (TOPIC_ID, (0,))
        assert joined.heartbeat_interval.total_seconds() == 5
        assert (await beat(made, 1, version)).assignment is None
        group = await describe(made, version)
        assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Stable", 1, 1)
        assert (group.assignor_name, group.authorized_operations > 0) == ("range", True)
        (member,) = group.members
        assert (member.member_id, member.member_epoch, member.client_id) == (MEMBER, 1, "client")
        assert [t.topic_name for t in member.assignment.topic_partitions] == ["t"]
        assert member.target_assignment == member.assignment
        assert member.subscribed_topic_regex == ""  # Kafka sends it for a subscription to names.
        if version >= 1:
            assert member.member_type == 1
        assert (await beat(made, -1, version)).member_epoch == -1
        assert (await describe(made, version)).group_state == "Empty"


async def test_empty_group_id_is_rejected(tmp_path: Path) -> None:
    async with broker(tmp_path) as made:
        assert (await describe(made, group_id="")).error_code is ErrorCode.invalid_group_id


async def test_version_0_generates_a_member_id(tmp_path: Path) -> None:
    async with broker(tmp_path) as made:
        assert (await join(made, 0, member_id="")).member_id
        # From version 1 on, the client generates the id (KIP-1082).
        refused = await join(made, 1, member_id="")
        assert refused.error_code is ErrorCode.invalid_request
        assert refused.error_message == "MemberId can't be empty."


async def test_offset_requests_check_the_member_epoch(tmp_path: Path) -> None:
    async with broker(tmp_path) as made:
        await join(made)
        assert await made.commit(MEMBER, 1) is NONE
        assert await made.commit(MEMBER, 2) is ErrorCode.stale_member_epoch
        assert await made.commit("other", 1) is ErrorCode.unknown_member_id
        # The number is a generation in version 8, which this protocol does not have.
        assert await made.commit(MEMBER, 1, version=8) is ErrorCode.unsupported_version
        for member_id, epoch, error in (
            (MEMBER, 1, NONE),
            # An administrator fetches without a member.
            (None, -1, NONE),
            (MEMBER, 2, ErrorCode.stale_member_epoch),
            ("other", 1, ErrorCode.unknown_member_id),
        ):
            named = kafka.nested(
                9, 10, "OffsetFetchRequestGroup",
                group_id="g", member_id=member_id, member_epoch=epoch, topics=None,
            )  # fmt: skip
            answer = await made.ask("OffsetFetch", 10, groups=(named,), require_stable=False)
            assert answer.groups[0].error_code is error


async def test_new_leader_of_the_partition_loads_the_group(tmp_path: Path) -> None:
    async with broker(tmp_path) as made:
        await join(made)
        before = await describe(made)
        # The same broker leads in a new epoch, and replays its log before it answers.
        await made.leads(2)
        loading = await beat(made, 1)
        assert loading.error_code is ErrorCode.coordinator_load_in_progress
        await made.loaded()
        assert await describe(made) == before
        assert (await beat(made, 1)).error_code is NONE
        assert (await beat(made, 2)).error_code is ErrorCode.fenced_member_epoch
        # Another broker leads: this one redirects its clients.
        await made.leads(3, leader=2, replicas=(1, 2))
        assert (await beat(made, 1)).error_code is ErrorCode.not_coordinator
        assert (await describe(made)).error_code is ErrorCode.not_coordinator


async def test_broker_resolves_subscription_regex(tmp_path: Path) -> None:
    async with broker(tmp_path) as made:
        wrong = await join(made, subscribed_topic_names=None, subscribed_topic_regex="(")
        assert wrong.error_code is ErrorCode.invalid_regular_expression
        assert "SubscribedTopicRegex `(`" in wrong.error_message
        assert (await describe(made)).error_code is ErrorCode.group_id_not_found
        joined = await join(made, subscribed_topic_names=None, subscribed_topic_regex="t|u.*")
        assert [t.topic_id for t in joined.assignment.topic_partitions] == [TOPIC_ID]
        other_id = uuid.UUID(int=9)
        other = topic_state(other_id, "u1", partitions=(row(0, leader=2, replicas=(2,)),))
        made.node.context.metadata.apply(partition_states(other, full=False))
        # The expression may be resolved again after 10 s.
        made.node.now_s += 11
        made.wall_ms += 11_000
        answer = await beat(made, 1)
        assert {t.topic_id for t in answer.assignment.topic_partitions} == {TOPIC_ID, other_id}
        (member,) = (await describe(made)).members
        assert member.subscribed_topic_regex == "t|u.*"


async def test_requests_without_permission_are_denied(tmp_path: Path) -> None:
    async with broker(tmp_path, "ALLOW ALL TOPIC *", "ALLOW DESCRIBE GROUP other") as made:
        assert (await join(made)).error_code is ErrorCode.group_authorization_failed
        assert (await describe(made)).error_code is ErrorCode.group_authorization_failed
    async with broker(tmp_path / "b", "ALLOW ALL GROUP *") as made:
        assert (await join(made)).error_code is ErrorCode.topic_authorization_failed
        # An expression only matches topics that the user may describe: there are none.
        seen = await join(made, subscribed_topic_names=None, subscribed_topic_regex=".*")
        assert (seen.error_code, seen.assignment.topic_partitions) == (NONE, ())


async def test_classic_requests_reject_a_consumer_group(tmp_path: Path) -> None:
    async with broker(tmp_path, migration=Migration.DISABLED) as made:
        await join(made)
        listed = (await made.ask("ListGroups", states_filter=(), types_filter=("Consumer",))).groups
        assert [(g.group_id, g.group_type, g.group_state) for g in listed] == [
            ("g", "consumer", "Stable")
        ]
        none = await made.ask("ListGroups", states_filter=(), types_filter=("classic",))
        assert none.groups == ()
        # Classic requests report the group as absent, and name the reason.
        classic = await made.ask(
            "DescribeGroups", groups=("g",), include_authorized_operations=False
        )
        assert classic.groups[0].error_code is ErrorCode.group_id_not_found
        assert classic.groups[0].error_message == "Group g is not a classic group."
        deleted = await made.ask("DeleteGroups", groups_names=("g",))
        assert deleted.results[0].error_code is ErrorCode.non_empty_group
        assert (await made.join()).error_code is ErrorCode.inconsistent_group_protocol
        assert await made.commit(MEMBER, 1) is NONE
        # Without members, the group may change to the classic protocol.
        await beat(made, -1)
        classic_member = await made.member()
        # Migration is disabled, so that a group with classic members does not change back.
        refused = await join(made)
        assert refused.error_code is ErrorCode.group_id_not_found
        assert "because online upgrade is disabled" in refused.error_message
        # The offset has outlived the change of protocol.
        offset = (await made.fetch()).topics[0].partitions[0].committed_offset
        assert offset == 7
        # Without its classic member, the group may change again.
        leaving = kafka.nested(
            13, 5, "MemberIdentity", member_id=classic_member, group_instance_id=None, reason=None
        )
        await made.ask("LeaveGroup", group_id="g", members=(leaving,))
        assert (await join(made)).error_code is NONE
        await beat(made, -1)
        deleted = await made.ask("DeleteGroups", groups_names=("g",))
        assert deleted.results[0].error_code is NONE
        assert (await made.ask("ListGroups", states_filter=(), types_filter=())).groups == ()
