"""Store of a broker: the accepted configuration, its verified identity, its health.

No call may use a store whose identity was not verified: another store id, or none, means
*unavailable*, never *empty* (:mod:`tidemark.tier.identity`). The identity is read again in each
interval, and soon after any failed call. So a store that disappeared, or was replaced, is noticed
even while nothing is copied. Tasks that wait for the store are woken when it is available again.
Before a store is used, and once an hour afterwards, it is also probed for conditional writes
(:mod:`tidemark.tier.conditional_writes`). A store without them is suspended like an unreachable
one.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from tidemark.reasons import Reason
from tidemark.tier.conditional_writes import check_conditional_writes
from tidemark.tier.identity import ensure_identity
from tidemark.tier.open import Tier, open_tier
from tidemark.tier.stores.config import from_json
from tidemark.tier.stores.objects import SegmentUnreadable, StoreError, StoreUnavailable
from tidemark_broker.remote_log.settings import RemoteSettings
from tidemark_broker.replication.remote import RemoteStatus
from tidemark_broker.replication.threads import in_thread
from tidemark_broker.tasks import cancel, set_within

logger = logging.getLogger(__name__)

_CHECK_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class _Accepted:
    """Configuration accepted by the controller; ``remote_storage`` contains credentials."""

    remote_storage: str = field(default="", repr=False)
    store_id: str = ""
    cluster_id: str = ""


class StoreGuard:
    """Guard of the store, owned by the loop's thread.

    ``on_change`` is called when the store has become usable.
    """

    def __init__(
        self,
        settings: RemoteSettings,
        monotonic: Callable[[], float],
        on_change: Callable[[], None],
        wall_ms: Callable[[], int],
    ) -> None:
        """Create the guard without a configuration; see :meth:`configure`.

        ``monotonic`` returns seconds, ``wall_ms`` the wall clock in milliseconds.
        """
        self._settings = settings
        self._monotonic = monotonic
        self._wall_ms = wall_ms
        #: Time of the last successful probe of the current store, None for none.
        self._probed_s: float | None = None
        self._on_change = on_change
        self._accepted = _Accepted()
        self._tier: Tier | None = None
        #: Verified identity of the store, "" until it is verified.
        self._store_id = ""
        #: Reason why the store may not be used, None while it may.
        self._error: StoreUnavailable | None = _not_configured()
        #: Task that checks the store periodically.
        self._watcher: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        #: Set to request a check before the interval has passed.
        self._wake_up = asyncio.Event()
        #: Number of times that the store has become usable.
        self.changes = 0

    @property
    def cluster_id(self) -> str:
        """Cluster that the store must belong to."""
        return self._accepted.cluster_id

    @property
    def page_cache_bytes(self) -> int:
        """Memory of the cached sealed pages."""
        tier = self._tier
        return 0 if tier is None else tier.manifests.page_cache_bytes

    def configure(self, remote_storage: str, store_id: str, cluster_id: str) -> None:
        """Apply the storage configuration accepted by the controller.

        ``remote_storage``: JSON, "" for none. ``store_id``: identity that the store must have, ""
        if none is recorded yet. A changed configuration is verified before :meth:`tier` returns it.
        """
        accepted = _Accepted(remote_storage, store_id, cluster_id)
        if accepted == self._accepted:
            return
        before, self._accepted = self._accepted, accepted
        same_place = (before.remote_storage, before.cluster_id) == (remote_storage, cluster_id)
        # The store was verified with this id already: the controller has recorded it.
        if same_place and self._store_id == store_id:
            return
        self._store_id = ""
        self._probed_s = None
        # The tier object is reused for the same place, with its cache of pages.
        if not same_place:
            self._tier = None
        self._open()
        self._watch()

    def tier(self) -> Tier:
        """Return the verified tier. Raises :class:`StoreUnavailable` while there is none."""
        if self._error is not None:
            raise _copy_of(self._error)
        if self._tier is None or not self._store_id:
            raise _not_verified()
        return self._tier

    def verify(self, tier: Tier) -> None:
        """Check the identity again (blocking), right before an object is created."""
        cluster_id, store_id = self._accepted.cluster_id, self._store_id
        if not store_id:
            raise _not_verified()  # only the watcher creates an identity
        ensure_identity(tier.store, cluster_id, store_id)

    def suspect(self, error: BaseException) -> None:
        """Request a check soon if a call to the store failed. Any thread may call it."""
        # A missing encryption key or a newer object shows nothing about the store.
        if not isinstance(error, StoreError) or isinstance(error, SegmentUnreadable):
            return
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake_up.set)

    def status(self) -> RemoteStatus:
        """Return the health for the broker's report.

        A missing store configuration is not an error.
        """
        if not self._accepted.remote_storage:
            return RemoteStatus("", "")
        error = self._error
        text = "" if error is None else f"{error.reason}: {error}"
        return RemoteStatus(text, self._store_id)

    async def close(self) -> None:
        if self._watcher is not None:
            await cancel([self._watcher])
            self._watcher = None

    def _open(self) -> None:
        """Open the configured store; it is not usable until the watcher has verified its identity.

        An invalid configuration becomes ``_error`` and is not raised.
        """
        if not self._accepted.remote_storage:
            self._error = _not_configured()
            return
        # The tier object, with its cache of pages, stays the same for the same place.
        try:
            if self._tier is None:
                config = from_json(self._accepted.remote_storage)
                self._tier = open_tier(config, page_cache_bytes=self._settings.page_cache_bytes)
            self._error = _not_verified()
        except Exception as error:  # noqa: BLE001 - a bad configuration must not stop the broker
            self._tier = None
            self._error = StoreUnavailable(
                f"the remote storage cannot be used: {error}",
                reason=Reason.INVALID_REMOTE_STORAGE,
                retriable=False,
            )
            logger.error("%s", self._error)  # noqa: TRY400 - the message says it all

    def _watch(self) -> None:
        self._wake_up.set()
        if self._watcher is None:
            self._loop = asyncio.get_running_loop()
            self._watcher = self._loop.create_task(self._run(), name="remote store watcher")

    async def _run(self) -> None:
        backoff = self._settings.request_backoff
        while True:
            self._wake_up.clear()
            if await self._check():
                backoff, pause_s = self._settings.request_backoff, self._settings.interval_s
            else:
                now_s = self._monotonic()
                backoff = backoff.failed(now_s)
                pause_s = backoff.until_s - now_s
            await self._pause(pause_s)

    async def _pause(self, seconds: float) -> None:
        """Sleep until the time is over or a check is requested, with a minimum pause."""
        await asyncio.sleep(min(_CHECK_PAUSE_S, seconds))
        await set_within(self._wake_up, max(0.0, seconds - _CHECK_PAUSE_S))

    async def _check(self) -> bool:
        """Verify the store's identity and conditional writes; return False to retry with backoff.

        True means that the next check is due after the normal interval, or that no store is
        configured. If the configuration has changed during the check, its result is discarded.
        """
        tier, accepted = self._tier, self._accepted
        if tier is None:
            return True
        # Without an accepted id the first verified one stays in force.
        expected = accepted.store_id or self._store_id
        try:
            found = await in_thread(ensure_identity, tier.store, accepted.cluster_id, expected)
            await self._probe(tier)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is looked at again
            if (tier, accepted) == (self._tier, self._accepted):
                self._failed(error)
            return False
        # The result is for a former configuration: check the new one.
        if (tier, accepted) != (self._tier, self._accepted):
            self._wake_up.set()
            return True
        self._succeeded(tier, found)
        return True

    async def _probe(self, tier: Tier) -> None:
        """Probe for conditional writes if a probe is due. Raises :class:`StoreUnavailable`."""
        now_s = self._monotonic()
        if self._probed_s is not None and now_s - self._probed_s < self._settings.probe_s:
            return
        # A store that failed is probed with every check until it passes.
        self._probed_s = None
        await in_thread(check_conditional_writes, tier.store, now_ms=self._wall_ms())
        self._probed_s = now_s

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, StoreUnavailable):
            text = str(error) or type(error).__name__
            error = StoreUnavailable(text, reason=Reason.REMOTE_STORAGE_UNAVAILABLE, retriable=True)
        # A repeated failure is logged once.
        if self._error is None or str(self._error) != str(error):
            logger.error("remote storage is not available: %s", error)
        self._error = error

    def _succeeded(self, tier: Tier, store_id: str) -> None:
        if self._error is None and self._store_id == store_id:
            return
        logger.info("remote storage is %s, store id %s", tier.store.describe(), store_id)
        self._error = None
        self._store_id = store_id
        self.changes += 1
        # Wake the tasks that wait for the store.
        self._on_change()


def _copy_of(error: StoreUnavailable) -> StoreUnavailable:
    """Copy an exception: raising the same one repeatedly would grow its traceback without limit."""
    return StoreUnavailable(str(error), reason=error.reason, retriable=error.retriable)


def _not_configured() -> StoreUnavailable:
    return StoreUnavailable(
        "no remote storage is configured: set remoteStorage in the Cluster",
        reason=Reason.REMOTE_STORAGE_NOT_CONFIGURED,
        retriable=True,
    )


def _not_verified() -> StoreUnavailable:
    return StoreUnavailable(
        "the remote storage's identity is not verified yet; it is being read",
        reason=Reason.REMOTE_STORAGE_NOT_VERIFIED,
        retriable=True,
    )
