"""Jobs of Exports as objects of Kubernetes, one for each run: Jobs, or SparkApplications.

Jobs and pods are listed by their labels and accepted by their owners. The status of a Job's pod and
Events show what the pod has left behind, or what keeps it from starting. A Job is deleted in the
foreground: as long as it exists its pod may run, and the next run waits. A SparkApplication is
treated alike: its driver's pod is the job's pod, and its state replaces the Job's conditions.
"""

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tidemark.export_job import ExportJobPhase, JobReport, shortened
from tidemark_operator.controller.state.export_values import ABSENT, DesiredJob, JobPhase, JobSeen
from tidemark_operator.jobs.runner import JobRefused, Reports
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import REFUSALS, Conflict, NotFound
from tidemark_operator.kube.kinds import (
    CONFIG_MAP,
    JOB,
    POD,
    SPARK_APPLICATION,
    Json,
    Kind,
    resource_version,
)
from tidemark_operator.kube.warnings import last_warning, why_stuck
from tidemark_operator.pods.export_job import (
    CONTAINER,
    PAGE_PORT,
    SPARK_CONTAINER,
    ExportRunIdentity,
    export_job,
    topics_config_map,
)
from tidemark_operator.resources.names import EXPORT_LABEL, RUN_LABEL

#: Field manager of the ConfigMaps of runs.
MANAGER = "tidemark-operator-exports"
#: Jobs of former runs that are kept, for their logs.
HISTORY = 2
_PODS_ENDED = ("Succeeded", "Failed")
_LAST_LINES = 3
_CHARS_MAX = 512
NOT_ALLOWED = (
    "spec.job.sparkApplication is not enabled. Set exports.sparkApplications of the chart, or "
    "remove the field"
)
NOT_INSTALLED = (
    f"the API server has no {SPARK_APPLICATION.kind} of {SPARK_APPLICATION.api_version}. Install "
    "the Spark operator, or remove spec.job.sparkApplication"
)
_NOT_SUBMITTED = (
    "the Spark operator has not submitted the SparkApplication yet. If it does not, check that it "
    "runs and watches this namespace (spark.jobNamespaces of its chart)"
)
_NOT_OWNED = (
    "the driver's pod does not belong to the SparkApplication. Enable the webhook of the Spark "
    "operator (webhook.enable of its chart)"
)


