"""Watches of the kinds with few objects, by kopf, in a thread of their own.

Only ``on.event`` handlers are used: no kopf finalizer, annotation, index or peering. Each handler
passes the raw object on and returns; the level-based reconcilers decide what to do. kopf has its
own event loop here, so that neither its shutdown nor its errors reach the controller.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

import kopf
from kopf._cogs.structs.references import Insights  # not public: shows which kinds kopf watches
from kopf._core.engines.peering import Identity  # not public: the type of kopf.operator's identity

from tidemark_operator.kube.access import KubernetesAccess
from tidemark_operator.kube.kinds import FEW, Json

logger = logging.getLogger(__name__)

#: Receives an object, and whether it is deleted.
Deliver = Callable[[Json, bool], None]
RESTART_S = 3.0
# Never shown. Without it kopf queries the machine for its user, and in a pod no user has a name.
IDENTITY = Identity("tidemark-operator")


def kopf_settings() -> kopf.OperatorSettings:
    """Return the settings for kopf, which is used for watches only.

    Changed are: no Events or log lines per object, no limit of workers (a limit below the number of
    objects can stop kopf), and watches that detect a silent server.
    """
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.posting.level = logging.WARNING
    settings.peering.standalone = True
    # The server ends a watch; the client's own limit is for a server that never does.
    settings.watching.server_timeout = 600
    settings.watching.client_timeout = 660
    settings.watching.connect_timeout = 10
    settings.networking.request_timeout = 60
    settings.networking.enforce_retry_after = True
    settings.queueing.worker_limit = None
    settings.queueing.idle_timeout = 1.0
    settings.queueing.exit_timeout = 0.5
    # The kinds are known and few, so the cluster is not scanned for changes of kinds.
    settings.scanning.disabled = True
    settings.process.ultimate_exiting_timeout = None
    return settings


def kopf_registry(access: KubernetesAccess, deliver: Deliver) -> kopf.OperatorRegistry:
    """Return kopf's handlers: a login, and one event handler for each watched kind.

    ``deliver`` receives each object, and whether it was deleted.
    """
    registry = kopf.OperatorRegistry()

    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await access.kopf_login()

    async def event(event: kopf.RawEvent, **_: Any) -> None:
        deliver(dict(event["object"]), event["type"] == "DELETED")

    kopf.on.login(registry=registry, id="login")(login)
    for kind in FEW:
        kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id=kind.plural)(
            event
        )
    return registry


class Watcher:
    """Runs kopf from ``start`` to ``stop``, and restarts it after an error."""

    def __init__(self, access: KubernetesAccess, namespace: str, deliver: Deliver) -> None:
        self._access = access
        self._namespace = namespace
        self._deliver = deliver
        self._stop = threading.Event()
        self._over = threading.Event()
        self._missing: list[str] = []
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)

    def start(self) -> None:
        """Start the thread, and silence kopf's log."""
        # Lines per object would drown the operator's own log.
        logging.getLogger("kopf.objects").setLevel(logging.WARNING)
        logging.getLogger("kopf._core").setLevel(logging.ERROR)
        self._thread.start()

    def alive(self) -> bool:
        """Return whether the thread is running."""
        return self._thread.is_alive()

    def again(self) -> None:
        """Restart the watches: after a restore of the API's data they wait for distant versions."""
        self._over.set()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the watches and the thread."""
        self._stop.set()
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            self._over = threading.Event()
            if self._stop.is_set():
                return
            try:
                with contextlib.suppress(asyncio.CancelledError):
                    asyncio.run(self._watch())
            except Exception:  # no error of kopf may end the watches
                logger.exception("the watches failed and restart")
            self._stop.wait(RESTART_S)

    async def _watch(self) -> None:
        """Run kopf until it ends; if a kind's CRD is missing, end kopf after a while."""
        insights = Insights()
        watching = asyncio.create_task(
            kopf.operator(
                registry=kopf_registry(self._access, self._deliver),
                settings=kopf_settings(),
                standalone=True,
                identity=IDENTITY,
                namespaces=[self._namespace],
                stop_flag=self._over,
                insights=insights,
            )
        )
        scanned = asyncio.create_task(insights.ready_resources.wait())
        try:
            await asyncio.wait({watching, scanned}, return_when=asyncio.FIRST_COMPLETED)
            missing = _missing(insights) if scanned.done() else []
            self._report_missing(missing)
            # With a missing kind, watch the others for a while; the restart then checks again.
            if missing:
                await asyncio.wait({watching}, timeout=RESTART_S)
                self._over.set()
            await watching
        finally:
            scanned.cancel()
            self._over.set()  # kopf waits for it in a thread, and the loop waits for that thread

    def _report_missing(self, missing: list[str]) -> None:
        """Log missing kinds once, however often the watches restart."""
        if missing and missing != self._missing:
            logger.warning(
                "the API server does not serve %s yet; the watches restart "
                "until it does. If this persists, install the resource "
                "definitions (crds/)",
                ", ".join(missing),
            )
        self._missing = missing


def _missing(insights: Insights) -> list[str]:
    """Return the kinds that kopf does not watch.

    kopf lists the kinds once, and a definition that was just installed may be served by name but
    not be listed yet. Without a restart its objects would stay unknown until everything is listed
    again, minutes later.
    """
    watched = {(found.group, found.plural) for found in insights.watched_resources}
    return [
        f"{kind.plural}.{kind.group}" for kind in FEW if (kind.group, kind.plural) not in watched
    ]
