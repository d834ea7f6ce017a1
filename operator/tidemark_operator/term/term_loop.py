"""Loop over terms of leadership: find the Cluster, take over, run the term, start again.

Every end of a term leads back here: the Lease is lost, another controller fenced us, a broker has
seen a higher epoch, the API server failed during the takeover. The pause before the next takeover
grows while terms stay short. A lasting obstacle to a takeover is shown in the Cluster's conditions.
"""

import asyncio
import collections
import contextlib
import dataclasses
import logging
import tempfile
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable

from tidemark.backoff import Backoff
from tidemark.error_text import error_text
from tidemark.reasons import Reason
from tidemark_operator.background import BackgroundTasks
from tidemark_operator.certificates.authority import BadCertificate, KeyPair
from tidemark_operator.certificates.certificate_stores import (
    BundleNameTaken,
    BundleStore,
    SecretStore,
)
from tidemark_operator.certificates.certificates import Certificates, OwnLeaf, authority_name
from tidemark_operator.certificates.clients import ClientCertificates
from tidemark_operator.certificates.formats import read_authority
from tidemark_operator.certificates.rotation import Authorities
from tidemark_operator.clock import utc_now, wall_ms
from tidemark_operator.controller.events import normal
from tidemark_operator.controller.status.conditions import render, summary
from tidemark_operator.engines.own.own_brokers import OwnBrokers
from tidemark_operator.events import EventWriter
from tidemark_operator.health import Echoes, Pulse
from tidemark_operator.jobs.runner import JobRunner
from tidemark_operator.kafka_term.takeover import KafkaTakeover as KafkaTakeOver
from tidemark_operator.kafka_term.term import KafkaTerm, TermRoom, kafka_term
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import Forbidden, KubeError, NotFound
from tidemark_operator.kube.informer import Informer
from tidemark_operator.kube.kinds import CLUSTER, MANY, USER, Json, Key, Kind, key_of
from tidemark_operator.leadership.lease_retention import protect_lease, release_lease
from tidemark_operator.leadership.terms import (
    EpochsExhausted,
    EpochTooLow,
    NotLeading,
    SlicesBehind,
    TermEnded,
)
from tidemark_operator.listener.server import ControlServer
from tidemark_operator.metrics import Metrics
from tidemark_operator.objects.client import ObjectClient
from tidemark_operator.objects.statuses import StatusWriter
from tidemark_operator.objects.store import ObjectCache
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
from tidemark_operator.term.cluster_teardown import tear_down
from tidemark_operator.term.definitions import DefinitionWatch
from tidemark_operator.term.takeover import Takeover, TakeoverResult
from tidemark_operator.term.term import Term
from tidemark_operator.users.user_secret import USER_SECRETS, read_certificate

logger = logging.getLogger(__name__)

RETAKE = Backoff(first_s=0.2, most_s=10.0)
LOOK_FOR_CLUSTER_S = 10.0
FOLLOW_AUTHORITY_S = 3.0
BUSY_KEYS = 32
#: Users whose certificates are read if the Secret of the clients' authority is missing.
LEAVES_LOOKED_AT = 200


class CertificatesUnusable(Exception):
    """A takeover cannot get the authority, or a leaf for the control listener.

    ``is_of_process``: the fault is in this process, so another operator process may succeed.
    """

    def __init__(self, message: str, *, is_of_process: bool = False) -> None:
        super().__init__(message)
        self.is_of_process = is_of_process


