"""Options with which a job reads a topic of a local cluster.

They are those of the ``tidemark`` source, or of Spark's Kafka source for Apache Kafka.
"""

from collections.abc import Mapping
from types import MappingProxyType

from tidemark.export_job import ENGINE
from tidemark.tier.stores.config import RemoteStorage, from_options
from tidemark_devcluster import processes
from tidemark_devcluster.cluster import BUCKET, LocalCluster
from tidemark_devcluster.controlplane.minio import MinioSettings
from tidemark_devcluster.settings import KAFKA
from tidemark_devcluster.toolchain.maven import ensure_jars, spark_kafka
from tidemark_pipeline.read.options import is_kafka_topic


class TierOfKafka(LookupError):
    """Request for the tier of Tidemark brokers in a cluster of Apache Kafka."""


def read_options(cluster: LocalCluster, topic: str) -> dict[str, str]:
    """Return options for ``tidemark_pipeline.read.topic_source.read_topic``."""
    if cluster.settings.engine == KAFKA:
        return {ENGINE: KAFKA, "topic": topic, "bootstrap": cluster.addresses().bootstrap}
    return tier_options(cluster, topic)


def kafka_jars(options: Mapping[str, str]) -> list[str]:
    """Return the jars of Spark's Kafka source, downloaded if missing; none for Tidemark's source.

    Raises ToolchainError.
    """
    if not is_kafka_topic(options):
        return []
    import pyspark

    jars = ensure_jars(spark_kafka(pyspark.__version__))
    return sorted(map(str, jars.glob("*.jar")))


def session_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Return settings of the Spark session that reads with these options. Raises ToolchainError."""
    jars = kafka_jars(options)
    return {"spark.jars": ",".join(jars)} if jars else {}


def tier_options(cluster: LocalCluster, topic: str) -> dict[str, str]:
    """Return the options with which Spark's ``tidemark`` source reads a topic of the cluster.

    They name the tier and the brokers. Raises LookupError if the engine is Apache Kafka or MinIO
    does not run.
    """
    # The format of Kafka's tier belongs to its plug-in, so only its brokers can read it.
    if cluster.settings.engine == KAFKA:
        raise TierOfKafka(
            "this command reads the tier of Tidemark brokers, but the cluster's engine is Apache "
            "Kafka: use tidemark spark aggregate, report, sql, export or maintain, which read "
            "through its brokers"
        )
    options = {"topic": topic, "bootstrap": cluster.addresses().bootstrap}
    # A directory needs no credentials.
    if cluster.settings.tier == "directory":
        return {**options, "path": str(cluster.layout.tier)}
    record = processes.find(cluster.layout, "minio")
    if record is None:
        raise LookupError("MinIO is not running; start the cluster with: tidemark up")
    # The credentials of MinIO are in its data folder, readable by the user only.
    kept = MinioSettings.of(cluster.layout.minio)
    return {
        **options,
        "endpoint": str(record.ready["endpoint"]),
        "buckets": BUCKET,
        "accessKeyId": kept.access_key,
        "secretAccessKey": kept.secret_key,
    }


def storage(cluster: LocalCluster, more: Mapping[str, str] = MappingProxyType({})) -> RemoteStorage:
    """Return the tier as the library's configuration. ``more``: further options."""
    return from_options({**tier_options(cluster, "-"), **more}, {})
