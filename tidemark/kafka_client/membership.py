"""Membership in a consumer group (KIP-848): the coordinator distributes the partitions.

A background task sends heartbeats. The coordinator answers with the partitions that this member is
to have. The member stops reading the ones that it must give up, commits their offsets, and confirms
with :meth:`GroupMember.own`; only then the coordinator assigns them to another member.
"""

import asyncio
import contextlib
import datetime
import time
import uuid
from collections.abc import Iterable, Mapping

from kio.schema.consumer_group_heartbeat.v1 import request as heartbeat_request
from kio.schema.consumer_group_heartbeat.v1.response import ConsumerGroupHeartbeatResponse
from kio.schema.errors import ErrorCode
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32, i32Timedelta

from tidemark.kafka_client.errors import ClusterRefused, KafkaError, Unreachable
from tidemark.kafka_client.groups import MOVED, CoordinatorMoved, Groups
from tidemark.kafka_client.topic_leaders import PATIENCE_S, RETRY, TopicLeaders
from tidemark.kafka_client.values import RequestFailure

_JOIN, _LEAVE = 0, -1
#: Time that the coordinator waits for this member to give partitions up.
_REBALANCE_TIMEOUT = i32Timedelta.parse(datetime.timedelta(seconds=60))
_UNCHANGED = i32Timedelta.parse(datetime.timedelta(milliseconds=-1))
_ANSWER_S = 10.0
#: The coordinator has removed this member, or fences its epoch: it joins again.
_REMOVED = frozenset({ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch})
#: Failures of a commit that the next heartbeat resolves.
_PASSING = frozenset({ErrorCode.stale_member_epoch, *_REMOVED})
_COMMITS_MAX = 5


class GroupMember:
    """One member of a group that subscribes to one topic."""

    def __init__(self, groups: Groups, group: str, leaders: TopicLeaders) -> None:
        self._groups = groups
        self._group = group
        self._leaders = leaders
        self._id = str(uuid.uuid4())
        self._epoch = _JOIN
        self._owned: frozenset[int] = frozenset()
        self._must_report = True
        self._interval_s = 1.0
        self._kick = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        #: Partitions that this member is to have; None until the coordinator has decided.
        self.assigned: frozenset[int] | None = None

    async def join(self) -> None:
        """Join the group, and send heartbeats from now on. Raises ``KafkaError``."""
        await self._heartbeat()
        self._task = asyncio.create_task(self._beat())

    def check(self) -> None:
        """Raise the error that ended the heartbeats, if they have ended."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            self._task.result()

    def own(self, partitions: Iterable[int]) -> None:
        """Confirm the partitions that this member reads now."""
        owned = frozenset(partitions)
        if owned != self._owned:
            self._owned, self._must_report = owned, True
            self._kick.set()

    async def commit(self, positions: Mapping[int, int]) -> dict[int, RequestFailure]:
        """Commit the next offset of partitions; return failures by partition."""
        remaining = dict(positions)
        failures: dict[int, RequestFailure] = {}
        # A new epoch reaches this member with a heartbeat, so a stale one is a matter of time.
        for _ in range(_COMMITS_MAX):
            if not remaining:
                break
            answer = await self._groups.commit(
                self._group,
                {(self._leaders.topic, partition): at for partition, at in remaining.items()},
                member_id=self._id,
                epoch=self._epoch,
            )
            failures = {partition: failure for (_, partition), failure in answer.items()}
            if not any(failure.code in _PASSING for failure in failures.values()):
                break
            remaining = {partition: remaining[partition] for partition in failures}
            self._kick.set()
            await asyncio.sleep(RETRY.first_s * 2)
        return failures

    async def leave(self) -> None:
        """Stop the heartbeats and leave the group, so that others get the partitions at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._epoch = _LEAVE
        # Without an answer the coordinator removes this member after the session timeout.
        with contextlib.suppress(KafkaError):
            await self._send(())

    # ------------------------------------------------------------ inside

    async def _beat(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._kick.wait()
            self._kick.clear()
            await self._heartbeat()

    async def _heartbeat(self) -> None:
        """Send one heartbeat, repeated while the coordinator moves. Raises ``KafkaError``."""
        deadline = time.monotonic() + PATIENCE_S
        pause = RETRY
        while True:
            owned = self._owned if self._must_report or self._epoch == _JOIN else None
            try:
                answer = await self._send(owned)
            except (Unreachable, CoordinatorMoved) as error:
                problem = str(error)
            else:
                code = answer.error_code
                problem = code.name.upper() + (
                    f": {answer.error_message}" if answer.error_message else ""
                )
                if code == ErrorCode.none:
                    self._apply(answer, owned)
                    return
                if code in _REMOVED:
                    # Its partitions belong to others now, and offsets can no longer be committed.
                    self._epoch, self._owned = _JOIN, frozenset()
                    self.assigned = frozenset()
                elif code not in MOVED:
                    raise ClusterRefused(f"group {self._group}: {problem}")
            if time.monotonic() > deadline:
                raise Unreachable(f"group {self._group}: {problem}")
            self._groups.forget(self._group)
            pause = pause.failed(time.monotonic())
            await asyncio.sleep(pause.pause_s(pause.failures))

    async def _send(self, owned: Iterable[int] | None) -> ConsumerGroupHeartbeatResponse:
        """Send one heartbeat. ``owned`` None: the owned partitions have not changed."""
        joins = self._epoch == _JOIN
        request = heartbeat_request.ConsumerGroupHeartbeatRequest(
            group_id=GroupId(self._group),
            member_id=self._id,
            member_epoch=i32(self._epoch),
            # Fields that have not changed are left out.
            rebalance_timeout=_REBALANCE_TIMEOUT if joins else _UNCHANGED,
            subscribed_topic_names=(TopicName(self._leaders.topic),) if joins else None,
            subscribed_topic_regex=None,
            topic_partitions=None if owned is None else self._named(owned),
        )
        node_id = await self._groups.coordinator(self._group)
        return await self._leaders.client.request_node(
            node_id, request, ConsumerGroupHeartbeatResponse, _ANSWER_S
        )

    def _named(self, partitions: Iterable[int]) -> tuple[heartbeat_request.TopicPartitions, ...]:
        numbers = tuple(i32(partition) for partition in sorted(partitions))
        if not numbers:
            return ()
        return (
            heartbeat_request.TopicPartitions(topic_id=self._leaders.topic_id, partitions=numbers),
        )

    def _apply(
        self, answer: ConsumerGroupHeartbeatResponse, reported: frozenset[int] | None
    ) -> None:
        """Store the epoch, the interval and the assignment of an answer."""
        self._epoch = int(answer.member_epoch)
        self._interval_s = answer.heartbeat_interval.total_seconds()
        # The caller may have confirmed other partitions while the request was in flight.
        if reported is not None and reported == self._owned:
            self._must_report = False
        if answer.assignment is not None:
            self.assigned = frozenset(
                int(partition)
                for topic in answer.assignment.topic_partitions
                if topic.topic_id == self._leaders.topic_id
                for partition in topic.partitions
            )
