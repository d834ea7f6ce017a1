"""One Spark session for all tests: a JVM takes ten seconds to start."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tidemark_pipeline.java import JavaMissing, find_java
from tidemark_pipeline.session import local_session


@pytest.fixture(scope="session")
def session() -> Iterator[SparkSession]:
    try:
        find_java()
    except JavaMissing as error:
        pytest.skip(str(error))
    with local_session("tidemark tests", short=True) as running:
        yield running
