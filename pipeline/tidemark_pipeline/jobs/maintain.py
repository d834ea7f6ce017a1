"""The upkeep of tables that exports write: see :mod:`tidemark_pipeline.export.maintenance`."""

from pyspark.sql import SparkSession

from tidemark_pipeline.export import delta_maintenance, iceberg_maintenance
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.export.maintenance import Maintained, Say, Upkeep

_BY_FORMAT = {
    Format.ICEBERG: iceberg_maintenance.maintain,
    Format.DELTA: delta_maintenance.maintain,
}


def maintain(
    session: SparkSession, kind: Format, name: str, upkeep: Upkeep, say: Say = lambda _: None
) -> Maintained:
    """What was done to the table ``name``, as Spark knows it."""
    return _BY_FORMAT[kind](session, name, upkeep, say)
