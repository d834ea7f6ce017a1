"""Groups of KIP-848's protocol without a broker.

They consist of one shard, a log that is a list, topics that are a dict, and clients that follow the
coordinator's answers.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from tests.unit.groups.members import SETTINGS, T0_MS
from tidemark_broker.coordinators.deadlines import Deadlines
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.coordinators.log import CoordinatorRecord, TransactionalProducer
from tidemark_broker.groups.core.consumer_group import ConsumerGroup
from tidemark_broker.groups.core.consumer_targets import Offload
from tidemark_broker.groups.core.group_offsets import NewOffset, OffsetCommitter
from tidemark_broker.groups.core.journal import GroupMemory
from tidemark_broker.groups.core.offsets import OffsetKey
from tidemark_broker.groups.core.settings import GroupSettings, Now
from tidemark_broker.groups.core.steps import Steps
from tidemark_broker.groups.core.values import (
    HeartbeatAnswer,
    HeartbeatRequest,
    MemberIdentity,
    SubscribedTopic,
)
from tidemark_broker.groups.shard import GroupShard

A = TypeVar("A")

GROUP = "g"
Owned = Mapping[uuid.UUID, frozenset[int]]


def run_steps(steps: Steps[A]) -> A:
    """Run all steps at once and return their result."""
    try:
        work = next(steps)
        while True:
            work = steps.send(work.do())
    except StopIteration as ended:
        made: A = ended.value
        return made


class ListLog:
    """A coordinator's log; ``refuses`` is what it answers instead of appending."""

    def __init__(self, records: Sequence[CoordinatorRecord] = ()) -> None:
        self.records = list(records)
        self.refuses: ErrorCode | None = None
        #: Callbacks of appends that wait for the commit.
        self.waiting: list[Callable[[Any], None]] = []

    def append(
        self, records: Sequence[CoordinatorRecord], producer: TransactionalProducer | None = None
    ) -> int:
        if self.refuses is not None:
            raise CoordinatorError(self.refuses)
        self.records += records
        return len(self.records)

    def committed(self, _: int) -> Any:
        return SimpleNamespace(add_done_callback=self.waiting.append)


def topics(**partitions: int) -> dict[str, SubscribedTopic]:
    return {
        name: SubscribedTopic(uuid.uuid5(uuid.NAMESPACE_DNS, name), count)
        for name, count in partitions.items()
    }


class ConsumerWorld:
    """One coordinator and its time."""

    def __init__(self, log: ListLog | None = None, **settings: Any) -> None:
        known = {name: getattr(SETTINGS, name) for name in SETTINGS.__dataclass_fields__}
        # An interval of 0 computes each target at once. Tests of the interval set their own.
        self.settings = GroupSettings(**(known | {"consumer_assignment_interval_ms": 0} | settings))
        self.topics = topics(t=3)
        self.version = 1
        self.config: dict[str, str] = {}
        self.now = Now(0, T0_MS)
        self.log = log or ListLog()
        self.offloaded: list[Offload] = []
        self.deadlines: Deadlines[Any] = Deadlines()
        self.room = GroupMemory(self.settings.bytes_max)
        fake_log: Any = self.log
        self.shard = GroupShard(
            fake_log,
            self.deadlines,
            settings=self.settings,
            room=self.room,
            clock=lambda: self.now,
            topic=self._topic,
            offload=lambda _, made: self.offloaded.append(made),
            config_of=lambda _: self.config,
            name=lambda topic_id: next(
                (name for name, topic in self.topics.items() if topic.topic_id == topic_id), None
            ),
            due=lambda shard, group_id: run_steps(shard.due(group_id, self.now)),
        )

    def _topic(self, name: str) -> SubscribedTopic | None:
        return self.topics.get(name)

    def after(self, ms: float) -> None:
        """Let time pass, and everything happen that is due meanwhile."""
        until_s = self.now.s + ms / 1000
        while (next_s := self.deadlines.next_s()) is not None and next_s <= until_s:
            self._at(next_s)
            # A limit of 1,000 is far above the number of deadlines that any test has at once.
            for key in self.deadlines.due(next_s, 1000):
                self.shard.expired(key, next_s)
        self._at(until_s)

    def _at(self, now_s: float) -> None:
        # Both clocks advance together: sessions use seconds, and offsets expire by the wall clock.
        self.now = Now(now_s, T0_MS + round(now_s * 1000))

    def commit_all(self) -> None:
        """Commit every recorded write that still waits."""
        waiting, self.log.waiting = self.log.waiting, []
        done = SimpleNamespace(cancelled=lambda: False, exception=lambda: None)
        for item in waiting:
            item(done)

    def make_offloaded(self) -> None:
        """Complete the targets whose computation was offloaded."""
        while self.offloaded:
            made = self.offloaded.pop()
            targets = self.shard.consumers.targets
            run_steps(targets.bring_into_force(made, made.compute(), self.now))
            targets.gave_up(made.group, self.now)

    def change_topics(self, **partitions: int) -> None:
        self.topics = topics(**partitions)
        self.version += 1

    def beat(self, member_id: str, epoch: int, /, **more: Any) -> HeartbeatAnswer:
        fields = {
            "group_id": GROUP,
            "member_id": member_id,
            "member_epoch": epoch,
            "client_id": "c",
            "client_host": "/h",
            "topics_version": self.version,
        }
        return run_steps(self.shard.heartbeat(HeartbeatRequest(**(fields | more)), self.now))

    def join(self, member_id: str, /, *names: str, **more: Any) -> HeartbeatAnswer:
        fields = {"rebalance_timeout_ms": 60_000, "owned": {}, "topic_names": names or ("t",)}
        return self.beat(member_id, 0, **(fields | more))

    def error(self, request: Any, *args: Any, **more: Any) -> ErrorCode:
        """Return the error of a refused request, and verify that it changed nothing."""
        before, existed = len(self.log.records), GROUP in self.shard.consumer_groups
        try:
            request(*args, **more)
        except CoordinatorError as error:
            # A refusal appends no record. It neither creates nor deletes the group.
            assert len(self.log.records) == before
            assert existed == (GROUP in self.shard.consumer_groups)
            return error.error_code
        return ErrorCode.none

    def commit(self, member_id: str, epoch: int, partition: int = 0, **by: Any) -> ErrorCode:
        committer = OffsetCommitter(
            group_id=GROUP, who=MemberIdentity(member_id), generation_id=epoch, **by
        )
        topic_id = self.topics["t"].topic_id
        new = NewOffset(OffsetKey("t", partition), 5, 0, None, topic_id)
        (error,) = self.shard.group_offsets.commit(committer, [new], self.now).errors
        return error

    @property
    def group(self) -> ConsumerGroup:
        return self.shard.consumer_groups[GROUP]

    def failover(self, kept: int | None = None) -> "ConsumerWorld":
        """Let another coordinator take over with the first ``kept`` records, or all of them."""
        other = self.replayed(kept)
        self.shard.resigned()
        return other

    def replayed(self, kept: int | None = None) -> "ConsumerWorld":
        """Return another coordinator that has replayed the recorded writes."""
        log = ListLog(self.log.records[:kept])
        known = {name: getattr(self.settings, name) for name in SETTINGS.__dataclass_fields__}
        other = ConsumerWorld(log, **known)
        other.topics, other.version, other.now = self.topics, self.version, self.now
        # A position in the list serves as the offset, as the loader of the partition passes it.
        for offset, record in enumerate(log.records):
            other.shard.replay(record, None, offset)
        other.shard.loaded(other.now.s)
        return other

    def picture(self) -> dict[str, Any]:
        """Return the state of the group that is recorded."""
        group = self.group
        return {
            "epochs": (group.epoch, group.assignment_epoch, group.metadata_hash),
            "members": {member: (m.metadata, m.position) for member, m in group.members.items()},
            "targets": group.targets,
            "static": group.static_members,
            "regexes": group.regexes,
            "weight": group.weight_bytes,
            "state": group.state,
            "subscribed": group.subscribed,
        }


