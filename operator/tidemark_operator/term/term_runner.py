"""Terms of leadership, one after another: find the Cluster, take over, run the term.

Every end of a term leads back here: the Lease is lost, another controller fenced us, a broker has
seen a higher epoch, the API server failed during the takeover. The pause before the next takeover
grows while terms stay short. A lasting obstacle to a takeover is shown in the Cluster's conditions.
"""

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable
from typing import TypeVar

from tidemark.backoff import Backoff
from tidemark.kafka_client.access import KafkaAccess
from tidemark.reasons import Reason
from tidemark_operator.background import BackgroundTasks
from tidemark_operator.certificates.certificate_stores import BundleStore
from tidemark_operator.certificates.certificates import Certificates, ClientCertificates, OwnLeaf
from tidemark_operator.clock import utc_now
from tidemark_operator.controller.state.events import normal
from tidemark_operator.engines.kafka.cluster import KafkaCluster
from tidemark_operator.engines.kafka.records import ApacheKafka
from tidemark_operator.engines.own.broker_connections import OwnBrokers
from tidemark_operator.events import EventWriter
from tidemark_operator.health import Pulse
from tidemark_operator.jobs.runner import JobRunner
from tidemark_operator.kafka_term.services import KafkaServices, ObservedCluster
from tidemark_operator.kafka_term.term import KafkaTakeover, KafkaTerm
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import Forbidden, KubeError
from tidemark_operator.kube.kinds import CLUSTER, Json, Key, key_of
from tidemark_operator.leadership.elector import protect_lease
from tidemark_operator.leadership.terms import (
    EpochsExhausted,
    EpochTooLow,
    NotLeading,
    SlicesBehind,
    TermEnded,
)
from tidemark_operator.listener.server import ControlServer
from tidemark_operator.metrics import Metrics
from tidemark_operator.objects.client import ObjectClient, StatusWriter
from tidemark_operator.reconcile.engine_takeover import EngineTakeover
from tidemark_operator.reconcile.engine_term import EngineTerm
from tidemark_operator.reconcile.failures import reason_of, sentence_of
from tidemark_operator.reconcile.first_reports import FirstReports
from tidemark_operator.reconcile.queue import KeyQueue
from tidemark_operator.reconcile.services import ReconcilerServices
from tidemark_operator.reconcile.state_metrics import measure
from tidemark_operator.reconcile.workers import LastPass
from tidemark_operator.settings import OperatorSettings
from tidemark_operator.slices.committer import Committer
from tidemark_operator.slices.slice_store import SlicesUnusable
from tidemark_operator.term.broker_requests import BrokerRequests
from tidemark_operator.term.cluster_discovery import ClusterDiscovery
from tidemark_operator.term.cluster_teardown import tear_down
from tidemark_operator.term.object_follower import ObjectFollower
from tidemark_operator.term.own_certificate import (
    CertificatesUnusable,
    OwnCertificate,
    client_authority_problem,
)
from tidemark_operator.term.takeover import Takeover
from tidemark_operator.term.term import Term

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=EngineTakeover)

RETAKE = Backoff(first_s=0.2, most_s=10.0)
BUSY_KEYS = 32


