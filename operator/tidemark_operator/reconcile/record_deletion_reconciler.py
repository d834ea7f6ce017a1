"""Reconciler of RecordDeletions.

Its steps: resolve, freeze in a status write, delete, await the low watermarks.

Parallel queries of a leader are limited, so that a leader that hangs blocks few workers. A caller
without a slot does not wait: its key is queued again as soon as a slot is free. Workers therefore
stay free for other objects, and a leader that answers never lacks work.
"""

import asyncio
import contextlib
import dataclasses
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import TypeVar

from tidemark.reasons import Reason
from tidemark.wire.deletions import (
    DeletionPoint,
    DeletionPointQuery,
    PartitionDeletion,
    PartitionDeletionResult,
)
from tidemark_operator.clock import wall_ms
from tidemark_operator.controller import record_deletion
from tidemark_operator.controller.record_deletion import (
    Delete,
    DeletionInfo,
    DeletionWait,
    Finished,
    Resolve,
    Step,
)
from tidemark_operator.controller.state.events import normal, warning
from tidemark_operator.controller.status import deletion_status
from tidemark_operator.controller.status.conditions import find
from tidemark_operator.engines.base import EngineUnavailable
from tidemark_operator.kube.kinds import RECORD_DELETION, Json, Key
from tidemark_operator.objects.conversions import deletion_info
from tidemark_operator.reconcile.services import TermServices

logger = logging.getLogger(__name__)

R = TypeVar("R")
LOOK_AGAIN_S = 2.0
QUERY_TIMEOUT_MS = 20_000
LEADERS_AT_ONCE = 32


class RecordDeletionReconciler:
    """Reconciles the RecordDeletions of one term."""

    def __init__(self, services: TermServices) -> None:
        self._services = services
        self._turns = LeaderQuerySlots(services.queue.add)

    async def reconcile(self, key: Key) -> float | None:
        """Reconcile one RecordDeletion: resolve its offsets, delete the records, report the result.

        Returns the seconds until the next reconciliation; None: it waits for a change of the
        object.
        """
        services = self._services
        body = services.objects.get(key)
        if body is None or body["metadata"].get("deletionTimestamp"):
            return None
        view = deletion_info(body)
        # A finished request only waits for the end of its retention.
        if view.finished_ms is not None:
            return await self._expire(key, body, view)
        # Add the progress that leaders have reported, then decide the next step.
        view = record_deletion.observe(services.state, view)
        step = record_deletion.next_step(services.state, view, now_ms=wall_ms())
        match step:
            case Resolve():
                return await self._resolve(key, view, step)
            case Delete():
                return await self._delete(key, view, step)
            case Finished():
                return await self._finish(key, view, step)
            case DeletionWait():
                await self._write(key, view, step)
                return LOOK_AGAIN_S

    # ------------------------------------------------------------ resolve and freeze

    async def _resolve(self, key: Key, view: DeletionInfo, step: Resolve) -> float:
        """Query the leaders for the offsets to delete up to, and persist them in the status.

        Nothing is deleted in this step: after a crash, the next operator deletes up to the same
        offsets. Returns the seconds until the next step.
        """
        # Leaders in parallel, one request each.
        answers, problem = await _all_at_once(
            self._points(key, node_id, step.topic_id, queries)
            for node_id, queries in step.queries.items()
        )
        # A partial result is not frozen: a retry resolves all partitions again.
        if problem:
            await self._write(key, view, DeletionWait(reason=Reason.RESOLVING, message=problem))
            return LOOK_AGAIN_S
        state = self._services.state
        frozen = record_deletion.freeze(state, view, step, answers, now_ms=wall_ms())
        # Nothing to delete, or not resolvable yet.
        if isinstance(frozen, Finished):
            await self._finish(key, view, frozen)
            return 0.0
        if isinstance(frozen, DeletionWait):
            await self._write(key, view, frozen)
            return LOOK_AGAIN_S
        # The offsets are persisted; the next step deletes.
        await self._write(key, frozen, step)
        return 0.0

    async def _points(
        self, key: Key, node_id: int, topic_id: uuid.UUID, queries: Sequence[DeletionPointQuery]
    ) -> Sequence[DeletionPoint]:
        with self._turns.slot(node_id, key):
            return await self._services.engine.deletion_points(node_id, topic_id, queries)

    # ------------------------------------------------------------ delete

    async def _delete(self, key: Key, view: DeletionInfo, step: Delete) -> float:
        """Send the deletions to the leaders, and write the resulting status.

        Returns the seconds until the next step. An interrupted deletion is repeated; a leader that
        has already deleted up to the offset just confirms it.
        """
        # The status shows that the deletion has started before the first record is deleted.
        if not _says_so(view):
            await self._write(key, view, step)
        answers, problem = await _all_at_once(
            self._delete_on(key, view, step.topic_id, node_id) for node_id in step.commands
        )
        current = record_deletion.record(view, answers)
        # Do not write to a request that was deleted, paused or replaced while the leaders worked.
        if not self._is_current(key, current):
            return 0.0
        after = record_deletion.next_step(self._services.state, current, now_ms=wall_ms())
        if isinstance(after, Finished):
            await self._finish(key, current, after)
            return 0.0
        if isinstance(after, Delete):
            after = dataclasses.replace(after, problem=problem)
        await self._write(key, current, after)
        return LOOK_AGAIN_S

    async def _delete_on(
        self, key: Key, view: DeletionInfo, topic_id: uuid.UUID, node_id: int
    ) -> Sequence[PartitionDeletionResult]:
        """Delete what one broker has to delete by now. Raises :class:`EngineUnavailable`.

        While the status was written, or other brokers were queried, another leader may have been
        elected, and the request may have been withdrawn.
        """
        command: Sequence[PartitionDeletion] = ()
        if self._is_current(key, view):
            command = record_deletion.command_for(
                self._services.state, view, node_id, now_ms=wall_ms()
            )
        if not command:
            return ()
        with self._turns.slot(node_id, key):
            return await self._services.engine.delete_records(
                node_id, topic_id, command, QUERY_TIMEOUT_MS
            )

    def _is_current(self, key: Key, view: DeletionInfo) -> bool:
        """Return whether the object is the same, and neither withdrawn nor paused."""
        body = self._services.objects.get(key)
        if body is None or body["metadata"].get("deletionTimestamp"):
            return False
        found = deletion_info(body)
        return found.uid == view.uid and not found.paused

    async def _finish(self, key: Key, view: DeletionInfo, step: Finished) -> float | None:
        now_ms = wall_ms()
        ended = record_deletion.finish(view, now_ms=now_ms)
        await self._write(key, ended, step)
        event = normal if step.succeeded else warning
        self._services.events.emit(event("RecordDeletion", view.key, step.reason, step.message))
        expires_ms = record_deletion.expires_ms(ended)
        return None if expires_ms is None else max(0.0, (expires_ms - now_ms) / 1000)

    async def _expire(self, key: Key, body: Json, view: DeletionInfo) -> float | None:
        """Delete a finished RecordDeletion after its ``ttlAfterFinished``.

        Return the seconds left.
        """
        expires_ms = record_deletion.expires_ms(view)
        if expires_ms is None:
            return None
        left_ms = expires_ms - wall_ms()
        if left_ms > 0:
            return left_ms / 1000
        uid = str(body["metadata"]["uid"])
        # The operator's own deletion needs no check of the kind's definition.
        self._services.objects.confirm_deletion(uid)
        await self._services.client.api.delete(RECORD_DELETION, key.namespace, key.name, uid=uid)
        return None

    async def _write(self, key: Key, view: DeletionInfo, step: Step) -> None:
        """Write a RecordDeletion's status, unless the object was deleted or recreated meanwhile."""
        services, now_ms = self._services, wall_ms()
        cached = services.objects.get(key)
        if cached is None or cached["metadata"]["uid"] != str(view.uid):
            return  # deleted or recreated under its name: that object has another request
        view = dataclasses.replace(view, status=cached.get("status") or {})
        result = deletion_status(services.state, view, step, now_ms=now_ms)
        if await services.statuses.write_if_due(
            RECORD_DELETION, key, view.status, result.status, now_ms=now_ms
        ):
            logger.info("%s", result.sentence)


