"""The life of a group's member: of the classic protocol, of an instance, of KIP-848's."""

import struct
from collections.abc import Iterator, Mapping
from functools import partial

from tests.conformance.oracle.case import READ
from tests.conformance.oracle.entities import id_of, in_partition, numbered
from tests.conformance.oracle.steps import GENERATION, MEMBER, StoryStep, heard, step

_SUBSCRIPTION = struct.pack(f">hih{len(READ)}si", 0, 1, len(READ), READ.encode(), -1)


def _joining(group: str, what: str, /, **changed: object) -> StoryStep:
    # One member cannot complete a rebalance in time if it waits for others, so the timeouts are
    # short.
    fields = {
        "group_id": group, "session_timeout": 30_000, "rebalance_timeout": 1000,
        "member_id": MEMBER, "protocol_type": "consumer",
        "protocols": ({"name": "range", "metadata": _SUBSCRIPTION},), **changed,
    }  # fmt: skip
    return step("JoinGroup", 11, what, hears="member_id generation_id", **fields)


def _told_group(group: str, what: str) -> StoryStep:
    return step("DescribeGroups", 15, what, groups=(group,))


def _offsets(group: str, what: str, *topics: Mapping[str, object]) -> StoryStep:
    asked = topics or None
    return step("OffsetFetch", 9, what, group_id=group, topics=asked,
                 groups=({"group_id": group, "member_epoch": -1, "topics": asked},))  # fmt: skip


def group_story(name: str) -> Iterator[StoryStep]:
    member = {"group_id": name, "member_id": MEMBER, "generation_id": GENERATION}
    # KIP-394: the first JoinGroup only returns a member id, the second one joins.
    yield _joining(name, "joins", member_id="")
    yield _joining(name, "joins by its id")
    yield _told_group(name, "before it is synced")
    yield step("Heartbeat", 12, "before it is synced", **member)
    # SyncGroup with wrong details must not complete the rebalance.
    yield step("SyncGroup", 14, "of another generation", **{**member, "generation_id": 99})
    yield step("SyncGroup", 14, "of another type", **member, protocol_type="other")
    yield step("SyncGroup", 14, "of another protocol", **member, protocol_name="other")
    given = ({"member_id": MEMBER, "assignment": b"given"},)
    synced = {"protocol_type": "consumer", "protocol_name": "range", "assignments": given}
    yield step("SyncGroup", 14, "of the leader", **member, **synced)
    yield step("SyncGroup", 14, "again", **member, **synced)
    # The group is stable. Each heartbeat but the first is wrong in one field.
    yield step("Heartbeat", 12, "of a member", **member)
    yield step("Heartbeat", 12, "of another generation", **{**member, "generation_id": 99})
    yield step("Heartbeat", 12, "of another member", **{**member, "member_id": "other"})
    yield step("Heartbeat", 12, "of an instance", **member, group_instance_id="none")
    yield from _committing(name)
    yield _told_group(name, "of one member")
    yield step("DeleteGroups", 42, "that has a member", groups_names=(name,))
    # A second member whose join is refused: the group stays stable.
    other = {"member_id": "", "protocols": ({"name": "other", "metadata": b""},)}
    second = partial(step, "JoinGroup", 11, group_id=name, session_timeout=30_000,
                     rebalance_timeout=1000)  # fmt: skip
    yield second("by another protocol", protocol_type="consumer", **other)
    yield second("by another type", protocol_type="other", **other)
    yield second("with a short session", **{**other, "session_timeout": 10})
    yield second("with a long session", **{**other, "session_timeout": 2**31 - 1})
    # Leaving: first a member that does not exist, then the real one, twice.
    yield step("LeaveGroup", 13, "of another member", group_id=name, member_id="other",
                members=({"member_id": "other", "group_instance_id": None},))  # fmt: skip
    leaving = {"group_id": name, "member_id": MEMBER,
               "members": ({"member_id": MEMBER, "group_instance_id": None},)}  # fmt: skip
    yield step("LeaveGroup", 13, "of the member", **leaving)
    yield step("LeaveGroup", 13, "again", **leaving)
    # An empty group keeps its offsets until it is deleted.
    yield _told_group(name, "that is empty")
    yield _offsets(name, "of an empty group")
    yield step("DeleteGroups", 42, "that is empty", groups_names=(name,))
    yield _offsets(name, "of a deleted group")
    yield _told_group(name, "that was deleted")


