"""The operator's process: threads, listeners, and one term of leadership after another.

Three threads beside the main loop (the Lease, the brokers' listener, kopf's watches), each with a
loop of its own; they only hand over. The main loop takes over when the Lease is won and a Cluster
exists, runs the term until it ends, and stands for election again.
"""

import asyncio
import collections
import contextlib
import json
import logging
import os
import signal
import socket
import time
import uuid
from collections.abc import Callable

from tidemark_operator.control.requests import BrokerRequests
from tidemark_operator.control.server import ControlServer
from tidemark_operator.controller.commit import SliceWrite
from tidemark_operator.controller.model import BrokerInfo
from tidemark_operator.controller.state import ControllerState
from tidemark_operator.controller.status.conditions import render, summary
from tidemark_operator.engines.own_brokers import OwnBrokers
from tidemark_operator.events import EventWriter
from tidemark_operator.handlers.objects import Objects
from tidemark_operator.handlers.watcher import Watcher
from tidemark_operator.health import HealthServer, Pulse
from tidemark_operator.kube.access import Access
from tidemark_operator.kube.backoff import Backoff
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import KubeError
from tidemark_operator.kube.kinds import CLUSTER, Json
from tidemark_operator.leadership.elector import Elector, LeaseName
from tidemark_operator.leadership.takeover import TakenOver, TakeOver
from tidemark_operator.leadership.terms import EpochTooLow, NotLeading, TermEnded
from tidemark_operator.metrics import Metrics
from tidemark_operator.reconcile.context import Context
from tidemark_operator.reconcile.queue import KeyQueue
from tidemark_operator.reconcile.term import LastPass, Term
from tidemark_operator.settings import Address, Settings
from tidemark_operator.storage.committer import Committed, Committer
from tidemark_operator.storage.slices import SlicesUnusable

logger = logging.getLogger(__name__)

RETAKE = Backoff(first_s=0.2, most_s=10.0)
LOOK_FOR_CLUSTER_S = 10.0
BUSY_KEYS = 32


def process_identity() -> str:
    """Unique per process start: a paused and resumed process never mistakes another for itself."""
    return f"{socket.gethostname()[:63]}-{os.getpid()}-{uuid.uuid4().hex[:12]}"


