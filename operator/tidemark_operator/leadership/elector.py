"""Lease loop in a thread of its own, with its own event loop and its own connections.

A main loop that is busy for seconds must not lose the Lease, and a Lease that cannot be renewed
must stop the leader even when the main loop hangs. Any thread may therefore call
:meth:`Elector.leads`. Its deadline counts by the monotonic clock from *before* the last successful
renewal was sent.

Deleting a namespace deletes its Lease too, and no Lease can be created in a namespace that is being
deleted. Then no operator could lead, and objects that wait for their finalizer would stay for ever.
A finalizer therefore retains the Lease from the first takeover until the last Cluster is deleted. A
Lease that is being deleted can still be taken and renewed.
"""

import asyncio
import contextlib
import logging
import math
import random
import threading
import time
from collections.abc import Callable

from tidemark.error_text import error_text
from tidemark_operator.clock import utc_now
from tidemark_operator.kube.access import AccessError, KubernetesAccess
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import KubeError, NotFound
from tidemark_operator.kube.finalizers import add_finalizer, finalizers_of, remove_finalizer
from tidemark_operator.kube.kinds import CLUSTER, LEASE, Json
from tidemark_operator.leadership.lease import (
    Create,
    LeaseName,
    LeaseTimes,
    Observation,
    Renew,
    Wait,
    decide,
    lease_body,
    observe,
    released,
)
from tidemark_operator.resources.names import LEASE_FINALIZER

logger = logging.getLogger(__name__)

#: A record may be taken after a full duration has passed, not at the instant it ends.
_JUST_AFTER_S = 0.001


