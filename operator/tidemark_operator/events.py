"""Kubernetes Events, written through the events API.

Aggregation: of one reason about one object at most one Event is written in a few seconds. Later
ones are counted in the next one's message. A Normal Event about thousands of objects at once is
written for a few examples only, and logged for all. Warnings are written for each. Writing an Event
never delays a decision, and an Event that cannot be written is logged and dropped. The queue has a
limit.
"""

import asyncio
import datetime as dt
import logging
import time
import uuid
from dataclasses import dataclass

from tidemark.lru import Lru
from tidemark.message_text import count
from tidemark_operator.clock import micro_time, utc_now
from tidemark_operator.controller.state.events import Event, EventType
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import KubeError
from tidemark_operator.kube.kinds import EVENT, Json, Key, reference
from tidemark_operator.metrics import Metrics
from tidemark_operator.objects.store import ObjectCache

logger = logging.getLogger(__name__)

CONTROLLER = "tidemark.dev/operator"
QUIET_S = 5.0
#: Normal Events of one reason: burst, and rate after it.
EXAMPLES_MAX = 100
EXAMPLES_PER_S = 5.0
#: Entries to remember, far more than are written in :data:`QUIET_S`; each costs memory.
REMEMBERED_MAX = 5_000
LINE_MAX = 10_000
NOTE_CHARS_MAX = 1000
WRITERS = 4


@dataclass(slots=True)
class _Emission:
    at_s: float
    suppressed: int = 0


@dataclass(slots=True)
class _Examples:
    """Token bucket of one reason."""

    left: float
    at_s: float
    suppressed: int = 0

    def take(self, now_s: float) -> int | None:
        self.left = min(EXAMPLES_MAX, self.left + (now_s - self.at_s) * EXAMPLES_PER_S)
        self.at_s = now_s
        if self.left < 1:
            self.suppressed += 1
            return None
        self.left -= 1
        suppressed, self.suppressed = self.suppressed, 0
        return suppressed


class Aggregator:
    """Decide which Events are written. Pure; the clock is an argument."""

    def __init__(self, quiet_s: float = QUIET_S, remembered_max: int = REMEMBERED_MAX) -> None:
        self._quiet_s = quiet_s
        self._emitted: Lru[tuple[str, str], _Emission] = Lru(remembered_max)
        #: By reason; there are few reasons.
        self._examples: dict[str, _Examples] = {}

    def admit(
        self, uid: str, reason: str, now_s: float, type_: EventType = EventType.WARNING
    ) -> int | None:
        """Decide whether an Event is written.

        None if not, else the number of suppressed similar ones. Events of one object and reason are
        written once in an interval. Normal Events of one reason are also limited over all objects.
        """
        last = self._emitted.get((uid, reason))
        if last is not None and now_s - last.at_s < self._quiet_s:
            last.suppressed += 1
            return None
        others: int | None = 0
        # Warnings are not limited over objects, because each needs attention.
        if type_ is EventType.NORMAL:
            examples = self._examples.setdefault(reason, _Examples(EXAMPLES_MAX, now_s))
            others = examples.take(now_s)
        if others is None:
            return None
        self._emitted.put((uid, reason), _Emission(now_s))
        self._emitted.evict()
        return others + (0 if last is None else last.suppressed)


def event_body(
    event: Event, regarding: Json, *, instance: str, suppressed: int, now: dt.datetime
) -> Json:
    """Return the ``events.k8s.io/v1`` Event to create.

    ``regarding``: the object that it is about. ``instance``: identity of this process.
    ``suppressed``: number of similar Events that were not written.
    """
    meta = regarding["metadata"]
    note = (
        event.message
        if not suppressed
        else f"{event.message} ({count(suppressed, 'similar event')} suppressed)"
    )
    # The name is random, because Events of one object and reason may be written at once.
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {
            "name": f"{meta['name'][:200]}.{uuid.uuid4().hex[:16]}",
            "namespace": meta["namespace"],
        },
        "eventTime": micro_time(now),
        "reportingController": CONTROLLER,
        "reportingInstance": instance[:128],
        "action": event.reason,
        "reason": event.reason,
        "type": event.type.value,
        "note": note[:NOTE_CHARS_MAX],
        # Without this reference, kubectl describe would not show the Event.
        "regarding": reference(regarding),
    }


class EventWriter:
    """A bounded queue of Events with a few writer tasks."""

    def __init__(self, api: KubeApi, objects: ObjectCache, instance: str, metrics: Metrics) -> None:
        self._api = api
        self._objects = objects
        self._metrics = metrics
        self._instance = instance
        self._aggregator = Aggregator()
        self._line: asyncio.Queue[tuple[str, Json]] = asyncio.Queue(LINE_MAX)

    def emit(self, event: Event) -> None:
        """Log an Event and queue it for writing; never blocks.

        Events about objects that no longer exist are only logged.
        """
        logger.info("%s %s: %s: %s", event.kind, event.key, event.reason, event.message)
        namespace, _, name = event.key.partition("/")
        regarding = self._objects.get(Key(event.kind, namespace, name))
        # An Event needs the object's uid, which is unknown once it is deleted.
        if regarding is None:
            return
        suppressed = self._aggregator.admit(
            str(regarding["metadata"]["uid"]), event.reason, time.monotonic(), event.type
        )
        if suppressed is None:
            return
        body = event_body(
            event, regarding, instance=self._instance, suppressed=suppressed, now=utc_now()
        )
        # The queue is bounded, so a slow API server costs Events and no memory.
        try:
            self._line.put_nowait((str(regarding["metadata"]["namespace"]), body))
        except asyncio.QueueFull:
            logger.warning("Event dropped, %d are queued", LINE_MAX)

    async def run(self) -> None:
        """Write queued Events until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(WRITERS):
                group.create_task(self._write())

    async def _write(self) -> None:
        while True:
            namespace, body = await self._line.get()
            try:
                await self._api.create(EVENT, namespace, body)
                self._metrics.events.inc()
            except KubeError as error:
                logger.warning("Event %s was not written: %s", body["reason"], error)
