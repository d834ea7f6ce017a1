"""Process of the operator: its threads and listeners, started and stopped in order.

The main loop runs beside three threads (the Lease, the brokers' listener, kopf's watches),
each with its own loop; they only hand work over. A thread that ends by itself ends the process:
half an operator would look alive and do nothing.

:func:`main` is the command ``python -m tidemark_operator``: flags, logging, one process, an exit
status.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import uuid
from collections.abc import Callable, Sequence

from tidemark.http_page import HttpPage, Verdict
from tidemark_operator.certificates.certificate_stores import BundleStore, FolderStore, SecretStore
from tidemark_operator.certificates.certificates import OwnLeaf
from tidemark_operator.clock import utc_now
from tidemark_operator.health import verdict
from tidemark_operator.jobs.kubernetes import KubernetesJobs
from tidemark_operator.jobs.local import LocalJobs
from tidemark_operator.jobs.runner import JobRunner
from tidemark_operator.kube.access import AccessError, KubernetesAccess
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.kinds import Json
from tidemark_operator.kube.watcher import Watcher
from tidemark_operator.leadership.elector import Elector
from tidemark_operator.leadership.lease import LeaseName
from tidemark_operator.listener.server import ControlServer
from tidemark_operator.metrics import Metrics
from tidemark_operator.settings import BadSettings, BindAddress, OperatorSettings, parse_arguments
from tidemark_operator.term.broker_requests import BrokerRequests
from tidemark_operator.term.term_runner import TermRunner

logger = logging.getLogger(__name__)

LOOK_AT_THREADS_S = 1.0
HEALTH_TIMEOUT_S = 5.0


class ThreadEnded(RuntimeError):
    """A thread that the operator depends on has ended."""


def process_identity() -> str:
    """Return a name that is unique per start.

    A paused and resumed process must never take another one's Lease for its own.
    """
    return f"{socket.gethostname()[:63]}-{os.getpid()}-{uuid.uuid4().hex[:12]}"


class OperatorProcess:
    """Owner of everything that ``run`` starts. Create it in the loop that runs it."""

    def __init__(self, settings: OperatorSettings, announce: Callable[[str], None]) -> None:
        """Connect the parts of the operator process; :meth:`run` starts them.

        Threads (lease, control listener, watcher, HTTP page) post to the main loop, where
        everything is decided. ``announce`` receives the line that says that the operator is ready.
        """
        self._settings = settings
        self._announce = announce
        self._loop = asyncio.get_running_loop()
        #: Set by SIGTERM and SIGINT.
        self._stopping = asyncio.Event()
        identity = process_identity()
        metrics = Metrics()
        requests = BrokerRequests()
        access = KubernetesAccess(settings.kubeconfig, settings.context)
        self._access = access
        #: Runs export jobs as processes, when not in Kubernetes; created on first use.
        self._local_jobs: LocalJobs | None = None
        # The elector's thread only posts to the main loop, where terms start and end.
        self._elector = Elector(
            access,
            LeaseName(settings.namespace, settings.lease_name, identity),
            settings.lease_times,
            on_started=lambda: self._post(self._leader.won),
            on_stopped=lambda: self._post(self._leader.lost),
            on_led=self._another_leads,
        )
        self._own_leaf = OwnLeaf(utc_now)
        # The watcher delivers objects into the main loop as well; its follower receives them.
        self._watcher = Watcher(access, settings.namespace, self._deliver)
        self._leader = TermRunner(
            settings,
            identity,
            metrics,
            leads=self._elector.leads,
            requests=requests,
            own_leaf=self._own_leaf,
            store_of=self._store_of,
            jobs_of=self._jobs_of,
            rewatch=self._watcher.again,
        )
        # Brokers authenticate to the listener, and the listener to them, with certificates of the
        # authority.
        self._server = ControlServer(
            requests,
            self._loop,
            files=self._own_leaf.files,
            cluster_id=lambda: self._own_leaf.cluster_id,
        )
        self._metrics = metrics
        self._page = HttpPage(metrics=self._render, health=self._health)

    def _store_of(self, api: KubeApi) -> BundleStore:
        folder = self._settings.certificates
        return FolderStore(folder) if folder else SecretStore(api, self._settings.namespace)

    def _jobs_of(self, api: KubeApi) -> JobRunner:
        """Return the runner of exports.

        A local cluster's jobs belong to this process over all terms.
        """
        folder, namespace = self._settings.exports, self._settings.namespace
        if folder is None:
            allowed = self._settings.spark_applications
            return KubernetesJobs(api, namespace, spark_applications=allowed)
        if self._local_jobs is None:
            self._local_jobs = LocalJobs(api, namespace, folder)
        return self._local_jobs

    async def run(self) -> None:
        """Start all parts, and work until SIGTERM or SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stopping.set)
        # Bind both addresses before anything starts: the ready line contains them.
        listen = self._settings.metrics
        metrics_at = BindAddress(host=listen.host, port=self._page.start(listen.host, listen.port))
        listen = self._settings.control
        host, port = self._server.start(listen.host, listen.port)
        control_at = BindAddress(host=host, port=port)
        logger.info("brokers: %s, metrics: %s", control_at, metrics_at)
        try:
            # The watcher starts first, so that the first term finds its objects.
            self._watcher.start()
            self._elector.start()
            await self._serve(lambda: self._announce(_ready_line(control_at, metrics_at)))
        finally:
            # Stop in reverse order: without the Lease, neither listener nor watches may act.
            if self._local_jobs is not None:
                await self._local_jobs.close()
            await asyncio.to_thread(self._elector.stop)
            await asyncio.to_thread(self._server.stop)
            await asyncio.to_thread(self._watcher.stop)
            await asyncio.to_thread(self._page.stop)
            self._own_leaf.close()
            logger.info("stopped")

    async def _serve(self, ready: Callable[[], None]) -> None:
        """Run the main loop's tasks until one of them ends, and raise its exception.

        ``ready`` is called when this process leads for the first time.
        """
        async with await KubeApi.open(self._access) as api:
            tasks = [
                asyncio.create_task(self._leader.run(api, self._server, ready)),
                asyncio.create_task(self._leader.follower.follow(api)),
                asyncio.create_task(self._leader.follower.definitions.run(api)),
                asyncio.create_task(self._leader.follow_authority(api)),
                asyncio.create_task(self._watch_threads()),
                asyncio.create_task(self._stopping.wait()),
            ]
            # Any task that ends ends the process; its exception is raised once all are cancelled.
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
            for error in ended:
                if isinstance(error, Exception):
                    raise error

    async def _watch_threads(self) -> None:
        threads = {
            "Lease": self._elector.alive,
            "control listener": self._server.alive,
            "watch": self._watcher.alive,
        }
        while True:
            await asyncio.sleep(LOOK_AT_THREADS_S)
            for name, alive in threads.items():
                if not alive():
                    raise ThreadEnded(f"the {name} thread has ended. See the log above")

    def _render(self) -> bytes:
        """Render metrics; called in the page's thread.

        The main loop owns the state and measures first. If it is blocked, the former values are
        rendered.
        """
        measured = asyncio.run_coroutine_threadsafe(self._measure(), self._loop)
        try:
            measured.result(HEALTH_TIMEOUT_S)
        except TimeoutError:
            measured.cancel()
        return self._metrics.render()

    async def _measure(self) -> None:
        self._leader.measure()

    def _health(self) -> Verdict:
        """Judge the health; called in the page's thread.

        The main loop owns the queue, so it answers.
        """
        judgement = asyncio.run_coroutine_threadsafe(self._judge(), self._loop)
        try:
            return judgement.result(HEALTH_TIMEOUT_S)
        except TimeoutError:
            judgement.cancel()
            return False, f"the main loop has not responded for {HEALTH_TIMEOUT_S:.0f} s"

    async def _judge(self) -> Verdict:
        return verdict(self._leader.pulse(), self._settings.stand_still_s)

    def _another_leads(self) -> None:
        """Forget brokers that wait for a controller; called in the elector's thread."""
        self._server.searches.forget()

    def _deliver(self, body: Json, gone: bool) -> None:
        """Hand an object over; called in kopf's thread. The main loop is woken once for many."""
        first = not self._leader.follower.arrived
        self._leader.follower.arrived.append((body, gone))
        if first:
            self._post(self._leader.follower.drain)

    def _post(self, call: Callable[[], None]) -> None:
        # A closed loop means that the process ends.
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            self._loop.call_soon_threadsafe(call)


