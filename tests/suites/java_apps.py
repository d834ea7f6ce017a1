"""Kafka Streams and Kafka Connect: what is built on groups, transactions and compacted topics."""

import json
import re
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tests.suites import packages
from tests.suites.checks import CheckBench, ReadyChecks, named
from tests.suites.targets import KAFKA_VERSION, Wants
from tidemark_devcluster.ports import HOST, free_port

MODULE = packages.MODULES / "kafka-apps"
LIMIT_S = 600.0
_SMOKE = "org.apache.kafka.streams.tests.StreamsSmokeTest"
#: What its topology reads and writes; each with five partitions.
_SMOKE_TOPICS = (
    *("data", "echo", "min", "min-suppressed", "min-raw", "max", "sum", "sws-raw"),
    *("sws-suppressed", "dif", "cnt", "avg", "wcnt", "tagg", "fk"),
)


def properties(entries: Mapping[str, object]) -> str:
    """A Java properties file."""
    return "".join(f"{key}={value}\n" for key, value in entries.items())


def create(bench: CheckBench, topic: str, partitions: int) -> None:
    """Create a topic with a given name."""
    bench.java(
        "org.apache.kafka.tools.TopicCommand",
        *(*bench.server, "--create", "--if-not-exists", "--topic", topic),
        *("--partitions", str(partitions), "--replication-factor", "1"),
    )


# ---------------------------------------------------------------- Streams


def streams_smoke_exactly_once(bench: CheckBench) -> None:
    """Three processors one after the other: the first ends well, the second is killed; the driver
    finds every result once."""
    # The topics exist before, as the program only creates its internal ones.
    for topic in _SMOKE_TOPICS:
        create(bench, topic, 5)

    def settings(name: str) -> str:
        entries = {
            "bootstrap.servers": bench.server[1],
            "application.id": "SmokeTest",
            "processing.guarantee": "exactly_once_v2",
            "state.dir": bench.folder / name,
            "num.stream.threads": 2,
            "replication.factor": min(3, len(bench.target.listeners)),
            "acceptable.recovery.lag": 9223372036854775807,
            "commit.interval.ms": 1000,
            "session.timeout.ms": 10000,
        }
        return bench.file(f"{name}.properties", properties(entries))

    # The first processor stops cleanly, the second is killed with a transaction open, and the third
    # finishes.
    first = bench.start(_SMOKE, settings("first"), "process")
    first.await_said("REBALANCING -> RUNNING")
    driver = bench.start(_SMOKE, settings("driver"), "run")
    first.await_said("processed")
    first.stop()
    second = bench.start(_SMOKE, settings("second"), "process")
    second.await_said("processed")
    second.kill()
    third = bench.start(_SMOKE, settings("third"), "process")
    third.await_said("processed")
    # The driver compares what it produced with the results, and names duplicates.
    said = driver.await_end()
    third.stop()
    assert "SUCCESS" in said, said[-3000:]
    assert "PROCESSED-MORE-THAN-GENERATED" not in said


def word_count_exactly_once(bench: CheckBench) -> None:
    """And the tool that takes back what an application has done finds all of it."""
    source, sink, application = bench.topic(3), bench.topic(1), bench.name("words")
    lines = [f"the tide is in {number % 7} and the mark is {number % 5}" for number in range(200)]
    # Words with known counts.
    bench.java(
        "org.apache.kafka.tools.ConsoleProducer",
        *(*bench.server, "--topic", source),
        stdin="".join(f"{line}\n" for line in lines),
    )
    entries = {
        "bootstrap.servers": bench.server[1],
        "application.id": application,
        "processing.guarantee": "exactly_once_v2",
        "state.dir": bench.folder / "state",
        "default.key.serde": "org.apache.kafka.common.serialization.Serdes$StringSerde",
        "default.value.serde": "org.apache.kafka.common.serialization.Serdes$StringSerde",
        "auto.offset.reset": "earliest",
        "statestore.cache.max.bytes": 0,
    }
    settings = bench.file("words.properties", properties(entries))
    running = bench.start(str(MODULE / "WordCount.java"), settings, source, sink)
    running.await_said("-> RUNNING")
    words = Counter(word for line in lines for word in line.split())
    # Only committed results are read.
    said = bench.java(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *(*bench.server, "--topic", sink, "--from-beginning", "--max-messages"),
        *(str(words.total()), "--isolation-level", "read_committed", "--timeout-ms", "60000"),
        *("--formatter-property", "print.key=true", "--formatter-property", "key.separator= "),
    )
    # Without a cache each word appears with every count: exactly once means no count is missing or
    # repeated.
    seen = Counter(dict.fromkeys(words, 0))
    for word, count in re.findall(r"^(\w+) (\d+)$", said, re.MULTILINE):
        assert int(count) == seen[word] + 1, f"{word}: {count} after {seen[word]}"
        seen[word] += 1
    assert seen == words
    running.stop()
    # The reset tool resets offsets and deletes internal topics, which needs the admin API.
    reset = ("--application-id", application, "--input-topics", source, "--force")
    said = bench.java("org.apache.kafka.tools.StreamsResetter", *bench.server, *reset)
    assert f"Topic: {source} Partition: 0 Offset: 0" in said, said
    left = bench.java("org.apache.kafka.tools.TopicCommand", *bench.server, "--list")
    assert application not in left, left