class KubernetesJobs:
    """Jobs in one namespace, with the operator's account.

    ``spark_applications``: whether the account may use SparkApplications.
    """

    in_pods = True

    def __init__(self, api: KubeApi, namespace: str, *, spark_applications: bool = False) -> None:
        self._api = api
        self._namespace = namespace
        self._reports = Reports()
        #: Run and topics of the last written ConfigMap, by the key of the Export.
        self._followed: dict[str, tuple[int, tuple[str, ...]]] = {}
        self._kinds = (JOB, SPARK_APPLICATION) if spark_applications else (JOB,)

    async def look(self, run: ExportRunIdentity) -> JobSeen:
        """Return the present state of an Export run's Job, and delete Jobs of earlier runs."""
        jobs, pods = await self._jobs(run), await self._list(POD, run)
        job = _of_run(jobs, run)
        # A Job of an earlier run would write to the same table, so it has to end first.
        for superseded in _superseded_jobs(jobs, pods, run, job):
            await self._delete(superseded, "Foreground")
        if job is None:
            return ABSENT
        # The Job has the name but another owner: it is neither used nor deleted.
        if not _is_owned(job, run.uid):
            return JobSeen(phase=JobPhase.ENDING, why=f"{run.job} belongs to another owner")
        if job["metadata"].get("deletionTimestamp"):
            return JobSeen(phase=JobPhase.ENDING)
        pod = _newest(pods, job)
        # The Job has ended: return its last report, or its last log lines.
        ended = _ended(job, pod)
        if ended is not None:
            report, why = _final_report(pod)
            return JobSeen(phase=JobPhase.ENDED, report=report, why=why or ended, well=not ended)
        # Without a pod, only the Spark operator or Events of the Job can explain why.
        if pod is None:
            why = _unsubmitted(job, pods) or await self._warning_of(job)
            return JobSeen(phase=JobPhase.STARTING, why=_short(why))
        return await self._pod(run, pod)

    async def _pod(self, run: ExportRunIdentity, pod: Json) -> JobSeen:
        status: Mapping[str, Any] = pod.get("status") or {}
        address = _address(str(status.get("podIP", "")))
        # A pod that is not running has no page to query.
        if status.get("phase") != "Running" or not address:
            name = str(pod["metadata"]["name"])
            why = _waits(status) or await why_stuck(self._api, self._namespace, name)
            return JobSeen(phase=JobPhase.STARTING, why=_short(why))
        report = await self._reports.ask(run.key, run.number, address)
        return JobSeen(phase=JobPhase.RUNNING, report=report)

    async def start(self, run: ExportRunIdentity, desired: DesiredJob) -> None:
        """Create the Job, and delete all former ones but the last few."""
        body = export_job(run, desired)
        kind = _kind_of(body)
        if kind not in self._kinds:
            raise JobRefused(NOT_ALLOWED)
        jobs = [job for job in await self._jobs(run) if _is_owned(job, run.uid)]
        jobs.sort(key=_number)
        for job in [job for job in jobs if _number(job) < run.number][:-HISTORY]:
            await self._delete(job, "Background")
        try:
            await self._api.create(kind, self._namespace, body)
        except Conflict:
            return  # it exists: the next look shows its owner
        except NotFound as error:
            raise JobRefused(NOT_INSTALLED if kind != JOB else error.server_message) from error
        except REFUSALS as error:
            raise JobRefused(error.server_message) from error

    async def follow(self, run: ExportRunIdentity, desired: DesiredJob) -> None:
        """Write the present topics of a selector into the ConfigMap of the run."""
        present = run.number, desired.topics
        if not desired.topics or self._followed.get(run.key) == present:
            return
        job = _of_run(await self._jobs(run), run)
        if job is None or not _is_owned(job, run.uid):
            return
        body = topics_config_map(run, desired, job)
        await self._api.apply(CONFIG_MAP, body, manager=MANAGER, force=True)
        self._followed[run.key] = present

    async def stop(self, run: ExportRunIdentity) -> None:
        job = _of_run(await self._jobs(run), run)
        if job is not None and _is_owned(job, run.uid):
            await self._delete(job, "Foreground")

    async def forget(self, key: str) -> None:
        """Forget the reports; Kubernetes deletes the objects that the Export owned."""
        self._reports.forget(key)
        self._followed.pop(key, None)

    async def _warning_of(self, job: Json) -> str:
        """Return why a Job has no pod."""
        name = str(job["metadata"]["name"])
        return await last_warning(self._api, self._namespace, _kind_of(job), name)

    async def _delete(self, job: Json, propagation: str) -> None:
        meta = job["metadata"]
        try:
            await self._api.delete(
                _kind_of(job),
                self._namespace,
                str(meta["name"]),
                uid=str(meta["uid"]),
                propagation=propagation,
            )
        except (NotFound, Conflict):
            return

    async def _jobs(self, run: ExportRunIdentity) -> list[Json]:
        """Return the objects of any kind that run jobs of the Export."""
        found: list[Json] = []
        for kind in self._kinds:
            try:
                found += await self._list(kind, run)
            except NotFound:  # the Spark operator is not installed
                continue
        return found

    async def _list(self, kind: Kind, run: ExportRunIdentity) -> list[Json]:
        selector = f"{EXPORT_LABEL}={run.name}"
        return await self._api.list_all(kind, self._namespace, label_selector=selector)


def _kind_of(job: Json) -> Kind:
    return SPARK_APPLICATION if job["kind"] == SPARK_APPLICATION.kind else JOB


def _of_run(jobs: Iterable[Json], run: ExportRunIdentity) -> Json | None:
    """Return the job of the run; without one of its own, another owner's of the same name."""
    named = [job for job in jobs if job["metadata"]["name"] == run.job]
    return max(named, key=lambda job: _is_owned(job, run.uid), default=None)


def _superseded_jobs(
    jobs: Iterable[Json], pods: Sequence[Json], run: ExportRunIdentity, present: Json | None
) -> list[Json]:
    """Return the jobs other than the ``present`` one that have not ended.

    A former leader may have created one after it lost the Lease. It would commit to the same table
    as the present run.
    """
    return [
        job
        for job in jobs
        if _is_owned(job, run.uid)
        and job is not present
        and not job["metadata"].get("deletionTimestamp")
        and _ended(job, _newest(pods, job)) is None
    ]


