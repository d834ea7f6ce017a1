"""Pod of an export's job, and Spark's settings beyond the table.

As for a broker's pod, the operator's own decisions (names, the security context, the page's port)
have no field here. A local operator runs the job as a process, and applies only ``cores``,
``conf``, ``confSecrets`` and ``jars``.
"""

from typing import Annotated, Any, ClassVar

from pydantic import Field

from tidemark_operator.resources.broker_pod import (
    PRESERVED,
    ImageName,
    ImagePullSecrets,
    Labels,
    PodAnnotations,
    PodResources,
    PullPolicy,
    Tolerations,
)
from tidemark_operator.resources.config_rules import cel_list
from tidemark_operator.resources.export_policy import CODE_ENDS, CODE_PREFIXES
from tidemark_operator.resources.references import SecretKeyRef
from tidemark_operator.resources.schema import (
    ATOMIC,
    KubernetesSchema,
    ObjectName,
    Rule,
    SpecModel,
    keyed_by,
)

#: Keys of Spark's configuration that the job sets itself.
OWN_CONF = (
    "spark.master",
    "spark.app.name",
    "spark.driver.host",
    "spark.driver.bindAddress",
    "spark.local.dir",
    "spark.jars",
)
#: Folders of the image, and of the operator's mounts.
OWN_FOLDERS = ("/tmp", "/app", "/opt/java", "/etc", "/dev", "/proc", "/sys", "/usr")
CORES_MAX = 64
EXECUTORS_MAX = 512


def _code(key: str) -> str:
    """Return CEL: whether a key loads code."""
    return (
        f"{cel_list(CODE_PREFIXES)}.exists(p, {key}.startsWith(p)) || "
        f"{cel_list(CODE_ENDS)}.exists(p, {key}.endsWith(p))"
    )


_CODE = (
    "loads code or changes the pod, which an Export cannot do. Build the code into the job image."
)


class SecretValue(SpecModel):
    """Value from a Secret in the same namespace."""

    name: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[A-Za-z][A-Za-z0-9._-]*$")]
    secret_key_ref: SecretKeyRef


SecretValues = Annotated[
    tuple[SecretValue, ...],
    Field(max_length=16),
    KubernetesSchema(**keyed_by("name")),
]


class JobVolume(SpecModel):
    """PersistentVolumeClaim that the job mounts, for example a warehouse on a shared filesystem."""

    claim_name: ObjectName
    mount_path: Annotated[
        str,
        Field(min_length=2, max_length=512, pattern="^/[^:]*$"),
        KubernetesSchema(
            Rule(
                # A mount there would replace programs or Secrets of the image.
                rule=f"!{cel_list(OWN_FOLDERS)}.exists(f, self == f || self.startsWith(f + '/'))"
                " && !self.split('/').exists(part, part == '.' || part == '..')",
                message="mountPath must not be in the image's own directories: "
                + ", ".join(OWN_FOLDERS),
            )
        ),
    ]
    read_only: bool | None = None


class ExecutorPodTemplate(SpecModel):
    """Placement of executor pods. Unset fields have the values of the job's pod."""

    node_selector: Labels = Field(default_factory=dict)
    tolerations: Tolerations = ()
    """Such as the taint of spot nodes. A lost executor's tasks run again on another one."""
    priority_class_name: ObjectName | None = None


class Executors(SpecModel):
    """Executor pods that run the tasks of the job. Their container has the job's image."""

    instances: Annotated[
        int | None, Field(ge=1, le=EXECUTORS_MAX), KubernetesSchema(format="int32")
    ] = None
    """Fixed number of executors."""
    min: Annotated[int | None, Field(ge=0, le=EXECUTORS_MAX), KubernetesSchema(format="int32")] = (
        None
    )
    """Least number of executors with dynamic allocation. Default: 0."""
    max: Annotated[int | None, Field(ge=1, le=EXECUTORS_MAX), KubernetesSchema(format="int32")] = (
        None
    )
    """Greatest number of executors. Executors are added while tasks wait, and removed when idle."""
    cores: Annotated[int | None, Field(ge=1, le=CORES_MAX), KubernetesSchema(format="int32")] = None
    """Number of parallel tasks of an executor, and its CPU request. Default: 2."""
    memory: Annotated[str | None, Field(max_length=8, pattern=r"^[1-9][0-9]{0,5}(Mi|Gi)$")] = None
    """Memory of an executor's JVM. The pod's limit is 40 % higher, for Python. Default: 2Gi."""
    pod_template: ExecutorPodTemplate | None = None

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="has(self.instances) ? !has(self.min) && !has(self.max) : has(self.max)",
            message="set instances, or max and optionally min",
        ),
        Rule(
            rule="!has(self.min) || !has(self.max) || self.min <= self.max",
            message="min must not be greater than max",
            field_path=".min",
        ),
    )


