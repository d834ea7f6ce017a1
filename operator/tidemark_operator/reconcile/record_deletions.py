"""One RecordDeletion: resolve, freeze in a status write, delete, wait for the low watermarks."""

import dataclasses
import logging

from kio.schema.errors import ErrorCode

from tidemark_operator.clock import wall_ms
from tidemark_operator.controller import deletion, deletion_offsets
from tidemark_operator.controller.deletion_values import (
    LATEST,
    Delete,
    DeleteCommand,
    DeletionInfo,
    Finished,
    ListedOffset,
    Resolve,
    Step,
    Waiting,
)
from tidemark_operator.controller.events import normal, warning
from tidemark_operator.controller.status import deletion_status
from tidemark_operator.engines.base import EngineUnavailable
from tidemark_operator.kube.kinds import RECORD_DELETION, Json, Key
from tidemark_operator.objects.conversions import deletion_info
from tidemark_operator.reconcile.services import Services

logger = logging.getLogger(__name__)

LOOK_AGAIN_S = 2.0
ASK_TIMEOUT_MS = 20_000
Answers = dict[tuple[int, int], ListedOffset]


class RecordDeletionReconciler:
    """Reconciles the RecordDeletions of one term."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def reconcile(self, key: Key) -> float | None:
        """One step; when to look again, in seconds."""
        services = self._services
        body = services.objects.get(key)
        if body is None or body["metadata"].get("deletionTimestamp"):
            return None
        view = deletion_info(body)
        if view.finished_ms is not None:
            return await self._expire(key, body, view)
        view = deletion.observe(services.state, view)
        step = deletion.next_step(services.state, view, now_ms=wall_ms())
        match step:
            case Resolve():
                return await self._resolve(key, view, step)
            case Delete():
                return await self._delete(key, view, step)
            case Finished():
                return await self._finish(key, view, step)
            case Waiting():
                await self._write(key, view, step)
                return LOOK_AGAIN_S

    # ------------------------------------------------------------ resolve and freeze

    async def _resolve(self, key: Key, view: DeletionInfo, step: Resolve) -> float:
        """Ask the leaders, then freeze what they said before anything is deleted."""
        try:
            answers = await self._resolve_offsets(step)
        except EngineUnavailable as error:
            await self._write(key, view, Waiting(reason="Resolving", message=str(error)))
            return LOOK_AGAIN_S
        frozen = deletion_offsets.freeze(
            self._services.state, view, step.queries, answers, now_ms=wall_ms()
        )
        if isinstance(frozen, Waiting):
            await self._write(key, view, frozen)
            return LOOK_AGAIN_S
        await self._write(key, frozen, step)
        return 0.0

    async def _resolve_offsets(self, step: Resolve) -> Answers:
        """One ListOffsets per leader and round: a request names a partition only once."""
        rounds: dict[tuple[int, int], dict[int, int]] = {}
        turns: dict[tuple[int, int], int] = {}
        for query in step.queries:
            turn = turns.get((query.node_id, query.partition), 0)
            turns[query.node_id, query.partition] = turn + 1
            rounds.setdefault((query.node_id, turn), {})[query.partition] = query.timestamp
        answers: Answers = {}
        for (node_id, _), timestamps in sorted(rounds.items()):
            found = await self._services.engine.list_offsets(node_id, step.topic_name, timestamps)
            for partition, answer in found.items():
                answers[partition, timestamps[partition]] = answer
        return answers

    # ------------------------------------------------------------ delete

    async def _delete(self, key: Key, view: DeletionInfo, step: Delete) -> float:
        await self._write(key, view, step)
        current = view
        for command in step.commands:
            try:
                current = await self._carry_out(current, command)
            except EngineUnavailable as error:
                logger.info("%s: %s", key, error)
        after = deletion.next_step(self._services.state, current, now_ms=wall_ms())
        if isinstance(after, Finished):
            await self._finish(key, current, after)
            return 0.0
        await self._write(key, current, after)
        return LOOK_AGAIN_S

    async def _carry_out(self, view: DeletionInfo, command: DeleteCommand) -> DeletionInfo:
        """Raises :class:`EngineUnavailable`."""
        engine, offsets = self._services.engine, dict(command.offsets)
        if command.epochs:
            node_id, topic, latest = command.node_id, command.topic_name, command.epochs.keys()
            highs = await engine.list_offsets(node_id, topic, dict.fromkeys(latest, LATEST))
            ends = await engine.epoch_ends(node_id, topic, command.epochs)
            view, offsets = deletion.check_ends(view, command, highs, ends)
        if not offsets:
            return view
        answers = await engine.delete_records(
            command.node_id, command.topic_name, offsets, ASK_TIMEOUT_MS
        )
        results = {
            partition: (int(answer.error), answer.low_watermark)
            for partition, answer in answers.items()
            if answer.error is not ErrorCode.request_timed_out
        }
        return deletion.record(view, results)

    async def _finish(self, key: Key, view: DeletionInfo, step: Finished) -> float | None:
        now_ms = wall_ms()
        ended = deletion.finish(view, now_ms=now_ms)
        await self._write(key, ended, step)
        event = normal if step.succeeded else warning
        self._services.events.emit(event("RecordDeletion", view.key, step.reason, step.message))
        expires_ms = deletion.expires_ms(ended)
        return None if expires_ms is None else max(0.0, (expires_ms - now_ms) / 1000)

    async def _expire(self, key: Key, body: Json, view: DeletionInfo) -> float | None:
        expires_ms = deletion.expires_ms(view)
        if expires_ms is None:
            return None
        left_ms = expires_ms - wall_ms()
        if left_ms > 0:
            return left_ms / 1000
        uid = str(body["metadata"]["uid"])
        await self._services.client.api.delete(RECORD_DELETION, key.namespace, key.name, uid=uid)
        return None

    async def _write(self, key: Key, view: DeletionInfo, step: Step) -> None:
        services, now_ms = self._services, wall_ms()
        held = services.objects.get(key)
        if held is None:
            return
        view = dataclasses.replace(view, status=held.get("status") or {})
        result = deletion_status(services.state, view, step, now_ms=now_ms)
        if await services.statuses.write_if_due(
            RECORD_DELETION, key, view.status, result.status, now_ms=now_ms
        ):
            logger.info("%s", result.sentence)
