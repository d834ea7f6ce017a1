"""What the reconcilers of one controller term share.

The objects as last seen, the core's state, the line of decisions, the engine, and the two ways in
which an object is written: its status by PUT with resourceVersion, its finalizer by server-side
apply. Every answer of the API server is taken in at once, so that the echo of an own write, which
the watch brings a moment later, is no news.
"""

import asyncio
import dataclasses
import logging
import time
from collections.abc import Coroutine, Mapping
from typing import Any

from tidemark_operator.controller import elections
from tidemark_operator.controller.events import Event
from tidemark_operator.controller.model import ClusterView
from tidemark_operator.controller.state import ControllerState
from tidemark_operator.controller.status import Pacer
from tidemark_operator.controller.tiering import Disablements
from tidemark_operator.controller.topic_deletion import Deletions
from tidemark_operator.engines.own_brokers import OwnBrokers
from tidemark_operator.events import EventWriter
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import NotFound
from tidemark_operator.kube.finalizers import add_finalizer, finalizers_of, remove_finalizer
from tidemark_operator.kube.kinds import (
    BROKER,
    CLUSTER,
    RECORD_DELETION,
    TOPIC,
    Json,
    Key,
    Kind,
    key_of,
)
from tidemark_operator.leadership.terms import TermEnded
from tidemark_operator.listener.server import ControlServer
from tidemark_operator.metrics import Metrics
from tidemark_operator.objects.store import ObjectStore
from tidemark_operator.objects.views import broker_info, cluster_view, topic_view
from tidemark_operator.reconcile.queue import KeyQueue
from tidemark_operator.resources.metadata import InvalidResource
from tidemark_operator.storage.committer import Committer, DecisionFailed

logger = logging.getLogger(__name__)

PARALLEL_WRITES = 16
BACKGROUND_MAX = 10_000
KINDS = {kind.kind: kind for kind in (TOPIC, BROKER, RECORD_DELETION, CLUSTER)}


@dataclasses.dataclass(frozen=True, slots=True)
class StorageState:
    """What was found out about the remote storage: the JSON for the brokers ("" while none is
    accepted) and why it cannot be used now ("" when it can, or none is configured)."""

    remote_storage: str = ""
    problem: str = ""


