"""Reconciler of Exports: compare the order with the job, do one step, write the status."""

import dataclasses
import logging
import time
from collections.abc import Mapping

from tidemark.ids import id_text
from tidemark.reasons import Reason
from tidemark_operator.certificates.certificate_stores import BundleNameTaken, SecretStore
from tidemark_operator.clock import wall_ms
from tidemark_operator.controller import exports
from tidemark_operator.controller.state.events import normal, warning
from tidemark_operator.controller.state.export_values import (
    ABSENT,
    Begin,
    DesiredJob,
    End,
    ExportInfo,
    ExportOutcome,
    ExportRunRecord,
    JobPhase,
    JobSeen,
    Launch,
    NextCheck,
    Problem,
    Stop,
)
from tidemark_operator.controller.state.model import TopicInfo
from tidemark_operator.controller.state.users import UserInfo
from tidemark_operator.controller.status import export_status
from tidemark_operator.controller.status.conditions import FALSE, TRUE, StatusResult, find
from tidemark_operator.controller.status.export import MAINTAINED, ExportView, export_conditions
from tidemark_operator.jobs.runner import JobRefused
from tidemark_operator.kube.kinds import EXPORT, TOPIC, USER, Json, Key
from tidemark_operator.kube.secrets import (
    OfferedTo,
    SecretMissing,
    SecretNotOffered,
    offered_secret,
)
from tidemark_operator.objects.export_policy import refusal
from tidemark_operator.objects.exports import (
    JobDefaults,
    Surroundings,
    desired_job,
    export_info,
)
from tidemark_operator.objects.users import user_info
from tidemark_operator.pods.export_job import ExportRunIdentity
from tidemark_operator.reconcile.services import TermServices
from tidemark_operator.resources.cluster import Cluster
from tidemark_operator.resources.export import Export, ExportSpec
from tidemark_operator.resources.references import secret_names
from tidemark_operator.users.user_secret import USER_SECRETS

logger = logging.getLogger(__name__)

#: Retry interval of a problem that keeps a run from starting.
PROBLEM_S = 15.0
#: A job whose Secret is no longer offered is ended within this time.
SECRETS_S = 60.0
SOON_S = exports.SOON_MS / 1000
NO_IMAGE = "the image of the job is not set. Set spec.job.image, or exports.image of the chart"


@dataclasses.dataclass(frozen=True, slots=True)
class _Checked:
    """Result of a check of Secrets.

    ``named``: Secrets and User of the Export. ``until_s``: end of its validity, in monotonic
    seconds.
    """

    named: tuple[object, object]
    until_s: float


