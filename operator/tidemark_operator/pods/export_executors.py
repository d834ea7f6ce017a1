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
#: The name that the Spark operator gives to Spark.
SPARK_CONTAINER = "spark-kubernetes-executor"
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
    return ExecutorOrder(
        image=job.image or "",
        minimum=executors.instances or executors.min or 0,
        maximum=executors.instances or executors.max or 1,
        cores=executors.cores or CORES,
        memory_mib=_memory_mib(executors),
        ports=(DRIVER_PORT, BLOCKS_PORT),
        container=CONTAINER,
        pod={"apiVersion": "v1", "kind": "Pod", **_template(labels, job, executors, CONTAINER)},
    )


def application_executors(labels: Mapping[str, str], job: ExportJob, executors: Executors) -> Json:
    """Return the fields of a ``SparkApplication`` for executors. ``labels``: of their pods."""
    fields = {
        "cores": executors.cores or CORES,
        "memory": f"{_memory_mib(executors)}m",
        # Without labels they would have those of the SparkApplication.
        "labels": dict(labels),
        "template": _template(labels, job, executors, SPARK_CONTAINER),
    }
    if executors.instances is not None:
        return {"executor": {**fields, "instances": executors.instances}}
    return {
        "executor": fields,
        "dynamicAllocation": {
            "enabled": True,
            "minExecutors": executors.min or 0,
            "maxExecutors": executors.max,
            # There is no shuffle service: an executor whose shuffle data is needed stays.
            "shuffleTrackingEnabled": True,
        },
    }


def _memory_mib(executors: Executors) -> int:
    memory = executors.memory or MEMORY
    return int(memory[:-2]) * _MIB[memory[-2:]]


def _template(
    labels: Mapping[str, str], job: ExportJob, executors: Executors, container_name: str
) -> Json:
    """Return the template of an executor's pod."""
    # Unset fields of the template are those of the job's pod. Spark sets requests and limits.
    place = executors.pod_template
    changed = {"resources": None}
    if place is not None:
        changed |= {name: getattr(place, name) for name in place.model_fields_set}
    pod = job.model_copy(update=changed)
    container = {
        **container_head(pod, container_name),
        "command": ["python3", "-m", PROGRAM],
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    return {
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
