"""One term of the operator's shell on a fake API server, with an engine that only records calls.

The takeover, the store, the line of decisions and the reconcilers are the real ones.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Self
from uuid import UUID

from tests.fake_api_server import FakeApiServer, FakeKubeApi
from tests.unit.controller.controller_world import SESSION_MS, registration_request
from tidemark.export_job import ExportJobPhase, JobReport
from tidemark.wire import control
from tidemark.wire.control import (
    DeleteRemoteTopicRequest,
    DeleteRemoteTopicResponse,
    DisableRemoteTopicRequest,
    DisableRemoteTopicResponse,
    ReplicaLogInfoResponse,
)
from tidemark.wire.deletions import (
    DeletionPoint,
    DeletionPointQuery,
    PartitionDeletion,
    PartitionDeletionResult,
)
from tidemark_operator.background import BackgroundTasks
from tidemark_operator.certificates.certificate_stores import SecretStore
from tidemark_operator.certificates.certificates import Certificates, ClientCertificates
from tidemark_operator.clock import utc_now
from tidemark_operator.controller import registration, snapshot
from tidemark_operator.controller.state.commit import SliceWrite
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.events import Event
from tidemark_operator.controller.state.export_values import ABSENT, DesiredJob, JobPhase, JobSeen
from tidemark_operator.controller.state.model import RowKey
from tidemark_operator.engines.base import EngineUnavailable
from tidemark_operator.engines.own.broker_connections import OwnBrokers
from tidemark_operator.health import Echoes
from tidemark_operator.jobs.runner import JobRefused
from tidemark_operator.kube.kinds import (
    BROKER,
    CLUSTER,
    EXPORT,
    TOPIC,
    USER,
    Json,
    Key,
    Kind,
    key_of,
)
from tidemark_operator.metrics import Metrics
from tidemark_operator.objects.client import ObjectClient, StatusWriter
from tidemark_operator.objects.conversions import cluster_id_of
from tidemark_operator.objects.store import ObjectCache
from tidemark_operator.pods.export_job import ExportRunIdentity
from tidemark_operator.reconcile.first_reports import FirstReports
from tidemark_operator.reconcile.queue import KeyQueue
from tidemark_operator.reconcile.reflector import Reflector
from tidemark_operator.reconcile.replica_logs import LogQueries
from tidemark_operator.reconcile.services import ReconcilerServices
from tidemark_operator.slices.committer import Committer
from tidemark_operator.term.takeover import Takeover
from tidemark_operator.term.term import CommitEffects

NAMESPACE = "ns"
UNDER_REPLICATED = {"enable.under.replicated.topic.creation": "true"}


class FakeEngine(OwnBrokers):
    """Engine that records pushes in ``journal`` and requests in ``requests``.

    ``answers`` has the answers by method.
    """

    def __init__(self, journal: list[str]) -> None:
        self.journal = journal
        self.requests: list[tuple[str, int, Any]] = []
        self.reachable: set[int] = set()
        self.answers: dict[str, Any] = {}
        #: The version of the users that every broker has acknowledged.
        self.users_acknowledged = 0

    def slice_stored(self, state: ControllerState, write: SliceWrite) -> None:
        self.journal.append("slice landed")

    def flush(self) -> None:
        self.journal.append("states pushed")

    async def close(self) -> None:
        self.reachable.clear()

    def publish(self, *, rows: Iterable[RowKey] = (), topics: Iterable[str] = ()) -> None:
        self.journal.append(f"published {' '.join(topics) or 'brokers'}")

    def publish_users(self) -> None:
        self.journal.append("users pushed")

    def users_behind(self, version: int) -> list[int]:
        return sorted(node_id for node_id in self.reachable if self.users_acknowledged < version)

    def connected(self, node_id: int) -> bool:
        return node_id in self.reachable

    async def _answer(self, method: str, node_id: int, request: Any) -> Any:
        self.requests.append((method, node_id, request))
        if node_id not in self.reachable or method not in self.answers:
            raise EngineUnavailable(f"broker {node_id} has no command connection")
        return self.answers[method](node_id, request)

    async def disable_tiering(
        self, node_id: int, request: DisableRemoteTopicRequest
    ) -> DisableRemoteTopicResponse:
        return await self._answer("disable_tiering", node_id, request)

    async def empty_tier(
        self, node_id: int, request: DeleteRemoteTopicRequest
    ) -> DeleteRemoteTopicResponse:
        return await self._answer("empty_tier", node_id, request)

    async def replica_logs(self, node_id: int, keys: Iterable[RowKey]) -> ReplicaLogInfoResponse:
        return await self._answer("replica_logs", node_id, keys)

    async def deletion_points(
        self, node_id: int, topic_id: UUID, queries: Sequence[DeletionPointQuery]
    ) -> Sequence[DeletionPoint]:
        return await self._answer("deletion_points", node_id, queries)

    async def delete_records(
        self,
        node_id: int,
        topic_id: UUID,
        deletions: Sequence[PartitionDeletion],
        timeout_ms: int,
    ) -> Sequence[PartitionDeletionResult]:
        return await self._answer("delete_records", node_id, deletions)


class NoEvents:
    """Event recorder that keeps the emitted events."""

    def __init__(self) -> None:
        self.emitted: list[Event] = []

    def emit(self, event: Event) -> None:
        self.emitted.append(event)

    @property
    def reasons(self) -> list[str]:
        return [event.reason for event in self.emitted]


class FakeJobs:
    """Jobs in a state that the test sets; ``requests`` has the calls."""

    def __init__(self, journal: list[str]) -> None:
        self.in_pods = True
        self.requests = journal
        self.seen: dict[tuple[str, int], JobSeen] = {}
        self.wanted: dict[str, DesiredJob] = {}
        self.followed: dict[str, tuple[str, ...]] = {}
        self.refuses = ""

    async def look(self, run: ExportRunIdentity) -> JobSeen:
        return self.seen.get((run.key, run.number), ABSENT)

    async def start(self, run: ExportRunIdentity, wanted: DesiredJob) -> None:
        self.requests.append(f"start {run.job}")
        if self.refuses:
            raise JobRefused(self.refuses)
        self.wanted[run.key] = wanted
        self.seen[run.key, run.number] = JobSeen(phase=JobPhase.STARTING)

    async def follow(self, run: ExportRunIdentity, wanted: DesiredJob) -> None:
        self.followed[run.key] = wanted.topics

    async def stop(self, run: ExportRunIdentity) -> None:
        self.requests.append(f"stop {run.job}")
        self.seen[run.key, run.number] = JobSeen(phase=JobPhase.ENDING)

    async def forget(self, key: str) -> None:
        self.requests.append(f"forget {key}")

    def end(self, key: str, number: int, report: JobReport | None = None, *, why: str = "") -> None:
        """End a job; it succeeded only if its last report says so."""
        well = report is not None and report.phase in (ExportJobPhase.DONE, ExportJobPhase.STOPPED)
        self.seen[key, number] = JobSeen(phase=JobPhase.ENDED, report=report, why=why, well=well)

    def run(self, key: str, number: int, **figures: Any) -> None:
        """Let a job run and report its progress."""
        report = JobReport(phase=ExportJobPhase.RUNNING, **figures)
        self.seen[key, number] = JobSeen(phase=JobPhase.RUNNING, report=report)


class FakeListener:
    """Control listener that records what the term does to its sessions."""

    def __init__(self) -> None:
        self.closed: list[int] = []
        self.states: dict[int, bool] = {}

    def close_session(self, broker_id: int) -> None:
        self.closed.append(broker_id)

    def set_state(
        self, broker_id: int, broker_epoch: int, *, fenced: bool, should_shut_down: bool
    ) -> None:
        self.states[broker_id] = fenced


class ShellWorld:
    """World whose ``journal`` has writes to the API server and pushes to brokers in their order."""

    def __init__(self) -> None:
        self.journal: list[str] = []
        self.server = FakeApiServer()
        self.api = FakeKubeApi(self.server)
        self.api.before = self.journal.append
        self.engine = FakeEngine(self.journal)
        self.events = NoEvents()
        self.jobs = FakeJobs(self.journal)
        self.listener = FakeListener()
        self.leads = True
        #: Whether the committer holds decisions back to share their writes.
        self.busy = False
        self.now = utc_now
        self.services: ReconcilerServices
        self.reflector: Reflector
        self.questions: LogQueries

    # ------------------------------------------------------------ objects

    def make(self, kind: Kind, name: str, spec: Json, **fields: Any) -> Json:
        """Create an object as a user."""
        meta = {"name": name, **fields.pop("metadata", {})}
        body = self.server.create(
            "user", kind, NAMESPACE, {"metadata": meta, "spec": spec, **fields}
        )
        return self._watched(body)

    def make_cluster(self, config: Json | None = None, **spec: Any) -> Json:
        return self.make(CLUSTER, "main", {"config": config or {}, **spec})

    def make_broker(self, node_id: int, name: str = "") -> Json:
        spec = {"clusterRef": {"name": "main"}, "nodeId": node_id, "workload": "External"}
        return self.make(BROKER, name or f"broker-{node_id}", spec)

    def make_topic(self, name: str = "t", *, replicas: int = 1, **spec: Any) -> Json:
        base = {"clusterRef": {"name": "main"}, "partitions": 1, "replicationFactor": replicas}
        metadata = spec.pop("metadata", {})
        return self.make(TOPIC, name, base | spec, metadata=metadata)

    def make_user(self, name: str = "alice", **spec: Any) -> Json:
        return self.make(USER, name, {"clusterRef": {"name": "main"}} | spec)

    def make_export(self, name: str = "x", *, topic: str | None = "t", **spec: Any) -> Json:
        # An Export has either a schedule or a continuous job; admission rejects both and neither.
        when = {} if "schedule" in spec else {"continuous": {}}
        table = {"name": "db.t", "warehouse": "/lake", **spec.pop("table", {})}
        metadata = spec.pop("metadata", {})
        source = {} if topic is None else {"topicRef": {"name": topic}}
        body = {**source, "table": table} | when | spec
        return self.make(EXPORT, name, body, metadata=metadata)

    def edit(self, kind: Kind, name: str, **spec: Any) -> None:
        self._watched(self.server.edit(kind, name, spec))

    def annotate(self, kind: Kind, name: str, **annotations: str) -> None:
        self._change_metadata(kind, name, annotations=annotations)

    def label(self, kind: Kind, name: str, **labels: str) -> None:
        self._change_metadata(kind, name, labels=labels)

    def _change_metadata(self, kind: Kind, name: str, **changes: Mapping[str, str]) -> None:
        body = self.server.find(kind, name)
        assert body is not None
        meta = {**body["metadata"], **changes}
        self._watched(self.server.replace("user", kind, {**body, "metadata": meta}))

    def delete(self, kind: Kind, name: str) -> None:
        """Delete an object as a user, and deliver the watch event."""
        body = self.server.delete("user", kind, name)
        # An object without finalizers disappears at once. Otherwise the deletion is a modification.
        if self.server.find(kind, name) is None:
            self.services.objects.remove(body)
        else:
            self._watched(body)

    def _watched(self, body: Json) -> Json:
        # Before the first term there is no cache: the takeover lists the object.
        if hasattr(self, "services"):
            self.services.objects.put(body)
        return body

    def status(self, kind: Kind, name: str) -> Json:
        body = self.server.find(kind, name)
        assert body is not None
        return body.get("status") or {}

    def condition(self, kind: Kind, name: str, type_: str) -> tuple[str, str, str]:
        """Return status, reason and message of a condition."""
        found = {item["type"]: item for item in self.status(kind, name)["conditions"]}[type_]
        return found["status"], found["reason"], found["message"]

    @staticmethod
    def key(kind: Kind, name: str) -> Key:
        return kind.key(f"{NAMESPACE}/{name}")

    # ------------------------------------------------------------ the term

    @contextlib.asynccontextmanager
    async def term(self) -> AsyncIterator[Self]:
        """Take over, and run the committer until the end of the context."""
        # The takeover lists all objects and claims the slices under a new controller epoch.
        objects = ObjectCache()
        taken = await Takeover(
            api=self.api,  # type: ignore[arg-type]
            namespace=NAMESPACE,
            identity="op",
            leads=lambda: self.leads,
            objects=objects,
        ).run("main", 0)
        metrics = Metrics()
        client = ObjectClient(self.api, objects, metrics, Echoes(time.monotonic))  # type: ignore[arg-type]
        keeper: Any = SecretStore(self.api, NAMESPACE)  # type: ignore[arg-type]
        reports = FirstReports()
        certificate_arguments = (
            keeper,
            taken.cluster_key.name,
            taken.state.cluster.cluster_id,
            self.now,
        )
        self.services = ReconcilerServices(
            cluster_key=taken.cluster_key,
            state=taken.state,
            committer=Committer(taken.state, taken.store, busy=lambda: self.busy, reports=reports),
            engine=self.engine,
            objects=objects,
            client=client,
            statuses=StatusWriter(client),
            queue=KeyQueue(asyncio.get_running_loop().time),
            background=BackgroundTasks(),
            events=self.events,  # type: ignore[arg-type]
            metrics=metrics,
            certificates=Certificates(*certificate_arguments),
            client_certificates=ClientCertificates(*certificate_arguments),
            jobs=self.jobs,
            export_image="pipeline:1",
            first_reports=reports,
        )
        # The same wiring as in a real term, without the workers: tests call the reconcilers.
        self.questions = LogQueries(self.services)
        effects = CommitEffects(self.services, self.listener, self.questions)  # type: ignore[arg-type]
        self.reflector = Reflector(self.services, self.listener)
        objects.listener = self.reflector
        line = asyncio.create_task(self.services.committer.run(effects))
        self.reflector.catch_up()
        # Tests assert on the journal from here on, without the writes of the takeover.
        self.journal.clear()
        try:
            yield self
        finally:
            line.cancel()
            await asyncio.gather(line, return_exceptions=True)
            await self.services.background.close()

    async def start_broker(
        self, node_id: int, incarnation: int | None = None, *, rack: str | None = None
    ) -> None:
        """Register a broker, give it the snapshot and unfence it.

        Another incarnation is another process, without proof that the former one lost nothing.
        """
        state = self.services.state
        body = self.server.find(CLUSTER, "main")
        assert body is not None
        # Register as the broker process does, and persist the registration.
        request = registration_request(
            node_id,
            incarnation=node_id if incarnation is None else incarnation,
            cluster_id=cluster_id_of(body),
            rack=rack,
        )
        response = await self.services.committer.decide(
            lambda draft: registration.register(
                draft, request, session_alive=False, session_timeout_ms=SESSION_MS
            )
        )
        assert response.error_code == 0
        # The first heartbeat with the current controller epoch unfences the broker.
        beat = control.BrokerHeartbeatRequest(
            broker_id=node_id,
            broker_epoch=response.broker_epoch,
            snapshot_controller_epoch=state.controller_epoch,
            loop_age_ms=0,
            want_shut_down=False,
        )
        await self.services.committer.decide(
            lambda draft: registration.heartbeat(draft, beat, session_timeout_ms=SESSION_MS)
        )
        self.engine.reachable.add(node_id)
        # Writes of the registration are of no interest to most tests.
        self.journal.clear()

    def acknowledge(self, node_id: int) -> None:
        """Let a broker acknowledge the full snapshot."""
        state = self.services.state
        answer = control.PartitionStatesResponse(
            error_code=0, broker_epoch=state.brokers[node_id].broker_epoch, errors=()
        )
        state.take_states(node_id, snapshot.full(state), answer)

    async def quiet(self) -> None:
        """Wait until no background task runs."""
        await asyncio.gather(*self.services.background._tasks.values())

    def known(self, kind: Kind, name: str) -> Json:
        """Return an object from the operator's cache."""
        body = self.services.objects.get(self.key(kind, name))
        assert body is not None
        assert key_of(body) == self.key(kind, name)
        return body