class ExportReconciler:
    """Reconciles the Exports of one term, with any engine."""

    def __init__(self, services: TermServices) -> None:
        self._services = services
        #: Result of the last check of the Secrets, for Exports whose jobs run.
        self._checked: dict[str, _Checked] = {}

    async def reconcile(self, key: Key) -> float | None:
        """Reconcile one Export: compare the desired job with the present one, and take one step.

        Returns the seconds until the next reconciliation; None: it waits for a change of the
        object.
        """
        services = self._services
        body = services.objects.get(key)
        if body is None or body["metadata"].get("deletionTimestamp"):
            self._checked.pop(key.namespaced_name, None)
            await services.jobs.forget(key.namespaced_name)
            if body is not None:  # another finalizer holds it, which delays garbage collection
                await self._stop(export_info(body)[0])
            return None
        # Desired state: the job to run (DesiredJob), or the problem that prevents one.
        export, wrong = export_info(body)
        found = wrong or await self._desired_job(export, body)
        desired = found if isinstance(found, DesiredJob) else None
        # Actual state: the job of the present run, and its last report.
        job = await self._look(export)
        export = exports.recovered(export, job.report)
        export = exports.adopted(export, "" if desired is None else desired.digest)
        services.state.exports.observe_job(export, job)
        view = _view(export, job, found if isinstance(found, Problem) else None)
        return await self._do(key, export, view, desired)

    async def _desired_job(self, export: ExportInfo, body: Json) -> DesiredJob | Problem:
        """Return the job that the Export's spec describes now, or the problem that prevents it."""
        services, state = self._services, self._services.state
        # Each check in order of how basic it is; the first problem is reported.
        topic = state.topics.get(export.topic_key)
        wrong = self._topic_problem(export, topic)
        if wrong is not None:
            return wrong
        # Two jobs in one table would commit against each other.
        holder = state.exports.holder(export)
        if holder is not None:
            return _taken(*holder)
        image = services.export_image if services.jobs.in_pods else ""
        job = body["spec"].get("job") or {}
        if services.jobs.in_pods and not image and not job.get("image"):
            return Problem(reason=Reason.IMAGE_MISSING, message=NO_IMAGE)
        around = self._surroundings(topic)
        defaults = JobDefaults(image=image, service_account=services.export_service_account)
        found = desired_job(body, around, defaults)
        if isinstance(found, DesiredJob):
            return await self._refused(export, body, around.cluster) or found
        return found

    def _topic_problem(self, export: ExportInfo, topic: TopicInfo | None) -> Problem | None:
        """Return why the topic cannot be exported; None for an Export of many topics.

        The job of many topics lists them itself.
        """
        services = self._services
        if not export.topic_key:
            return None
        if topic is None and services.objects.get(TOPIC.key(export.topic_key)) is not None:
            text = "this version of the operator cannot read the Topic. See its conditions"
            return Problem(reason=Reason.SOURCE_UNUSABLE, message=text, waits=True)
        if topic is None or topic.deletion_ms is not None:
            return _no_topic(export, going=topic is not None)
        if services.state.engine.keeps_rows and topic.topic_id is None:
            return Problem(reason=Reason.SOURCE_UNUSABLE, message=_no_id(topic), waits=True)
        if export.topic_id and export.topic_id != id_text(topic.id):
            return _replaced(export)
        return _lost_outside(topic)

    async def _refused(self, export: ExportInfo, body: Json, cluster: Cluster) -> Problem | None:
        """Return why the export policy or a Secret's owner forbids the job, None if allowed."""
        # The policy of the Cluster's owner.
        services, spec = self._services, Export.parse(body).spec
        refusal_text = refusal(
            spec,
            cluster.spec.exports,
            in_pods=services.jobs.in_pods,
            image=services.export_image,
        )
        if refusal_text:
            return Problem(reason=Reason.POLICY_REFUSED, message=refusal_text, stops=True)
        # Secrets are checked before each run, and every SECRETS_S seconds during one.
        named = secret_names(spec), spec.source and spec.source.user_ref
        checked = self._checked.get(export.key)
        begun = export.run is not None and export.run.under_way
        if begun and checked and checked.named == named and time.monotonic() < checked.until_s:
            return None
        self._checked.pop(export.key, None)
        problem = await self._look_at_secrets(spec, cluster)
        if problem is None:
            self._checked[export.key] = _Checked(named, time.monotonic() + SECRETS_S)
        return problem

    async def _look_at_secrets(self, spec: ExportSpec, cluster: Cluster) -> Problem | None:
        """Check that the job may use its Secrets; return the problem, None if it may.

        Three groups have different owners. Secrets that the Export names must be offered to
        Exports. Those of the remote storage, or of Apache Kafka, must be offered to the Cluster. A
        User's Secret belongs to the operator. An owner offers a Secret with an annotation
        (:func:`offered_secret`).
        """
        services = self._services
        api, namespace = services.client.api, services.cluster_key.namespace
        # Each group of Secrets has its own owner, who offers it.
        needed = [(name, OfferedTo.EXPORT) for name in sorted(secret_names(spec))]
        of_cluster = secret_names((cluster.spec.remote_storage, cluster.spec.engine))
        needed += [(name, OfferedTo.CLUSTER) for name in sorted(of_cluster)]
        try:
            for name, to in needed:
                await offered_secret(api, namespace, name, to)
            # A User's Secret is recognized by its labels, not by an offer.
            if spec.source is not None and spec.source.user_ref is not None:
                user = spec.source.user_ref.name
                if await SecretStore(api, namespace, USER_SECRETS).read(user) is None:
                    text = f"User {user} has no Secret yet. See its conditions"
                    return Problem(reason=Reason.SOURCE_UNUSABLE, message=text, waits=True)
        # A missing Secret may be a short gap in a rotation, so only a withdrawn offer stops the
        # job.
        except SecretMissing as error:
            return Problem(reason=Reason.SECRET_NOT_OFFERED, message=str(error))
        except (SecretNotOffered, BundleNameTaken) as error:
            return Problem(reason=Reason.SECRET_NOT_OFFERED, message=str(error), stops=True)
        return None

    def _surroundings(self, topic: TopicInfo | None) -> Surroundings:
        services = self._services
        cluster = services.objects.get(services.cluster_key)
        assert cluster is not None  # a term has a Cluster
        return Surroundings(
            topic=topic,
            cluster=Cluster.parse(Cluster.known_part(cluster)),
            brokers=tuple(broker.listeners for broker in services.state.live_brokers()),
            user=self._user,
            labelled=self._labelled,
        )

    def _labelled(self, labels: Mapping[str, str]) -> list[str]:
        """Return the names of the topics whose Topics have all these labels."""
        services = self._services
        found = []
        for topic in services.state.topics.values():
            body = services.objects.get(TOPIC.key(topic.key)) or {}
            own = (body.get("metadata") or {}).get("labels") or {}
            if topic.deletion_ms is None and labels.items() <= own.items():
                found.append(topic.name)
        return found

    def _user(self, key: str) -> UserInfo | None:
        body = self._services.objects.get(USER.key(key))
        return None if body is None else user_info(body)

    async def _look(self, export: ExportInfo) -> JobSeen:
        run = export.run
        if run is None or not run.under_way:
            return ABSENT
        return await self._services.jobs.look(self._identity(export, run))

    def _identity(self, export: ExportInfo, run: ExportRunRecord) -> ExportRunIdentity:
        return ExportRunIdentity(
            name=export.name,
            namespace=self._services.cluster_key.namespace,
            uid=export.uid,
            cluster=self._services.cluster_key.name,
            number=run.number,
        )

    # ------------------------------------------------------------ one step

    async def _do(
        self,
        key: Key,
        export: ExportInfo,
        view: ExportView,
        desired: DesiredJob | None,
    ) -> float | None:
        """Perform the next step of an Export's state machine (:func:`exports.next_step`).

        ``desired`` is None with a problem. Returns the seconds until the next reconciliation.
        """
        now_ms, problem = wall_ms(), view.problem
        digest = "" if desired is None else desired.digest
        step = exports.next_step(export, view.job, problem, digest, now_ms=now_ms)
        match step:
            case Begin() if desired is not None:
                begun = self._named(exports.applied(export, step, now_ms=now_ms))
                # Persist the run before its job exists, so no job has an unknown number.
                await self._write(key, begun, dataclasses.replace(view, job=_STARTING))
                return await self._launch(key, begun, desired)
            # The run is persisted, but its job does not exist: the operator stopped in between.
            case Launch() if desired is not None:
                return await self._launch(key, export, desired)
            # The status keeps the run until the job has really ended.
            case Stop():
                await self._stop(export)
                await self._write(key, export, view)
                return SOON_S
            # Ended: the next reconciliation decides about the next run.
            case End():
                await self._end(key, export, view, step)
                return 0.0
            # Nothing to do: with or without a job, wait for the time or the problem.
            case NextCheck(until_ms) if export.run is None or not export.run.under_way:
                await self._write(key, export, dataclasses.replace(view, next_ms=until_ms))
                return _wait_s(until_ms, now_ms, problem)
            case NextCheck(until_ms):
                await self._write(key, export, view)
                await self._follow(export, view.job, desired)
                return _wait_s(until_ms, now_ms, problem)
        return PROBLEM_S

    async def _follow(self, export: ExportInfo, job: JobSeen, desired: DesiredJob | None) -> None:
        """Pass the present topics of a selector to the running job."""
        run = export.run
        is_alive = job.phase in (JobPhase.STARTING, JobPhase.RUNNING)
        if run is not None and is_alive and desired is not None:
            await self._services.jobs.follow(self._identity(export, run), desired)

    def _named(self, export: ExportInfo) -> ExportInfo:
        """Return the export with the id of the topic that it exports from now on.

        The tables of many topics have the ids of their topics.
        """
        if not export.topic_key:
            return export
        topic = self._services.state.topics[export.topic_key]
        return dataclasses.replace(export, topic_id=id_text(topic.id))

    async def _launch(self, key: Key, export: ExportInfo, desired: DesiredJob) -> float:
        """Create the job of the present run; return the seconds until the next reconciliation."""
        assert export.run is not None
        try:
            # A refused job leaves the run without one; it is tried again.
            await self._services.jobs.start(self._identity(export, export.run), desired)
        except JobRefused as error:
            text = f"the job cannot be created: {error}"
            problem = Problem(reason=Reason.JOB_REFUSED, message=text)
            await self._write(key, export, ExportView(job=ABSENT, problem=problem))
            return PROBLEM_S
        logger.info("export %s: run %d starts", export.key, export.run.number)
        return SOON_S

    async def _stop(self, export: ExportInfo) -> None:
        if export.run is not None and export.run.under_way:
            await self._services.jobs.stop(self._identity(export, export.run))

    async def _end(self, key: Key, export: ExportInfo, view: ExportView, step: End) -> None:
        """Record the end of a run in the status, and report a failure."""
        # The status of an ended run shows when the next one starts.
        now_ms = wall_ms()
        ended = exports.recovered(exports.applied(export, step, now_ms=now_ms), None)
        after = exports.next_step(ended, ABSENT, view.problem, "", now_ms=now_ms)
        next_ms = after.until_ms if isinstance(after, NextCheck) else None
        await self._write(key, ended, dataclasses.replace(view, next_ms=next_ms))
        services, run = self._services, ended.run
        assert run is not None
        logger.info("export %s: run %d: %s %s", export.key, run.number, step.outcome, step.message)
        if step.outcome in (ExportOutcome.FAILED, ExportOutcome.REFUSED, ExportOutcome.SUPERSEDED):
            services.metrics.failed_exports.inc()
            text = f"run {run.number} failed: {ended.last_failure}"
            services.events.emit(warning(EXPORT.kind, export.key, "ExportFailed", text))

    # ------------------------------------------------------------ status

    async def _write(self, key: Key, export: ExportInfo, view: ExportView) -> None:
        """Write an Export's status, unless the object was deleted or recreated meanwhile."""
        services, now_ms = self._services, wall_ms()
        body = services.objects.get(key)
        if body is None or str(body["metadata"]["uid"]) != export.uid:
            return  # deleted, or recreated under its name
        export = dataclasses.replace(export, status=body.get("status") or {})
        result = export_status(services.state, export, view, now_ms=now_ms)
        former = find(export.status, "Ready") or {}
        if await services.statuses.write_if_due(
            EXPORT, key, export.status, result.status, now_ms=now_ms
        ):
            self._report(export, view, str(former.get("reason", "")), now_ms)
            self._report_maintenance(export, result)

    def _report(
        self, export: ExportInfo, view: ExportView, former_reason: str, now_ms: int
    ) -> None:
        """Emit an Event when the reason of Ready changes."""
        ready = export_conditions(export, view, now_ms=now_ms)[0]
        # Failed runs have an Event of their own, and every run has to start.
        if ready.reason not in (former_reason, Reason.JOB_FAILED, Reason.JOB_STARTING):
            event = normal if ready.status == TRUE else warning
            self._services.events.emit(event(EXPORT.kind, export.key, ready.reason, ready.message))

    def _report_maintenance(self, export: ExportInfo, result: StatusResult) -> None:
        """Emit an Event when the maintenance of the tables begins to fail, and when it recovers."""
        was, now = (find(status, MAINTAINED) or {} for status in (export.status, result.status))
        if now.get("reason") == was.get("reason"):
            return
        text = str(now.get("message"))
        if now.get("status") == FALSE:
            self._services.events.emit(warning(EXPORT.kind, export.key, str(now["reason"]), text))
        elif was.get("status") == FALSE:
            self._services.events.emit(normal(EXPORT.kind, export.key, str(now["reason"]), text))


