"""Job of one run of an ``Export``: one pod that the Pod Security Standard ``restricted`` admits.

The Job is tried once. The operator decides about another run, as in environments without
Kubernetes: a Job that restarted itself would do so with its first order. The pod's final report is
its termination message; a running job is queried on the port of its page. The pod gets no token of
the API server.
"""

import dataclasses

from tidemark.export_job import ORDER_VARIABLE
from tidemark_operator.controller.state.export_values import DesiredJob, SecretFile, SecretVariable
from tidemark_operator.pods.identity import (
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
        return {
            **cluster_labels(self.cluster, EXPORT),
            EXPORT_LABEL: self.name,
            RUN_LABEL: str(self.number),
        }


def export_job(run: ExportRunIdentity, desired: DesiredJob) -> Json:
    """Return the Kubernetes Job for one run of an Export."""
    job = ExportJob.model_validate(dict(desired.job))
    template = {
        "metadata": {
            # The operator's labels take precedence: they select the pod.
            "labels": {**job.pod_labels, **run.labels},
            "annotations": dict(job.pod_annotations),
        },
        "spec": _pod(job, desired),
    }
    owner = owner_reference("Export", run.name, run.uid)
    return {
        **manifest_head("batch/v1", "Job", run.job, run.namespace, run.labels, owner),
        # No retry by Kubernetes, which would use the first order: the operator starts a new run.
        "spec": {"backoffLimit": 0, "template": template},
    }


def _pod(job: ExportJob, desired: DesiredJob) -> Json:
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
        _container(job, desired, paths, secrets),
        [
            {"name": TMP, "emptyDir": {}},
            *(secret_volume(_secret_volume(n), secret) for n, secret in enumerate(secrets)),
            *claims,
        ],
        {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": GRACE_S,
        },
    )


def _container(
    job: ExportJob, desired: DesiredJob, paths: dict[SecretFile, str], secrets: list[str]
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
        ],
        "ports": [{"name": "metrics", "containerPort": PAGE_PORT, "protocol": "TCP"}],
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
