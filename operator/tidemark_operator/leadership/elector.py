"""The Lease loop: a thread of its own, with its own event loop and its own connections.

A main loop that is busy for seconds must not lose the Lease, and a Lease that cannot be renewed
must stop the leader even when the main loop hangs: any thread may ask :meth:`Elector.leads`, which
counts by the monotonic clock from *before* the last successful renewal was sent.
"""

import asyncio
import contextlib
import datetime as dt
import logging
import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from tidemark.error_text import error_text
from tidemark_operator.kube.access import Access, AccessError
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import KubeError, NotFound
from tidemark_operator.kube.kinds import CLUSTER, LEASE, Json
from tidemark_operator.leadership.lease import (
    Create,
    LeaseTimes,
    Observation,
    Renew,
    Wait,
    decide,
    lease_body,
    observe,
    released,
)

logger = logging.getLogger(__name__)

#: After a whole duration, not with its end.
_JUST_AFTER_S = 0.001


@dataclass(frozen=True, slots=True)
class LeaseName:
    """Where the Lease lies and who asks for it; the identity is unique per process start."""

    namespace: str
    name: str
    identity: str


class Elector:
    """Runs the Lease loop from ``start`` to ``stop``.

    ``on_started`` and ``on_stopped`` are called in the elector's thread, in turns, never twice in
    a row, ``on_led`` whenever another is seen to have renewed; they must not block (hand over to
    another loop).
    """

    def __init__(
        self,
        access: Access,
        lease: LeaseName,
        times: LeaseTimes,
        *,
        on_started: Callable[[], None],
        on_stopped: Callable[[], None],
        on_led: Callable[[], None] = lambda: None,
    ) -> None:
        self._access = access
        self._lease = lease
        self._times = times
        self._on_started = on_started
        self._on_stopped = on_stopped
        self._on_led = on_led
        self._leading = False
        self._leading_until_s = 0.0
        self._may_take_at_s = math.inf
        self._observation: Observation | None = None
        self._logged_holder = ""
        #: Whether the Cluster is read before the Lease is written next.
        self._asks_cluster = True
        self._stop = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    # ------------------------------------------------------------ any thread

    def start(self) -> None:
        """Begin to compete."""
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop competing; a held Lease is released. Blocks until the thread has ended."""
        self._stop.set()
        loop, task = self._loop, self._task
        if loop is not None and task is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(task.cancel)
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def alive(self) -> bool:
        """Whether the thread competes."""
        return self._thread.is_alive()

    def leads(self) -> bool:
        """Whether this process may act as the leader right now."""
        return self._leading and time.monotonic() < self._leading_until_s

    # ------------------------------------------------------------ the elector's thread

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        while not self._stop.is_set():
            try:
                api = await KubeApi.open(self._access, self._times.request_timeout_s)
            except AccessError as error:
                logger.warning("no access to the Lease: %s", error)
                await asyncio.sleep(self._times.retry_s)
                continue
            async with api:
                await self._compete(api)

    async def _compete(self, api: KubeApi) -> None:
        try:
            while not self._stop.is_set():
                await self._turn(api)
                await asyncio.sleep(self._pause_s())
        finally:
            self._lost("the operator is stopping")
            with contextlib.suppress(KubeError):
                await asyncio.shield(self._release(api))

    def _pause_s(self) -> float:
        """A candidate looks again as soon as it may take what it waits for."""
        pause_s = self._times.retry_s * (0.8 + 0.4 * random.random())
        if not self._leading:
            left_s = self._may_take_at_s - time.monotonic()
            return max(_JUST_AFTER_S, min(pause_s, left_s + _JUST_AFTER_S))
        return max(0.0, min(pause_s, self._leading_until_s - time.monotonic()))

    async def _turn(self, api: KubeApi) -> None:
        """One try to get or keep the Lease; whatever fails only costs time."""
        started_s = time.monotonic()
        try:
            async with asyncio.timeout(self._budget_s(started_s)):
                held = await self._step(api)
        except (KubeError, TimeoutError) as error:
            logger.warning("the Lease could not be read or written: %s", error_text(error))
            self._asks_cluster = isinstance(error, KubeError) and error.by_policy
            held = None
        if held is True:
            self._won(started_s)
        elif held is False or time.monotonic() >= self._leading_until_s:
            self._lost(
                "another process holds the Lease" if held is False else "the Lease was not renewed"
            )

    def _budget_s(self, now_s: float) -> float:
        if not self._leading:
            return 2 * self._times.request_timeout_s
        return max(0.05, self._leading_until_s - now_s)

    async def _step(self, api: KubeApi) -> bool:
        self._may_take_at_s = math.inf
        lease = await self._read(api)
        now_s = time.monotonic()
        if lease is not None:
            former, self._observation = self._observation, observe(lease, self._observation, now_s)
            if former is not self._observation and self._observation.holder != self._lease.identity:
                self._on_led()
        action = decide(lease, self._lease.identity, self._observation, now_s)
        if isinstance(action, Wait):
            self._may_take_at_s = action.until_s
            self._log_holder(lease)
            return False
        self._logged_holder = ""
        transitions = 0 if isinstance(action, Create) else action.transitions
        body = self._body(transitions, lease)
        if self._asks_cluster:
            await self._know_cluster(api)
        if isinstance(action, Create):
            await api.create(LEASE, self._lease.namespace, body)
        else:
            await api.replace(LEASE, body)
        if not isinstance(action, Renew):
            logger.info(
                "acquired the Lease as %s, transition %d", self._lease.identity, transitions
            )
        return True

    async def _know_cluster(self, api: KubeApi) -> None:
        """Use the metadata of the Cluster, if there is one, for the Lease, too."""
        with contextlib.suppress(KubeError):
            found = await api.list_all(CLUSTER, self._lease.namespace)
            if found:
                oldest = min(found, key=lambda body: str(body["metadata"]["creationTimestamp"]))
                api.own.follow(oldest)
                self._asks_cluster = False

    def _log_holder(self, lease: Json | None) -> None:
        """Once for each holder: why this operator does nothing."""
        holder = str((lease or {}).get("spec", {}).get("holderIdentity", ""))
        if holder != self._logged_holder:
            logger.info("standing by: %s holds the Lease", holder)
            self._logged_holder = holder

    def _body(self, transitions: int, held: Json | None) -> Json:
        return lease_body(
            self._lease.name,
            self._lease.namespace,
            self._lease.identity,
            transitions=transitions,
            times=self._times,
            now=dt.datetime.now(dt.UTC),
            held=held,
        )

    async def _read(self, api: KubeApi) -> Json | None:
        try:
            return await api.get(LEASE, self._lease.namespace, self._lease.name)
        except NotFound:
            return None

    async def _release(self, api: KubeApi) -> None:
        lease = await self._read(api)
        if lease is None or lease.get("spec", {}).get("holderIdentity") != self._lease.identity:
            return
        await api.replace(LEASE, released(lease, dt.datetime.now(dt.UTC)))
        logger.info("released the Lease")

    def _won(self, started_s: float) -> None:
        self._leading_until_s = started_s + self._times.renew_deadline_s
        if not self._leading:
            self._leading = True
            self._on_started()

    def _lost(self, why: str) -> None:
        self._leading_until_s = 0.0
        if self._leading:
            self._leading = False
            logger.warning("no longer the leader: %s", why)
            self._on_stopped()
