"""Options of a Kafka topic, translated into those of Spark's own source."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tidemark_pipeline.read.options import OptionError, Options, parse
from tidemark_pipeline.read.spark_kafka import checked, kafka_options
from tidemark_pipeline.read.topic_survey import Part

BROKERS = {"engine": "kafka", "bootstrap": "b1:9092,b2:9092"}


class StubBrokers:
    """Brokers of topics with these partition counts, and records at 0, 10 and 20 ms."""

    def __init__(self, options: Options, partitions: Mapping[str, int] | None) -> None:
        self._options, self._partitions = options, partitions

    def parts(self) -> list[Part]:
        if self._partitions is None:
            pytest.fail("brokers receive requests for partitions that nothing names")
        return [
            Part(name, number)
            for name, count in self._partitions.items()
            for number in self._options.topics.partitions_of(name, count)
        ]

    def find(self, part: Part, timestamp_ms: int) -> int | None:
        return next((n for n, time in enumerate((0, 10, 20)) if time >= timestamp_ms), None)


def spark_options(partitions: Mapping[str, int] | None = None, **given: str) -> dict[str, str]:
    """Return Spark's options except the constant ones."""
    options = checked({**BROKERS, **given})
    return kafka_options(options, StubBrokers(options, partitions))


def test_topic_is_read_completely_with_read_committed() -> None:
    assert spark_options(topic="t") == {
        "kafka.bootstrap.servers": "b1:9092,b2:9092",
        "kafka.security.protocol": "PLAINTEXT",
        "kafka.isolation.level": "read_committed",
        "subscribe": "t",
        "startingOffsets": "earliest",
        "endingOffsets": "latest",
        "startingOffsetsByTimestampStrategy": "error",
        "failOnDataLoss": "true",
        "includeHeaders": "true",
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"subscribe": "a, b"}, {"subscribe": "a,b"}),
        ({"subscribePattern": "a.*"}, {"subscribePattern": "a.*"}),
        ({"assign": '{"a": [1, 0]}'}, {"assign": '{"a": [0, 1]}'}),
        ({"topic": "a", "startingTimestamp": "7"}, {"startingTimestamp": "7"}),
        ({"topic": "a", "endingTimestamp": "7"}, {"endingTimestamp": "7"}),
        ({"topic": "a", "failOnDataLoss": "false"}, {"failOnDataLoss": "false"}),
        (
            {"topic": "a", "startingOffsetsByTimestampStrategy": "latest"},
            {"startingOffsetsByTimestampStrategy": "latest"},
        ),
    ],
)
def test_options_of_both_mean_the_same(given: dict[str, str], expected: dict[str, str]) -> None:
    assert expected.items() <= spark_options(**given).items()


def test_partitions_that_are_not_named_are_read_from_their_ends() -> None:
    """Spark's source requires an offset for each partition."""
    found = spark_options(
        {"t": 3}, topic="t", startingOffsets='{"0": 17}', endingOffsets='{"t": {"1": 4}}'
    )
    # In Spark's notation -2 is the earliest offset, and -1 the latest.
    assert json.loads(found["startingOffsets"]) == {"t": {"0": 17, "1": -2, "2": -2}}
    assert json.loads(found["endingOffsets"]) == {"t": {"0": -1, "1": 4, "2": -1}}


def test_times_of_partitions_are_looked_up() -> None:
    """A partition without a time begins at its log start."""
    found = spark_options(
        {"t": 3},
        topic="t",
        startingOffsetsByTimestamp='{"t": {"0": 5, "2": 20}}',
        endingOffsetsByTimestamp='{"t": {"0": 15, "1": 21}}',
    )
    assert json.loads(found["startingOffsets"]) == {"t": {"0": 1, "1": -2, "2": 2}}
    assert json.loads(found["endingOffsets"]) == {"t": {"0": 2, "1": -1, "2": -1}}
    late = {"topic": "t", "startingOffsetsByTimestamp": '{"t": {"1": 21}}'}
    with pytest.raises(OptionError, match="t-1 has no record of 21 ms or later"):
        spark_options({"t": 2}, **late)
    found = spark_options({"t": 2}, **late, startingOffsetsByTimestampStrategy="latest")
    assert json.loads(found["startingOffsets"]) == {"t": {"0": -2, "1": -1}}


def test_only_assigned_partitions_are_given_offsets() -> None:
    found = spark_options({"t": 3}, assign='{"t": [2]}', startingOffsets='{"t": {"2": 5}}')
    assert json.loads(found["startingOffsets"]) == {"t": {"2": 5}}


def test_credentials_are_passed_as_java_properties(tmp_path: Path) -> None:
    for name in ("ca", "crt", "key"):
        (tmp_path / name).write_text(f"PEM of {name}", encoding="utf-8")
    found = spark_options(
        topic="t",
        **{
            "kafka.security.protocol": "SASL_SSL",
            "kafka.ssl.ca.location": str(tmp_path / "ca"),
            "kafka.ssl.certificate.location": str(tmp_path / "crt"),
            "kafka.ssl.key.location": str(tmp_path / "key"),
            "kafka.sasl.mechanism": "SCRAM-SHA-256",
            "kafka.sasl.username": "ann",
            "kafka.sasl.password": 'a"b\\c',
        },
    )
    assert found["kafka.security.protocol"] == "SASL_SSL"
    assert found["kafka.ssl.truststore.certificates"] == "PEM of ca"
    assert found["kafka.ssl.keystore.certificate.chain"] == "PEM of crt"
    assert found["kafka.ssl.keystore.key"] == "PEM of key"
    assert found["kafka.sasl.jaas.config"] == (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="ann" password="a\\"b\\\\c";'
    )


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"path": "/tier"}, "path is no option of a topic of Apache Kafka"),
        ({"Tier": "remote"}, "tier is no option of a topic of Apache Kafka"),
        ({"timestampSkewMs": "1"}, "timestampSkewMs is no option"),
        ({"columns": "value,tier"}, "columns is 'value,tier'; choose of .*timestampType, headers$"),
        ({"nonsense": "1"}, "unknown option 'nonsense'"),
        ({"bootstrap": ""}, "engine is kafka, which needs 'bootstrap'"),
        ({"kafka.security.protocol": "SSL", "kafka.ssl.ca.location": "/none"}, "/none cannot be"),
    ],
)
def test_unsupported_options_are_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises(OptionError, match=why):
        spark_options(**{"topic": "t", **given})


def test_columns_of_the_tier_are_not_offered() -> None:
    tidemark_columns = parse({"path": "/tier", "topic": "t"}).columns
    assert set(tidemark_columns) - set(checked({**BROKERS, "topic": "t"}).columns) == {
        *("tier", "tieredEpoch", "leaderEpoch")
    }


def test_a_stream_has_no_end_of_its_own() -> None:
    given = {**BROKERS, "topic": "t"}
    assert checked(given, streaming=True).ending is None
    with pytest.raises(OptionError, match="leave the ending option out"):
        checked({**given, "endingOffsets": '{"0": 5}'}, streaming=True)
