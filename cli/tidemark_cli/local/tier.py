"""How a job reads the tier of a local cluster: options of the ``tidemark`` source."""

from tidemark.tier.config import RemoteStorage, from_options
from tidemark_cli.controlplane.minio import Settings
from tidemark_cli.local import processes
from tidemark_cli.local.cluster import BUCKET, LocalCluster


def read_options(cluster: LocalCluster, topic: str) -> dict[str, str]:
    """Where the tier and the brokers of ``cluster`` are, for ``spark.read.format("tidemark")``."""
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
    return from_options(read_options(cluster, "-"), {})
