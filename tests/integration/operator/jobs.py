"""Jobs of Exports without pods: the test acts as Job controller and kubelet, and its own
process as the job that reports its progress.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from tests.integration.operator.cluster_world import ClusterWorld
from tests.integration.operator.operator_process import OperatorProcess
from tidemark.export_job import ORDER_VARIABLE, JobReport, Order
from tidemark.http_page import HttpPage
from tidemark_operator.kube.kinds import EXPORT, JOB, POD, Json
from tidemark_operator.pods.export_job import CONTAINER, PAGE_PORT

IMAGE = "tidemark/pipeline:1"


async def start_operator(
    world: ClusterWorld, *, spark_applications: bool = False
) -> OperatorProcess:
    """Start an operator that creates Jobs, and create the namespace's default account."""
    # Without a controller manager no namespace has the default account that pods need.
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    path = f"/api/v1/namespaces/{world.namespace}/serviceaccounts"
    await world.api._call("POST", path, body=account)
    made = world.operator(export_image=IMAGE, spark_applications=spark_applications)
    await made.start()
    return made


async def create_export(world: ClusterWorld, name: str = "x", **spec: Any) -> Json:
    """Create an Export of the Topic ``t``, continuous by default."""
    when = {} if "schedule" in spec else {"continuous": {}}
    # An Export runs continuously unless the test gives it a schedule.
    table = {"name": "db.t", "warehouse": "/lake"} | spec.pop("table", {})
    fields = {"topicRef": {"name": "t"}, "table": table} | when | spec
    body = {
        "apiVersion": EXPORT.api_version,
        "kind": "Export",
        "metadata": {"name": name},
        # An Export of many topics names none.
        "spec": {name: value for name, value in fields.items() if value is not None},
    }
    return await world.api.create(EXPORT, world.namespace, body)


async def job(world: ClusterWorld, name: str) -> Json:
    """Return the Job of a run once it exists."""
    await world.until(lambda: world.exists(JOB, name), f"Job {name}")
    return await world.get(JOB, name)


def order(made: Json) -> Order:
    """Return the order in a Job."""
    (container,) = made["spec"]["template"]["spec"]["containers"]
    return Order.of_json(
        next(item["value"] for item in container["env"] if item["name"] == ORDER_VARIABLE)
    )


async def run(world: ClusterWorld, name: str, ip: str = "127.0.0.1", **status: Any) -> Json:
    """Create the Job's pod from its template, running at an address."""
    made = await job(world, name)
    template = made["spec"]["template"]
    meta = made["metadata"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{name}-abcde",
            "labels": template["metadata"]["labels"],
            # As the Job controller labels and owns a pod.
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "name": meta["name"],
                    "uid": meta["uid"],
                    "controller": True,
                }
            ],
        },
        "spec": template["spec"],
    }
    await world.api.create(POD, world.namespace, pod)
    pod_status = {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]} | status
    return await world.api.merge_patch(
        POD, world.namespace, f"{name}-abcde", {"status": pod_status}, "status"
    )


async def end(world: ClusterWorld, name: str, report: JobReport | None, *, code: int = 1) -> None:
    """Set the statuses of the pod that ended and of its Job."""
    # The job's termination message has its last report.
    message = b"" if report is None else report.to_json()
    ended = {
        "exitCode": code,
        # 137 is 128 + SIGKILL, which the kubelet reports as OOMKilled for a container above its
        # limit.
        "reason": "Completed" if code == 0 else "OOMKilled" if code == 137 else "Error",
        "message": message.decode(),
    }
    status = {
        "phase": "Succeeded" if code == 0 else "Failed",
        "containerStatuses": [
            {
                "name": CONTAINER,
                "image": IMAGE,
                "imageID": "",
                "ready": False,
                "restartCount": 0,
                "state": {"terminated": ended},
            }
        ],
    }
    await world.api.merge_patch(POD, world.namespace, f"{name}-abcde", {"status": status}, "status")
    await _finish(world, name, well=code == 0)


async def _finish(world: ClusterWorld, name: str, *, well: bool) -> None:
    """Set the two conditions that the Job controller sets at the end, one after the other."""
    now = "2026-01-01T00:00:00Z"
    # SuccessCriteriaMet and FailureTarget precede Complete and Failed since Kubernetes 1.31.
    kinds = ("SuccessCriteriaMet", "Complete") if well else ("FailureTarget", "Failed")
    reason = "CompletionsReached" if well else "BackoffLimitExceeded"
    conditions = [
        {
            "type": kind,
            "status": "True",
            "reason": reason,
            "message": "" if well else "Job has reached the specified backoff limit",
            "lastProbeTime": now,
            "lastTransitionTime": now,
        }
        for kind in kinds
    ]
    counts = {"succeeded": 1, "completionTime": now} if well else {"failed": 1}
    status = {"startTime": now, "conditions": conditions, **counts}
    await world.api.merge_patch(JOB, world.namespace, name, {"status": status}, "status")


class Page:
    """Progress page of a job, on the port of jobs."""

    def __init__(self) -> None:
        self.report = JobReport.of_json(b"")
        self.requests = 0

    def answer(self) -> bytes:
        self.requests += 1
        return b"{}" if self.report is None else self.report.to_json()


@contextlib.asynccontextmanager
# A real HTTP server: the operator polls pod addresses on this port.
async def page(ip: str) -> AsyncIterator[Page]:
    """Serve the page of the pod at ``ip``, an address of the loopback that no other test uses."""
    served_page = Page()
    served = HttpPage(
        metrics=bytes, health=lambda: (True, ""), more={"/report": served_page.answer}
    )
    served.start(ip, PAGE_PORT)
    try:
        yield served_page
    finally:
        await asyncio.to_thread(served.stop)