class OperatorProcess:
    """Owns everything that ``run`` starts, and stops it in the reverse order."""

    def __init__(self, settings: Settings, announce: Callable[[str], None]) -> None:
        self._settings = settings
        self._announce = announce
        self._identity = process_identity()
        self._access = Access(settings.kubeconfig, settings.context)
        self._metrics = Metrics()
        self._objects = Objects()
        self._requests = BrokerRequests()
        self._last_pass = LastPass()
        self._queue = KeyQueue(time.monotonic)
        self._elector: Elector | None = None
        self._term: Term | None = None
        self._floor = 0
        self._arrived: collections.deque[tuple[Json, bool]] = collections.deque()
        self._changed = asyncio.Event()
        self._leading = asyncio.Event()
        self._stopping = asyncio.Event()

    # ------------------------------------------------------------ life

    async def run(self) -> None:
        """Work until SIGTERM or SIGINT."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        server = ControlServer(self._requests, loop)
        health = HealthServer(
            render=self._metrics.render,
            pulse=self._pulse,
            stand_still_s=self._settings.stand_still_s,
        )
        metrics_at = await health.start(self._settings.metrics)
        host, port = server.start(self._settings.control.host, self._settings.control.port)
        control_at = Address(host=host, port=port)
        watcher = Watcher(self._access, self._settings.namespace, self._deliver_threadsafe(loop))
        elector = self._elector = self._make_elector(loop)
        logger.info("brokers: %s, metrics: %s, identity %s", control_at, metrics_at, self._identity)
        try:
            watcher.start()
            elector.start()
            await self._serve(server, control_at, metrics_at)
        finally:
            await asyncio.to_thread(elector.stop)
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(watcher.stop)
            await health.stop()
            logger.info("stopped")

    def _make_elector(self, loop: asyncio.AbstractEventLoop) -> Elector:
        def started() -> None:
            _post(loop, self._leading.set)

        def stopped() -> None:
            _post(loop, self._lost)

        lease = LeaseName(self._settings.namespace, self._settings.lease_name, self._identity)
        return Elector(
            self._access,
            lease,
            self._settings.lease_times,
            on_started=started,
            on_stopped=stopped,
        )

    def _leads(self) -> bool:
        return self._elector is not None and self._elector.leads()

    def _lost(self) -> None:
        self._leading.clear()
        self._metrics.leader.set(0)
        if self._term is not None:
            self._term.end(NotLeading("the Lease was lost"))

    async def _serve(self, server: ControlServer, control_at: Address, metrics_at: Address) -> None:
        async with await KubeApi.open(self._access) as api:
            events = EventWriter(api, self._identity, self._metrics)
            leading = asyncio.create_task(self._lead(api, server, events, control_at, metrics_at))
            writing = asyncio.create_task(events.run())
            stopping = asyncio.create_task(self._stopping.wait())
            tasks = [leading, writing, stopping]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
            for error in ended:
                if isinstance(error, Exception):
                    raise error

    # ------------------------------------------------------------ watches

    def _deliver_threadsafe(self, loop: asyncio.AbstractEventLoop) -> Callable[[Json, bool], None]:
        def deliver(body: Json, gone: bool) -> None:
            first = not self._arrived
            self._arrived.append((body, gone))
            if first:
                _post(loop, self._drain)

        return deliver

    def _drain(self) -> None:
        """Take in what the watches brought, in one go however much it is."""
        while self._arrived:
            body, gone = self._arrived.popleft()
            if self._term is not None:
                self._term.deliver(body, gone)
            elif gone:
                self._objects.remove(body)
            else:
                self._objects.put(body)
        self._changed.set()

    # ------------------------------------------------------------ terms

    async def _lead(
        self,
        api: KubeApi,
        server: ControlServer,
        events: EventWriter,
        control_at: Address,
        metrics_at: Address,
    ) -> None:
        failures = 0
        announced = False
        while True:
            await self._leading.wait()
            self._metrics.leader.set(1)
            if not announced:
                announced = True
                self._announce(_ready_line(control_at, metrics_at))
            started_s = time.monotonic()
            try:
                await self._one_term(api, server, events)
            except EpochTooLow as error:
                self._floor = max(self._floor, error.floor)
                logger.warning("taking over again: %s", error)
            except TermEnded as error:
                logger.warning("the term ended: %s", error)
            except SlicesUnusable as error:
                logger.warning("the slices cannot be used: %s", error)
                with contextlib.suppress(KubeError, TermEnded):
                    await self._say(api, error)
            except KubeError as error:
                logger.warning("the API server failed during a take-over: %s", error)
            failures = 0 if time.monotonic() - started_s > RETAKE.most_s else failures + 1
            await asyncio.sleep(RETAKE.delay_s(failures))

    async def _one_term(self, api: KubeApi, server: ControlServer, events: EventWriter) -> None:
        cluster = await self._find_cluster(api)
        hooks = _Hooks()
        taken = await TakeOver(
            api=api,
            namespace=self._settings.namespace,
            identity=self._identity,
            leads=self._leads,
            landing=hooks.landing,
            objects=self._objects,
        ).run(cluster, self._floor)
        context = self._context(api, server, events, taken, hooks)
        term = Term(
            context,
            self._requests,
            resync_s=self._settings.resync_s,
            leads=self._leads,
            last_pass=self._last_pass,
        )
        hooks.term = term
        self._metrics.controller_epoch.set(context.state.controller_epoch)
        self._term = term
        try:
            await term.run()
        finally:
            self._term = None

    def _context(
        self,
        api: KubeApi,
        server: ControlServer,
        events: EventWriter,
        taken: TakenOver,
        hooks: "_Hooks",
    ) -> Context:
        self._queue = KeyQueue(time.monotonic)
        committer = Committer(
            taken.state,
            taken.store,
            write_broker=hooks.write_broker,
            on_committed=hooks.committed,
            busy=lambda: self._queue.running >= BUSY_KEYS,
        )
        return Context(
            api=api,
            cluster_key=taken.cluster_key,
            objects=self._objects,
            queue=self._queue,
            state=taken.state,
            committer=committer,
            engine=OwnBrokers(taken.state, self._requests),
            server=server,
            events=events,
            metrics=self._metrics,
            session_timeout_s=self._settings.session_timeout_s,
        )

    async def _find_cluster(self, api: KubeApi) -> str:
        """The Cluster to control: the one that the settings name, else the oldest."""
        while True:
            if not self._leads():
                raise NotLeading("the Lease was lost before a Cluster was found")
            self._changed.clear()
            found = await api.list_all(CLUSTER, self._settings.namespace)
            wanted = self._settings.cluster
            named = [body for body in found if wanted in ("", body["metadata"]["name"])]
            if named:
                oldest = min(named, key=_age)
                return str(oldest["metadata"]["name"])
            logger.info("waiting for a Cluster in namespace %s", self._settings.namespace)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_FOR_CLUSTER_S):
                    await self._changed.wait()

    async def _say(self, api: KubeApi, error: SlicesUnusable) -> None:
        """What stops a take-over stands in the Cluster's conditions."""
        cluster = await self._find_cluster(api)
        body = await api.get(CLUSTER, self._settings.namespace, cluster)
        former: Json = body.get("status") or {}
        generation = int(body["metadata"]["generation"])
        conditions = render(
            summary(ready=False, reason=error.reason, message=str(error), stalled=True),
            former,
            generation=generation,
            now_ms=time.time_ns() // 1_000_000,
        )
        if former.get("conditions") == conditions:
            return
        status = {**former, "observedGeneration": generation, "conditions": conditions}
        await api.replace_status(CLUSTER, {**body, "status": status})

    def _pulse(self) -> Pulse:
        return Pulse(
            leads=self._leading.is_set() and self._term is not None,
            since_pass_s=time.monotonic() - self._last_pass.at_s,
            head_age_s=self._queue.head_age_s(),
            depth=self._queue.depth,
        )


class _Hooks:
    """Ties what is made before the term (store, committer) to the term."""

    def __init__(self) -> None:
        self.term: Term | None = None

    def landing(self, state: ControllerState, write: SliceWrite) -> None:
        """The claims of a take-over change no row: nothing to tell before the term begins."""
        if self.term is not None:
            self.term.landing(state, write)

    def committed(self, committed: Committed) -> None:
        """A group of decisions is stored."""
        if self.term is not None:
            self.term.committed(committed)

    async def write_broker(self, drafted: BrokerInfo) -> bool:
        """Persist a registration."""
        return self.term is not None and await self.term.write_broker(drafted)


def _age(body: Json) -> tuple[str, str]:
    meta = body["metadata"]
    return str(meta["creationTimestamp"]), str(meta["name"])


def _ready_line(control_at: Address, metrics_at: Address) -> str:
    return json.dumps({"ready": True, "control": str(control_at), "metrics": str(metrics_at)})


def _post(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
        loop.call_soon_threadsafe(call)