class SparkApplication(SpecModel):
    """``SparkApplication`` of the Spark operator, which runs the job instead of a Job."""

    spark_version: Annotated[
        str | None, Field(max_length=16, pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$")
    ] = None
    """Spark of the image. Default: the version in the image of the pipeline."""
    batch_scheduler: ObjectName | None = None
    """Batch scheduler, such as volcano or yunikorn. Default: that of the Spark operator."""
    queue: Annotated[
        str | None, Field(max_length=63, pattern="^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")
    ] = None
    """Queue of the batch scheduler."""


class ExportJob(SpecModel):
    """Pod and resources of the job."""

    image: ImageName | None = None
    """Image of the pipeline or an image based on it. Default: exports.image of the operator."""
    image_pull_policy: PullPolicy | None = None
    image_pull_secrets: ImagePullSecrets = ()
    service_account_name: ObjectName | None = None
    """ServiceAccount for cloud workload identity. An API token is mounted only with executors.
    Default: exports.serviceAccount of the operator."""
    cores: Annotated[int | None, Field(ge=1, le=CORES_MAX), KubernetesSchema(format="int32")] = None
    """Number of parallel tasks. Default: 2. With executors the job's pod runs no tasks."""
    executors: Executors | None = None
    """Executor pods. Unset: the job's pod runs all tasks. A local operator ignores them."""
    spark_application: SparkApplication | None = None
    """If set, also to {}, the Spark operator runs the job. A local operator ignores it."""
    resources: PodResources | None = None
    jars: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[^\s,]+$")], ...],
        Field(max_length=16),
        KubernetesSchema(**ATOMIC),
    ] = ()
    """JAR files as paths in the image or URLs that Spark supports. Default: the JARs of the image,
    or the table format from Maven Central if the image has none."""
    conf: Annotated[
        dict[str, Annotated[str, Field(max_length=1024)]],
        Field(max_length=32),
        KubernetesSchema(
            Rule(
                rule="self.all(k, k.startsWith('spark.') && k.size() <= 253)",
                message="a Spark configuration key starts with spark.",
            ),
            Rule(
                # The catalog of the table is named lake, and spec.table configures it.
                rule=f"!self.exists(k, k in {cel_list(OWN_CONF)} || "
                "k.startsWith('spark.sql.catalog.lake'))",
                message="a key is set by the operator. Remove it.",
                message_expression=(
                    f"self.filter(k, k in {cel_list(OWN_CONF)} || "
                    "k.startsWith('spark.sql.catalog.lake'))[0] + ' is set by "
                    "the operator. Use the fields of spec.table and spec.job.'"
                ),
            ),
            Rule(
                rule=f"!self.exists(k, {_code('k')})",
                message=f"a key {_CODE}",
                message_expression=f"self.filter(k, {_code('k')})[0] + ' {_CODE}'",
            ),
        ),
    ] = Field(default_factory=dict)
    """Spark configuration such as spark.driver.memory."""
    conf_secrets: SecretValues = ()
    """Spark configuration whose values are in Secrets, such as filesystem credentials."""
    volumes: Annotated[
        tuple[JobVolume, ...],
        Field(max_length=8),
        KubernetesSchema(**keyed_by("mountPath")),
    ] = ()
    node_selector: Labels = Field(default_factory=dict)
    tolerations: Tolerations = ()
    affinity: Annotated[dict[str, Any] | None, KubernetesSchema(**PRESERVED)] = None
    """Affinity of the pod, as in a pod spec."""
    priority_class_name: ObjectName | None = None
    pod_labels: Labels = Field(default_factory=dict)
    pod_annotations: PodAnnotations = Field(default_factory=dict)

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="!has(self.confSecrets) || self.confSecrets.all(s, s.name.startsWith('spark.'))",
            message="a Spark configuration key starts with spark.",
            field_path=".confSecrets",
        ),
        Rule(
            rule=f"!has(self.confSecrets) || !self.confSecrets.exists(s, {_code('s.name')})",
            message=f"a key {_CODE}",
            field_path=".confSecrets",
        ),
        Rule(
            rule="!has(self.executors) || !has(self.volumes)",
            message="executors do not mount volumes. Write to an object store, or remove "
            "executors.",
            field_path=".executors",
        ),
        Rule(
            rule="!has(self.sparkApplication) || has(self.executors)",
            message="sparkApplication needs executors. Set executors, or remove sparkApplication.",
            field_path=".sparkApplication",
        ),
        Rule(
            rule="!has(self.sparkApplication) || !has(self.resources)",
            message="Spark sets the resources of the pod. Remove resources, and set "
            "spark.driver.cores and spark.driver.memory in conf.",
            field_path=".resources",
        ),
    )
