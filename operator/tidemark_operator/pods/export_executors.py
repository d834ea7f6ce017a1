"""Executor pods of an Export's job, which Spark's driver in the job's pod creates.

The account of the driver may manage pods. The chart's admission policy admits only those that the
driver's own pod owns, that have no token and mount no Secret or claim. So the template has only
empty directories, and everything that a task needs travels in the task.
"""

from collections.abc import Mapping

from tidemark.export_job import ExecutorOrder
from tidemark_operator.pods.identity import Json
from tidemark_operator.pods.template import container_head, pod_spec
from tidemark_operator.resources.export_pod import Executors, ExportJob

CONTAINER = "executor"
PROGRAM = "tidemark_pipeline.jobs.executor"
#: Ports of the driver and of block managers; NetworkPolicies name them.
DRIVER_PORT, BLOCKS_PORT = 7078, 7079
CORES, MEMORY = 2, "2Gi"
_MIB = {"Mi": 1, "Gi": 1024}
#: Spark needs this time to hand over shuffle data, for example when a spot node is reclaimed.
GRACE_S = 120


def executor_order(
    labels: Mapping[str, str], job: ExportJob, executors: Executors
) -> ExecutorOrder:
    """Return what the driver needs to create executors. ``labels``: of their pods."""
    memory = executors.memory or MEMORY
    return ExecutorOrder(
        image=job.image or "",
        minimum=executors.instances or executors.min or 0,
        maximum=executors.instances or executors.max or 1,
        cores=executors.cores or CORES,
        memory_mib=int(memory[:-2]) * _MIB[memory[-2:]],
        ports=(DRIVER_PORT, BLOCKS_PORT),
        container=CONTAINER,
        pod=_pod(labels, job, executors),
    )


def _pod(labels: Mapping[str, str], job: ExportJob, executors: Executors) -> Json:
    """Return the template of an executor's pod."""
    # Unset fields of the template are those of the job's pod. Spark sets requests and limits.
    place = executors.pod_template
    changed = {"resources": None}
    if place is not None:
        changed |= {name: getattr(place, name) for name in place.model_fields_set}
    pod = job.model_copy(update=changed)
    container = {
        **container_head(pod, CONTAINER),
        "command": ["python3", "-m", PROGRAM],
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "labels": {**job.pod_labels, **labels},
            "annotations": dict(job.pod_annotations),
        },
        "spec": pod_spec(
            pod,
            container,
            [{"name": "tmp", "emptyDir": {}}],
            {"restartPolicy": "Never", "terminationGracePeriodSeconds": GRACE_S},
        ),
    }
