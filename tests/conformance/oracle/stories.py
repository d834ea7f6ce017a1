"""Requests that depend on the answers before them: the life of a group's member, of a producer, of
a transaction, of a fetch session, of a topic. Each story is told in several rounds, the first in
the newest versions of all its Apis, each after it in versions one older, as far as there are any.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tests.conformance.oracle import entities
from tests.conformance.oracle.case import READ, STORY, T0, Case, case
from tests.conformance.oracle.entities import Fields, Here, Told, id_of, node
from tests.conformance.oracle.sides import World
from tidemark.records.builder import Record, build_batch

#: What fields hold in answers that are errors.
_NOTHING = (None, "", -1)
_PATIENCE = {"timeout": 5000}


@dataclass(frozen=True, slots=True)
class Step:
    """``hears``: fields of the answer that later steps ask for."""

    api: str
    api_key: int
    what: str
    fields: Fields
    hears: tuple[str, ...] = ()

    def case(self, name: str, version: int) -> Case:
        """In one version, of one round."""

        def build(world: World, version: int) -> Any:
            return entities.request(self.api_key, version, self.fields, Here(world, name))

        return case(name, self.api_key, version, build, self._learn if self.hears else None)

    def _learn(self, world: World, answer: Any) -> None:
        for name in self.hears:
            value = getattr(answer, name, None)
            if value not in _NOTHING:
                world.heard[name] = value


def _step(api: str, api_key: int, what: str, /, hears: str = "", **fields: object) -> Step:
    return Step(api, api_key, what, fields, tuple(hears.split()))


def _heard(name: str, default: Any) -> Told:
    """What an answer has told last."""

    return lambda here: here.world.heard.get(name, default)


_MEMBER = _heard("member_id", "")
_GENERATION = _heard("generation_id", 1)
_PRODUCER = {"producer_id": _heard("producer_id", 1), "producer_epoch": _heard("producer_epoch", 0)}
_SUBSCRIPTION = struct.pack(f">hih{len(READ)}si", 0, 1, len(READ), READ.encode(), -1)


def _part(topic: str, **values: object) -> Mapping[str, object]:
    part = {"partition": 0, "partition_index": 0, "index": 0, **values}
    return {
        "topic": topic, "name": topic, "topic_id": id_of(topic), "partitions": (part,),
        "partition_data": (part,),
    }  # fmt: skip


def _numbers(topic: str, *partitions: int) -> Mapping[str, object]:
    return {
        "topic": topic, "name": topic, "topic_id": id_of(topic), "partitions": partitions,
        "partition_indexes": partitions,
    }  # fmt: skip


# ---------------------------------------------------------------- groups


def _joining(group: str, what: str, /, **changed: object) -> Step:
    fields = {
        "group_id": group, "session_timeout": 30_000, "rebalance_timeout": 1000,
        "member_id": _MEMBER, "protocol_type": "consumer",
        "protocols": ({"name": "range", "metadata": _SUBSCRIPTION},), **changed,
    }  # fmt: skip
    return _step("JoinGroup", 11, what, hears="member_id generation_id", **fields)


def _told_group(group: str, what: str) -> Step:
    return _step("DescribeGroups", 15, what, groups=(group,))


def _offsets(group: str, what: str, *topics: Mapping[str, object]) -> Step:
    asked = topics or None
    return _step("OffsetFetch", 9, what, group_id=group, topics=asked,
                 groups=({"group_id": group, "member_epoch": -1, "topics": asked},))  # fmt: skip


def _group(name: str) -> Iterator[Step]:
    member = {"group_id": name, "member_id": _MEMBER, "generation_id": _GENERATION}
    yield _joining(name, "joins", member_id="")
    yield _joining(name, "joins by its id")
    yield _told_group(name, "before it is synced")
    yield _step("Heartbeat", 12, "before it is synced", **member)
    yield _step("SyncGroup", 14, "of another generation", **{**member, "generation_id": 99})
    yield _step("SyncGroup", 14, "of another type", **member, protocol_type="other")
    yield _step("SyncGroup", 14, "of another protocol", **member, protocol_name="other")
    given = ({"member_id": _MEMBER, "assignment": b"given"},)
    synced = {"protocol_type": "consumer", "protocol_name": "range", "assignments": given}
    yield _step("SyncGroup", 14, "of the leader", **member, **synced)
    yield _step("SyncGroup", 14, "again", **member, **synced)
    yield _step("Heartbeat", 12, "of a member", **member)
    yield _step("Heartbeat", 12, "of another generation", **{**member, "generation_id": 99})
    yield _step("Heartbeat", 12, "of another member", **{**member, "member_id": "other"})
    yield _step("Heartbeat", 12, "of an instance", **member, group_instance_id="none")
    yield from _committing(name)
    yield _told_group(name, "of one member")
    yield _step("DeleteGroups", 42, "that has a member", groups_names=(name,))
    other = {"member_id": "", "protocols": ({"name": "other", "metadata": b""},)}
    second = partial(_step, "JoinGroup", 11, group_id=name, session_timeout=30_000,
                     rebalance_timeout=1000)  # fmt: skip
    yield second("by another protocol", protocol_type="consumer", **other)
    yield second("by another type", protocol_type="other", **other)
    yield second("with a short session", **{**other, "session_timeout": 10})
    yield second("with a long session", **{**other, "session_timeout": 2**31 - 1})
    yield _step("LeaveGroup", 13, "of another member", group_id=name, member_id="other",
                members=({"member_id": "other", "group_instance_id": None},))  # fmt: skip
    leaving = {"group_id": name, "member_id": _MEMBER,
               "members": ({"member_id": _MEMBER, "group_instance_id": None},)}  # fmt: skip
    yield _step("LeaveGroup", 13, "of the member", **leaving)
    yield _step("LeaveGroup", 13, "again", **leaving)
    yield _told_group(name, "that is empty")
    yield _offsets(name, "of an empty group")
    yield _step("DeleteGroups", 42, "that is empty", groups_names=(name,))
    yield _offsets(name, "of a deleted group")
    yield _told_group(name, "that was deleted")


def _committing(name: str) -> Iterator[Step]:
    who = {"group_id": name, "member_id": _MEMBER, "generation_id_or_member_epoch": _GENERATION,
           "retention_time": -1}  # fmt: skip

    def commits(what: str, *topics: Mapping[str, object], **changed: object) -> Step:
        return _step("OffsetCommit", 8, what, **{**who, "topics": topics, **changed})

    one = {"committed_offset": 2, "committed_leader_epoch": 0, "committed_metadata": "said"}
    good = _part(READ, **one)
    yield commits("of a member", good)
    yield commits("of another generation", good, generation_id_or_member_epoch=99)
    yield commits("of another member", good, member_id="other")
    yield commits("of nobody", good, member_id="", generation_id_or_member_epoch=-1)
    yield commits("of an instance", good, group_instance_id="none")
    yield commits("of too much metadata", _part(READ, **{**one, "committed_metadata": "x" * 4097}))
    yield commits("of no metadata", _part(READ, **{**one, "committed_metadata": None}))
    yield commits("below zero", _part(READ, **{**one, "committed_offset": -5}))
    yield commits("of an unknown topic", _part("nope", **one), good)
    yield commits("of an unknown partition", _part(READ, **one, partition_index=9))
    yield commits("of nothing")
    yield _offsets(name, "of its topic", _numbers(READ, 0, 9))
    yield _offsets(name, "of another topic", _numbers("nope", 0))
    yield _offsets(name, "of all")
    gone = {"member_id": "other", "member_epoch": 3}
    yield _step("OffsetFetch", 9, "of a member of another kind", group_id=name, topics=None,
                groups=({"group_id": name, "topics": None, **gone},))  # fmt: skip
    yield _step("OffsetDelete", 47, "that is read", group_id=name,
                topics=(_part(READ), _part("nope")))  # fmt: skip


def _static(name: str) -> Iterator[Step]:
    instance = {"group_instance_id": "one"}
    yield _joining(name, "as an instance", member_id="", **instance)
    yield _step("SyncGroup", 14, "as an instance", group_id=name, member_id=_MEMBER,
                generation_id=_GENERATION, protocol_type="consumer", protocol_name="range",
                assignments=({"member_id": _MEMBER, "assignment": b"given"},),
                **instance)  # fmt: skip
    yield _joining(name, "as another instance's member", group_instance_id="two")
    yield _joining(name, "as the instance, by another id", member_id="other", **instance)
    who = {"group_id": name, "generation_id": _GENERATION, **instance}
    yield _step("Heartbeat", 12, "of another id", **who, member_id="other")
    yield _step("Heartbeat", 12, "of an instance", **who, member_id=_MEMBER)
    yield _step("OffsetCommit", 8, "of another id", group_id=name, member_id="other",
                generation_id_or_member_epoch=_GENERATION, retention_time=-1, **instance,
                topics=(_part(READ, committed_offset=1),))  # fmt: skip
    yield _step("LeaveGroup", 13, "of another instance", group_id=name,
                members=({"member_id": "", "group_instance_id": "two"},))  # fmt: skip
    yield _step("LeaveGroup", 13, "of an instance by another id", group_id=name,
                members=({"member_id": "other", "group_instance_id": "one"},))  # fmt: skip
    yield _step("LeaveGroup", 13, "of an instance", group_id=name,
                members=({"member_id": "", "group_instance_id": "one"},))  # fmt: skip
    yield _told_group(name, "after its instance has left")


def _new_group(name: str) -> Iterator[Step]:
    """KIP-848's protocol."""
    member = "BBBBBBBBBBBBBBBBBBBBBB"
    here = {"group_id": name, "member_id": member}
    joins = {
        **here, "member_epoch": 0, "rebalance_timeout": 5000, "topic_partitions": (),
        "subscribed_topic_names": (READ,),
    }  # fmt: skip

    def beat(what: str, **fields: object) -> Step:
        return _step("ConsumerGroupHeartbeat", 68, what, hears="member_epoch", **fields)

    epoch = _heard("member_epoch", 1)
    yield beat("joins", **joins)
    yield beat("lives", **here, member_epoch=epoch)
    yield beat("owns", **here, member_epoch=epoch,
               topic_partitions=({"topic_id": id_of(READ), "partitions": (0,)},))  # fmt: skip
    wrong = partial(_step, "ConsumerGroupHeartbeat", 68)
    yield wrong("of a later epoch", **here, member_epoch=99)
    yield wrong("of another member", **{**here, "member_id": "other"}, member_epoch=1)
    yield wrong("by an unknown assignor", **{**joins, "server_assignor": "nope"})
    yield wrong("by a bad expression", **{**joins, "subscribed_topic_regex": "[",
                                          "subscribed_topic_names": None})  # fmt: skip
    yield wrong("by no subscription", **{**joins, "member_id": "C" * 22,
                                         "subscribed_topic_names": None})  # fmt: skip
    yield _step("ConsumerGroupDescribe", 69, "of one member", group_ids=(name,))
    yield _told_group(name, "of another protocol")
    yield _joining(name, "into another protocol", member_id="")
    yield _step("OffsetCommit", 8, "of another epoch", group_id=name, member_id=member,
                generation_id_or_member_epoch=99, retention_time=-1,
                topics=(_part(READ, committed_offset=1),))  # fmt: skip
    yield _step("OffsetFetch", 9, "of another epoch",
                groups=({**here, "member_epoch": 99, "topics": None},))  # fmt: skip
    yield beat("leaves", **here, member_epoch=-1)
    yield _step("ConsumerGroupDescribe", 69, "of nobody", group_ids=(name,))
    yield _step("DeleteGroups", 42, "of another protocol", groups_names=(name,))


