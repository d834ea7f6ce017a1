"""``DisableRemoteTopic`` (KIP-950): this broker's work, started once and queried until it is done.

The work of each hosted partition is a task that continues after the request times out. The
controller repeats the request, which finds the same task. An acknowledgement requires the leader
epoch under which the work was done, and the tiered epoch in the replica's state file.
"""

import asyncio
import logging
import uuid

from kio.schema.errors import ErrorCode

from tidemark.tiering import DisablePolicy, Tiering, TieringState
from tidemark.wire import control
from tidemark_broker.replication.hosting.replica_manager import ReplicaManager
from tidemark_broker.replication.partition import Partition
from tidemark_broker.tasks import cancel

logger = logging.getLogger(__name__)

_TIMEOUT_MS_MAX = 60_000
_MESSAGE_MAX = 500
_NONE = 0
_UNKNOWN = int(ErrorCode.unknown_topic_or_partition.value)
#: The controller repeats a request with this result.
_AT_WORK = int(ErrorCode.request_timed_out.value)

#: Topic id, partition, tiered epoch, leader epoch.
_WorkKey = tuple[uuid.UUID, int, int, int]


class DisablementTasks:
    """Work of disabling remote storage on this broker's partitions (KIP-950).

    The work on one partition runs in a task and outlives the request that started it. :meth:`close`
    cancels all tasks.
    """

    def __init__(self, manager: ReplicaManager) -> None:
        self._manager = manager
        self._tasks: dict[_WorkKey, asyncio.Task[None]] = {}

    async def disable(
        self, request: control.DisableRemoteTopicRequest
    ) -> tuple[control.DisableRemoteTopicResult, ...]:
        """Disable remote storage of a topic on this broker's replicas (``DisableRemoteTopic``).

        Returns one result per partition. Starts the work of each hosted partition, or continues it
        if an earlier request has started it, and waits at most ``timeout_ms``. REQUEST_TIMED_OUT in
        a result means that the controller must repeat the request.
        """
        # Partitions that moved away are reported as not hosted, and their new leader acts.
        tasks = {
            partition: self._task(hosted, request)
            for partition in request.partitions
            if (hosted := self._manager.by_id(request.topic_id, partition)) is not None
        }
        if tasks:
            timeout_s = min(max(request.timeout_ms, 0), _TIMEOUT_MS_MAX) / 1000
            await asyncio.wait(tasks.values(), timeout=timeout_s)
        return tuple(
            self._result(request, partition, tasks.get(partition))
            for partition in request.partitions
        )

    def _task(
        self, partition: Partition, request: control.DisableRemoteTopicRequest
    ) -> "asyncio.Task[None]":
        key = _key(partition, request)
        task = self._tasks.get(key)
        # A failed task is replaced, so that each repetition of the request retries the work.
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            self._forget_older(key)
            task = asyncio.create_task(self._work(partition, request))
            self._tasks[key] = task
        return task

    # Work of an older tiered or leader epoch cannot be acknowledged any more.
    def _forget_older(self, key: _WorkKey) -> None:
        for other in [other for other in self._tasks if other[:2] == key[:2] and other != key]:
            self._tasks.pop(other).cancel()

    async def _work(self, partition: Partition, request: control.DisableRemoteTopicRequest) -> None:
        remote = self._manager.remote
        if remote is None:
            raise LookupError("this broker has no remote storage configured")
        policy = DisablePolicy(request.disable_policy)
        disabling = Tiering(TieringState.DISABLING, request.tiered_epoch, policy)
        await remote.disable(partition, disabling)
        logger.info(
            "%s: tiering epoch %d is disabled here (%s)",
            partition.tp,
            request.tiered_epoch,
            policy.name,
        )

    def _result(
        self,
        request: control.DisableRemoteTopicRequest,
        number: int,
        task: "asyncio.Task[None] | None",
    ) -> control.DisableRemoteTopicResult:
        """Return the result of one partition: done, in progress, or not hosted by this broker.

        ``number`` is the partition, ``task`` its work (None if the partition was not hosted when
        the request arrived).
        """
        # Looked up again, because the replica may have been removed while the request waited.
        partition = self._manager.by_id(request.topic_id, number)
        if partition is None or task is None:
            message = "not hosted by this broker"
            return control.DisableRemoteTopicResult(
                partition=number, error_code=_UNKNOWN, message=message
            )
        code, message = self._state(partition, request, task)
        return control.DisableRemoteTopicResult(
            partition=number,
            error_code=code,
            leader_epoch=partition.leader_epoch,
            is_leader=partition.is_leader,
            local_log_start_offset=partition.log.local_log_start_offset,
            message=message[:_MESSAGE_MAX],
        )

    def _state(
        self,
        partition: Partition,
        request: control.DisableRemoteTopicRequest,
        task: "asyncio.Task[None]",
    ) -> tuple[int, str]:
        """Return the error code and message for the work of one partition.

        0 acknowledges that the disablement is complete and durable here. REQUEST_TIMED_OUT makes
        the controller repeat the request.
        """
        # An acknowledgement is valid only for the leader epoch and the tiered epoch (the number of
        # the tiering change) under which the work was done. Both may have changed since.
        if not task.done():
            return _AT_WORK, "in progress"
        if task.cancelled():
            return _AT_WORK, "the work was interrupted"
        error = task.exception()
        if error is not None:
            return _AT_WORK, str(error)
        if self._tasks.get(_key(partition, request)) is not task:
            return _AT_WORK, "the leader epoch changed meanwhile"
        # The replica's ``partition.state`` file must contain the change, so that a restart keeps
        # it.
        if partition.tiering.epoch < request.tiered_epoch:
            return _AT_WORK, "the tiered epoch is not stored yet"
        return _NONE, ""

    async def close(self) -> None:
        """Cancel the work. The controller repeats its request to the next process."""
        tasks = tuple(self._tasks.values())
        self._tasks.clear()
        await cancel(tasks)


def _key(partition: Partition, request: control.DisableRemoteTopicRequest) -> _WorkKey:
    return (
        request.topic_id,
        partition.partition,
        request.tiered_epoch,
        partition.leader_epoch,
    )