class TermRunner:
    """Terms of this process, in the main loop.

    The elector calls ``won`` and ``lost``. The watches deliver objects to ``follower``, leading or
    not.
    """

    def __init__(
        self,
        settings: OperatorSettings,
        identity: str,
        metrics: Metrics,
        *,
        leads: Callable[[], bool],
        requests: BrokerRequests,
        own_leaf: OwnLeaf,
        store_of: Callable[[KubeApi], BundleStore],
        jobs_of: Callable[[KubeApi], JobRunner],
        rewatch: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare the loop; nothing runs yet.

        ``leads``: whether this process holds the Lease. ``store_of``, ``jobs_of``: create the
        stores of certificates and the runner of export jobs. ``rewatch`` restarts kopf's watches.
        """
        self._settings = settings
        self._identity = identity
        self._metrics = metrics
        self._leads = leads
        self._requests = requests
        self._store_of = store_of
        self._jobs_of = jobs_of
        self._rewatch = rewatch
        self.follower = ObjectFollower(
            settings.namespace,
            deliver=self._deliver,
            restored=self._end_term_after_restore,
            definitions_changed=self._show_leaving_definitions,
        )
        self._discovery = ClusterDiscovery(
            settings, leads=leads, changed=self.follower.changed, excuse=self._set_excuse
        )
        self._certificate = OwnCertificate(own_leaf, metrics, store_of=store_of)
        self._last_pass = LastPass()
        #: Since when this process leads without a term, and why that is no fault; both for
        #: /healthz.
        self._without_term_since_s = time.monotonic()
        self._excuse = ""
        self._queue = KeyQueue(time.monotonic)
        #: The present term, None without one.
        self._term: EngineTerm | None = None
        #: Highest controller epoch that a broker has reported; the next term's is above it.
        self._floor = 0
        #: Whether a broker had newer states than the slices; the next takeover then rebuilds rows.
        self._behind = False
        #: Set while this process holds the Lease.
        self._leading = asyncio.Event()

    # ------------------------------------------------------------ news

    def won(self) -> None:
        """Lead: the Lease is ours."""
        self._without_term_since_s = time.monotonic()
        self._leading.set()
        self._metrics.leader.set(1)

    def lost(self) -> None:
        """End the term: the Lease is not ours any more."""
        self._leading.clear()
        self._metrics.leader.set(0)
        if self._term is not None:
            self._term.end(NotLeading("the Lease was lost"))

    def _end_term_after_restore(self, sign: str) -> None:
        """End the term after a restore of the API's data: every decision since is in doubt.

        kopf's watches report a past state, so they restart, as the follower's informers do. Only a
        leader takes over with ``behind``. An operator on standby need not: brokers report what they
        received to the next leader.
        """
        logger.warning("the API server's data was restored: %s", sign)
        self._rewatch()
        if self._leading.is_set():
            self._behind = True
        if self._term is not None:
            self._term.end(SlicesBehind(f"the API server's data was restored: {sign}"))

    def measure(self) -> None:
        """Update the gauges, if there is a term."""
        if self._term is not None:
            measure(self._term.services)

    def pulse(self) -> Pulse:
        """Return the figures that /healthz judges."""
        now_s = time.monotonic()
        without_term_s = None if self._term is not None else now_s - self._without_term_since_s
        return Pulse(
            leads=self._leading.is_set(),
            since_pass_s=now_s - self._last_pass.at_s,
            head_age_s=self._queue.head_age_s(),
            depth=self._queue.depth,
            without_term_s=without_term_s,
            excuse=self._excuse,
            silent=self.follower.echoes.silent(),
        )

    # ------------------------------------------------------------ terms

    async def run(self, api: KubeApi, server: ControlServer, ready: Callable[[], None]) -> None:
        """Run one term after another while this process holds the Lease, until cancelled.

        ``ready`` is called once, when the Lease is acquired for the first time.
        """
        events = EventWriter(api, self.follower.objects, self._identity, self._metrics)
        async with asyncio.TaskGroup() as group:
            group.create_task(events.run())
            await self._leading.wait()
            ready()
            # Failures in a row, for the backoff between takeovers.
            failures = 0
            while True:
                await self._leading.wait()
                started_s = time.monotonic()
                await self._try(api, server, events)
                # A term that lasted was no failure, so the backoff restarts.
                lasted = time.monotonic() - started_s > RETAKE.most_s
                failures = 0 if lasted else failures + 1
                await asyncio.sleep(RETAKE.pause_s(failures, jitter=0.5))

    async def _try(self, api: KubeApi, server: ControlServer, events: EventWriter) -> None:
        """Run one term, and record how it ended for the next takeover and /healthz."""
        # Each kind of end: what the next takeover needs to know, and what /healthz may excuse.
        try:
            await self._one_term(api, server, events)
        except EpochTooLow as error:
            self._floor = max(self._floor, error.floor)
            logger.warning("taking over again: %s", error)
        except TermEnded as error:
            self._behind = self._behind or isinstance(error, SlicesBehind)
            logger.warning("the term ended: %s", error)
        except (SlicesUnusable, EpochsExhausted) as error:
            logger.warning("no operator can take over: %s", error)
            await self._discovery.report_stalled(api, error.reason, str(error))
            self._excuse = str(error)
        except CertificatesUnusable as error:
            logger.warning("no term without certificates: %s", error)
            await self._discovery.report_stalled(api, Reason.CERTIFICATES_UNUSABLE, str(error))
            # A restart, or another operator, helps only if this process is at fault.
            self._excuse = "" if error.is_of_process else str(error)
        except KubeError as error:
            if isinstance(error, Forbidden) or error.by_policy:
                logger.warning("no operator can take over: %s", error)
                await self._discovery.report_stalled(api, reason_of(error), sentence_of(error))
                self._excuse = str(error)
            else:
                logger.warning("the API server failed during a takeover: %s", error)
                self._excuse = ""

    async def _one_term(self, api: KubeApi, server: ControlServer, events: EventWriter) -> None:
        """Take over the Cluster, and run its term until it ends. Raises the reason of the end."""
        # A Cluster that is being deleted is removed here, once no object depends on it.
        cluster = await self._discovery.find(api)
        if await tear_down(api, self._settings.namespace, cluster):
            self._excuse = (
                f"Cluster {cluster} is being deleted and waits for others to remove "
                "their finalizers"
            )
            return
        body = await api.get(CLUSTER, self._settings.namespace, cluster)
        api.own.follow(body)
        # The Cluster's engine decides: an existing Apache Kafka, or Tidemark's own brokers.
        if "kafka" in (body["spec"].get("engine") or {}):
            await self._kafka_term(api, events, body)
            return
        # If the API server is restored from a backup during the takeover, what was read is invalid.
        began_s, behind = self.follower.echoes.begins(), self._behind
        takeover = self._takeover(Takeover, api)
        taken = await takeover.run(cluster, self._floor, behind=behind)
        if self._behind and not behind:
            raise SlicesBehind("the API server's data was restored during the takeover")
        self._behind = False
        # The write of the epoch must appear in the watch; otherwise the watch never started.
        self.follower.echoes.wrote(CLUSTER.kind, began_s)
        await protect_lease(api, self._settings.namespace, self._settings.lease_name)
        # Certificates. Without the brokers' authority there is no term; a problem with the clients'
        # authority becomes a condition.
        of_cluster = (
            self._store_of(api),
            taken.cluster_key.name,
            taken.state.cluster.cluster_id,
            utc_now,
        )
        certificates = Certificates(*of_cluster)
        client_certificates = ClientCertificates(*of_cluster)
        broker_names = [broker.key.rpartition("/")[2] for broker in taken.state.brokers.values()]
        authorities = await self._certificate.prepare_term(certificates, broker_names)
        taken.state.strangers_key = authorities.strangers
        taken.state.cluster = dataclasses.replace(
            taken.state.cluster,
            certificates_problem=await client_authority_problem(
                client_certificates, api, self._settings.namespace, self.follower.objects
            ),
        )
        # The engine sends no states to brokers before the brokers' reports are complete.
        first_reports = FirstReports()
        if taken.adopted is not None:
            key, accepted = taken.cluster_key, taken.adopted
            text = f"{accepted.effect} {accepted.value} ({accepted.annotation})"
            events.emit(normal(CLUSTER.kind, key.namespaced_name, "ClusterAdopted", text))
        # All parts with memory are new for each term, except the object store and the metrics.
        queue = self._queue = KeyQueue(time.monotonic)
        client = ObjectClient(api, self.follower.objects, self._metrics, self.follower.echoes)
        services = ReconcilerServices(
            cluster_key=taken.cluster_key,
            state=taken.state,
            committer=Committer(
                taken.state,
                taken.store,
                busy=lambda: queue.running >= BUSY_KEYS,
                reports=first_reports,
            ),
            engine=OwnBrokers(taken.state, self._requests, begin=first_reports.wait),
            objects=self.follower.objects,
            client=client,
            statuses=StatusWriter(client),
            queue=queue,
            background=BackgroundTasks(),
            events=events,
            metrics=self._metrics,
            certificates=certificates,
            client_certificates=client_certificates,
            jobs=self._jobs_of(api),
            export_image=self._settings.export_image,
            export_service_account=self._settings.export_service_account,
            allowed_endpoints=self._settings.allowed_endpoints,
            controller_addresses=self._settings.controller_addresses,
            leads=self._leads,
            first_reports=first_reports,
        )
        self._term = Term(
            services,
            server,
            self._requests,
            settings=self._settings,
            last_pass=self._last_pass,
        )
        await self._run(self._term, taken.state.controller_epoch)

    async def _kafka_term(self, api: KubeApi, events: EventWriter, body: Json) -> None:
        """Run a term with an existing Apache Kafka cluster as the engine.

        It has no PartitionSlices, broker sessions or certificates. Raises the reason of its end.
        """
        began_s, self._behind = self.follower.echoes.begins(), False
        state = await self._takeover(KafkaTakeover, api).run(body)
        # The write of the epoch must appear in the watch; otherwise the watch never started.
        self.follower.echoes.wrote(CLUSTER.kind, began_s)
        await protect_lease(api, self._settings.namespace, self._settings.lease_name)
        self._queue = KeyQueue(time.monotonic)
        client = ObjectClient(api, self.follower.objects, self._metrics, self.follower.echoes)
        services = KafkaServices(
            cluster_key=key_of(body),
            state=state,
            # The access is empty at first: the observer reads it from the spec and its Secrets.
            engine=ApacheKafka(KafkaCluster(KafkaAccess(()), leads=self._leads), state),
            objects=self.follower.objects,
            client=client,
            statuses=StatusWriter(client),
            queue=self._queue,
            background=BackgroundTasks(),
            events=events,
            metrics=self._metrics,
            jobs=self._jobs_of(api),
            export_image=self._settings.export_image,
            export_service_account=self._settings.export_service_account,
            leads=self._leads,
            seen=ObservedCluster(),
        )
        self._term = KafkaTerm(
            services, resync_s=self._settings.resync_s, last_pass=self._last_pass
        )
        await self._run(self._term, state.controller_epoch)

    def _takeover(self, kind: type[T], api: KubeApi) -> T:
        """Return a takeover with the given engine, to be run."""
        return kind(
            api=api,
            namespace=self._settings.namespace,
            identity=self._identity,
            leads=self._leads,
            objects=self.follower.objects,
        )

    async def _run(self, term: EngineTerm, epoch: int) -> None:
        """Run a term until it ends; meanwhile the metrics and /healthz show it."""
        self._excuse = ""
        # Definitions that were being deleted before this term show in its Cluster's conditions.
        if self.follower.definitions.leaving:
            self._show_leaving_definitions()
        self._metrics.controller_epoch.set(epoch)
        self._metrics.term.set(1)
        try:
            await term.run()
        # Whatever ended it, /healthz and the metrics must not show a term any more.
        finally:
            self._term = None
            self._without_term_since_s = time.monotonic()
            self._metrics.term.set(0)
            self._metrics.measured.forget()

    def _deliver(self, key: Key, gone: bool) -> None:
        if self._term is not None:
            self._term.deliver(key, gone)

    def _show_leaving_definitions(self) -> None:
        """Show the definitions that are being deleted in the Cluster's conditions."""
        term = self._term
        if term is not None:
            term.services.state.leaving_definitions = self.follower.definitions.leaving
            term.services.queue.add(term.services.cluster_key)

    def _set_excuse(self, excuse: str) -> None:
        self._excuse = excuse

    async def follow_authority(self, api: KubeApi) -> None:
        """Renew this process's certificate from the present authority, until cancelled."""
        await self._certificate.follow(api, self._discovery, self._note_own_certificate)

    def _note_own_certificate(self, problem: str) -> None:
        """Show in the Cluster's conditions why this process cannot renew its own certificate."""
        term = self._term
        if term is not None and term.services.state.own_certificate_problem != problem:
            term.services.state.own_certificate_problem = problem
            term.services.queue.add(term.services.cluster_key)