# ---------------------------------------------------------------- producers


def _records(sequence: int, *, epoch: int = 0, transactional: bool = False) -> Told:
    def told(here: Here) -> bytes:
        heard = here.world.heard
        return build_batch(
            [Record(b"k", b"v", (), T0)] * 2,
            producer_id=heard.get("producer_id", 1),
            producer_epoch=max(heard.get("producer_epoch", 0) + epoch, 0),
            base_sequence=sequence,
            is_transactional=transactional,
        )

    return told


def _producing(what: str, records: Told, transactional_id: str | None = None) -> Step:
    return _step("Produce", 0, what, acks=-1, transactional_id=transactional_id,
                 topic_data=(_part(STORY, records=records),), **_PATIENCE)  # fmt: skip


def _initialised(what: str, **fields: object) -> Step:
    made = {"transactional_id": None, "transaction_timeout": 60_000, "producer_id": -1,
            "producer_epoch": -1, **fields}  # fmt: skip
    return _step("InitProducerId", 22, what, hears="producer_id producer_epoch", **made)


def _idempotent(_: str) -> Iterator[Step]:
    yield _initialised("of a producer")
    yield _producing("that does not begin with 0", _records(5))
    yield _producing("the first", _records(0))
    yield _producing("the first again", _records(0))
    yield _producing("a gap", _records(9))
    yield _producing("the second", _records(2))
    yield _producing("half of the second", _records(3))
    yield _producing("the first once more", _records(0))
    yield _producing("of the next epoch, in the middle", _records(7, epoch=1))
    yield _producing("of the next epoch", _records(0, epoch=1))
    yield _producing("of the epoch before", _records(2))
    yield _producing("a transaction's without its id", _records(2, transactional=True))
    yield _step("DescribeProducers", 61, "of one", topics=(_numbers(STORY, 0),))