class Elector:
    """Competes for the Lease from ``start`` to ``stop``.

    ``on_started`` and ``on_stopped`` are called in the elector's thread, alternately, never twice
    in a row. ``on_led`` is called whenever another holder is observed to have renewed. The
    callbacks must not block: they hand the work to another loop.
    """

    def __init__(
        self,
        access: KubernetesAccess,
        lease: LeaseName,
        times: LeaseTimes,
        *,
        on_started: Callable[[], None],
        on_stopped: Callable[[], None],
        on_led: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare an elector, which acquires and renews the Lease in a thread of its own.

        ``lease``: the Lease and this process's identity; ``times``: duration and intervals.
        """
        self._access = access
        self._lease = lease
        self._times = times
        self._on_started = on_started
        self._on_stopped = on_stopped
        self._on_led = on_led
        self._leading = False
        self._leading_until_s = 0.0  # Monotonic time at which an unrenewed Lease ends.
        #: Monotonic time at which another holder's Lease may be taken.
        self._may_take_at_s = math.inf
        #: The other holder's record as last read, and since when it is unchanged.
        self._observation: Observation | None = None
        self._logged_holder = ""
        #: Whether the Cluster is read before the next write of the Lease.
        self._reads_cluster = True
        self._stop = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    # ------------------------------------------------------------ any thread

    def start(self) -> None:
        """Start to compete for the Lease."""
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop competing; a held Lease is released. Blocks until the thread has ended."""
        self._stop.set()
        loop, task = self._loop, self._task
        # The loop may have closed between the check and the call.
        if loop is not None and task is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(task.cancel)
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def alive(self) -> bool:
        """Return whether the thread is running."""
        return self._thread.is_alive()

    def leads(self) -> bool:
        """Return whether this process may act as the leader right now."""
        return self._leading and time.monotonic() < self._leading_until_s

    # ------------------------------------------------------------ the elector's thread

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self._main())

    async def _main(self) -> None:
        """Compete for the Lease until the elector is stopped."""
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        while not self._stop.is_set():
            try:
                # A new client for each attempt: the mounted token may have been rotated.
                api = await KubeApi.open(self._access, self._times.request_timeout_s)
            except AccessError as error:
                logger.warning("no access to the Lease: %s", error)
                await asyncio.sleep(self._times.retry_s)
                continue
            async with api:
                await self._compete(api)

    async def _compete(self, api: KubeApi) -> None:
        """Acquire and renew the Lease until stopped, then release it."""
        try:
            while not self._stop.is_set():
                await self._turn(api)
                await asyncio.sleep(self._pause_s())
        finally:
            self._lost("the operator is stopping")
            # A released Lease lets the next leader start at once. Shielded, because stop() cancels
            # this task.
            with contextlib.suppress(KubeError):
                await asyncio.shield(self._release(api))

    def _pause_s(self) -> float:
        """Return the seconds until the next turn; a candidate wakes up when the Lease may be
        taken.
        """
        # Jitter of 20 % keeps candidates from writing at the same moment.
        pause_s = self._times.retry_s * (0.8 + 0.4 * random.random())
        if not self._leading:
            left_s = self._may_take_at_s - time.monotonic()
            return max(_JUST_AFTER_S, min(pause_s, left_s + _JUST_AFTER_S))
        # A leader never sleeps past its deadline, so the loss is noticed in time.
        return max(0.0, min(pause_s, self._leading_until_s - time.monotonic()))

    async def _turn(self, api: KubeApi) -> None:
        """Try once to acquire or renew the Lease; errors are logged and retried later."""
        # Other candidates count from when the write arrives. Counting from before the request is
        # therefore safe: this process stops to lead first.
        started_s = time.monotonic()
        try:
            async with asyncio.timeout(self._budget_s(started_s)):
                holds_lease = await self._step(api)
        except (KubeError, TimeoutError) as error:
            logger.warning("the Lease could not be read or written: %s", error_text(error))
            # An admission policy may require the Cluster's labels on the objects of the operator.
            self._reads_cluster = isinstance(error, KubeError) and error.by_policy
            holds_lease = None
        if holds_lease is True:
            self._won(started_s)
        # An unanswered request loses the Lease only when the deadline has passed.
        elif holds_lease is False or time.monotonic() >= self._leading_until_s:
            self._lost(
                "another process holds the Lease"
                if holds_lease is False
                else "the Lease was not renewed"
            )

    def _budget_s(self, now_s: float) -> float:
        if not self._leading:
            return 2 * self._times.request_timeout_s
        # A leader's turn ends with its deadline at the latest; a candidate has nothing to lose.
        return max(0.05, self._leading_until_s - now_s)

    async def _step(self, api: KubeApi) -> bool:
        """Read the Lease, then create, renew or take it over if allowed.

        Return whether it is held.
        """
        self._may_take_at_s = math.inf
        lease = await self._read(api)
        now_s = time.monotonic()
        if lease is not None:
            # A record of another holder that changed proves that this holder is alive.
            former, self._observation = self._observation, observe(lease, self._observation, now_s)
            if former is not self._observation and self._observation.holder != self._lease.identity:
                self._on_led()
        action = decide(lease, self._lease.identity, self._observation, now_s)
        # Another holder is within its duration: wait until the record may be taken.
        if isinstance(action, Wait):
            self._may_take_at_s = action.until_s
            self._log_holder(lease)
            return False
        self._logged_holder = ""
        # The write has the resourceVersion that was read, so of two candidates one gets a conflict.
        transitions = 0 if isinstance(action, Create) else action.transitions
        body = lease_body(
            self._lease, self._times, utc_now(), transitions=transitions, stored=lease
        )
        if self._reads_cluster:
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
        """Apply the Cluster's labels and annotations to the Lease, if there is a Cluster."""
        with contextlib.suppress(KubeError):
            found = await api.list_all(CLUSTER, self._lease.namespace)
            if found:
                oldest = min(found, key=lambda body: str(body["metadata"]["creationTimestamp"]))
                api.own.follow(oldest)
            self._reads_cluster = False

    def _log_holder(self, lease: Json | None) -> None:
        """Log once for each holder why this operator is on standby."""
        holder = str((lease or {}).get("spec", {}).get("holderIdentity", ""))
        if holder != self._logged_holder:
            logger.info("standing by: %s holds the Lease", holder)
            self._logged_holder = holder

    async def _read(self, api: KubeApi) -> Json | None:
        try:
            return await api.get(LEASE, self._lease.namespace, self._lease.name)
        except NotFound:
            return None

    async def _release(self, api: KubeApi) -> None:
        lease = await self._read(api)
        if lease is None or lease.get("spec", {}).get("holderIdentity") != self._lease.identity:
            return
        await api.replace(LEASE, released(lease, utc_now()))
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


async def protect_lease(api: KubeApi, namespace: str, name: str) -> None:
    """Add our finalizer to the Lease.

    The API server rejects that for a Lease that is being deleted, so nothing is done for one.
    """
    try:
        lease = await api.get(LEASE, namespace, name)
    except NotFound:
        return
    if not lease["metadata"].get("deletionTimestamp") and LEASE_FINALIZER not in finalizers_of(
        lease
    ):
        await add_finalizer(api, LEASE, lease, LEASE_FINALIZER)


async def release_lease(api: KubeApi, namespace: str, name: str) -> None:
    """Remove our finalizer: no Cluster needs the Lease any more."""
    try:
        lease = await api.get(LEASE, namespace, name)
        if LEASE_FINALIZER in finalizers_of(lease):
            await remove_finalizer(api, LEASE, lease, LEASE_FINALIZER)
    except NotFound:
        return
