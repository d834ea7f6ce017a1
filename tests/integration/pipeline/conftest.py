"""One Spark session for all tests, because a JVM takes ten seconds to start."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.table_jars import MavenMissing
from tests.table_jars import settings as settings_of
from tidemark_devcluster.toolchain.maven import JarSet, ensure_jars, spark_kafka
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.java import JavaMissing, find_java
from tidemark_pipeline.session import local_session

#: Driver of a JDBC catalog.
SQLITE = JarSet(
    name="sqlite-jdbc",
    version="3.50.3.0",
    version_property="sqlite.version",
    jars=2,
    folder=Path(__file__).parent,
)


@pytest.fixture(scope="session")
def session() -> Iterator[SparkSession]:
    try:
        find_java()
    except JavaMissing as error:
        pytest.skip(str(error))
    jars, settings = [], {}
    # Tests of exports skip by themselves if the jars are missing.
    with contextlib.suppress(MavenMissing):  # the tests of exports say so
        settings = settings_of(*Format)
        jars.append(settings["spark.jars"])
    with contextlib.suppress(MavenMissing):  # those of Apache Kafka say so
        jars += sorted(ensure_jars(spark_kafka(pyspark.__version__)).glob("*.jar"))
    with contextlib.suppress(MavenMissing):
        jars += sorted(ensure_jars(SQLITE).glob("*.jar"))
    settings |= {"spark.jars": ",".join(map(str, jars))} if jars else {}
    with local_session("tidemark tests", short=True, settings=settings) as running:
        yield running
