"""How a job reads a topic of a local cluster: options of the ``tidemark`` source, or of Spark's own
where Apache Kafka has the topic."""

from collections.abc import Mapping

from tidemark.tier.config import RemoteStorage, from_options
from tidemark_cli.controlplane.minio import Settings
from tidemark_cli.local import processes
from tidemark_cli.local.cluster import BUCKET, LocalCluster
from tidemark_cli.local.settings import KAFKA
from tidemark_cli.toolchain.maven import ensure_jars, spark_kafka
from tidemark_pipeline.engines import ENGINE, is_kafkas


class TierOfKafka(LookupError):
    """What is asked for is about the tier of our own brokers."""


def read_options(cluster: LocalCluster, topic: str) -> dict[str, str]:
    """For ``tidemark_pipeline.topic_source.read_topic``."""
    if cluster.settings.engine == KAFKA:
        return {ENGINE: KAFKA, "topic": topic, "bootstrap": cluster.addresses().bootstrap}
    return tier_options(cluster, topic)


def kafka_jars(options: Mapping[str, str]) -> list[str]:
    """Of Spark's own Kafka source, fetched where they are missing; none where our own reads. Raises
    ToolchainError."""
    if not is_kafkas(options):
        return []
    import pyspark

    jars = ensure_jars(spark_kafka(pyspark.__version__))
    return sorted(map(str, jars.glob("*.jar")))


def session_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Of the Spark session that reads them. Raises ToolchainError."""
    jars = kafka_jars(options)
    return {"spark.jars": ",".join(jars)} if jars else {}


def tier_options(cluster: LocalCluster, topic: str) -> dict[str, str]:
    """Where the tier and the brokers of ``cluster`` are, for ``spark.read.format("tidemark")``.
    Raises LookupError."""
    if cluster.settings.engine == KAFKA:
        raise TierOfKafka(
            "this cluster's engine is Apache Kafka, whose tier only its brokers can read: this "
            "command is about the tier of Tidemark's own brokers (tidemark spark aggregate, "
            "report, sql, export and maintain read either)"
        )
    options = {"topic": topic, "bootstrap": cluster.addresses().bootstrap}
    if cluster.settings.tier == "directory":
        return {**options, "path": str(cluster.layout.tier)}
    record = processes.find(cluster.layout, "minio")
    if record is None:
        raise LookupError("MinIO is not running; start the cluster with: tidemark up")
    kept = Settings.of(cluster.layout.minio)
    return {
        **options,
        "endpoint": str(record.ready["endpoint"]),
        "buckets": BUCKET,
        "accessKeyId": kept.access_key,
        "secretAccessKey": kept.secret_key,
    }


def storage(cluster: LocalCluster) -> RemoteStorage:
    """The same as the library's configuration."""
    return from_options(tier_options(cluster, "-"), {})