class TermLoop:
    """Terms of this process, in the main loop.

    The elector calls ``won`` and ``lost``, kopf's watches use ``arrived`` and ``drain``, the
    informers use the methods of their follower.
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
        keeper_of: Callable[[KubeApi], BundleStore],
        jobs_of: Callable[[KubeApi], JobRunner],
        rewatch: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare the loop; nothing runs yet.

        ``leads``: whether this process holds the Lease. ``keeper_of``, ``jobs_of``: create the
        stores of certificates and the runner of export jobs. ``rewatch`` restarts kopf's watches.
        """
        self._settings = settings
        self._identity = identity
        self._metrics = metrics
        self._leads = leads
        self._requests = requests
        self._own_leaf = own_leaf
        self._keeper_of = keeper_of
        self._jobs_of = jobs_of
        self._objects = ObjectCache(self._end_term_after_restore)
        self._definitions = DefinitionWatch(
            self._objects, settings.namespace, self._deliver_deletion, self._definitions_changed
        )
        self._rewatch = rewatch
        self._last_pass = LastPass()
        self._echoes = Echoes(time.monotonic)  # Detect watches that do not deliver our own writes.
        #: Since when this process leads without a term, and why that is no fault; both for
        #: /healthz.
        self._without_term_since_s = time.monotonic()
        self._excuse = ""
        self._queue = KeyQueue(time.monotonic)
        #: The present term, None without one.
        self._term: Term | KafkaTerm | None = None
        #: Highest controller epoch that a broker has reported; the next term's is above it.
        self._floor = 0
        #: Whether a broker had newer states than the slices; the next takeover then rebuilds rows.
        self._behind = False
        #: Set when a Cluster object changes.
        self._changed = asyncio.Event()
        #: Set while this process holds the Lease.
        self._leading = asyncio.Event()
        #: Objects that arrived from the watches, and whether each was deleted.
        self.arrived: collections.deque[tuple[Json, bool]] = collections.deque()

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

    def drain(self) -> None:
        """Take in everything that the watches brought, in one go."""
        while self.arrived:
            self.watch_event(*self.arrived.popleft())
        self._changed.set()

    def watch_event(self, body: Json, gone: bool) -> None:
        """Take in an object from a watch."""
        self._echoes.delivered(str(body.get("kind")))
        put = self._objects.remove if gone else self._objects.put
        self._take(body, lambda: put(body), gone=gone)

    def before_list(self, kind: Kind) -> int:
        """Prepare for a list of all objects of a kind, and expect its watch to start.

        Returns the version up to which the store knows the kind.
        """
        self._echoes.wrote(kind.kind, self._echoes.begins())
        return self._objects.reached(kind)

    def list_started(self, kind: Kind, version: int, known: int) -> None:
        """Take in the start of a list."""
        self._objects.list_started(kind, version, known)

    def list_item(self, kind: Kind, body: Json, version: int) -> None:
        """Take in an object from a list, which does not prove that the watch works."""
        self._take(body, lambda: self._objects.list_item(kind, body, version))

    def list_finished(self, kind: Kind, present: set[Key], version: int) -> None:
        """Finish a list: objects that it lacks are deleted, and the watch has proved to work."""
        self._echoes.delivered(kind.kind)
        for key in self._objects.remove_missing(kind, present, version):
            if self._term is not None:
                self._term.services.queue.add(key)

    def _take(self, body: Json, put: Callable[[], bool], *, gone: bool = False) -> None:
        """Take in one object; an unreadable one does not stop the others."""
        try:
            if put() and self._term is not None:
                self._term.deliver(key_of(body), gone)
        except Exception:
            meta = body.get("metadata")
            logger.exception("a %s cannot be processed: %.200s", body.get("kind"), meta)

    def _end_term_after_restore(self, sign: str) -> None:
        """End the term after a restore of the API's data: every decision since is in doubt.

        The watches report a past state, so they restart. Only a leader takes over with ``behind``.
        An operator on standby need not: brokers report what they received to the next leader.
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
            silent=self._echoes.silent(),
        )

    # ------------------------------------------------------------ terms

    async def run(self, api: KubeApi, server: ControlServer, ready: Callable[[], None]) -> None:
        """Run one term after another while this process holds the Lease, until cancelled.

        ``ready`` is called once, when the Lease is acquired for the first time.
        """
        events = EventWriter(api, self._objects, self._identity, self._metrics)
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
            await self._report_stalled(api, error.reason, str(error))
            self._excuse = str(error)
        except CertificatesUnusable as error:
            logger.warning("no term without certificates: %s", error)
            await self._report_stalled(api, Reason.CERTIFICATES_UNUSABLE, str(error))
            # A restart, or another operator, helps only if this process is at fault.
            self._excuse = "" if error.is_of_process else str(error)
        except KubeError as error:
            if isinstance(error, Forbidden) or error.by_policy:
                logger.warning("no operator can take over: %s", error)
                await self._report_stalled(api, reason_of(error), sentence_of(error))
                self._excuse = str(error)
            else:
                logger.warning("the API server failed during a takeover: %s", error)
                self._excuse = ""

    async def _one_term(self, api: KubeApi, server: ControlServer, events: EventWriter) -> None:
        """Take over the Cluster, and run its term until it ends. Raises the reason of the end."""
        # A Cluster that is being deleted is removed here, once no object depends on it.
        cluster = await self._find_cluster(api)
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
        began_s, behind = self._echoes.begins(), self._behind
        taken = await Takeover(
            api=api,
            namespace=self._settings.namespace,
            identity=self._identity,
            leads=self._leads,
            objects=self._objects,
        ).run(cluster, self._floor, behind=behind)
        if self._behind and not behind:
            raise SlicesBehind("the API server's data was restored during the takeover")
        self._behind = False
        # The write of the epoch must appear in the watch; otherwise the watch never started.
        self._echoes.wrote(CLUSTER.kind, began_s)
        await protect_lease(api, self._settings.namespace, self._settings.lease_name)
        # Certificates. Without the brokers' authority there is no term; a problem with the clients'
        # authority becomes a condition.
        of_cluster = (
            self._keeper_of(api),
            taken.cluster_key.name,
            taken.state.cluster.cluster_id,
            utc_now,
        )
        certificates, client_certificates = (
            Certificates(*of_cluster),
            ClientCertificates(*of_cluster),
        )
        named = [broker.key.rpartition("/")[2] for broker in taken.state.brokers.values()]
        authorities = await _authorities(certificates, named)
        await self._follow_at_takeover(authorities)
        taken.state.strangers_key = authorities.strangers
        taken.state.cluster = dataclasses.replace(
            taken.state.cluster,
            certificates_problem=await _problem(client_certificates, self._leaves(api)),
        )
        # The engine sends no states to brokers before the brokers' reports are complete.
        first_reports = FirstReports()
        brokers = OwnBrokers(taken.state, self._requests, begin=first_reports.wait)
        if taken.adopted is not None:
            key, accepted = taken.cluster_key, taken.adopted
            text = f"{accepted.effect} {accepted.value} ({accepted.annotation})"
            events.emit(normal(CLUSTER.kind, key.namespaced_name, "ClusterAdopted", text))
        # All parts with memory are new for each term.
        self._queue = KeyQueue(time.monotonic)
        self._term = Term(
            self._services(
                api, events, taken, brokers, certificates, client_certificates, first_reports
            ),
            brokers,
            server,
            self._requests,
            settings=self._settings,
            leads=self._leads,
            last_pass=self._last_pass,
        )
        await self._run(self._term, taken.state.controller_epoch)

    async def _kafka_term(self, api: KubeApi, events: EventWriter, body: Json) -> None:
        """Run a term with an existing Apache Kafka cluster as the engine.

        It has no PartitionSlices, broker sessions or certificates. Raises the reason of its end.
        """
        began_s, self._behind = self._echoes.begins(), False
        taken = await KafkaTakeOver(
            api=api,
            namespace=self._settings.namespace,
            identity=self._identity,
            leads=self._leads,
            objects=self._objects,
        ).run(body)
        # The write of the epoch must appear in the watch; otherwise the watch never started.
        self._echoes.wrote(CLUSTER.kind, began_s)
        await protect_lease(api, self._settings.namespace, self._settings.lease_name)
        self._queue = KeyQueue(time.monotonic)
        client = ObjectClient(api, self._objects, self._metrics, self._echoes)
        self._term = kafka_term(
            taken,
            TermRoom(
                client=client,
                objects=self._objects,
                queue=self._queue,
                events=events,
                metrics=self._metrics,
            ),
            resync_s=self._settings.resync_s,
            leads=self._leads,
            last_pass=self._last_pass,
        )
        await self._run(self._term, taken.state.controller_epoch)

    async def _run(self, term: Term | KafkaTerm, epoch: int) -> None:
        """Run a term until it ends; meanwhile the metrics and /healthz show it."""
        self._excuse = ""
        # Definitions that were being deleted before this term show in its Cluster's conditions.
        if self._definitions.leaving:
            self._definitions_changed()
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

    def _services(
        self,
        api: KubeApi,
        events: EventWriter,
        taken: TakeoverResult,
        brokers: OwnBrokers,
        certificates: Certificates,
        client_certificates: ClientCertificates,
        first_reports: FirstReports,
    ) -> ReconcilerServices:
        """Return the services that the parts of a new term share."""
        # All services with memory are new for each term, except the object store and the metrics.
        queue, client = self._queue, ObjectClient(api, self._objects, self._metrics, self._echoes)
        return ReconcilerServices(
            cluster_key=taken.cluster_key,
            state=taken.state,
            committer=Committer(
                taken.state,
                taken.store,
                busy=lambda: queue.running >= BUSY_KEYS,
                reports=first_reports,
            ),
            engine=brokers,
            objects=self._objects,
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
            allowed_endpoints=self._settings.allowed_endpoints,
            controller_addresses=self._settings.controller_addresses,
            leads=self._leads,
            first_reports=first_reports,
        )

    async def _leaves(self, api: KubeApi) -> AsyncIterator[tuple[str, KeyPair]]:
        """Yield the certificates of some users: enough to know that there was an authority."""
        keeper = SecretStore(api, self._settings.namespace, USER_SECRETS)
        for key in sorted(self._objects.keys(USER), key=str)[:LEAVES_LOOKED_AT]:
            with contextlib.suppress(BundleNameTaken):
                kept = await keeper.read(key.name)
                leaf = None if kept is None else read_certificate(kept.data)
                if leaf is not None:
                    yield key.name, leaf

    async def follow_objects(self, api: KubeApi) -> None:
        """Watch the kinds with thousands of objects, leading or not, until cancelled.

        Each watch is expected to start, even if nothing is ever written.
        """
        async with asyncio.TaskGroup() as group:
            for kind in MANY:
                self._echoes.wrote(kind.kind, self._echoes.begins())
                informer = Informer(api, kind, self._settings.namespace, self)
                group.create_task(informer.run(), name=f"informer of {kind.plural}")

    async def follow_definitions(self, api: KubeApi) -> None:
        """Check deletions against their definitions, leading or not, until cancelled."""
        await self._definitions.run(api)

    def _deliver_deletion(self, key: Key, gone: bool) -> None:
        if self._term is not None:
            self._term.deliver(key, gone)
        self._changed.set()

    def _definitions_changed(self) -> None:
        """Show the definitions that are being deleted in the Cluster's conditions."""
        term = self._term
        if term is not None:
            term.services.state.leaving_definitions = self._definitions.leaving
            term.services.queue.add(term.services.cluster_key)

    async def follow_authority(self, api: KubeApi) -> None:
        """Renew this process's certificate from the present authority, until cancelled.

        Every operator does that, leading or not, so that a new leader can accept brokers at once.
        """
        while True:
            await asyncio.sleep(FOLLOW_AUTHORITY_S)
            try:
                # Without a term there is no state to consult, so the authority is read from its
                # Secret.
                name = self._settings.cluster or await self._oldest_cluster(api)
                kept = name and await self._keeper_of(api).read(authority_name(name))
                if kept:
                    await self._follow(read_authority(kept.data))
            except (
                KubeError,
                BundleNameTaken,
                BadCertificate,
            ) as error:  # the pacemaker reports it
                logger.warning("unreadable certificate authority: %s", error)
            except OSError as error:
                text = error_text(error)
                logger.warning("the operator's own certificate is not renewed: %s", text)
                self._note_own_certificate(text)
            else:
                self._note_own_certificate("")

    def _note_own_certificate(self, problem: str) -> None:
        """Show in the Cluster's conditions why this process cannot renew its own certificate."""
        term = self._term
        if term is not None and term.services.state.own_certificate_problem != problem:
            term.services.state.own_certificate_problem = problem
            term.services.queue.add(term.services.cluster_key)

    async def _follow_at_takeover(self, authorities: Authorities) -> None:
        """Renew the own leaf: no term begins before brokers can reach the control listener."""
        try:
            await self._follow(authorities)
        except OSError as error:
            raise CertificatesUnusable(
                f"the operator's own certificate cannot be written: {error_text(error)}. Check "
                f"that the operator can write to its temporary directory {tempfile.gettempdir()}",
                is_of_process=True,
            ) from error

    async def _follow(self, authorities: Authorities) -> None:
        """Have this process's leaf issued by the authority, and export when either expires."""
        leaf = await asyncio.to_thread(self._own_leaf.follow, authorities)
        for name, pair in (("authority", authorities.issuing), ("controller", leaf)):
            ends = pair.parsed.not_valid_after_utc
            self._metrics.certificate_expiry.labels(name).set(ends.timestamp())

    async def _oldest_cluster(self, api: KubeApi) -> str:
        found = await api.list_all(CLUSTER, self._settings.namespace)
        return str(min(found, key=_age)["metadata"]["name"]) if found else ""

    async def _find_cluster(self, api: KubeApi) -> str:
        """Wait until there is a Cluster to manage; return its name.

        It is the one that the settings name, otherwise the oldest of the namespace. Raises
        ``NotLeading`` if the Lease is lost meanwhile.
        """
        while True:
            if not self._leads():
                raise NotLeading("the Lease was lost before a Cluster was found")
            # Cleared before the list: a Cluster that is created meanwhile sets it again.
            self._changed.clear()
            found = await self._clusters(api)
            # Among several, the oldest.
            name = self._settings.cluster
            named = [body for body in found or () if name in ("", body["metadata"]["name"])]
            if named:
                return str(min(named, key=_age)["metadata"]["name"])
            # The last Cluster is deleted, so the namespace may delete the Lease.
            if found == []:
                await release_lease(api, self._settings.namespace, self._settings.lease_name)
            self._excuse = (
                f"waiting for a Cluster in namespace {self._settings.namespace}"
                if found is not None
                else (
                    "the API server does not serve clusters.tidemark.dev yet. "
                    "Install the resource definitions (crds/)"
                )
            )
            logger.info("%s", self._excuse)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_FOR_CLUSTER_S):
                    await self._changed.wait()

    async def _clusters(self, api: KubeApi) -> list[Json] | None:
        """Return the Clusters of the namespace, None while the API server knows no such kind.

        The watches report when it does, like the creation of a Cluster.
        """
        try:
            return await api.list_all(CLUSTER, self._settings.namespace)
        except NotFound:
            return None

    async def _report_stalled(self, api: KubeApi, reason: str, message: str) -> None:
        """Show the obstacle to a takeover in the Cluster's conditions."""
        with contextlib.suppress(KubeError, TermEnded):
            await self._write_stalled(api, reason, message)

    async def _write_stalled(self, api: KubeApi, reason: str, message: str) -> None:
        """Write the reason why no term can start as conditions into the Cluster's status."""
        cluster = await self._find_cluster(api)
        body = await api.get(CLUSTER, self._settings.namespace, cluster)
        former: Json = body.get("status") or {}
        generation = int(body["metadata"]["generation"])
        conditions = render(
            summary(ready=False, reason=reason, message=message, stalled=True),
            former,
            generation=generation,
            now_ms=wall_ms(),
        )
        # An unchanged status is not written: this runs on every retry.
        if former.get("conditions") == conditions:
            return
        status = {**former, "observedGeneration": generation, "conditions": conditions}
        await api.replace_status(CLUSTER, {**body, "status": status})


async def _authorities(certificates: Certificates, brokers: Iterable[str]) -> Authorities:
    try:
        return await certificates.authorities(brokers)
    except (BadCertificate, BundleNameTaken, OSError) as error:
        raise CertificatesUnusable(error_text(error)) from error


def _age(body: Json) -> tuple[str, str]:
    meta = body["metadata"]
    return str(meta["creationTimestamp"]), str(meta["name"])


async def _problem(
    certificates: ClientCertificates, leaves: AsyncIterable[tuple[str, KeyPair]]
) -> str:
    """Return why the authority of the clients cannot be used; it does not stop the takeover."""
    try:
        await certificates.check(leaves)
    except (BadCertificate, BundleNameTaken, OSError) as error:
        return error_text(error)
    return ""
