"""Retries of logs whose disk failed, with growing pauses.

There are three kinds. Logs found at the start that did not open are left unchanged. Logs whose disk
failed while they were open may have files in doubt. Logs that are complete may not accept writes (a
full disk). The pauses are independent of client requests: the controller gives no role to a replica
whose storage fails, so no client uses it until it is known to work.
"""

import logging
from collections.abc import Iterable, Sequence

from tidemark.backoff import Backoff
from tidemark_broker.log import CorruptRecords, LogError, RecordsMissing, StorageError
from tidemark_broker.replication.hosting.log_directory import FoundLog, LogDirectory
from tidemark_broker.replication.partition import Partition, ReplicaContext, roles
from tidemark_broker.replication.threads import in_thread
from tidemark_broker.replication.types import TopicPartition

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
#: Longest pause between probes of a full disk: replicas should be in sync soon after it has space.
_LONGEST_PROBE_PAUSE_S = 4.0


class Repairs:
    """Retries, owned by the loop thread; ``logs`` is used in threads."""

    def __init__(self, context: ReplicaContext, logs: LogDirectory) -> None:
        self._context = context
        self._logs = logs
        self._pauses: dict[TopicPartition, Backoff] = {}
        self._probe = Backoff(first_s=_FIRST_PAUSE_S, most_s=_LONGEST_PROBE_PAUSE_S)
        self._is_full = False

    def _is_due(self, tp: TopicPartition) -> bool:
        pause = self._pauses.get(tp)
        return pause is None or pause.ready(self._context.monotonic())

    def _pause(self, tp: TopicPartition) -> None:
        """Lengthen the pause with each attempt, even a successful one: while the disk keeps
        failing, a reopened log would only fail again.
        """
        pause = self._pauses.get(tp) or Backoff(first_s=_FIRST_PAUSE_S, most_s=_LONGEST_PAUSE_S)
        self._pauses[tp] = pause.failed(self._context.monotonic())

    def _failed(self, tp: TopicPartition, error: LogError) -> None:
        self._pause(tp)
        self._context.failures.failed(tp, error, self._context.monotonic())

    def _forget_pauses(self) -> None:
        """Drop the pauses of logs that have worked for a while."""
        since_s = self._context.monotonic() - 2 * _LONGEST_PAUSE_S
        for tp in [tp for tp, pause in self._pauses.items() if pause.until_s < since_s]:
            del self._pauses[tp]

    def due(self) -> list[TopicPartition]:
        """Return the unopened logs that are due for a retry."""
        return [item.tp for item in self._logs.unopened() if self._is_due(item.tp)]

    async def retry_opening(self, tp: TopicPartition) -> FoundLog | None:
        """Retry an unopened log; return it if it opens."""
        try:
            found = await in_thread(self._logs.retry_opening, tp)
        except StorageError as error:
            self._failed(tp, error)
            return None
        self._pauses.pop(tp, None)
        self._context.failures.succeeded(tp)
        return found

    async def probe_room(self, partitions: Sequence[Partition]) -> None:
        """Check with one test write whether a full or failing disk accepts writes again.

        If it does, the replicas of ``partitions`` that wait for it count as working, and logs that
        did not open are due for a retry. Without failed replicas nothing is written.
        """
        if not self._context.failures.count:
            self._probe = self._probe.succeeded()
            return
        # Probe when a replica is due, and otherwise with pauses that grow to a few seconds.
        due = [partition for partition in partitions if self._waits_for_room(partition)]
        now_s = self._context.monotonic()
        if not due and not self._probe.ready(now_s):
            return
        self._probe = self._probe.failed(now_s)
        was_full, self._is_full = self._is_full, True
        try:
            await in_thread(self._logs.probe)
        except StorageError as error:
            logger.info("%d replicas wait for their disk: %s", self._context.failures.count, error)
            return
        self._is_full = False
        # The disk has space again: end all pauses, so that replicas are in sync soon.
        if was_full:
            self._pauses.clear()
            self._context.failures.try_all_now()
            due = [partition for partition in partitions if self._waits_for_room(partition)]
        for partition in due:
            self._pause(partition.tp)
            self._context.failures.succeeded(partition.tp)

    def _waits_for_room(self, partition: Partition) -> bool:
        """Return whether its last write failed, though its log is complete, and a retry is due."""
        return (
            self._context.failures.has_failed(partition.tp)
            and partition.log.failure is None
            and not partition.removed
            and self._is_due(partition.tp)
        )

    async def reopen(self, partitions: Iterable[Partition]) -> dict[Partition, str]:
        """Reopen the logs that refuse all requests since their disk failed.

        Return the partitions whose logs lack records, with the reason: reopening does not help
        them.
        """
        incomplete: dict[Partition, str] = {}
        self._forget_pauses()
        for partition in partitions:
            if partition.log.failure is None or partition.removed or not self._is_due(partition.tp):
                continue
            try:
                await roles.reopen(partition)
            except (StorageError, CorruptRecords) as error:
                self._failed(partition.tp, error)
                # A retry cannot restore records, so the caller replaces the log.
                if isinstance(error, (RecordsMissing, CorruptRecords)):
                    incomplete[partition] = str(error)
            else:
                self._pause(partition.tp)
                self._context.failures.succeeded(partition.tp)
        return incomplete
