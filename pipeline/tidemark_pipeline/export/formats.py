"""Table formats that an export can write, and the Spark configuration that each needs.

Usable without Spark, because the configuration is needed before a session exists.
"""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path


class Format(StrEnum):
    """Table format of an export."""

    ICEBERG = "iceberg"
    DELTA = "delta"


_ICEBERG = "1.12.0"
#: Packages for PySpark 4.1, all Apache-2.0. Iceberg's needs a second one for a cloud.
PACKAGES = {
    Format.ICEBERG: f"org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:{_ICEBERG}",
    Format.DELTA: "io.delta:delta-spark_4.1_2.13:4.4.0",
}
#: Iceberg's packages with the SDK of a cloud, by the end of a class in a catalog's properties.
CLOUD_PACKAGES = {
    cloud: f"org.apache.iceberg:iceberg-{cloud}-bundle:{_ICEBERG}"
    for cloud in ("aws", "gcp", "azure")
}
_CLOUDS = {
    ".S3FileIO": "aws",
    ".GlueCatalog": "aws",
    ".GCSFileIO": "gcp",
    ".ADLSFileIO": "azure",
}


def is_among(package: str, home: Path) -> bool:
    """Return whether the package's jar is in the ``jars`` folder of the Spark at ``home``."""
    name = package.split(":")[1]
    return any((home / "jars").glob(f"{name}-*.jar"))


def packages(kind: Format, catalog: Mapping[str, str]) -> list[str]:
    """Return the packages for a format, and for an Iceberg catalog with the given properties."""
    # Iceberg's runtime has no SDK of a cloud.
    classes = [catalog.get(name, "") for name in ("io-impl", "catalog-impl")]
    clouds = {_CLOUDS[end] for end in _CLOUDS for name in classes if name.endswith(end)}
    if catalog.get("type") == "glue":
        clouds.add("aws")
    return [PACKAGES[kind], *(CLOUD_PACKAGES[cloud] for cloud in sorted(clouds))]


def catalog_settings(catalog: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Return Spark's configuration for an Iceberg catalog.

    ``properties``: the catalog's, such as ``type``, ``warehouse`` and ``uri``.
    """
    prefix = f"spark.sql.catalog.{catalog}"
    # A cached table would hide the commits of other jobs.
    known = {"cache-enabled": "false", **properties}
    return {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        **{f"{prefix}.{name}": value for name, value in known.items()},
    }


#: Delta's tables by their path. Two tasks read a log of some thousand files; the default is 50.
DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
}