_STARTING = JobSeen(phase=JobPhase.STARTING)


def _view(export: ExportInfo, job: JobSeen, problem: Problem | None) -> ExportView:
    """Return what the status shows of a job and a problem.

    A problem that only prevents a new run must not disturb the present one. It is reported if it is
    of a new spec. Otherwise the run has all that it needs, and the problem may pass before it ends.
    """
    run = export.run
    if problem is None or problem.stops or run is None or not run.under_way:
        return ExportView(job=job, problem=problem)
    if job.phase is JobPhase.ABSENT:
        return ExportView(job=job, problem=problem)
    continues = job.phase in (JobPhase.STARTING, JobPhase.RUNNING)
    is_new = run.generation != export.generation
    return ExportView(job=job, unapplied=problem if continues and is_new else None)


def _wait_s(until_ms: int | None, now_ms: int, problem: Problem | None) -> float | None:
    if until_ms is None:
        return None if problem is None else PROBLEM_S
    return max(0.0, (until_ms - now_ms) / 1000)


def _no_topic(export: ExportInfo, *, going: bool) -> Problem:
    name = export.topic_key.rpartition("/")[2]
    what = f"Topic {name} is being deleted" if going else f"Topic {name} does not exist"
    text = (
        f"{what}. No job runs, and the table keeps its rows. Create the Topic, or delete the Export"
    )
    return Problem(reason=Reason.TOPIC_NOT_FOUND, message=text, waits=True, stops=True)


