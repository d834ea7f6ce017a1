"""A local Spark session that has the ``tidemark`` source and binds to the loopback only."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from tidemark_pipeline.java import find_java
from tidemark_pipeline.source import TidemarkDataSource

LOOPBACK = "127.0.0.1"


@contextmanager
def local_session(name: str, *, cores: int = 2) -> Iterator[SparkSession]:
    """A session on ``cores`` threads of this machine; stopped at the end.

    Raises :class:`~tidemark_pipeline.java.JavaMissing`.
    """
    find_java()
    # Workers must run the interpreter that has this package, whatever the PATH says.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    with tempfile.TemporaryDirectory(prefix="tidemark-spark-") as scratch:
        session = (
            SparkSession.builder.master(f"local[{cores}]")
            .appName(name)
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.host", LOOPBACK)
            .config("spark.driver.bindAddress", LOOPBACK)
            .config("spark.sql.warehouse.dir", scratch)
            .config("spark.local.dir", scratch)
            .config("spark.sql.shuffle.partitions", str(cores))
            .config("spark.log.level", "ERROR")
            .config("spark.sql.session.timeZone", "UTC")
            .getOrCreate()
        )
        session.dataSource.register(TidemarkDataSource)
        try:
            yield session
        finally:
            session.stop()