def _transaction(name: str) -> Iterator[Step]:
    who = {"transactional_id": name, **_PRODUCER}
    old = {**who, "producer_epoch": lambda here: max(_PRODUCER["producer_epoch"](here) - 1, 0)}
    yield _initialised("with too long a timeout", transactional_id=name,
                       transaction_timeout=2**31 - 1)  # fmt: skip
    yield _initialised("with no timeout", transactional_id=name, transaction_timeout=0)
    yield _initialised("of a transaction", transactional_id=name)
    yield _initialised("of a transaction again", transactional_id=name)
    yield _step("DescribeTransactions", 65, "that is empty", transactional_ids=(name,))
    yield _step("EndTxn", 26, "that has not begun", **who, committed=True)
    yield from _adding(who, old)
    yield _producing("in a transaction", _records(0, transactional=True), name)
    yield _producing("in a transaction, of an old epoch",
                     _records(0, epoch=-1, transactional=True), name)  # fmt: skip
    yield _step("Fetch", 1, "of what is committed", replica_id=-1, max_wait=0, min_bytes=1,
                max_bytes=1 << 26, isolation_level=1, session_epoch=-1,
                topics=(_part(STORY, fetch_offset=0, current_leader_epoch=-1,
                              last_fetched_epoch=-1, partition_max_bytes=1 << 20),))  # fmt: skip
    yield _step("DescribeTransactions", 65, "that goes on", transactional_ids=(name,))
    yield from _offsets_in(who, name + "-group")
    yield _step("EndTxn", 26, "of an old epoch", **old, committed=True)
    yield _step("EndTxn", 26, "that aborts", **who, committed=False,
                hears="producer_id producer_epoch")  # fmt: skip
    yield _step("DescribeTransactions", 65, "that was aborted", transactional_ids=(name,))
    who_then = {"transactional_id": name, **_PRODUCER}
    yield _step("EndTxn", 26, "that commits what was aborted", **who_then, committed=True)
    yield _initialised("of a transaction at its end", transactional_id=name)
    yield _step("ListTransactions", 66, "of one producer", state_filters=(),
                producer_id_filters=(_PRODUCER["producer_id"],), duration_filter=-1)  # fmt: skip


