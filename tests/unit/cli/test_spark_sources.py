"""Source of a Spark command: a named tier, any Apache Kafka, or the local cluster."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from typer import Exit

from tidemark_cli.tier import spark_topic
from tidemark_cli.tier.spark_topic import SourceOptions
from tidemark_cli.tier.tables import with_jars
from tidemark_pipeline.read.options import OptionError

OF_CLUSTER = {"topic": "-", "path": "/tier", "bootstrap": "own:1"}
KAFKA = {"engine": "kafka"}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a cluster that exists."""
    monkeypatch.setattr(spark_topic, "open_cluster", lambda *_: None)
    monkeypatch.setattr(spark_topic, "read_options", lambda *_: OF_CLUSTER)
    return tmp_path


def source_of(given: Mapping[str, str], extra: Mapping[str, str], folder: Path) -> SourceOptions:
    pairs = [f"{name}={value}" for name, value in extra.items()]
    return SourceOptions(folder, option=pairs, **given)


@pytest.mark.parametrize(
    ("given", "extra", "expected"),
    [
        ({"path": ""}, {}, {"path": "/tier", "bootstrap": "own:1"}),
        ({"bootstrap": "b:1"}, {}, {"path": "/tier", "bootstrap": "b:1"}),
        (
            {"encryption_keys": "f"},
            {},
            {"path": "/tier", "bootstrap": "own:1", "encryptionKeysLocation": "f"},
        ),
        ({"path": "/lake"}, {"failOnDataLoss": "false"}, {"path": "/lake"}),
        ({"bootstrap": "b:1"}, KAFKA, {"bootstrap": "b:1"}),
        ({"bootstrap": "b:1"}, {"Engine": "KAFKA"}, {"bootstrap": "b:1"}),
        ({}, {**KAFKA, "kafka.bootstrap.servers": "b:1"}, {}),
        ({}, KAFKA, {"path": "/tier", "bootstrap": "own:1"}),
    ],
)
def test_where_the_topic_is(
    cluster: Path, given: Mapping[str, str], extra: Mapping[str, str], expected: Mapping[str, str]
) -> None:
    source = source_of(given, extra, cluster)
    assert source.options() == {**expected, **extra}
    assert source.is_local() is ("/tier" in expected.values())


def test_brokers_alone_are_no_tier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exit):
        source_of({"bootstrap": "b:1"}, {}, tmp_path).options()
    assert "add --option engine=kafka" in " ".join(capsys.readouterr().err.split())


def test_unknown_engine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="engine is 'apache'; write tidemark or kafka"):
        source_of({}, {"engine": "apache"}, tmp_path).is_local()


def test_given_jars_keep_their_order() -> None:
    assert with_jars({"spark.jars": "/mine.jar"}, ["/kafka.jar"]) == {
        "spark.jars": "/mine.jar,/kafka.jar"
    }
    assert with_jars({"spark.jars.packages": "a:b:1"}, ["/kafka.jar"]) == {
        "spark.jars.packages": "a:b:1",
        "spark.jars": "/kafka.jar",
    }
    assert with_jars({}, []) == {}
