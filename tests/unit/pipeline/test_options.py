"""Options are checked once, with messages that name the remedy. Java is found or explained."""

import pickle
from pathlib import Path

import pytest

from tidemark.tier.stores.s3_config import S3Config
from tidemark_pipeline.java import JavaMissing, find_java, major_version
from tidemark_pipeline.read.options import OPTIONS, STORAGE_OPTIONS, OptionError, parse, table
from tidemark_pipeline.read.positions import FixedOffset

S3_OPTIONS = {"endpoint": "http://s3", "buckets": "abc", "accessKeyId": "k", "secretAccessKey": "s"}
BASE = {"topic": "t", "path": "/tier"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"topic": ""},
            "the option 'topic' is missing: name what to read by one of topic, subscribe",
        ),
        ({"tpoic": "x"}, "unknown option 'tpoic'; known: "),
        ({"endpoint": "http://s3"}, "either 'path' .* or 'endpoint'"),
        ({"startingOffsets": "soon"}, "startingOffsets is 'soon'; write earliest or"),
        ({"endingOffsets": "[1]"}, "endingOffsets is .* write latest or"),
        ({"failOnDataLoss": "maybe"}, "write true or false"),
        ({"bytesPerTask": "0"}, "whole number of bytes above zero"),
        ({"endingOffsets": '{"u": {"0": 1}}'}, "offsets name u, which is not read"),
        ({"maxOffsetsPerTrigger": "x"}, "maxOffsetsPerTrigger is 'x'; write a whole number"),
        ({"subscribe": "u"}, "topic and subscribe are given: name what to read by one of"),
        ({"topic": "", "subscribePattern": "("}, "subscribePattern is '\\('"),
        ({"topic": "", "assign": '{"t": []}'}, "name partitions of each topic"),
        ({"topic": "", "assign": "t"}, "assign is 't'; write"),
        ({"tier": "both"}, "write auto, remote or local"),
        ({"tier": "local"}, "tier is local, which needs 'bootstrap'"),
        ({"columns": "key,vlaue"}, "columns is 'key,vlaue'; choose of key, value"),
        ({"startingOffsetsByTimestampStrategy": "never"}, "write error or latest"),
        ({"endingTimestamp": "soon"}, "endingTimestamp is 'soon'; write milliseconds"),
    ],
)
def test_bad_options_name_the_remedy(changes: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse({**BASE, **changes})


def test_s3_keys_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"topic": "t", "endpoint": "http://s3", "buckets": "abc,abd"}
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    # Without keys, each process of the job has its own identity.
    storage = parse(options).storage
    assert isinstance(storage, S3Config)
    assert storage.keys is None
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    storage = parse(options).storage
    assert isinstance(storage, S3Config)
    assert (storage.access_key_id, storage.buckets) == ("key", ("abc", "abd"))
    assert "secret" not in repr(storage).replace("secretAccessKey", "")


def test_a_session_token_belongs_to_the_keys_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    buckets = {"topic": "t", "buckets": "abc"}
    for options, token in ((buckets, "token"), ({**S3_OPTIONS, "topic": "t"}, "")):
        storage = parse(options).storage
        assert isinstance(storage, S3Config)
        assert storage.session_token == token


def test_buckets_without_an_endpoint_are_on_aws() -> None:
    options = {"topic": "t", "buckets": "abc", "region": "eu-west-1"}
    storage = parse({**options, "roleArn": "arn:aws:iam::1:role/r"}).storage
    assert isinstance(storage, S3Config)
    assert storage.role_arn == "arn:aws:iam::1:role/r"
    assert storage.address("abc").origin == "https://abc.s3.eu-west-1.amazonaws.com"


def test_options_are_passed_to_executors() -> None:
    for where in ({"path": "/tier"}, S3_OPTIONS):
        options = parse({"topic": "t", **where})
        assert pickle.loads(pickle.dumps(options)) == options


def test_option_names_ignore_case_as_in_spark() -> None:
    parsed = parse({"TOPIC": "t", "path": "/tier", "startingoffsets": '{"0": 3}'})
    assert parsed.starting.of("t", 0) == FixedOffset(3)


@pytest.mark.parametrize(
    ("given", "partitions"),
    [
        ({"subscribe": "a, b,a"}, [0, 1, 2]),
        ({"assign": '{"a": [2, 0], "b": [1]}'}, [0, 2]),
        ({"subscribePattern": "a|b"}, [0, 1, 2]),
    ],
    ids=["list", "assign", "pattern"],
)
def test_topics_are_named_in_three_ways(given: dict[str, str], partitions: list[int]) -> None:
    topics = parse({**given, "path": "/tier"}).topics
    assert (topics.names, topics.pattern) == ((), "a|b") or topics.names == ("a", "b")
    assert list(topics.partitions_of("a", 3)) == partitions


def test_a_partition_that_is_not_there_is_refused() -> None:
    topics = parse({"assign": '{"a": [3]}', "path": "/tier"}).topics
    with pytest.raises(OptionError, match="assign names a-3, a has 3"):
        topics.partitions_of("a", 3)


def test_the_page_has_all_options() -> None:
    """``options.table()`` generates the table of docs/reference/spark.md."""
    page = Path(__file__).parents[3] / "docs" / "reference" / "spark.md"
    assert table() in page.read_text(encoding="utf-8")
    assert {option.lower() for option in STORAGE_OPTIONS} <= {item.name.lower() for item in OPTIONS}


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("command not found", None),
    ],
)
def test_major_version(text: str, version: int | None) -> None:
    assert major_version(text) == version


def test_an_error_of_missing_java_names_the_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing, match="install Java 17 or newer"):
        find_java()
