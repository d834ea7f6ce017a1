"""The formats of tables that an export can write: what each needs of Spark before there is a
session.

No Spark is needed to ask.
"""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path


class Format(StrEnum):
    """Of a table."""

    ICEBERG = "iceberg"
    DELTA = "delta"


_ICEBERG = "1.12.0"
#: What goes with PySpark 4.1; all Apache-2.0. Iceberg's brings all it needs, but for S3.
PACKAGES = {
    Format.ICEBERG: f"org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:{_ICEBERG}",
    Format.DELTA: "io.delta:delta-spark_4.1_2.13:4.4.0",
}
S3_PACKAGE = f"org.apache.iceberg:iceberg-aws-bundle:{_ICEBERG}"


def is_among(package: str, home: Path) -> bool:
    """Whether its jar lies in the folder of jars of the Spark at ``home``."""
    name = package.split(":")[1]
    return any((home / "jars").glob(f"{name}-*.jar"))


def packages(kind: Format, catalog: Mapping[str, str]) -> list[str]:
    """What Spark fetches for a format, and for an Iceberg catalog of these properties."""
    more = [S3_PACKAGE] if catalog.get("io-impl", "").endswith(".S3FileIO") else []
    return [PACKAGES[kind], *more]


def catalog_settings(catalog: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Spark's configuration for an Iceberg catalog with these properties (``type``,
    ``warehouse``, ``uri`` …)."""
    prefix = f"spark.sql.catalog.{catalog}"
    known = {"cache-enabled": "false", **properties}
    return {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        **{f"{prefix}.{name}": value for name, value in known.items()},
    }


#: Delta's tables by their path. A log of some thousand files is not worth fifty tasks.
DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
}
