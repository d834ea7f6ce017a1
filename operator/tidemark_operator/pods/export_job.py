"""Job of one run of an ``Export``: one pod that the Pod Security Standard ``restricted`` admits.

The Job is tried once. The operator decides about another run, as in environments without
Kubernetes: a Job that restarted itself would do so with its first order. The pod's final report is
its termination message; a running job is queried on the port of its page. The pod gets a token of
the API server only to create executors.

In clusters with the Spark operator a ``SparkApplication`` replaces the Job. Its driver has the same
template, so it needs no field that only the webhook of the Spark operator implements. Spark appends
its own arguments to those of the job.
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
from tidemark_operator.pods.export_executors import (
    BLOCKS_PORT,
    DRIVER_PORT,
    application_executors,
    executor_order,
)
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
from tidemark_operator.resources.export_pod import ExportJob, SparkApplication
from tidemark_operator.resources.names import (
    EXPORT_LABEL,
    RUN_LABEL,
)

CONTAINER = "export"
#: The name that the Spark operator gives to Spark.
SPARK_CONTAINER = "spark-kubernetes-driver"
#: Spark in the image of the pipeline.
PIPELINE_SPARK = "4.1.3"
PAGE_PORT = 8080
#: The kubelet's own default; the report goes there.
LAST_WORDS = "/dev/termination-log"
SECRETS_FOLDER = "/var/run/tidemark"
PROGRAM = "tidemark_pipeline.jobs.export_job"
#: The program for Spark, which the container runs by its name.
PROGRAM_FILE = f"local:///app/{PROGRAM.replace('.', '/')}.py"
#: An unfinished batch is abandoned: this is the time that Spark needs to end.
GRACE_S = 45
#: File of a selector's topics, and the folder in which a pod has it.
TOPICS_FILE = "topics"
TOPICS_FOLDER = "/var/run/tidemark-topics"
#: Spark's own files: shuffle data, spilled data, and fetched jars.
TMP = "tmp"
_TOPICS = "topics"


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
    def config_map(self) -> str:
        """Name of the ConfigMap with topics. No ConfigMap of users has the name by chance."""
        return f"{self.job}-topics-{self.uid[:8]}"

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
    """Return the Job or SparkApplication for one run of an Export."""
    job = ExportJob.model_validate(dict(desired.job))
    template = {
        "metadata": {
            # The operator's labels take precedence: they select the pod.
            "labels": {**job.pod_labels, **run.labels},
            "annotations": dict(job.pod_annotations),
        },
        "spec": _pod(run, job, desired),
    }
    # No retry by others, which would use the first order: the operator starts a new run.
    version, kind, spec = "batch/v1", "Job", {"backoffLimit": 0, "template": template}
    if job.spark_application is not None:
        version, kind = "sparkoperator.k8s.io/v1beta2", "SparkApplication"
        spec = _application(run, job, job.spark_application, template)
    owner = owner_reference("Export", run.name, run.uid)
    head = manifest_head(version, kind, run.job, run.namespace, run.labels, owner)
    return {**head, "spec": spec}


def topics_text(desired: DesiredJob) -> str:
    """Return the content of the file of a selector's topics."""
    return "\n".join(desired.topics)


def topics_config_map(run: ExportRunIdentity, desired: DesiredJob, job: Json) -> Json:
    """Return the ConfigMap with the topics of a selector, which is deleted with the run's ``job``.

    The kubelet updates the file in the job's pod about a minute after a change.
    """
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": run.job}
    owner["uid"] = job["metadata"]["uid"]
    head = manifest_head("v1", "ConfigMap", run.config_map, run.namespace, run.labels, owner)
    return {**head, "data": {TOPICS_FILE: topics_text(desired)}}


def _application(
    run: ExportRunIdentity, job: ExportJob, application: SparkApplication, template: Json
) -> Json:
    """Return the spec of a SparkApplication with this template of the driver's pod."""
    assert job.executors is not None  # by a rule of the resource
    account, priority = job.service_account_name, job.priority_class_name
    batch = {"queue": application.queue, "priorityClassName": priority}
    optional = {
        "imagePullPolicy": job.image_pull_policy and str(job.image_pull_policy),
        "batchScheduler": application.batch_scheduler,
        "batchSchedulerOptions": {name: text for name, text in batch.items() if text},
    }
    return {
        "type": "Python",
        "mode": "cluster",
        "sparkVersion": application.spark_version or PIPELINE_SPARK,
        # spark-submit overrides the images of templates.
        "image": job.image,
        "mainApplicationFile": PROGRAM_FILE,
        # The size of the driver's pod follows from the Export's settings.
        "sparkConf": {
            **job.conf,
            "spark.driver.port": str(DRIVER_PORT),
            "spark.blockManager.port": str(BLOCKS_PORT),
        },
        "restartPolicy": {"type": "Never"},
        "driver": {"template": template, **({"serviceAccount": account} if account else {})},
        **application_executors(run.executor_labels, job, job.executors),
        **{name: value for name, value in optional.items() if value},
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
            # Optional, because the ConfigMap is created after the job that owns it.
            *([_topics_volume(run)] if desired.topics else []),
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
    order = desired.ordered(paths, f"{TOPICS_FOLDER}/{TOPICS_FILE}")
    return {
        **container_head(job, CONTAINER if job.spark_application is None else SPARK_CONTAINER),
        "args": ["-m", PROGRAM, "--listen", f"0.0.0.0:{PAGE_PORT}", "--report", LAST_WORDS],
        "env": [
            {"name": ORDER_VARIABLE, "value": _literal(order.to_json())},
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
            *([read_only_mount(_TOPICS, TOPICS_FOLDER)] if desired.topics else []),
        ],
    }


def _ports(job: ExportJob) -> dict[str, int]:
    """Return the ports of the job's pod by name; executors connect to two of them."""
    of_driver = {} if job.executors is None else {"driver": DRIVER_PORT, "blocks": BLOCKS_PORT}
    return {"metrics": PAGE_PORT, **of_driver}


def _executor_variables(run: ExportRunIdentity, job: ExportJob) -> list[Json]:
    """Return what the driver needs to create executors that end with its own pod."""
    # Of a SparkApplication, Spark has the settings in a file of the driver.
    if job.executors is None or job.spark_application is not None:
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


def _topics_volume(run: ExportRunIdentity) -> Json:
    return {"name": _TOPICS, "configMap": {"name": run.config_map, "optional": True}}


def _secret_volume(number: int) -> str:
    return f"secret-{number}"


def _claim_volume(number: int) -> str:
    return f"claim-{number}"
