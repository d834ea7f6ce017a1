"""One way to read a topic of Tidemark or of Apache Kafka.

The source is ``tidemark``, or with the option ``engine`` "kafka" Spark's own Kafka source
(:mod:`tidemark_pipeline.read.spark_kafka`).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidemark_pipeline.read import spark_kafka
from tidemark_pipeline.read.options import Options, is_kafka_topic, parse, without_engine

if TYPE_CHECKING:  # options are checked without Spark
    from pyspark.sql import DataFrame, SparkSession


def topic_options(raw: Mapping[str, str], *, streaming: bool = False) -> Options:
    """Return the options as the topic's source checks them. Raises OptionError."""
    if is_kafka_topic(raw):
        return spark_kafka.checked(raw, streaming=streaming)
    return parse(without_engine(raw), streaming=streaming)


def check_session(session: "SparkSession", raw: Mapping[str, str]) -> None:
    """Raise ``ExportError`` if the session lacks the topic's source, and OptionError."""
    if is_kafka_topic(raw):
        spark_kafka.check_session(session)


def read_topic(session: "SparkSession", raw: Mapping[str, str]) -> "DataFrame":
    """Return the topic as a table.

    Raises OptionError, and for Apache Kafka the errors of a request to brokers.
    """
    if is_kafka_topic(raw):
        return spark_kafka.read(session, raw)
    return session.read.format("tidemark").options(**without_engine(raw)).load()
