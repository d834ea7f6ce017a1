"""Jobs of Exports as Jobs of Kubernetes, one for each run.

Jobs and pods are listed by their labels and accepted by their owners. The status of a Job's pod and
Events show what the pod has left behind, or what keeps it from starting. A Job is deleted in the
foreground: as long as it exists its pod may run, and the next run waits.
"""

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any

from tidemark.export_job import ExportJobPhase, JobReport, shortened
from tidemark_operator.controller.state.export_values import ABSENT, DesiredJob, JobPhase, JobSeen
from tidemark_operator.jobs.runner import JobRefused, Reports
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import REFUSALS, Conflict, NotFound
from tidemark_operator.kube.kinds import JOB, POD, Json, Kind, resource_version
from tidemark_operator.kube.warnings import last_warning, why_stuck
from tidemark_operator.pods.export_job import CONTAINER, PAGE_PORT, ExportRunIdentity, export_job
from tidemark_operator.resources.names import EXPORT_LABEL, RUN_LABEL

#: Jobs of former runs that are kept, for their logs.
HISTORY = 2
_LAST_LINES = 3
_CHARS_MAX = 512


class KubernetesJobs:
    """Jobs in one namespace, with the operator's account."""

    in_pods = True

    def __init__(self, api: KubeApi, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._reports = Reports()

    async def look(self, run: ExportRunIdentity) -> JobSeen:
        """Return the present state of an Export run's Job, and delete Jobs of earlier runs."""
        jobs = await self._list(JOB, run)
        # A Job of an earlier run would write to the same table, so it has to end first.
        for superseded in _superseded_jobs(jobs, run):
            await self._delete(superseded, "Foreground")
        job = _named(jobs, run.job)
        if job is None:
            return ABSENT
        # The Job has the name but another owner: it is neither used nor deleted.
        if not _is_owned(job, run.uid):
            return JobSeen(phase=JobPhase.ENDING, why=f"Job {run.job} belongs to another owner")
        if job["metadata"].get("deletionTimestamp"):
            return JobSeen(phase=JobPhase.ENDING)
        pod = _newest(await self._list(POD, run), str(job["metadata"]["uid"]))
        # The Job has ended: return its last report, or its last log lines.
        ended = _ended(job)
        if ended is not None:
            report, why = _final_report(pod)
            return JobSeen(phase=JobPhase.ENDED, report=report, why=why or ended, well=not ended)
        # Without a pod, only Events of the Job can explain why.
        if pod is None:
            return JobSeen(phase=JobPhase.STARTING, why=await self._warning_of(run.job))
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
        jobs = [job for job in await self._list(JOB, run) if _is_owned(job, run.uid)]
        jobs.sort(key=_number)
        for job in [job for job in jobs if _number(job) < run.number][:-HISTORY]:
            await self._delete(job, "Background")
        try:
            await self._api.create(JOB, self._namespace, export_job(run, desired))
        except Conflict:
            return  # it exists: the next look shows its owner
        except REFUSALS as error:
            raise JobRefused(error.server_message) from error

    async def stop(self, run: ExportRunIdentity) -> None:
        job = _named(await self._list(JOB, run), run.job)
        if job is not None and _is_owned(job, run.uid):
            await self._delete(job, "Foreground")

    async def forget(self, key: str) -> None:
        """Forget the reports; Kubernetes deletes the objects that the Export owned."""
        self._reports.forget(key)

    async def _warning_of(self, job: str) -> str:
        """Return why a Job has no pod."""
        return _short(await last_warning(self._api, self._namespace, JOB, job))

    async def _delete(self, job: Json, propagation: str) -> None:
        meta = job["metadata"]
        try:
            await self._api.delete(
                JOB,
                self._namespace,
                str(meta["name"]),
                uid=str(meta["uid"]),
                propagation=propagation,
            )
        except (NotFound, Conflict):
            return

    async def _list(self, kind: Kind, run: ExportRunIdentity) -> list[Json]:
        selector = f"{EXPORT_LABEL}={run.name}"
        return await self._api.list_all(kind, self._namespace, label_selector=selector)


def _named(bodies: Iterable[Json], name: str) -> Json | None:
    return next((body for body in bodies if body["metadata"]["name"] == name), None)


def _superseded_jobs(jobs: Iterable[Json], run: ExportRunIdentity) -> list[Json]:
    """Return the jobs of other runs that have not ended.

    A former leader may have created one after it lost the Lease. It would commit to the same table
    as the present run.
    """
    return [
        job
        for job in jobs
        if _is_owned(job, run.uid)
        and job["metadata"]["name"] != run.job
        and not job["metadata"].get("deletionTimestamp")
        and _ended(job) is None
    ]


def _number(job: Json) -> int:
    text = str((job["metadata"].get("labels") or {}).get(RUN_LABEL, ""))
    return int(text) if text.isascii() and text.isdecimal() else 0


def _is_owned(body: Json, uid: str) -> bool:
    owners = body["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == uid for owner in owners)


def _newest(pods: Iterable[Json], job_uid: str) -> Json | None:
    """Return a Job's latest pod; there is one, unless it was evicted and recreated."""
    own = [pod for pod in pods if _is_owned(pod, job_uid)]
    return max(own, key=resource_version, default=None)


def _ended(job: Json) -> str | None:
    """Return how a Job ended: None if it has not, "" if it succeeded, else Kubernetes' message."""
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
        if container.get("name") == CONTAINER and isinstance(found, Mapping):
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
