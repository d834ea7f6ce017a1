"""Job of one run of an ``Export``: one pod that the Pod Security Standard ``restricted`` admits.

The Job is tried once. The operator decides about another run, as in environments without
Kubernetes: a Job that restarted itself would do so with its first order. The pod's final report is
its termination message; a running job is queried on the port of its page. The pod gets a token of
the API server only to create executors.
"""

import dataclasses

from tidemark.export_job import (
    EXECUTORS_VARIABLE,
    NAMESPACE_VARIABLE,
    ORDER_VARIABLE,
    POD_ADDRESS_VARIABLE,
    POD_NAME_VARIABLE,
)
from tidemark_operator.controller.state.export_values import DesiredJob, SecretFile, SecretVariable
from tidemark_operator.pods.export_executors import BLOCKS_PORT, DRIVER_PORT, executor_order
from tidemark_operator.pods.identity import (
    EXECUTOR,
    EXPORT,
    Json,
    cluster_labels,
    manifest_head,
    owner_reference,
)
from tidemark_operator.pods.template import (
    container_head,
    pod_spec,
    read_only_mount,
    secret_volume,
)
from tidemark_operator.resources.export_pod import ExportJob
from tidemark_operator.resources.names import (
    EXPORT_LABEL,
    RUN_LABEL,
)

CONTAINER = "export"
PAGE_PORT = 8080
#: The kubelet's own default; the report goes there.
LAST_WORDS = "/dev/termination-log"
SECRETS_FOLDER = "/var/run/tidemark"
PROGRAM = "tidemark_pipeline.jobs.export_job"
#: An unfinished batch is abandoned: this is the time that Spark needs to end.
GRACE_S = 45
#: Spark's own files: shuffle data, spilled data, and fetched jars.
TMP = "tmp"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExportRunIdentity:
    """Identity of a run: its Export and its number."""

    name: str
    namespace: str
    uid: str
    cluster: str
    number: int

    @property
    def key(self) -> str:
        """Key of the Export, ``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def job(self) -> str:
        """Name of the Job."""
        return f"{self.name}-{self.number}"

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the Job and its pod."""
        return {**cluster_labels(self.cluster, EXPORT), **self._run_labels}

    @property
    def executor_labels(self) -> dict[str, str]:
        """Labels of the executors of the Job."""
        return {**cluster_labels(self.cluster, EXECUTOR), **self._run_labels}

    @property
    def _run_labels(self) -> dict[str, str]:
        return {EXPORT_LABEL: self.name, RUN_LABEL: str(self.number)}


def export_job(run: ExportRunIdentity, desired: DesiredJob) -> Json:
    """Return the Kubernetes Job for one run of an Export."""
    job = ExportJob.model_validate(dict(desired.job))
    template = {
        "metadata": {
            # The operator's labels take precedence: they select the pod.
            "labels": {**job.pod_labels, **run.labels},
            "annotations": dict(job.pod_annotations),
        },
        "spec": _pod(run, job, desired),
    }
    owner = owner_reference("Export", run.name, run.uid)
    return {
        **manifest_head("batch/v1", "Job", run.job, run.namespace, run.labels, owner),
        # No retry by Kubernetes, which would use the first order: the operator starts a new run.
        "spec": {"backoffLimit": 0, "template": template},
    }


def _pod(run: ExportRunIdentity, job: ExportJob, desired: DesiredJob) -> Json:
    """Return the spec of the job's pod."""
    # Secrets that the job reads as files are mounted, one volume for each Secret.
    paths = {file: f"{SECRETS_FOLDER}/{file.secret}/{file.key}" for file in desired.files}
    secrets = sorted({file.secret for file in desired.files})
    claims = [
        {"name": _claim_volume(number), "persistentVolumeClaim": {"claimName": volume.claim_name}}
        for number, volume in enumerate(job.volumes)
    ]
    return pod_spec(
        job,
        _container(run, job, desired, paths, secrets),
        [
            {"name": TMP, "emptyDir": {}},
            *(secret_volume(_secret_volume(n), secret) for n, secret in enumerate(secrets)),
            *claims,
        ],
        {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": GRACE_S,
            # The driver creates its executors. Other jobs do not use the API.
            "automountServiceAccountToken": job.executors is not None,
        },
    )


def _container(
    run: ExportRunIdentity,
    job: ExportJob,
    desired: DesiredJob,
    paths: dict[SecretFile, str],
    secrets: list[str],
) -> Json:
    """Return the job's container; ``paths`` are those of Secret keys that are mounted as files."""
    return {
        **container_head(job, CONTAINER),
        "args": ["-m", PROGRAM, "--listen", f"0.0.0.0:{PAGE_PORT}", "--report", LAST_WORDS],
        "env": [
            {"name": ORDER_VARIABLE, "value": _literal(desired.ordered(paths).to_json())},
            *(
                {"name": variable.variable, "valueFrom": {"secretKeyRef": _key_ref(variable)}}
                for variable in desired.variables
            ),
            *_executor_variables(run, job),
        ],
        "ports": [
            {"name": name, "containerPort": port, "protocol": "TCP"}
            for name, port in _ports(job).items()
        ],
        "terminationMessagePath": LAST_WORDS,
        # The last log lines of a killed process, which has left no report.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": TMP, "mountPath": "/tmp"},
            *(
                read_only_mount(_secret_volume(number), f"{SECRETS_FOLDER}/{secret}")
                for number, secret in enumerate(secrets)
            ),
            *(
                {
                    "name": _claim_volume(number),
                    "mountPath": volume.mount_path,
                    **({"readOnly": True} if volume.read_only else {}),
                }
                for number, volume in enumerate(job.volumes)
            ),
        ],
    }


def _ports(job: ExportJob) -> dict[str, int]:
    """Return the ports of the job's pod by name; executors connect to two of them."""
    of_driver = {} if job.executors is None else {"driver": DRIVER_PORT, "blocks": BLOCKS_PORT}
    return {"metrics": PAGE_PORT, **of_driver}


def _executor_variables(run: ExportRunIdentity, job: ExportJob) -> list[Json]:
    """Return what the driver needs to create executors that end with its own pod."""
    if job.executors is None:
        return []
    text = _literal(executor_order(run.executor_labels, job, job.executors).to_json())
    return [
        {"name": EXECUTORS_VARIABLE, "value": text},
        *(
            {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
            for name, path in (
                (POD_NAME_VARIABLE, "metadata.name"),
                (POD_ADDRESS_VARIABLE, "status.podIP"),
                (NAMESPACE_VARIABLE, "metadata.namespace"),
            )
        ),
    ]


def _key_ref(variable: SecretVariable) -> Json:
    optional = {"optional": True} if variable.optional else {}
    return {"name": variable.secret, "key": variable.key, **optional}


def _literal(json_text: str) -> str:
    """Escape ``$``, because the kubelet expands it in a variable's value."""
    return json_text.replace("$", r"\u0024")


def _secret_volume(number: int) -> str:
    return f"secret-{number}"


def _claim_volume(number: int) -> str:
    return f"claim-{number}"