def _adding(who: Fields, old: Fields) -> Iterator[Step]:
    def adds(what: str, whose: Fields, *topics: Mapping[str, object], verify: bool = False) -> Step:
        below = {f"v3_and_below_{name}": value for name, value in whose.items()}
        one = {**whose, "verify_only": verify, "topics": topics}
        return _step("AddPartitionsToTxn", 24, what, **below, v3_and_below_topics=topics,
                     transactions=(one,))  # fmt: skip

    yield adds("of an old epoch", old, _numbers(STORY, 0))
    yield adds("of another producer", {**who, "producer_id": 4711}, _numbers(STORY, 0))
    yield adds("with an unknown one", who, _numbers(STORY, 0), _numbers("nope", 0))
    yield adds("only verified", who, _numbers(STORY, 0), verify=True)
    yield adds("of one", who, _numbers(STORY, 0))
    yield adds("verified then", who, _numbers(STORY, 0), verify=True)


def _offsets_in(who: Fields, group: str) -> Iterator[Step]:
    one = {"committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": "m"}
    commits = partial(_step, "TxnOffsetCommit", 28, group_id=group, generation_id=-1, **who)
    yield _step("AddOffsetsToTxn", 25, "of a group", **who, group_id=group)
    yield commits("of a group", member_id="", topics=(_part(READ, **one), _part("nope", **one)))
    yield commits("of a member that is none", member_id="m", topics=(_part(READ, **one),))
    yield _step("OffsetFetch", 9, "that waits for a transaction", group_id=group,
                require_stable=True, topics=(_numbers(READ, 0),),
                groups=({"group_id": group, "member_epoch": -1,
                         "topics": (_numbers(READ, 0),)},))  # fmt: skip