# ---------------------------------------------------------------- Connect


def _worker(bench: CheckBench, more: Mapping[str, object]) -> str:
    entries = {
        "bootstrap.servers": bench.server[1],
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "offset.flush.interval.ms": 1000,
        **more,
    }
    return bench.file("worker.properties", properties(entries))


def _connectors(bench: CheckBench, topic: str) -> dict[str, dict[str, object]]:
    """From a file into a topic, and from there into a file."""
    package = "org.apache.kafka.connect.file"
    return {
        "source": {
            "connector.class": f"{package}.FileStreamSourceConnector",
            "tasks.max": 1,
            "file": bench.folder / "in.txt",
            "topic": topic,
        },
        "sink": {
            "connector.class": f"{package}.FileStreamSinkConnector",
            "tasks.max": 1,
            "file": bench.folder / "out.txt",
            "topics": topic,
        },
    }


def _await_lines(bench: CheckBench, lines: list[str]) -> None:
    path = bench.folder / "out.txt"
    while True:
        found = path.read_text("utf-8").splitlines() if path.exists() else []
        if found == lines:
            return
        bench.rest_a_moment(f"{len(found)} of {len(lines)} lines have come: {found[-3:]}")


def connect_standalone(bench: CheckBench) -> None:
    """Lines go through; after a restart, those that are new and no others."""
    topic, lines = bench.topic(), [f"line {number}" for number in range(500)]
    (bench.folder / "in.txt").write_text("".join(f"{line}\n" for line in lines[:300]))
    # Standalone: offsets of sources are in a file, and connectors in property files.
    worker = _worker(
        bench,
        {
            "offset.storage.file.filename": bench.folder / "offsets",
            "listeners": f"http://{HOST}:{free_port()}",
        },
    )
    files = [
        bench.file(f"{name}.properties", properties({"name": name, **entries}))
        for name, entries in _connectors(bench, topic).items()
    ]
    program = "org.apache.kafka.connect.cli.ConnectStandalone"
    # The first 300 lines, a restart, and the rest: stored offsets must keep lines from appearing
    # twice.
    first = bench.start(program, worker, *files)
    _await_lines(bench, lines[:300])
    first.stop()
    with (bench.folder / "in.txt").open("a") as more:
        more.writelines(f"{line}\n" for line in lines[300:])
    bench.start(program, worker, *files)
    _await_lines(bench, lines)


def connect_distributed(bench: CheckBench) -> None:
    """The same by its REST interface, with its own topics, and again after a restart."""
    topic, lines = bench.topic(), [f"line {number}" for number in range(500)]
    (bench.folder / "in.txt").write_text("".join(f"{line}\n" for line in lines[:300]))
    address = f"http://{HOST}:{free_port()}"
    replicas = min(3, len(bench.target.listeners))
    # Distributed: configuration, offsets and status are in compacted topics of the cluster.
    kinds = ("config", "offset", "status")
    names = {kind: bench.name(f"connect-{kind}") for kind in kinds}
    worker = _worker(
        bench,
        {
            "group.id": bench.name("connect"),
            "listeners": address,
            **{f"{kind}.storage.topic": names[kind] for kind in kinds},
            **{f"{kind}.storage.replication.factor": replicas for kind in kinds},
        },
    )
    program = "org.apache.kafka.connect.cli.ConnectDistributed"
    first = bench.start(program, worker)
    # Connectors are created through REST, and the restarted worker finds them in its topic.
    for name, entries in _connectors(bench, topic).items():
        wanted = {key: str(value) for key, value in entries.items()}
        _put(bench, f"{address}/connectors/{name}/config", wanted)
    _await_lines(bench, lines[:300])
    first.stop()
    with (bench.folder / "in.txt").open("a") as more:
        more.writelines(f"{line}\n" for line in lines[300:])
    bench.start(program, worker)
    _await_lines(bench, lines)


def _put(bench: CheckBench, address: str, value: Mapping[str, Any]) -> None:
    """Until the worker listens and takes it."""
    request = urllib.request.Request(
        address,
        data=json.dumps(value).encode(),
        headers={"Content-Type": "application/json"},
        method="PUT",
    )
    while True:
        try:
            with urllib.request.urlopen(request, timeout=30):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            bench.rest_a_moment(f"{address}: {error}")


class JavaApps:
    name = "java-apps"
    title = f"Kafka Streams and Kafka Connect {KAFKA_VERSION}"
    wants = Wants(brokers=3)

    def prepare(self) -> ReadyChecks:
        return ReadyChecks(CHECKS, packages.maven_jars(MODULE / "pom.xml"), LIMIT_S)


CHECKS = named(
    word_count_exactly_once, streams_smoke_exactly_once, connect_standalone, connect_distributed
)