def _number(job: Json) -> int:
    text = str((job["metadata"].get("labels") or {}).get(RUN_LABEL, ""))
    return int(text) if text.isascii() and text.isdecimal() else 0


def _is_owned(body: Json, uid: str) -> bool:
    owners = body["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == uid for owner in owners)


def _newest(pods: Iterable[Json], job: Json) -> Json | None:
    """Return a Job's latest pod; there is one, unless it was evicted and recreated."""
    own = [pod for pod in pods if _is_owned(pod, str(job["metadata"]["uid"]))]
    return max(own, key=resource_version, default=None)


def _unsubmitted(job: Json, pods: Iterable[Json]) -> str:
    """Return why a SparkApplication has no pod, "" if that is normal."""
    if _kind_of(job) != SPARK_APPLICATION:
        return ""
    state = _application_state(job)
    if not state.get("state"):
        return _NOT_SUBMITTED
    driver = ((job.get("status") or {}).get("driverInfo") or {}).get("podName")
    if any(pod["metadata"]["name"] == driver for pod in pods):
        return _NOT_OWNED
    return str(state.get("errorMessage") or "")


def _application_state(job: Json) -> Mapping[str, Any]:
    return (job.get("status") or {}).get("applicationState") or {}


def _ended(job: Json, pod: Json | None) -> str | None:
    """Return how a Job ended: None if it has not, "" if it succeeded, else Kubernetes' message."""
    if _kind_of(job) == SPARK_APPLICATION:
        # After a restart, the Spark operator may submit again, and fail because the pod runs.
        if pod is not None and (pod.get("status") or {}).get("phase") not in _PODS_ENDED:
            return None
        state = _application_state(job)
        text = str(state.get("errorMessage") or "the SparkApplication failed")
        return {"COMPLETED": "", "FAILED": _short(text)}.get(str(state.get("state")))
    conditions = (job.get("status") or {}).get("conditions") or ()
    for condition in conditions:
        if condition.get("status") == "True" and condition.get("type") == "Complete":
            return ""
        if condition.get("status") == "True" and condition.get("type") == "Failed":
            return str(condition.get("message") or condition.get("reason") or "the Job failed")
    return None


def _final_report(pod: Json | None) -> tuple[JobReport | None, str]:
    """Return the last report of a terminated pod, and the text of its failure ("" for success)."""
    if pod is None:
        return None, ""
    # The kubelet keeps the termination message even after the container is deleted.
    status: Mapping[str, Any] = pod.get("status") or {}
    ended = _terminated(status)
    if ended is None:
        return None, _short(str(status.get("message") or status.get("reason") or ""))
    message = str(ended.get("message") or "")
    report = JobReport.of_json(message)
    reason, code = ended.get("reason"), ended.get("exitCode")
    # A report of a running phase was not the last one: the process died.
    if report is not None and report.phase in (ExportJobPhase.STARTING, ExportJobPhase.RUNNING):
        report = None
    # Without a report the message is the end of the log.
    lines = [line for line in message.splitlines() if line.strip()][-_LAST_LINES:]
    end_of_log = "" if report is not None else " | ".join(lines)
    if code == 0:
        return report, ""
    return report, _short(
        f"its container terminated with {reason} ({code}){end_of_log and f': {end_of_log}'}"
    )


def _terminated(status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for container in status.get("containerStatuses") or ():
        found = (container.get("state") or {}).get("terminated")
        if container.get("name") in (CONTAINER, SPARK_CONTAINER) and isinstance(found, Mapping):
            return found
    return None


def _waits(status: Mapping[str, Any]) -> str:
    """Return what a container waits for, if Kubernetes has a message about it."""
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("message"):
            return f"{waiting.get('reason', '')}: {waiting['message']}"
    return ""


def _address(ip: str) -> str:
    """Return ``host:port`` of a pod's page, "" without an address."""
    try:
        found = ipaddress.ip_address(ip)
    except ValueError:
        return ""
    return f"[{found}]:{PAGE_PORT}" if found.version == 6 else f"{found}:{PAGE_PORT}"


def _short(text: str) -> str:
    return shortened(" ".join(text.split()), _CHARS_MAX)