# ---------------------------------------------------------------- fetch sessions


def _session(_: str) -> Iterator[Step]:
    def fetches(what: str, epoch: int, *topics: Mapping[str, object], gone: Any = ()) -> Step:
        return _step("Fetch", 1, what, hears="session_id" if not epoch else "", replica_id=-1,
                     max_wait=0, min_bytes=0, max_bytes=1 << 26,
                     session_id=_heard("session_id", 0) if epoch else 0, session_epoch=epoch,
                     topics=topics, forgotten_topics_data=gone)  # fmt: skip

    def at(offset: int) -> Mapping[str, object]:
        return _part(READ, fetch_offset=offset, current_leader_epoch=-1, last_fetched_epoch=-1,
                     log_start_offset=-1, partition_max_bytes=1 << 20)  # fmt: skip

    yield fetches("a session", 0, at(0))
    yield fetches("in a session", 1)
    yield fetches("from elsewhere in a session", 2, at(3))
    yield fetches("nothing new in a session", 3)
    yield fetches("an unknown topic in a session", 4, {**at(0), "topic": "nope",
                                                       "topic_id": id_of("nope")})  # fmt: skip
    yield fetches("of a wrong epoch", 9)
    yield fetches("forgets in a session", 5, gone=(_numbers(READ, 0),))
    yield fetches("nothing any more", 6)
    yield fetches("ends a session", -1, at(0))
    yield fetches("after its end", 7)


# ---------------------------------------------------------------- topics


def _topic(name: str) -> Iterator[Step]:
    config = {"name": "retention.ms", "value": "1000", "config_operation": 0}
    made = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": (),
            "configs": (config,)}  # fmt: skip
    yield _step("CreateTopics", 19, "twice in one", topics=(made, made), **_PATIENCE)
    yield _step("CreateTopics", 19, "of a new one", topics=(made,), **_PATIENCE)
    yield _step("CreateTopics", 19, "again", topics=(made,), **_PATIENCE)
    yield _step("CreatePartitions", 37, "of a new one", **_PATIENCE,
                topics=({"name": name, "count": 2, "assignments": ({"broker_ids": (node,)},)},),
                )  # fmt: skip

    def alters(what: str, **changed: object) -> Step:
        resource = {"resource_type": 2, "resource_name": name, "configs": ({**config, **changed},)}
        return _step("IncrementalAlterConfigs", 44, what, resources=(resource,))

    yield alters("sets", value="2000")
    yield alters("appends to a number", value="2000", config_operation=2)
    yield alters("by an unknown operation", config_operation=9)
    yield alters("to nothing", value=None)
    yield alters("deletes", value=None, config_operation=1)
    yield _step("DeleteTopics", 20, "of a new one", topic_names=(name, "nope"),
                topics=({"name": name}, {"name": "nope"}), **_PATIENCE)  # fmt: skip
    yield _step("DeleteTopics", 20, "again", topic_names=(name,), topics=({"name": name},),
                **_PATIENCE)  # fmt: skip


Story = Callable[[str], Iterator[Step]]
#: Name -> the story, and in how many rounds at most.
STORIES: Mapping[str, tuple[Story, int]] = {
    "session": (_session, 99),
    "idempotent": (_idempotent, 99),
    "transaction": (_transaction, 99),
    "group": (_group, 99),
    "static": (_static, 99),
    "new group": (_new_group, 99),
    "topic": (_topic, 2),
}


def story_cases(served: Mapping[int, range]) -> Iterator[Case]:
    """All of them, of the Apis that both sides serve."""
    for name, (story, most) in STORIES.items():
        keys = {step.api_key for step in story("") if served.get(step.api_key)}
        rounds = min(most, max((len(served[key]) for key in keys), default=0))
        for number in range(rounds):
            for step in story(f"oracle-{name.replace(' ', '-')}-{number}"):
                if step.api_key in keys:
                    versions = served[step.api_key]
                    version = max(versions[-1] - number, versions[0])
                    title = f"{step.api} v{version} {name} {number}: {step.what}"
                    yield replace(step.case(title, version), round=number)