@dataclasses.dataclass(slots=True, kw_only=True)
class Context:
    """One term. ``cluster_key`` names the Cluster that this operator controls."""

    api: KubeApi
    cluster_key: Key
    objects: ObjectStore
    queue: KeyQueue
    state: ControllerState
    committer: Committer
    engine: OwnBrokers
    server: ControlServer
    events: EventWriter
    metrics: Metrics
    session_timeout_s: float
    pacer: Pacer = dataclasses.field(default_factory=Pacer)
    disablements: Disablements = dataclasses.field(default_factory=Disablements)
    deletions: Deletions = dataclasses.field(default_factory=Deletions)
    storage: StorageState = StorageState()
    writes: asyncio.Semaphore = dataclasses.field(
        default_factory=lambda: asyncio.Semaphore(PARALLEL_WRITES)
    )
    _background: dict[object, asyncio.Task[None]] = dataclasses.field(default_factory=dict)

    # ------------------------------------------------------------ keys and time

    @staticmethod
    def now_ms() -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def key(self, kind: Kind, text: str) -> Key:
        """The key of ``namespace/name``."""
        namespace, _, name = text.partition("/")
        return Key(kind.kind, namespace, name)

    def add_topic(self, key_text: str) -> None:
        """Reconcile a Topic soon."""
        self.queue.add(self.key(TOPIC, key_text))

    def add_topic_id(self, topic_id: Any) -> None:
        """Reconcile the Topic of an id soon, if there is one."""
        topic = self.state.topic_by_id(topic_id)
        if topic is not None:
            self.add_topic(topic.key)

    # ------------------------------------------------------------ objects in

    def take(self, body: Json) -> bool:
        """An object as the API server has it; whether it is news."""
        if not self.objects.put(body):
            return False
        self.absorb(body)
        return True

    def forget(self, body: Json) -> bool:
        """An object was deleted; whether it is news."""
        if not self.objects.remove(body):
            return False
        self.vanish(key_of(body))
        return True

    def absorb(self, body: Json) -> None:
        """Let the core's state know an object that ``objects`` holds."""
        key = key_of(body)
        try:
            if key == self.cluster_key:
                self._absorb_cluster(body)
            elif key.kind == TOPIC.kind and self.is_ours(body):
                self._absorb_topic(body)
            elif key.kind == BROKER.kind and self.is_ours(body):
                self._absorb_broker(body)
        except InvalidResource as error:
            logger.warning("%s cannot be read by this version: %s", key, error)

    def vanish(self, key: Key) -> None:
        """An object is gone. Rows and registrations of others are untouched by that."""
        text = f"{key.namespace}/{key.name}"
        self.pacer.forget(str(key))
        if key.kind == TOPIC.kind:
            self.state.drop_topic(text)
        if key.kind == BROKER.kind:
            for broker in list(self.state.brokers.values()):
                if broker.key == text:
                    self.server.close_session(broker.node_id)
                    self.state.drop_broker(broker.node_id)
                    self.engine.publish()
                    self._let_others_lead(broker.node_id)

    def _let_others_lead(self, node_id: int) -> None:
        """Partitions that still name a broker whose object is gone: nobody is told to lead them
        by a list in which it is not."""
        if self.state.keys_on(node_id):
            self.spawn(("gone", node_id), self._broker_gone(node_id))

    async def _broker_gone(self, node_id: int) -> None:
        try:
            await self.committer.decide(lambda draft: elections.broker_gone(draft, node_id))
        except (DecisionFailed, TermEnded) as error:
            logger.info("broker %d is gone, what it led waits: %s", node_id, error)

    def is_ours(self, body: Json) -> bool:
        """Whether a Topic or Broker belongs to the Cluster that this operator controls."""
        name = str(body["spec"]["clusterRef"]["name"])
        return name == self.cluster_key.name

    def _absorb_topic(self, body: Json) -> None:
        """Take a Topic in. The configuration with which it was paused holds from the moment that
        the pause is seen, before its status says so."""
        seen = topic_view(body, dict(self.state.cluster.config))
        known = self.state.topics.get(seen.key)
        if seen.paused and known is not None and known.uid == seen.uid:
            seen = dataclasses.replace(seen, config=known.config)
        self.state.put_topic(seen)

    def _absorb_broker(self, body: Json) -> None:
        seen = broker_info(body, fenced=True)
        known = self.state.brokers.get(seen.node_id)
        if known is None:
            self.state.put_broker(seen)
        elif known.key == seen.key:
            rack = seen.rack if seen.rack is not None else known.rack
            self.state.put_broker(
                dataclasses.replace(
                    known,
                    rack=rack,
                    deleting=seen.deleting,
                    generation=seen.generation,
                    status=seen.status,
                )
            )

    def _absorb_cluster(self, body: Json) -> None:
        former = self.state.cluster
        self.state.cluster = self.cluster_view_of(body)
        if dict(former.config) != dict(self.state.cluster.config):
            for topic in list(self.objects.of_kind(TOPIC)):
                self.absorb(topic)
                self.queue.add(key_of(topic))
            self.engine.publish()

    def cluster_view_of(self, body: Json) -> ClusterView:
        """The Cluster as the core sees it, with what is known of its storage."""
        return cluster_view(
            body,
            remote_storage=self.storage.remote_storage,
            storage_problem=self.storage.problem,
        )

    # ------------------------------------------------------------ objects out

    async def write_status(self, kind: Kind, key: Key, status: Mapping[str, object]) -> Json:
        """PUT a status under the resourceVersion last seen; ``Conflict`` when that is not the
        newest (the caller's key then comes again with the newest object)."""
        held = self.objects.get(key)
        if held is None:
            raise NotFound(404, f"{key} is gone")
        async with self.writes:
            written = await self.api.replace_status(kind, {**held, "status": dict(status)})
        self.metrics.status_writes.labels(kind.kind).inc()
        self.take(written)
        return written

    async def hold(self, kind: Kind, body: Json, finalizer: str) -> Json:
        """The object with our finalizer on it."""
        if finalizer in finalizers_of(body):
            return body
        async with self.writes:
            held = await add_finalizer(self.api, kind, body, finalizer)
        self.take(held)
        return held

    async def release(self, kind: Kind, body: Json, finalizer: str) -> None:
        """Take our finalizer off an object that is being deleted."""
        async with self.writes:
            left = await remove_finalizer(self.api, kind, body, finalizer)
        if finalizers_of(left):
            self.take(left)
        else:
            self.forget(left)

    async def refresh(self, key: Key) -> None:
        """Read the newest object of a key, after a conflict."""
        kind = KINDS[key.kind]
        try:
            self.take(await self.api.get(kind, key.namespace, key.name))
        except NotFound:
            held = self.objects.get(key)
            if held is not None:
                self.forget(held)

    def emit(self, event: Event) -> None:
        """Tell people; an Event about an object that is not known (any more) is only logged."""
        kind = KINDS.get(event.kind)
        body = None if kind is None else self.objects.get(self.key(kind, event.key))
        if body is None:
            logger.info("%s %s: %s: %s", event.kind, event.key, event.reason, event.message)
            return
        self.events.emit(event, body)

    # ------------------------------------------------------------ work beside the queue

    def spawn(self, name: object, work: Coroutine[Any, Any, None]) -> bool:
        """Run something beside the workers, once per ``name`` at a time; False if it runs already
        (or too much does)."""
        if name in self._background or len(self._background) >= BACKGROUND_MAX:
            work.close()
            return False
        task = asyncio.get_running_loop().create_task(work)
        self._background[name] = task
        task.add_done_callback(lambda ended: self._ended(name, ended))
        return True

    def _ended(self, name: object, task: asyncio.Task[None]) -> None:
        self._background.pop(name, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s failed", name, exc_info=error)

    async def close(self) -> None:
        """End what runs beside the workers; the term is over."""
        tasks = list(self._background.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
