"""``tidemark produce``, ``consume``, ``topics`` and ``groups``, against brokers of both engines."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.conformance.local_cluster import wait
from tests.integration.engines.driver import LONG_S, DrivenEngine
from tidemark_cli.records.inputs import CODECS

pytestmark = [pytest.mark.slow, pytest.mark.full]

_TIMEOUT_S = 120


def command(engine: DrivenEngine, words: Sequence[str]) -> list[str]:
    """Return a command on the engine's local cluster, which is found by its folder."""
    where = ["--dir", str(engine.cluster.local.layout.root)]
    return [sys.executable, "-m", "tidemark_cli.main", *words, *where]


def run(
    engine: DrivenEngine, *words: str, stdin: str = "", status: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; it never prints a traceback."""
    done = subprocess.run(
        command(engine, words),
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
        env={**os.environ, "COLUMNS": "1000"},
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def topic_of(engine: DrivenEngine, partitions: int = 3, **config: str) -> str:
    name, _ = engine.create(partitions, 3, config=config)
    engine.ready(name)
    engine.wait_for_replicas(name, [3] * partitions)
    return name


def as_json(engine: DrivenEngine, *words: str) -> Any:
    return json.loads(run(engine, *words, "--output", "json").stdout)


def consumed(engine: DrivenEngine, topic: str, *options: str) -> list[dict[str, Any]]:
    text = run(engine, "consume", topic, "--output", "json", *options).stdout
    return [json.loads(line) for line in text.splitlines()]


def test_lines_with_keys_and_headers_are_read_back(engine: DrivenEngine) -> None:
    topic = topic_of(engine)
    done = run(
        engine, "produce", topic, "-K", ":", "-H", "source=test", stdin="a:1\nb:2\na:3\nc:\x1b[1m"
    )
    assert f"sent 4 records (11 bytes) to {topic} in" in done.stderr
    found = consumed(engine, topic)
    assert {(record["key"], record["value"]) for record in found} == {
        ("a", "1"), ("b", "2"), ("a", "3"), ("c", "\x1b[1m"),
    }  # fmt: skip
    assert all(record["headers"] == [{"name": "source", "value": "test"}] for record in found)
    # Records of one key are in one partition, in order: the one that Kafka's clients choose.
    of_a = [record for record in found if record["key"] == "a"]
    assert [record["value"] for record in of_a] == ["1", "3"]
    producer = Producer({"bootstrap.servers": engine.cluster.bootstrap, "partitioner": "murmur2"})
    placed: list[int] = []
    producer.produce(topic, b"4", b"a", on_delivery=lambda _, sent: placed.append(sent.partition()))
    assert producer.flush(30) == 0
    assert {record["partition"] for record in of_a} == set(placed)
    # A terminal never receives control characters of a record.
    text = run(engine, "consume", topic, "--format", "%k=%v [%h]\\n").stdout
    assert "c=\\x1b[1m [source=test]\n" in text


def test_batches_of_each_codec_are_read_by_a_stock_client(engine: DrivenEngine) -> None:
    topic = topic_of(engine, len(CODECS))
    for partition, codec in enumerate(CODECS):
        where = ["--partition", str(partition), "--compression", codec]
        run(engine, "produce", topic, "--size", "200", "--count", "100", *where)
        assert len(set(engine.values(topic, partition))) == 100
    assert "read 500 records (100 kB)" in run(engine, "consume", topic, "--output", "none").stderr


def test_a_batch_above_the_topics_limit_is_split(engine: DrivenEngine) -> None:
    topic = topic_of(engine, 1, **{"max.message.bytes": "20000"})
    run(engine, "produce", topic, "--size", "5000", "--count", "40")
    values = [record["value"] for record in consumed(engine, topic)]
    # In order, and each once, although batches were refused and repeated.
    assert [int(value.split()[1]) for value in values] == list(range(1, 41))
    done = run(engine, "produce", topic, "--size", "30000", status=1)
    assert "MESSAGE_TOO_LARGE" in done.stderr


def test_offsets_are_chosen_by_number_distance_and_time(engine: DrivenEngine) -> None:
    topic = topic_of(engine, 1, **{"retention.ms": "-1"})
    for day in range(1, 6):
        at = f"2013-01-0{day}T00:00:00Z"
        run(engine, "produce", topic, "--value", str(day), "--timestamp", at, "--acks", "1")

    def days(offset: str, *options: str) -> list[int]:
        return [int(r["value"]) for r in consumed(engine, topic, "--offset", offset, *options)]

    assert days("start") == [1, 2, 3, 4, 5]
    assert days("2") == [3, 4, 5]
    assert days("-2") == [4, 5]
    assert days("end") == []
    assert days("@2013-01-02T12:00:00Z") == [3, 4, 5]
    assert days("@1356998400000", "--count", "2") == [1, 2]
    assert days("99") == []


def test_aborted_records_are_read_only_on_request(engine: DrivenEngine) -> None:
    topic = topic_of(engine, 1)
    options: dict[str, str | int | float | bool] = {
        "bootstrap.servers": engine.cluster.bootstrap,
        "transactional.id": f"t-{uuid.uuid4()}",
    }
    producer = Producer(options)
    producer.init_transactions(60)
    for value, commit in ((b"aborted", False), (b"committed", True)):
        producer.begin_transaction()
        producer.produce(topic, value)
        assert producer.flush(30) == 0
        producer.commit_transaction(60) if commit else producer.abort_transaction(60)
    # The markers are written after the transaction's end was answered.
    wait(
        lambda: [record["value"] for record in consumed(engine, topic)] == ["committed"],
        "the markers",
        LONG_S,
    )
    uncommitted = consumed(engine, topic, "--read-uncommitted")
    assert [record["value"] for record in uncommitted] == ["aborted", "committed"]


def test_group_continues_where_it_ended_and_can_be_reset(engine: DrivenEngine) -> None:
    topic, group = topic_of(engine), f"readers-{uuid.uuid4()}"
    run(engine, "produce", topic, "--size", "100", "--count", "300", "-p", "1")
    assert len(consumed(engine, topic, "--group", group, "--count", "100")) == 100
    lags = {
        p["partition"]: p["lag"] for p in as_json(engine, "groups", "describe", group)["partitions"]
    }
    assert lags[1] == 200
    # A second run begins at the committed offset.
    offsets = [record["offset"] for record in consumed(engine, topic, "--group", group)]
    assert offsets == list(range(100, 300))
    listed = as_json(engine, "groups", "list")
    assert {"group": group, "state": "Empty", "protocol": "consumer"} in listed
    # Without --execute nothing is committed.
    shown = run(engine, "groups", "reset", group, "--to", "-10")
    assert "add --execute" in shown.stderr
    assert consumed(engine, topic, "--group", group) == []
    run(engine, "groups", "reset", group, "--to", "-10", "--execute")
    again = [record["offset"] for record in consumed(engine, topic, "--group", group)]
    assert again == list(range(290, 300))
    run(engine, "groups", "delete", group)
    assert (
        f"group {group} does not exist" in run(engine, "groups", "delete", group, status=1).stderr
    )


def test_members_share_partitions_and_lose_no_record(engine: DrivenEngine, tmp_path: Path) -> None:
    topic, group = topic_of(engine, 4), f"members-{uuid.uuid4()}"

    def member(name: str) -> tuple[subprocess.Popen[bytes], Path]:
        words = ["consume", topic, "-g", group, "-f", "--format", "%p-%o\\n"]
        file = tmp_path / name
        with file.open("wb") as output, (tmp_path / f"{name}.err").open("wb") as errors:
            started = subprocess.Popen(command(engine, words), stdout=output, stderr=errors)
        return started, file

    def partitions_of_members() -> list[int]:
        # The first member creates the group.
        if group not in run(engine, "groups", "list").stdout:
            return []
        rows = as_json(engine, "groups", "describe", group)["partitions"]
        owners = [row["member"] for row in rows if row["member"]]
        return sorted(owners.count(owner) for owner in set(owners))

    first, second = member("first"), member("second")
    try:
        wait(lambda: partitions_of_members() == [2, 2], "two partitions each", LONG_S)
        run(engine, "produce", topic, "--size", "50", "--count", "400", "--rate", "200")
        # A member that is stopped leaves, and the other one continues at its offsets.
        first[0].send_signal(signal.SIGINT)
        assert first[0].wait(30) == 0
        run(engine, "produce", topic, "--size", "50", "--count", "100")
        read = lambda: [line for _, file in (first, second) for line in file.read_text().split()]  # noqa: E731
        wait(lambda: len(read()) >= 500, "all records", LONG_S)
        # The members ended cleanly, so no record is read twice.
        time.sleep(1)
        assert len(read()) == len(set(read())) == 500
        refused = run(engine, "groups", "delete", group, status=1)
        # The member that is left may not have confirmed its last assignment yet.
        message = r"has members \(state (Stable|Reconciling)\): stop its consumers"
        assert re.search(message, refused.stderr)
    finally:
        for process, _ in (first, second):
            process.send_signal(signal.SIGTERM)
            process.wait(30)
    assert "of " + topic in (tmp_path / "first.err").read_text().splitlines()[-1]


def test_follow_ends_with_a_last_line_at_ctrl_c(engine: DrivenEngine) -> None:
    topic = topic_of(engine, 1)
    words = command(engine, ["consume", topic, "--follow"])
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdout is not None
        run(engine, "produce", topic, "--value", "hello")
        assert reader.stdout.readline() == "hello\n"
        reader.send_signal(signal.SIGINT)
        _, errors = reader.communicate(timeout=30)
    assert reader.returncode == 0
    assert f"read 1 record (5 bytes) of {topic} in" in errors
    # A producer that waits for input ends in the same way.
    words = command(engine, ["produce", topic])
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as producer:
        assert producer.stdin is not None
        producer.stdin.write("world\n")
        producer.stdin.flush()
        wait(lambda: engine.offset(topic, -1) == 2, "the record", LONG_S)
        producer.send_signal(signal.SIGINT)
        assert producer.wait(30) == 0
        assert producer.stderr is not None
        assert f"sent 1 record (5 bytes) to {topic} in" in producer.stderr.read()


def test_a_closed_pipe_ends_the_output_silently(engine: DrivenEngine) -> None:
    topic = topic_of(engine, 1)
    run(engine, "produce", topic, "--size", "1000", "--count", "3000")
    with subprocess.Popen(
        command(engine, ["consume", topic]), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline().startswith(b"record 1 ")
        reader.stdout.close()
        assert reader.wait(30) == 0
        assert reader.stderr is not None
        assert reader.stderr.read() == b""


def test_topics_are_shown_as_brokers_know_them(engine: DrivenEngine) -> None:
    topic = topic_of(engine, 2, **{"retention.ms": "7200000"})
    run(engine, "produce", topic, "--size", "10", "--count", "7")
    row = next(row for row in as_json(engine, "topics", "list") if row["topic"] == topic)
    assert row == {
        "topic": topic, "partitions": 2, "replicas": "3", "inSync": "6/6", "tiered": False,
        "offsets": 7,
    }  # fmt: skip
    assert "__consumer_offsets" not in run(engine, "topics", "list").stdout
    described = as_json(engine, "topics", "describe", topic)
    assert described["config"]["retention.ms"] == "7200000"
    assert sum(part["end"] - part["start"] for part in described["partitions"]) == 7
    assert sum(part["bytes"] for part in described["partitions"]) > 0
    assert f"topic    {topic}" in run(engine, "topics", "describe", topic).stdout


def test_missing_topics_partitions_and_brokers_are_named_with_a_remedy(
    engine: DrivenEngine,
) -> None:
    topic = topic_of(engine, 1)
    for words in (["consume", "nothing"], ["produce", "nothing", "-v", "a"]):
        assert "topic nothing does not exist. Show" in run(engine, *words, status=1).stderr
    done = run(engine, "consume", topic, "-p", "5", status=1)
    assert f"{topic} has no partition 5" in done.stderr
    done = run(engine, "consume", topic, "--bootstrap", "127.0.0.1:1", status=1)
    assert "127.0.0.1:1" in done.stderr
    assert "Check --bootstrap" in done.stderr
    done = run(engine, "groups", "describe", "nothing", status=1)
    assert "group nothing does not exist" in done.stderr
