"""Jobs of Exports as Jobs of Kubernetes, one for each run.

Jobs and pods are listed by their labels and believed by their owners. What a Job's pod has left
behind, or what keeps it from starting, is told by its status and by Events. A Job is deleted in the
foreground: as long as it is there its pod may be, and the next run waits.
"""

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any

from tidemark.export_job import Phase, Report, shortened
from tidemark_operator.controller.export_values import ABSENT, JobPhase, JobSeen, JobWanted
from tidemark_operator.jobs.reports import Reports
from tidemark_operator.jobs.runner import JobRefused
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import REFUSALS, Conflict, NotFound
from tidemark_operator.kube.kinds import JOB, POD, Json, Kind, resource_version
from tidemark_operator.kube.warnings import last_warning, why_stuck
from tidemark_operator.pods.export_job import (
    CONTAINER,
    PAGE_PORT,
    ExportRunIdentity,
    export_job,
)
from tidemark_operator.resources.names import EXPORT_LABEL, RUN_LABEL

#: Jobs of former runs that are kept, for their logs.
HISTORY = 2
_LAST_LINES = 3
_CHARS_MAX = 512


class KubernetesJobs:
    """In one namespace, by the operator's account."""

    in_pods = True

    def __init__(self, api: KubeApi, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._reports = Reports()

    async def look(self, run: ExportRunIdentity) -> JobSeen:
        """See :class:`~tidemark_operator.jobs.runner.JobRunner`."""
        jobs = await self._list(JOB, run)
        for stray in _strays(jobs, run):
            await self._delete(stray, "Foreground")
        job = _named(jobs, run.job)
        if job is None:
            return ABSENT
        if not _is_owned(job, run.uid):
            return JobSeen(phase=JobPhase.ENDING, why=f"Job {run.job} belongs to another owner")
        if job["metadata"].get("deletionTimestamp"):
            return JobSeen(phase=JobPhase.ENDING)
        pod = _newest(await self._list(POD, run), str(job["metadata"]["uid"]))
        ended = _ended(job)
        if ended is not None:
            report, why = _last_words(pod)
            return JobSeen(phase=JobPhase.ENDED, report=report, why=why or ended, well=not ended)
        if pod is None:
            return JobSeen(phase=JobPhase.STARTING, why=await self._said_of(run.job))
        return await self._pod(run, pod)

    async def _pod(self, run: ExportRunIdentity, pod: Json) -> JobSeen:
        status: Mapping[str, Any] = pod.get("status") or {}
        address = _address(str(status.get("podIP", "")))
        if status.get("phase") != "Running" or not address:
            name = str(pod["metadata"]["name"])
            why = _waits(status) or await why_stuck(self._api, self._namespace, name)
            return JobSeen(phase=JobPhase.STARTING, why=_short(why))
        report = await self._reports.ask(run.key, run.number, address)
        return JobSeen(phase=JobPhase.RUNNING, report=report)

    async def start(self, run: ExportRunIdentity, wanted: JobWanted) -> None:
        """And of former ones all but the last few go."""
        jobs = [each for each in await self._list(JOB, run) if _is_owned(each, run.uid)]
        jobs.sort(key=_number)
        for job in [each for each in jobs if _number(each) < run.number][:-HISTORY]:
            await self._delete(job, "Background")
        try:
            await self._api.create(JOB, self._namespace, export_job(run, wanted))
        except Conflict:
            return  # it is there: the next look says whose it is
        except REFUSALS as error:
            raise JobRefused(error.said) from error

    async def stop(self, run: ExportRunIdentity) -> None:
        """See :class:`~tidemark_operator.jobs.runner.JobRunner`."""
        job = _named(await self._list(JOB, run), run.job)
        if job is not None and _is_owned(job, run.uid):
            await self._delete(job, "Foreground")

    async def forget(self, key: str) -> None:
        """Kubernetes collects what the Export owned."""
        self._reports.forget(key)

    async def _said_of(self, job: str) -> str:
        """Why a Job has no pod."""
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
    return next((each for each in bodies if each["metadata"]["name"] == name), None)


def _strays(jobs: Iterable[Json], run: ExportRunIdentity) -> list[Json]:
    """Of other runs, and not ended: an operator that led before may have asked for one when it had
    no say any more. It would take the table from the run that is meant."""
    return [
        each
        for each in jobs
        if _is_owned(each, run.uid)
        and each["metadata"]["name"] != run.job
        and not each["metadata"].get("deletionTimestamp")
        and _ended(each) is None
    ]


def _number(job: Json) -> int:
    text = str((job["metadata"].get("labels") or {}).get(RUN_LABEL, ""))
    return int(text) if text.isascii() and text.isdecimal() else 0


def _is_owned(body: Json, uid: str) -> bool:
    owners = body["metadata"].get("ownerReferences") or ()
    return any(each.get("uid") == uid for each in owners)


def _newest(pods: Iterable[Json], job_uid: str) -> Json | None:
    """Of a Job's pods, of which there is one, unless it was evicted and made again."""
    own = [each for each in pods if _is_owned(each, job_uid)]
    return max(own, key=resource_version, default=None)


def _ended(job: Json) -> str | None:
    """None: it has not; "": well; else why not, in Kubernetes' words."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    for each in conditions:
        if each.get("status") == "True" and each.get("type") == "Complete":
            return ""
        if each.get("status") == "True" and each.get("type") == "Failed":
            return str(each.get("message") or each.get("reason") or "the Job failed")
    return None


def _last_words(pod: Json | None) -> tuple[Report | None, str]:
    """The report that a pod has left, or else how it ended."""
    if pod is None:
        return None, ""
    status: Mapping[str, Any] = pod.get("status") or {}
    ended = _terminated(status)
    if ended is None:
        return None, _short(str(status.get("message") or status.get("reason") or ""))
    message = str(ended.get("message") or "")
    report = Report.of_json(message)
    reason, code = ended.get("reason"), ended.get("exitCode")
    if report is not None and report.phase in (Phase.STARTING, Phase.RUNNING):
        report = None
    lines = [line for line in message.splitlines() if line.strip()][-_LAST_LINES:]
    said = "" if report is not None else " | ".join(lines)
    if code == 0:
        return report, ""
    return report, _short(f"its container terminated with {reason} ({code}){said and f': {said}'}")


def _terminated(status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for each in status.get("containerStatuses") or ():
        found = (each.get("state") or {}).get("terminated")
        if each.get("name") == CONTAINER and isinstance(found, Mapping):
            return found
    return None


def _waits(status: Mapping[str, Any]) -> str:
    """What a container waits for, where it is more than being made."""
    for each in status.get("containerStatuses") or ():
        waiting = (each.get("state") or {}).get("waiting") or {}
        if waiting.get("message"):
            return f"{waiting.get('reason', '')}: {waiting['message']}"
    return ""


def _address(ip: str) -> str:
    """``host:port`` of a pod's page; "": it has no address yet."""
    try:
        found = ipaddress.ip_address(ip)
    except ValueError:
        return ""
    return f"[{found}]:{PAGE_PORT}" if found.version == 6 else f"{found}:{PAGE_PORT}"


def _short(text: str) -> str:
    return shortened(" ".join(text.split()), _CHARS_MAX)