def _says_so(view: DeletionInfo) -> bool:
    """Return whether the status shows the deletion in progress.

    Then it is written once per round, with the round's result.
    """
    succeeded = find(view.status, "Succeeded")
    return succeeded is not None and succeeded.get("reason") == Reason.DELETING


async def _all_at_once(
    calls: Iterable[Coroutine[None, None, Sequence[R]]],
) -> tuple[list[R], str]:
    """Call several leaders in parallel; return their answers, one per partition.

    The second value is the problem of one leader that failed, "" if all answered. A slow or absent
    leader delays no other.
    """
    gate = asyncio.Semaphore(LEADERS_AT_ONCE)
    answers: list[R] = []
    problems: list[str] = []

    async def limited(call: Coroutine[None, None, Sequence[R]]) -> None:
        async with gate:
            try:
                answers.extend(await call)
            except EngineUnavailable as error:
                problems.append(str(error))

    # No task raises: one failure must not cancel the queries to other leaders.
    async with asyncio.TaskGroup() as group:
        for call in calls:
            group.create_task(limited(call))
    return answers, min(problems, default="")


# ------------------------------------------------------------ parallel queries


AT_ONCE = 8


class LeaderQuerySlots:
    """Slots of one term, bounded by the number of keys. ``wake`` queues a key again."""

    def __init__(self, wake: Callable[[Key], None]) -> None:
        self._wake = wake
        self._asking: Counter[int] = Counter()
        self._waiting: dict[int, dict[Key, None]] = {}

    @contextlib.contextmanager
    def slot(self, node_id: int, key: Key) -> Iterator[None]:
        """Take one of a leader's slots for a query; a context manager that frees it at the end.

        Limits the concurrent queries to one broker to :data:`AT_ONCE`. Without a free slot, ``key``
        is queued again once one is free, and :class:`EngineUnavailable` is raised.
        """
        waiting = self._waiting.setdefault(node_id, {})
        if self._asking[node_id] >= AT_ONCE:
            waiting[key] = None
            raise EngineUnavailable(
                f"broker {node_id} has not answered {AT_ONCE} requests of this kind yet"
            )
        waiting.pop(key, None)
        self._asking[node_id] += 1
        try:
            yield
        finally:
            self._asking[node_id] -= 1
            # One waiting key per freed slot, in order of arrival.
            if waiting:
                first = next(iter(waiting))
                del waiting[first]
                self._wake(first)
