"""One broker: log directory, replicas, listeners, and the session with the controller.

All long-running work belongs to one TaskGroup, which ends when the stop event is set. A shutdown
first moves leaders away (for a limited time), then stops serving, then flushes and closes the logs.
The clean marker is written last, with the broker epoch that the next start may present as proof.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric

from tidemark.configuration.broker_keys import (
    READERS_LISTENERS,
    REMOTE_READERS,
    REPLICA_SELECTOR,
)
from tidemark.http_page import HttpPage
from tidemark.logfiles.names import GROUP_OFFSETS_TOPIC
from tidemark.metrics import tier_table
from tidemark.metrics.families import ReadOnlyCollector, singles
from tidemark.tls import identity as tls_identity
from tidemark.tls.dialing import Dialer
from tidemark.tls.files import TlsFiles
from tidemark.wire.receiver import Frame
from tidemark_broker.admission.connection_limits import ConnectionLimits
from tidemark_broker.admission.response_memory import SMALL_BYTES, ResponseBudget, ResponseMemory
from tidemark_broker.api.client import Client
from tidemark_broker.api.fetch_session import FetchSessionCache
from tidemark_broker.api.read_confirmations import ConfirmationService, ReadConfirmations
from tidemark_broker.api.services import HandlerServices, HandlerSettings, RemoteReadRotation
from tidemark_broker.api.serving.dispatcher import Dispatcher, PrivateDispatcher
from tidemark_broker.api.table import PrivateApi
from tidemark_broker.client_listeners import ClientListeners, user_store
from tidemark_broker.config import BrokerConfig
from tidemark_broker.config_entries import ConfigError, accepted, list_of, text_of, values_of
from tidemark_broker.control.client import ControlClient, ProcessIdentity
from tidemark_broker.control.commands import CommandServer
from tidemark_broker.control.disablement_tasks import DisablementTasks
from tidemark_broker.control.epoch_file import ControllerEpoch
from tidemark_broker.control.heartbeat import LoopClock
from tidemark_broker.control.isr_changes import IsrChanges
from tidemark_broker.groups.core.settings import GroupSettings, Now
from tidemark_broker.groups.group_coordinator import GroupCoordinator
from tidemark_broker.listeners import REPLICATION, ClientListener, ListenerAddress
from tidemark_broker.log import StorageError
from tidemark_broker.log_cleaner import LogCleaner
from tidemark_broker.log_maintenance import LogMaintenance
from tidemark_broker.metrics import (
    broker_metrics,
    certificate_metrics,
    group_metrics,
    topic_metrics,
    transaction_metrics,
)
from tidemark_broker.net.metrics import NetMetrics
from tidemark_broker.net.replication import ReplicationServer
from tidemark_broker.producer_ids import ProducerIds
from tidemark_broker.purgatory import Purgatory
from tidemark_broker.replication.following.fetcher import FetcherContext, FetchLimits
from tidemark_broker.replication.following.fetchers import Fetchers
from tidemark_broker.replication.following.follower_fetches import ReplicaFetchService
from tidemark_broker.replication.hosting.log_directory import LogDirectory
from tidemark_broker.replication.hosting.replica_manager import ReplicaManager
from tidemark_broker.replication.metadata import MetadataCache
from tidemark_broker.replication.partition import Partition, ReplicaContext
from tidemark_broker.replication.remote import RemoteLog
from tidemark_broker.replication.threads import in_thread
from tidemark_broker.topic_changes.creations import Creations
from tidemark_broker.topic_changes.forwarder import Forwarder
from tidemark_broker.transactions.broker_connections import Links
from tidemark_broker.transactions.coordinator import TransactionCoordinator
from tidemark_broker.transactions.marker_writer import MarkerWriter
from tidemark_broker.transactions.shard import TransactionLimits

logger = logging.getLogger(__name__)

#: Longest wait of a shutdown for calls to the store.
_STORE_TIMEOUT_S = 5.0
CONTROLLER_EPOCH_FILE = "tidemark-controller-epoch.json"

#: Creates the remote log manager of a broker from the replicas' context and the configuration.
RemoteFactory = Callable[[ReplicaContext, BrokerConfig], RemoteLog[Partition]]


@dataclass(frozen=True, slots=True)
class Ready:
    """A broker that is registered and unfenced: its advertised addresses, listeners in their
    order.
    """

    node_id: int
    clients: Sequence[ClientListener]
    listeners: Mapping[str, ListenerAddress]
    metrics: ListenerAddress


def api_settings(config: BrokerConfig) -> HandlerSettings:
    """Return the part of the configuration that the api handlers read.

    Raises :class:`ConfigError`.
    """
    readers_listeners = frozenset(list_of(text_of(config.entries, READERS_LISTENERS)))
    for name in sorted(readers_listeners - {listener.name for listener in config.clients}):
        raise ConfigError(f"{READERS_LISTENERS} names {name}, which is not in listeners: add it")
    return HandlerSettings(
        **values_of(HandlerSettings, config.entries),
        replica_selector=accepted(config.entries, REPLICA_SELECTOR),
        remote_readers=accepted(config.entries, REMOTE_READERS),
        readers_listeners=readers_listeners,
        log_dir=config.log_dir.absolute(),
    )


class BrokerServer:
    """All parts of one broker, and their start and shutdown.

    ``log_directory`` is open. ``remote`` creates the remote log manager, None without tiered
    storage. :meth:`run` may be called once.
    """

    def __init__(
        self, config: BrokerConfig, log_directory: LogDirectory, remote: RemoteFactory | None = None
    ) -> None:
        """Create all parts of the broker and connect them. Nothing is started or bound yet."""
        self.config = config
        self.log_directory = log_directory
        # Parts that replicas use: metadata of the cluster, waiting requests, and ISR proposals.
        #: Brokers, topics and leaders as the controller has sent them.
        self.metadata = MetadataCache(config.cluster_id)
        #: Requests that wait for a change of a partition, as in Kafka.
        self.purgatory = Purgatory()
        self.clock = LoopClock()
        self.isr_changes = IsrChanges()
        self.producer_ids = ProducerIds()
        # What every replica needs from the broker.
        self.context = ReplicaContext(
            node_id=config.node_id,
            metadata=self.metadata,
            purgatory=self.purgatory,
            lag_max_s=config.seconds("replica.lag.time.max.ms"),
            monotonic=time.monotonic,
            wall_ms=lambda: time.time_ns() // 1_000_000,
            propose_isr=self.isr_changes.submit,
            persist=log_directory.persist,
            checkpoint_log_start=log_directory.checkpoint_log_start,
            failures=log_directory.failures,
            stall=self.clock.stall,
            records_lost=self._records_lost,
        )
        if remote is not None:
            self.context.remote = remote(self.context, config)
        # The control client is created last. The lambdas below read it only after the constructor.
        self.tls = TlsFiles(config.tls_directory)
        # Replicas, and the fetchers that copy from their leaders.
        self.fetchers = Fetchers(
            FetcherContext(
                self.context,
                FetchLimits(**values_of(FetchLimits, config.entries)),
                dialer_of=self._dialer_of,
                broker_epoch=lambda: self.client.broker_epoch,
            )
        )
        self.manager = ReplicaManager(
            self.context, logs=log_directory, fetchers=self.fetchers, broker_config=config.entries
        )
        #: Work of disabling remote storage (KIP-950) that the controller has requested.
        self.disablements = DisablementTasks(self.manager)
        self.registry = CollectorRegistry()
        self.net_metrics = NetMetrics(self.registry)
        self.users = user_store(config)
        #: Sends changes of topics and configurations to the operator, which owns the
        #: objects.
        self.changes = Forwarder(lambda: self.client.link)
        #: Creates topics that clients or coordinators need and that do not exist.
        self.creations = Creations(self.changes, self.metadata, config.entries)
        # Coordinators of consumer groups and transactions, which keep their state in internal
        # topics.
        self.groups = self._group_coordinator()
        # The coordinators load and unload a partition's state when its leader changes.
        self.context.role_changed.append(self.groups.coordinators.role_changed)
        self.marker_writer = MarkerWriter(self.manager, {GROUP_OFFSETS_TOPIC: self.groups})
        self.transactions = TransactionCoordinator(
            self.context,
            limits=TransactionLimits(**values_of(TransactionLimits, config.entries)),
            dialer_of=self._dialer_of,
            request_topic=self.creations.request,
            producer_ids=self.producer_ids,
            write_markers=self.marker_writer.write,
        )
        #: A Reader's questions to leaders, and this broker's answers to Readers.
        self.confirmations = ReadConfirmations(
            Links(self.metadata, self._dialer_of, client_id="cold reads"), self.context.monotonic
        )
        self.confirmation_service = ConfirmationService(self.manager.by_id)
        #: Spread of the consumers that read remote records over the replicas.
        self.remote_read_rotation = RemoteReadRotation()
        # The interfaces: Kafka's Apis for clients, and internal Apis for other brokers.
        self.dispatcher = self._dispatcher()
        self.listeners = ClientListeners(config, self.dispatcher, self.users, self.net_metrics)
        self.fetch_service = ReplicaFetchService(self.context, self.manager.by_id)
        self.replication_server = self._replication_server()
        #: Highest controller epoch that this broker has obeyed.
        self.epoch = ControllerEpoch(config.log_dir / CONTROLLER_EPOCH_FILE)
        self.upkeep = LogMaintenance(log_directory, self.manager)
        self.cleaner = LogCleaner(
            config,
            lambda: self.manager.partitions,
            monotonic=self.context.monotonic,
            wall_ms=self.context.wall_ms,
        )
        # Set when the first full snapshot is applied, and when all listeners accept connections.
        self._caught_up, self._listens = asyncio.Event(), asyncio.Event()
        self.client = self._control_client()

    def _dialer_of(self, node_id: int) -> Dialer:
        return Dialer(
            files=self.tls,
            expected=tls_identity.TlsIdentity(self.config.cluster_id, node_id),
            encrypted=self.config.replicates_encrypted,
        )

    def _replication_server(self) -> ReplicationServer:
        """Return the listener for other brokers, with the internal Apis that it offers.

        Followers fetch records, transaction coordinators write markers, partition leaders verify
        transactions at their coordinator (KIP-890), and Readers let leaders confirm cold reads.
        """
        # Internal Apis are separate from Kafka's, so that no client can call them.
        apis = (
            PrivateApi("ReplicaFetch", self.fetch_service.handle, self.fetch_service.begin),
            PrivateApi("WriteMarkers", self.marker_writer.serve),
            PrivateApi("AskCoordinator", self.transactions.serve),
            PrivateApi("ConfirmColdReads", self.confirmation_service.serve),
        )
        return ReplicationServer(
            PrivateDispatcher(apis, self.net_metrics).begin,
            me=tls_identity.TlsIdentity(self.config.cluster_id, self.config.node_id),
            files=self.tls,
            encrypted=self.config.replicates_encrypted,
            limits=ConnectionLimits.of(self.config.entries),
            net_metrics=self.net_metrics,
        )

    def _dispatcher(self) -> Dispatcher:
        """Return the dispatcher of Kafka's Apis, with the parts of the broker that handlers use."""
        # The handlers reach the broker only through these parts, which tests replace one by one.
        return Dispatcher(
            HandlerServices(
                replicas=self.manager,
                cluster=self.metadata,
                purgatory=self.purgatory,
                settings=api_settings(self.config),
                users=self.users,
                # Incremental Fetch sessions of clients (KIP-227).
                fetch_sessions=FetchSessionCache(
                    slots=self.config.integer("max.incremental.fetch.session.cache.slots")
                ),
                changes=self.changes,
                creations=self.creations,
                producer_ids=self.producer_ids,
                entries=self.config.entries,
                groups=self.groups,
                transactions=self.transactions,
                marker_writer=self.marker_writer,
                confirmations=self.confirmations,
                remote_read_rotation=self.remote_read_rotation,
            ),
            metrics=self.net_metrics,
        )

    def _group_coordinator(self) -> GroupCoordinator:
        context = self.context
        return GroupCoordinator(
            GroupSettings.of(self.config),
            cluster=self.metadata,
            purgatory=self.purgatory,
            request_topic=self.creations.request,
            clock=lambda: Now(context.monotonic(), context.wall_ms()),
        )

    async def _serve_controller(self, frame: Frame, peer: str) -> Sequence[bytes] | None:
        """Serve a Kafka request of the operator, which concerns few partitions."""
        # Operator requests get a budget of their own, so client traffic cannot starve them.
        memory = ResponseMemory(ResponseBudget(SMALL_BYTES))
        return await self.dispatcher.serve(frame, memory, Client.controller(peer))

    # ------------------------------------------------------------ life

    async def run(self, stop: asyncio.Event, ready: Callable[[Ready], None]) -> bool:
        """Serve until ``stop`` is set, then shut down cleanly.

        ``ready`` is called once, when the controller has unfenced the broker. Return False if calls
        to the object store still block threads, which cannot be interrupted. Everything else is
        closed by then, and the process should exit without waiting for those threads.
        """
        # Logs are loaded and addresses bound before any task starts, so that a failure ends the
        # start.
        self.manager.load(self.log_directory.found())
        await self.listeners.bind()
        address = self.config.listeners[REPLICATION]
        await self.replication_server.bind(address.host, address.port)
        page = self._http_page()
        metrics_port = page.start(self.config.metrics.host, self.config.metrics.port)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(work) for work in self._background(metrics_port, ready)]
                # Every task is a loop without end, so cancelling them is the only way out of the
                # group.
                await stop.wait()
                store_is_left = await self._shut_down()
                for task in tasks:
                    task.cancel()
        finally:
            await in_thread(page.stop)
        # The clean marker is only valid once no task can append any more.
        await self.log_directory.close(self.client.proven_broker_epoch)
        return store_is_left

    def _background(
        self, metrics_port: int, ready: Callable[[Ready], None]
    ) -> list[Coroutine[None, None, None]]:
        """Return the long-running tasks of the broker. None of them ends by itself.

        ``metrics_port`` is the bound port of the metrics page, for ``ready``.
        """
        config = self.config
        retention_s = config.seconds("log.retention.check.interval.ms")
        return [
            # Event loop clock, session with the controller, and coordinators.
            self.clock.run(),
            self.client.run(),
            self.creations.run(),
            self.groups.run(),
            self.transactions.run(),
            # Serving starts only after the first full snapshot. See _listen.
            self._listen(),
            self.log_directory.run_log_start_checkpoints(),
            self._report_ready(metrics_port, ready),
            # The interval jobs are independent of each other. A failed run is logged and repeated.
            every(1.0, self.manager.retry),
            every(self.context.lag_max_s / 2, self._shrink_isrs),
            every(retention_s, self.upkeep.apply_retention),
            every(
                config.seconds("replica.high.watermark.checkpoint.interval.ms"),
                self.upkeep.checkpoint,
            ),
            every(config.seconds("log.flush.scheduler.interval.ms"), self.upkeep.flush),
            every(
                config.seconds("producer.id.expiration.check.interval.ms"),
                lambda: self.upkeep.expire_producers(config.integer("producer.id.expiration.ms")),
            ),
            self.cleaner.run(),
        ]

    async def _shrink_isrs(self) -> None:
        self.manager.shrink_isrs()

    async def _listen(self) -> None:
        """Serve clients once a full snapshot is applied; earlier, a client would receive
        UNKNOWN_TOPIC for existing topics. If another process has taken an address meanwhile, the
        broker ends.
        """
        await self._caught_up.wait()
        await self.listeners.listen()
        await self.replication_server.listen()
        self._listens.set()

    async def _snapshot_applied(self, controller_epoch: int) -> None:
        """Report the snapshot to the controller, which then unfences this broker.

        The listeners must be open by then.
        """
        self._caught_up.set()
        # An unfenced broker receives clients at once, so the report waits for the open listeners.
        await self._listens.wait()
        self.client.snapshot_applied(controller_epoch)

    async def _report_ready(self, metrics_port: int, ready: Callable[[Ready], None]) -> None:
        await self.client.unfenced.wait()
        listeners = {
            endpoint.name: ListenerAddress(endpoint.host, endpoint.port)
            for endpoint in self.listeners.endpoints()
        }
        metrics = ListenerAddress(self.config.metrics.host, metrics_port)
        ready(Ready(self.config.node_id, self.config.clients, listeners, metrics))

    async def _shut_down(self) -> bool:
        """Move leaders away while the controller answers, then stop serving.

        Return True if no call to the object store is still running.
        """
        # The cleaner stops first, because a running pass would delay the close of its log.
        self.cleaner.stop()
        limit_s = self.config.seconds("controlled.shutdown.max.ms")
        # A fenced broker leads no partition, and without a controller leaders cannot move.
        if self.client.connected and not self.client.fenced:
            logger.info("shutting down: requesting the controller to move leaders away")
            self.client.request_shutdown()
            try:
                async with asyncio.timeout(limit_s):
                    await self.client.may_shut_down.wait()
            except TimeoutError:
                logger.warning(
                    "controlled shutdown: leaders did not move away within %.0f s", limit_s
                )
        # Coordinators close before the replicas, whose logs they write to.
        await self.disablements.close()
        await self.groups.close()
        await self.transactions.close()
        await self.confirmations.close()
        await self.manager.close()
        # Listeners and the store each have a grace period. Waiting for them together keeps it
        # short.
        store_is_left, _, _ = await asyncio.gather(
            self._leave_store(), self.listeners.stop(), self.replication_server.stop()
        )
        await self.changes.close()
        return store_is_left

    async def _leave_store(self) -> bool:
        remote = self.context.remote
        if remote is None or await remote.close(_STORE_TIMEOUT_S):
            return True
        logger.warning(
            "shutdown: calls to the store did not return within %.0f s", _STORE_TIMEOUT_S
        )
        return False

    def _records_lost(self) -> None:
        self.client.records_lost()

    def _control_client(self) -> ControlClient:
        """Return the client of the controller, which registers this process.

        The incarnation id is new at each start. The directory id identifies the log directory, so
        that the controller notices a replaced disk.
        """
        config = self.config
        return ControlClient(
            ProcessIdentity(
                broker_id=config.node_id,
                cluster_id=config.cluster_id,
                incarnation_id=uuid.uuid4(),
                directory_id=self.log_directory.directory_id,
                rack=config.rack,
            ),
            tuple((controller.host, controller.port) for controller in config.controllers),
            tls=self.tls,
            # Ports may be picked at bind time, so the endpoints are read when the broker registers.
            listeners=lambda: (
                *self.listeners.endpoints(),
                config.advertised_endpoint(REPLICATION, self.replication_server.port),
            ),
            manager=self.manager,
            # Executes the commands that the controller sends in the session.
            commands=CommandServer(
                self.manager,
                self.epoch,
                self.disablements,
                serve_kafka=self._serve_controller,
                users=self.users,
                snapshot_applied=self._snapshot_applied,
            ),
            epoch=self.epoch,
            isr_changes=self.isr_changes,
            producer_ids=self.producer_ids,
            clock=self.clock,
            storage_error=self.log_directory.error,
            directory_error=self.log_directory.directory_error,
            clean_broker_epoch=self.log_directory.clean_broker_epoch,
        )

    def _http_page(self) -> HttpPage:
        """Return the HTTP server for ``/metrics``, ``/metrics/topics`` and the health probe.

        The probe fails if the event loop has not run for ``tidemark.health.loop.age.max.ms``.
        """
        stalled_ms = self.config.integer("tidemark.health.loop.age.max.ms")
        listeners = [
            listener.tls_directory for listener in self.config.clients if listener.tls_directory
        ]
        folders = {"cluster": [self.config.tls_directory], "listener": listeners}

        # The page renders in a thread of its own, so these functions only read.
        def metrics() -> Iterator[Metric]:
            yield from broker_metrics(
                self.manager,
                fenced=self.client.fenced,
                connected=self.client.connected,
                loop_age_ms=self.clock.age_ms(),
            )
            yield from group_metrics(self.groups)
            if self.context.remote is not None:
                yield from self.context.remote.metrics()
                yield from singles(
                    {tier_table.FETCH_REDIRECTS: self.remote_read_rotation.redirects}
                )
            yield from self.cleaner.metrics()
            yield from transaction_metrics(self.transactions)
            yield from certificate_metrics(folders)

        self.registry.register(ReadOnlyCollector(metrics))
        ProcessCollector(registry=self.registry)
        # Topic metrics are a separate page because their number of series grows with the topics.
        topics = CollectorRegistry()
        topics.register(ReadOnlyCollector(lambda: topic_metrics(self.manager)))

        def health() -> tuple[bool, str]:
            # A loop that has not turned for this long cannot serve, so the liveness probe restarts
            # it.
            turns = self.clock.age_ms() < stalled_ms
            return turns, "ok" if turns else f"the event loop has not turned for {stalled_ms} ms"

        return HttpPage(
            metrics=lambda: generate_latest(self.registry),
            more={"/metrics/topics": lambda: generate_latest(topics)},
            health=health,
        )


async def every(interval_s: float, work: Callable[[], Awaitable[None]]) -> None:
    """Call ``work`` every ``interval_s`` seconds. A failure is logged and does not end the loop."""
    while True:
        await asyncio.sleep(interval_s)
        try:
            await work()
        except StorageError as error:
            logger.warning("%s", error)
        except Exception:
            logger.exception("%s failed; next attempt in %.0f s", work, interval_s)
