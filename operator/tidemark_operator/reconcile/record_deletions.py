"""One RecordDeletion: resolve, freeze in a status write, delete, wait for the low watermarks."""

import dataclasses
import logging
from collections.abc import Mapping

from kio.schema.errors import ErrorCode

from tidemark_operator.clock import wall_ms
from tidemark_operator.controller import deletion, deletion_offsets
from tidemark_operator.controller.deletion_offsets import Answers
from tidemark_operator.controller.deletion_values import (
    EARLIEST,
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
        state = self._services.state
        try:
            answers = await self._resolve_offsets(step)
            epochs = await self._resolve_epochs(view, step, answers)
        except EngineUnavailable as error:
            await self._write(key, view, Waiting(reason="Resolving", message=str(error)))
            return LOOK_AGAIN_S
        frozen = deletion_offsets.freeze(state, view, step, answers, epochs, now_ms=wall_ms())
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
        answers: dict[tuple[int, int], ListedOffset] = {}
        for (node_id, _), timestamps in sorted(rounds.items()):
            found = await self._services.engine.list_offsets(node_id, step.topic_name, timestamps)
            for partition, answer in found.items():
                answers[partition, timestamps[partition]] = answer
        return answers

    async def _resolve_epochs(
        self, view: DeletionInfo, step: Resolve, answers: Answers
    ) -> Mapping[int, int]:
        topic = self._services.state.topics.get(view.topic_key)
        if topic is None:
            return {}
        search = deletion_offsets.search_epochs(view, topic, step, answers)
        while questions := search.questions:
            for node_id, epochs in sorted(questions.items()):
                ends = await self._services.engine.epoch_ends(node_id, step.topic_name, epochs)
                if ends.keys() != epochs.keys():
                    raise EngineUnavailable(f"broker {node_id} does not lead all partitions now")
                for partition, end in ends.items():
                    search.take(partition, end)
        return search.found

    # ------------------------------------------------------------ delete

    async def _delete(self, key: Key, view: DeletionInfo, step: Delete) -> float:
        await self._write(key, view, step)
        current = view
        for node_id in [command.node_id for command in step.commands]:
            try:
                current = await self._carry_out(key, current, node_id)
            except EngineUnavailable as error:
                logger.info("%s: %s", key, error)
        if not self._is_wanted(key, current):
            return 0.0
        after = deletion.next_step(self._services.state, current, now_ms=wall_ms())
        if isinstance(after, Finished):
            await self._finish(key, current, after)
            return 0.0
        await self._write(key, current, after)
        return LOOK_AGAIN_S

    async def _carry_out(self, key: Key, view: DeletionInfo, node_id: int) -> DeletionInfo:
        """What one broker is to delete. Nothing is sent on the strength of what was so before an
        answer came: the topic may be another by now, its leader too, and the request withdrawn.
        Raises :class:`EngineUnavailable`."""
        engine, command = self._services.engine, self._command_for(key, view, node_id)
        if command is None:
            return view
        topic, offsets = command.topic_name, dict(command.offsets)
        if command.epochs:
            earliest = dict.fromkeys(command.epochs, EARLIEST)
            starts = await engine.list_offsets(node_id, topic, earliest)
            ends = await engine.epoch_ends(node_id, topic, command.epochs)
            if self._command_for(key, view, node_id) != command:
                return view
            view, offsets = deletion.check_ends(view, command, starts, ends)
        if not offsets:
            return view
        answers = await engine.delete_records(node_id, topic, offsets, ASK_TIMEOUT_MS)
        results = {
            partition: (int(answer.error), answer.low_watermark)
            for partition, answer in answers.items()
            if answer.error is not ErrorCode.request_timed_out
        }
        return deletion.record(view, results)

    def _command_for(self, key: Key, view: DeletionInfo, node_id: int) -> DeleteCommand | None:
        if not self._is_wanted(key, view):
            return None
        return deletion.command_for(self._services.state, view, node_id, now_ms=wall_ms())

    def _is_wanted(self, key: Key, view: DeletionInfo) -> bool:
        """Is it still the same object, and nobody has withdrawn it, or asked for a pause?"""
        body = self._services.objects.get(key)
        if body is None or body["metadata"].get("deletionTimestamp"):
            return False
        found = deletion_info(body)
        return found.uid == view.uid and not found.paused

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
        if held is None or held["metadata"]["uid"] != str(view.uid):
            return  # gone, or made again under its name: that one asks for something else
        view = dataclasses.replace(view, status=held.get("status") or {})
        result = deletion_status(services.state, view, step, now_ms=now_ms)
        if await services.statuses.write_if_due(
            RECORD_DELETION, key, view.status, result.status, now_ms=now_ms
        ):
            logger.info("%s", result.sentence)
