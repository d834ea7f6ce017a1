"""How a job reads a topic of a local cluster: options of the ``tidemark`` source, or of Spark's own
where Apache Kafka has the topic."""

from tidemark.tier.config import RemoteStorage, from_options
from tidemark_cli.controlplane.minio import Settings
from tidemark_cli.local import processes
from tidemark_cli.local.cluster import BUCKET, LocalCluster
from tidemark_cli.local.settings import KAFKA
from tidemark_pipeline.engines import ENGINE


class TierOfKafka(LookupError):
    """What is asked for is about the tier of our own brokers."""


def read_options(cluster: LocalCluster, topic: str) -> dict[str, str]:
    """For ``tidemark_pipeline.jobs.aggregate.read_topic``."""
    if cluster.settings.engine == KAFKA:
        return {ENGINE: KAFKA, "topic": topic, "bootstrap": cluster.addresses().bootstrap}
    return tier_options(cluster, topic)


def tier_options(cluster: LocalCluster, topic: str) -> dict[str, str]:
    """Where the tier and the brokers of ``cluster`` are, for ``spark.read.format("tidemark")``.
    Raises LookupError."""
    if cluster.settings.engine == KAFKA:
        raise TierOfKafka(
            "this cluster's engine is Apache Kafka, whose tier only its brokers can read: this "
            "command is about the tier of Tidemark's own brokers (tidemark spark aggregate and "
            "report read either)"
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