def _committing(name: str) -> Iterator[StoryStep]:
    who = {"group_id": name, "member_id": MEMBER, "generation_id_or_member_epoch": GENERATION,
           "retention_time": -1}  # fmt: skip

    def commits(what: str, *topics: Mapping[str, object], **changed: object) -> StoryStep:
        return step("OffsetCommit", 8, what, **{**who, "topics": topics, **changed})

    # Good commits and such with one wrong field, in a stable group.
    one = {"committed_offset": 2, "committed_leader_epoch": 0, "committed_metadata": "said"}
    good = in_partition(READ, **one)
    yield commits("of a member", good)
    yield commits("of another generation", good, generation_id_or_member_epoch=99)
    yield commits("of another member", good, member_id="other")
    yield commits("without a member", good, member_id="", generation_id_or_member_epoch=-1)
    yield commits("of an instance", good, group_instance_id="none")
    yield commits(
        "of too much metadata", in_partition(READ, **{**one, "committed_metadata": "x" * 4097})
    )
    yield commits("of no metadata", in_partition(READ, **{**one, "committed_metadata": None}))
    yield commits("below zero", in_partition(READ, **{**one, "committed_offset": -5}))
    yield commits("of an unknown topic", in_partition("nope", **one), good)
    yield commits("of an unknown partition", in_partition(READ, **one, partition_index=9))
    yield commits("of nothing")
    # Kafka's offset.metadata.max.bytes is 4096, and the commit above has one byte more.
    yield _offsets(name, "of its topic", numbered(READ, 0, 9))
    yield _offsets(name, "of another topic", numbered("nope", 0))
    yield _offsets(name, "of all")
    gone = {"member_id": "other", "member_epoch": 3}
    yield step("OffsetFetch", 9, "of a member of another kind", group_id=name, topics=None,
                groups=({"group_id": name, "topics": None, **gone},))  # fmt: skip
    yield step("OffsetDelete", 47, "that is read", group_id=name,
                topics=(in_partition(READ), in_partition("nope")))  # fmt: skip


def static_story(name: str) -> Iterator[StoryStep]:
    instance = {"group_instance_id": "one"}
    # A static member (KIP-345) keeps its instance id while its member id changes.
    yield _joining(name, "as an instance", member_id="", **instance)
    yield step("SyncGroup", 14, "as an instance", group_id=name, member_id=MEMBER,
                generation_id=GENERATION, protocol_type="consumer", protocol_name="range",
                assignments=({"member_id": MEMBER, "assignment": b"given"},),
                **instance)  # fmt: skip
    yield _joining(name, "as another instance's member", group_instance_id="two")
    yield _joining(name, "as the instance, by another id", member_id="other", **instance)
    # A wrong member id for a known instance is fenced, not unknown.
    who = {"group_id": name, "generation_id": GENERATION, **instance}
    yield step("Heartbeat", 12, "of another id", **who, member_id="other")
    yield step("Heartbeat", 12, "of an instance", **who, member_id=MEMBER)
    yield step("OffsetCommit", 8, "of another id", group_id=name, member_id="other",
                generation_id_or_member_epoch=GENERATION, retention_time=-1, **instance,
                topics=(in_partition(READ, committed_offset=1),))  # fmt: skip
    # An administrator may remove an instance by its id alone.
    yield step("LeaveGroup", 13, "of another instance", group_id=name,
                members=({"member_id": "", "group_instance_id": "two"},))  # fmt: skip
    yield step("LeaveGroup", 13, "of an instance by another id", group_id=name,
                members=({"member_id": "other", "group_instance_id": "one"},))  # fmt: skip
    yield step("LeaveGroup", 13, "of an instance", group_id=name,
                members=({"member_id": "", "group_instance_id": "one"},))  # fmt: skip
    yield _told_group(name, "after its instance has left")


def new_group_story(name: str) -> Iterator[StoryStep]:
    """Steps of KIP-848's protocol."""
    member = "BBBBBBBBBBBBBBBBBBBBBB"
    here = {"group_id": name, "member_id": member}
    # Epoch 0 joins, -1 leaves, -2 is a static member that leaves for a while.
    joins = {
        **here, "member_epoch": 0, "rebalance_timeout": 5000, "topic_partitions": (),
        "subscribed_topic_names": (READ,),
    }  # fmt: skip

    def beat(what: str, **fields: object) -> StoryStep:
        return step("ConsumerGroupHeartbeat", 68, what, hears="member_epoch", **fields)

    epoch = heard("member_epoch", 1)
    yield beat("joins", **joins)
    yield beat("lives", **here, member_epoch=epoch)
    yield beat("owns", **here, member_epoch=epoch,
               topic_partitions=({"topic_id": id_of(READ), "partitions": (0,)},))  # fmt: skip
    # These answers must not change the member's epoch, so nothing is learned from them.
    wrong = partial(step, "ConsumerGroupHeartbeat", 68)
    yield wrong("of a later epoch", **here, member_epoch=99)
    yield wrong("of another member", **{**here, "member_id": "other"}, member_epoch=1)
    yield wrong("by an unknown assignor", **{**joins, "server_assignor": "nope"})
    yield wrong("by a bad expression", **{**joins, "subscribed_topic_regex": "[",
                                          "subscribed_topic_names": None})  # fmt: skip
    yield wrong("by no subscription", **{**joins, "member_id": "C" * 22,
                                         "subscribed_topic_names": None})  # fmt: skip
    yield step("ConsumerGroupDescribe", 69, "of one member", group_ids=(name,))
    # Requests of the classic protocol to a group of the consumer protocol.
    yield _told_group(name, "of another protocol")
    yield _joining(name, "into another protocol", member_id="")
    yield step("OffsetCommit", 8, "of another epoch", group_id=name, member_id=member,
                generation_id_or_member_epoch=99, retention_time=-1,
                topics=(in_partition(READ, committed_offset=1),))  # fmt: skip
    yield step("OffsetFetch", 9, "of another epoch",
                groups=({**here, "member_epoch": 99, "topics": None},))  # fmt: skip
    yield beat("leaves", **here, member_epoch=-1)
    yield step("ConsumerGroupDescribe", 69, "of no member", group_ids=(name,))
    yield step("DeleteGroups", 42, "of another protocol", groups_names=(name,))