class ConsumerClient:
    """Member of KIP-848's protocol: it revokes before it is assigned, and reports both."""

    def __init__(self, world: ConsumerWorld, name: str, *names: str, **more: Any) -> None:
        self.world, self.name, self.names, self.more = world, name, names or ("t",), more
        self.epoch = 0
        self.owned: dict[uuid.UUID, frozenset[int]] = {}
        self.reported: dict[uuid.UUID, frozenset[int]] | None = None

    def beat(self) -> HeartbeatAnswer:
        # Epoch 0 joins. A new member owns nothing until the answer assigns it.
        if self.epoch == 0:
            self.owned = {}
            answer = self.world.join(self.name, *self.names, **self.more)
        else:
            # The client reports its partitions only if they have changed, as KIP-848 recommends.
            changed = self.owned != self.reported
            full: dict[str, Any] = {}
            if self.reported is None:  # An answer was lost: a full request has a full answer.
                full = {"rebalance_timeout_ms": 60_000, "topic_names": self.names} | self.more
            fields = {
                "owned": dict(self.owned) if changed else None,
                "instance_id": self.more.get("instance_id"),
            }
            answer = self.world.beat(self.name, self.epoch, **(full | fields))
        self.reported = dict(self.owned)
        self.receive(answer)
        return answer

    def receive(self, answer: HeartbeatAnswer) -> None:
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = {t: frozenset(numbers) for t, numbers in answer.assignment.items()}

    @property
    def count(self) -> int:
        return sum(map(len, self.owned.values()))


def settle(*clients: ConsumerClient, rounds: int = 20) -> None:
    """Send heartbeats of all clients until nothing changes any more."""
    unchanged = 0
    for _ in range(rounds):
        before = [(client.epoch, dict(client.owned)) for client in clients]
        for client in clients:
            client.beat()
        client.world.after(100)
        client.world.make_offloaded()
        is_same = before == [(client.epoch, dict(client.owned)) for client in clients]
        unchanged = unchanged + 1 if is_same else 0
        # One unchanged round is not enough: a revocation shows in the answer to the next heartbeat.
        if unchanged > 2:
            return
    raise AssertionError(f"they do not settle: {before}")


def owned_partitions(*clients: ConsumerClient) -> list[tuple[uuid.UUID, int]]:
    """Return the clients' partitions; one that two clients own appears twice."""
    return sorted(
        (topic, number)
        for client in clients
        for topic, numbers in client.owned.items()
        for number in numbers
    )
