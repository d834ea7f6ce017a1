"""Job of one run of an ``Export``: one pod that the Pod Security Standard ``restricted`` admits.

The Job is tried once. The operator decides about another run, as in environments without
Kubernetes: a Job that restarted itself would do so with its first order. The pod's final report is
its termination message; a running job is queried on the port of its page. The pod gets no token of
the API server.
"""

import dataclasses
from typing import Any

from tidemark.export_job import ORDER_VARIABLE
from tidemark_operator.controller.state.export_values import DesiredJob, SecretFile
from tidemark_operator.pods.identity import Json, manifest_head, owner_reference
from tidemark_operator.pods.template import CONTAINER_SECURITY, POD_SECURITY, SECRET_MODE
from tidemark_operator.resources.export_pod import ExportJob
from tidemark_operator.resources.names import (
    CLUSTER_LABEL,
    EXPORT_LABEL,
    MANAGED_BY_LABEL,
    OPERATOR,
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
            **export_selector(self.cluster),
            "app.kubernetes.io/component": "export",
            "app.kubernetes.io/part-of": "tidemark",
            MANAGED_BY_LABEL: OPERATOR,
            CLUSTER_LABEL: self.cluster,
            EXPORT_LABEL: self.name,
            RUN_LABEL: str(self.number),
        }


def export_selector(cluster: str) -> dict[str, str]:
    """Return the labels of the pods of all exports of a cluster."""
    return {"app.kubernetes.io/name": "tidemark-export", "app.kubernetes.io/instance": cluster}


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
    found: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # See the template of a broker's pod.
        "shareProcessNamespace": True,
        "imagePullSecrets": [{"name": ref.name} for ref in job.image_pull_secrets],
        "terminationGracePeriodSeconds": GRACE_S,
        "securityContext": POD_SECURITY,
        "containers": [_container(job, desired, paths, secrets)],
        "volumes": [
            {"name": TMP, "emptyDir": {}},
            *(
                {
                    "name": _secret_volume(number),
                    "secret": {"secretName": secret, "defaultMode": SECRET_MODE},
                }
                for number, secret in enumerate(secrets)
            ),
            *(
                {
                    "name": _claim_volume(number),
                    "persistentVolumeClaim": {"claimName": volume.claim_name},
                }
                for number, volume in enumerate(job.volumes)
            ),
        ],
    }
    # Optional fields are left out when empty: a null is not the same as a default.
    where: dict[str, Any] = {
        "serviceAccountName": job.service_account_name,
        "nodeSelector": dict(job.node_selector),
        "tolerations": [toleration.dump() for toleration in job.tolerations],
        "affinity": job.affinity,
        "priorityClassName": job.priority_class_name,
    }
    return found | {name: value for name, value in where.items() if value}


def _container(
    job: ExportJob, desired: DesiredJob, paths: dict[SecretFile, str], secrets: list[str]
) -> Json:
    """Return the job's container; ``paths`` are those of Secret keys that are mounted as files."""
    pull = {"imagePullPolicy": str(job.image_pull_policy)} if job.image_pull_policy else {}
    return {
        "name": CONTAINER,
        "image": job.image,
        **pull,
        "args": ["-m", PROGRAM, "--listen", f"0.0.0.0:{PAGE_PORT}", "--report", LAST_WORDS],
        "env": [
            {"name": ORDER_VARIABLE, "value": _literal(desired.ordered(paths).to_json())},
            *(
                {
                    "name": variable.variable,
                    "valueFrom": {"secretKeyRef": {"name": variable.secret, "key": variable.key}},
                }
                for variable in desired.variables
            ),
        ],
        "ports": [{"name": "metrics", "containerPort": PAGE_PORT, "protocol": "TCP"}],
        "securityContext": CONTAINER_SECURITY,
        "terminationMessagePath": LAST_WORDS,
        # The last log lines of a killed process, which has left no report.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": job.resources.dump() if job.resources is not None else {},
        "volumeMounts": [
            {"name": TMP, "mountPath": "/tmp"},
            *(
                {
                    "name": _secret_volume(number),
                    "mountPath": f"{SECRETS_FOLDER}/{secret}",
                    "readOnly": True,
                }
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


def _literal(json_text: str) -> str:
    """Escape ``$``, because the kubelet expands it in a variable's value."""
    return json_text.replace("$", r"\u0024")


def _secret_volume(number: int) -> str:
    return f"secret-{number}"


def _claim_volume(number: int) -> str:
    return f"claim-{number}"
