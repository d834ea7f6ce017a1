"""The Job of one run of an ``Export``: one pod, which the Pod Security Standard ``restricted`` lets
in, tried once.

Whether and when there is another one is the operator's to decide, here as where there is no
Kubernetes to do it: a Job that began itself again would do so with what it was told at first. The
pod's last words are its termination message; while it runs it is asked on the port of its page. It
is given no token of the API server.
"""

import dataclasses
from typing import Any

from tidemark.export_job import ORDER_VARIABLE
from tidemark_operator.controller.export_values import JobWanted, SecretFile
from tidemark_operator.pods.identity import Json, owner
from tidemark_operator.pods.template import SECRET_MODE, USER_ID
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
#: A batch that is under way is given up: what takes time is that Spark ends.
GRACE_S = 45
#: Spark's own files: what is shuffled and spilled, and fetched jars.
TMP = "tmp"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExportRunIdentity:
    """Whose Job it is, and which of its runs'."""

    name: str
    namespace: str
    uid: str
    cluster: str
    number: int

    @property
    def key(self) -> str:
        """Of the Export, ``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def job(self) -> str:
        """The Job's name."""
        return f"{self.name}-{self.number}"

    @property
    def labels(self) -> dict[str, str]:
        """Of the Job and its pod."""
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
    """Labels of the pods of all exports of a cluster."""
    return {"app.kubernetes.io/name": "tidemark-export", "app.kubernetes.io/instance": cluster}


def export_job(run: ExportRunIdentity, wanted: JobWanted) -> Json:
    """As it is created."""
    job = ExportJob.model_validate(dict(wanted.job))
    metadata = {"name": run.job, "namespace": run.namespace, "labels": run.labels}
    template = {
        "metadata": {
            "labels": {**job.pod_labels, **run.labels},
            "annotations": dict(job.pod_annotations),
        },
        "spec": _pod(job, wanted),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {**metadata, "ownerReferences": [owner("Export", run.name, run.uid)]},
        "spec": {"backoffLimit": 0, "template": template},
    }


def _pod(job: ExportJob, wanted: JobWanted) -> Json:
    paths = {each: f"{SECRETS_FOLDER}/{each.secret}/{each.key}" for each in wanted.files}
    secrets = sorted({each.secret for each in wanted.files})
    found: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # See the template of a broker's pod.
        "shareProcessNamespace": True,
        "imagePullSecrets": [{"name": each.name} for each in job.image_pull_secrets],
        "terminationGracePeriodSeconds": GRACE_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(job, wanted, paths, secrets)],
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
    where: dict[str, Any] = {
        "serviceAccountName": job.service_account_name,
        "nodeSelector": dict(job.node_selector),
        "tolerations": [each.dump() for each in job.tolerations],
        "affinity": job.affinity,
        "priorityClassName": job.priority_class_name,
    }
    return found | {name: value for name, value in where.items() if value}


def _container(
    job: ExportJob, wanted: JobWanted, paths: dict[SecretFile, str], secrets: list[str]
) -> Json:
    pull = {"imagePullPolicy": str(job.image_pull_policy)} if job.image_pull_policy else {}
    return {
        "name": CONTAINER,
        "image": job.image,
        **pull,
        "args": ["-m", PROGRAM, "--listen", f"0.0.0.0:{PAGE_PORT}", "--report", LAST_WORDS],
        "env": [
            {"name": ORDER_VARIABLE, "value": _literal(wanted.ordered(paths).to_json())},
            *(
                {
                    "name": each.variable,
                    "valueFrom": {"secretKeyRef": {"name": each.secret, "key": each.key}},
                }
                for each in wanted.variables
            ),
        ],
        "ports": [{"name": "metrics", "containerPort": PAGE_PORT, "protocol": "TCP"}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePath": LAST_WORDS,
        # What a process that was killed has logged last, where it has left no report.
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
    """The kubelet makes something of $ in a variable's value."""
    return json_text.replace("$", r"\u0024")


def _secret_volume(number: int) -> str:
    return f"secret-{number}"


def _claim_volume(number: int) -> str:
    return f"claim-{number}"
