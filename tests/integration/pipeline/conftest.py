"""One Spark session for all tests: a JVM takes ten seconds to start."""

import contextlib
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.iceberg import IcebergMissing, ensure_iceberg
from tidemark_pipeline.java import JavaMissing, find_java
from tidemark_pipeline.session import local_session


@pytest.fixture(scope="session")
def session() -> Iterator[SparkSession]:
    try:
        find_java()
    except JavaMissing as error:
        pytest.skip(str(error))
    settings = {}
    with contextlib.suppress(IcebergMissing):  # the tests of exports say so
        settings["spark.jars"] = str(ensure_iceberg())
    with local_session("tidemark tests", short=True, settings=settings) as running:
        yield running
