"""``Cluster.spec.exports``: what the Cluster's owner lets Exports do.

An Export starts a process that holds Secrets: the tier's keys, the password of a User, and those
that the Export names. So an Export may choose the program that runs (images, jars, classes that
Spark or a catalog loads) and the addresses to which these Secrets are sent only from these lists.
An unset list is the safe default of its field.
"""

from typing import Annotated

from pydantic import Field

from tidemark_operator.resources.schema import ATOMIC, KubernetesSchema, ObjectName, Rule, SpecModel

ENTRIES_MAX = 64

#: Prefixes of the keys of Spark's configuration that load code, choose what Python or Java runs, or
#: change the pod. No policy allows them: build such code into an image.
CODE_PREFIXES = (
    "spark.archives",
    "spark.authenticate",
    "spark.closure.",
    "spark.connect.",
    "spark.eventLog.",
    "spark.executorEnv.",
    "spark.files",
    "spark.hadoop.hadoop.security.",
    "spark.hadoop.hadoop.shell.",
    "spark.jars",
    "spark.kryo.",
    "spark.kubernetes.",
    "spark.metrics.conf",
    "spark.plugins",
    "spark.pyspark.",
    "spark.python.daemon.",
    "spark.python.worker.module",
    "spark.redaction.",
    "spark.serializer",
    "spark.shuffle.manager",
    "spark.sql.catalog.",
    "spark.sql.hive.",
    "spark.sql.sources.",
    "spark.sql.variable.",
    "spark.submit.",
    "spark.ui.",
    "spark.yarn.",
)
#: Ends of such keys.
CODE_ENDS = (
    "JavaOptions",
    "ClassPath",
    "ClassPathFirst",
    "LibraryPath",
    "Listeners",
    "Script",
    "extensions",
    "Class",
    ".class",
    ".factory",
    ".impl",
    ".module",
    ".plugins",
)


def is_code(key: str) -> bool:
    """Return whether a key of Spark's configuration loads code."""
    return key.startswith(CODE_PREFIXES) or key.endswith(CODE_ENDS)


Text = Annotated[str, Field(min_length=1, max_length=512, pattern=r"^\S+$")]
#: A key, or the beginning of keys with ``*`` at its end.
KeyPattern = Annotated[
    str, Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*[*]?$")
]
Place = Annotated[
    str,
    Field(min_length=1, max_length=1024, pattern=r"^(/|[A-Za-z][A-Za-z0-9+.-]*:)\S*$"),
    KubernetesSchema(
        Rule(
            # A folder named .. would leave the allowed location.
            rule="!self.split('/').exists(part, part == '.' || part == '..')",
            message="a location must not contain a folder named . or ..",
        )
    ),
]
Texts = Annotated[tuple[Text, ...], Field(max_length=ENTRIES_MAX), KubernetesSchema(**ATOMIC)]
KeyPatterns = Annotated[
    tuple[KeyPattern, ...], Field(max_length=ENTRIES_MAX), KubernetesSchema(**ATOMIC)
]
Places = Annotated[tuple[Place, ...], Field(max_length=ENTRIES_MAX), KubernetesSchema(**ATOMIC)]
ObjectNames = Annotated[
    tuple[ObjectName, ...], Field(max_length=ENTRIES_MAX), KubernetesSchema(**ATOMIC)
]


class ExportPolicy(SpecModel):
    """Permissions for Exports of the Cluster, in addition to the safe defaults."""

    images: Texts = ()
    """Allowed values of job.image: a repository with any tag or digest, or one image. Default: only
    the operator's own image."""
    jars: Places = ()
    """Allowed locations of job.jars: a path or URI and everything below it. Default: paths of the
    image outside mounted volumes."""
    spark_conf: KeyPatterns = ()
    """Allowed keys of job.conf and job.confSecrets, with an optional trailing *. Default: memory,
    parallelism, time zone, and s3a credentials and endpoint. Keys that load code are never allowed.
    """
    catalog_properties: KeyPatterns = ()
    """Allowed properties of table.catalog and table.catalogSecrets, with an optional trailing *.
    Default: properties of Iceberg's catalogs that load no other classes."""
    endpoints: Places = ()
    """Allowed targets for credentials: URIs of catalogs, S3 services and schema registries with all
    paths below, and brokers as kafka://host:port. Default: the Cluster's own brokers and tier."""
    warehouses: Places | None = None
    """Allowed locations of table.warehouse: a path or URI and everything below it. Default: any
    location in a pod; with a local operator, any location except local paths."""
    service_accounts: ObjectNames = ()
    """Allowed values of job.serviceAccountName. Default: none."""
    claims: ObjectNames = ()
    """Allowed claims of job.volumes. Default: none."""
    pod_labels: KeyPatterns = ()
    """Allowed keys of job.podLabels, with an optional trailing *. Services, NetworkPolicies and
    webhooks can select pods by labels. Default: none."""
    pod_annotations: KeyPatterns = ()
    """Allowed keys of job.podAnnotations, with an optional trailing *. Webhooks can mount Secrets
    and add containers by annotations. Default: none."""