def _no_id(topic: TopicInfo) -> str:
    return f"Topic {topic.key.rpartition('/')[2]} has no topic in Kafka yet. See its conditions"


def _lost_outside(topic: TopicInfo) -> Problem | None:
    """Return the problem with a topic that was deleted outside Tidemark, as its conditions say.

    The job compares ids of topics, too. It ends with an error, and would be restarted.
    """
    ready = find(topic.status, "Ready") or {}
    if ready.get("reason") not in (Reason.TOPIC_MISSING, Reason.TOPIC_REPLACED):
        return None
    text = (
        f"{str(ready.get('message', '')).rstrip('.')}. The table keeps its rows. A new topic needs "
        "another Export with another table"
    )
    return Problem(reason=Reason.TOPIC_REPLACED, message=text, stops=True)


def _replaced(export: ExportInfo) -> Problem:
    name = export.topic_key.rpartition("/")[2]
    text = (
        f"Topic {name} has another id than status.topicId, whose records are in "
        "the table. Create another Export with another table"
    )
    return Problem(reason=Reason.TOPIC_REPLACED, message=text, stops=True)


def _taken(holder: str, table: str) -> Problem:
    name = holder.rpartition("/")[2]
    text = f"the table {table} belongs to the older Export {name}. Delete one of the two"
    return Problem(reason=Reason.TABLE_TAKEN, message=text, stops=True)