def _ready_line(control_at: BindAddress, metrics_at: BindAddress) -> str:
    return json.dumps({"ready": True, "control": str(control_at), "metrics": str(metrics_at)})


# ------------------------------------------------------------ command

EXIT_FAILED = 1
EXIT_USAGE = 2


def configure_logging(level: str) -> None:
    """Log to standard error; standard output has only the ready line."""
    logging.basicConfig(
        stream=sys.stderr,
        level=level.upper(),
        format="%(asctime)s %(levelname)-7s %(threadName)s %(name)s: %(message)s",
    )
    # These libraries log every request at INFO.
    for noisy in ("aiohttp", "asyncio", "kopf", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def announce(line: str) -> None:
    """Print the ready line at once, also into a pipe."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def _run(settings: OperatorSettings) -> None:
    await OperatorProcess(settings, announce).run()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the operator until SIGTERM; return the exit code.

    0: stopped regularly. 1: a thread has ended. 2: the settings cannot work.
    """
    try:
        settings = parse_arguments(sys.argv[1:] if arguments is None else arguments)
        configure_logging(settings.log_level)
        asyncio.run(_run(settings))
    except (BadSettings, AccessError) as error:
        sys.stderr.write(f"tidemark-operator: {error}\n")
        return EXIT_USAGE
    except ThreadEnded as error:
        sys.stderr.write(f"tidemark-operator: {error}\n")
        return EXIT_FAILED
    except OSError as error:
        sys.stderr.write(f"tidemark-operator: cannot listen: {error}\n")
        return EXIT_USAGE
    return 0
