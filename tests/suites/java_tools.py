"""Apache Kafka's own tools, one by one, as an operator runs them."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from tests import apache_kafka as kafka
from tests.suites.checks import CheckBench, CheckFailed, ReadyChecks, named
from tests.suites.java_clients import (
    TOOLS,
    compatibility_of_clients,
    console_clients,
    consumed,
    end_to_end_latency,
    performance_clients,
    produced,
    verifiable_clients,
    verifiable_consumer_of_the_new_protocol,
    verifiable_consumers_share_a_topic,
)
from tests.suites.java_transactions import (
    copied,
    transaction_ended_by_its_id,
    transaction_ended_by_its_start,
    transactional_copier,
    transactional_id_pattern,
    transactions_command,
)
from tests.suites.packages import Missing
from tests.suites.targets import KAFKA_VERSION, Wants

LIMIT_S = 300.0


def offsets(bench: CheckBench, topic: str, time: str) -> dict[int, int]:
    """Partition → offset, by GetOffsetShell."""
    arguments = (*bench.server, "--topic", topic, "--time", time)
    said = bench.java(f"{TOOLS}.GetOffsetShell", *arguments)
    found = re.findall(rf"^{topic}:(\d+):(-?\d+)$", said, re.MULTILINE)
    return {int(partition): int(offset) for partition, offset in found}


# ---------------------------------------------------------------- the cluster


def broker_api_versions_command(bench: CheckBench) -> None:
    said = bench.java(f"{TOOLS}.BrokerApiVersionsCommand", *bench.server)
    # The tool connects to every broker in the metadata and prints what each serves.
    brokers = re.findall(r"\(id: (\d+) rack: ", said)
    assert sorted(brokers) == [str(index + 1) for index in range(len(bench.target.listeners))], said
    assert len(re.findall(r"Produce\(0\): .*\[usable: \d+\]", said)) == len(brokers), said


def cluster_tool(bench: CheckBench) -> None:
    said = bench.java(f"{TOOLS}.ClusterTool", "cluster-id", *bench.server)
    assert re.search(r"Cluster ID: \S+", said), said
    said = bench.java(f"{TOOLS}.ClusterTool", "list-endpoints", *bench.server)
    for listener in bench.target.listeners:
        assert re.search(rf"127\.0\.0\.1\s+{listener.rpartition(':')[2]}\s", said), said


def feature_command(bench: CheckBench) -> None:
    said = bench.java(f"{TOOLS}.FeatureCommand", *bench.server, "describe")
    # transaction.version 2 is KIP-890's protocol.
    assert re.search(r"Feature: transaction\.version.*FinalizedVersionLevel: 2", said), said


# ---------------------------------------------------------------- topics, configurations


def topic_command(bench: CheckBench) -> None:
    tool = f"{TOOLS}.TopicCommand"
    topic = bench.topic(2, "retention.ms=3600000")
    said = bench.java(tool, *bench.server, "--describe", "--topic", topic)
    assert "PartitionCount: 2" in said, said
    assert "retention.ms=3600000" in said, said
    bench.java(tool, *bench.server, "--alter", "--topic", topic, "--partitions", "4")
    assert "PartitionCount: 4" in bench.java(tool, *bench.server, "--describe", "--topic", topic)
    assert topic in bench.java(tool, *bench.server, "--list").splitlines()
    bench.java(tool, *bench.server, "--delete", "--topic", topic)
    assert topic not in bench.java(tool, *bench.server, "--list").splitlines()


def config_command(bench: CheckBench) -> None:
    tool, topic = "kafka.admin.ConfigCommand", bench.topic()
    entity = ("--entity-type", "topics", "--entity-name", topic)
    change = ("--alter", "--add-config", "max.message.bytes=123456,cleanup.policy=[compact,delete]")
    bench.java(tool, *bench.server, *entity, *change)
    said = bench.java(tool, *bench.server, *entity, "--describe")
    assert "max.message.bytes=123456" in said, said
    assert "cleanup.policy=compact,delete" in said, said
    # Deleted, the key has Kafka's default again.
    taken = ("--alter", "--delete-config", "max.message.bytes")
    bench.java(tool, *bench.server, *entity, *taken)
    said = bench.java(tool, *bench.server, *entity, "--describe", "--all")
    assert "max.message.bytes=1048588" in said, said
    assert "DEFAULT_CONFIG" in said, said
    broker = ("--entity-type", "brokers", "--entity-name", "1", "--describe", "--all")
    assert "node.id=1" in bench.java(tool, *bench.server, *broker)


def delete_records_command(bench: CheckBench) -> None:
    topic = bench.topic()
    produced(bench, topic, 100)
    place = {"topic": topic, "partition": 0, "offset": 60}
    wanted = bench.file("delete.json", json.dumps({"version": 1, "partitions": [place]}))
    said = bench.java(f"{TOOLS}.DeleteRecordsCommand", *bench.server, "--offset-json-file", wanted)
    assert f"{topic}-0\tlow_watermark: 60" in said, said
    assert offsets(bench, topic, "-2") == {0: 60}


def get_offset_shell(bench: CheckBench) -> None:
    topic = bench.topic(2)
    produced(bench, topic, 100)
    # All of the tool's special offsets: end, start, local start, and the record with the largest
    # timestamp.
    ends = offsets(bench, topic, "latest")
    assert sum(ends.values()) == 100, ends
    assert offsets(bench, topic, "earliest") == {0: 0, 1: 0}
    assert offsets(bench, topic, "earliest-local") == {0: 0, 1: 0}
    newest = offsets(bench, topic, "max-timestamp")
    assert all(newest[item] < end for item, end in ends.items() if end), newest


def log_dirs_command(bench: CheckBench) -> None:
    topic = bench.topic()
    produced(bench, topic, 100)
    said = bench.java(f"{TOOLS}.LogDirsCommand", *bench.server, "--describe", "--topic-list", topic)
    (line,) = (line for line in said.splitlines() if line.startswith("{"))
    folders = [folder for broker in json.loads(line)["brokers"] for folder in broker["logDirs"]]
    sizes = [item["size"] for folder in folders for item in folder["partitions"]]
    assert len(sizes) == min(3, len(bench.target.listeners)), said
    assert min(sizes) > 0, said


# ---------------------------------------------------------------- replicas


def leader_election_command(bench: CheckBench) -> None:
    topic = bench.topic()
    said = bench.java(
        f"{TOOLS}.LeaderElectionCommand",
        *(*bench.server, "--election-type", "preferred", "--topic", topic, "--partition", "0"),
    )
    assert re.search(f"(Valid replica already elected|Successfully completed).*{topic}", said), said


def reassign_partitions_command(bench: CheckBench) -> None:
    """Turn the order of the replicas, and then leave the last one out."""
    tool, topic = f"{TOOLS}.reassign.ReassignPartitionsCommand", bench.topic()
    produced(bench, topic, 500)
    said = bench.java(f"{TOOLS}.TopicCommand", *bench.server, "--describe", "--topic", topic)
    (replicas,) = re.findall(r"Replicas: ([\d,]+)", said)
    turned = [int(part) for part in replicas.split(",")][::-1]
    # First only the order changes, which moves the preferred leader. Then a replica is removed.
    for number, wanted in enumerate((turned, turned[:-1])):
        place = {"topic": topic, "partition": 0, "replicas": wanted}
        plan = bench.file(f"{number}.json", json.dumps({"version": 1, "partitions": [place]}))
        arguments = (*bench.server, "--reassignment-json-file", plan)
        assert "Successfully started" in bench.java(tool, *arguments, "--execute")
        while "is completed" not in (said := bench.java(tool, *arguments, "--verify")):
            assert "failed" not in said, said
        said = bench.java(f"{TOOLS}.TopicCommand", *bench.server, "--describe", "--topic", topic)
        assert f"Replicas: {','.join(map(str, wanted))}" in said, said
    assert "No partition reassignments found" in bench.java(tool, *bench.server, "--list")


def replica_verification_tool(bench: CheckBench) -> None:
    """Compare all records of each replica."""
    topic = bench.topic()
    produced(bench, topic, 500)
    running = bench.start(
        f"{TOOLS}.ReplicaVerificationTool",
        *("--broker-list", bench.server[1], "--topics-include", topic),
        *("--report-interval-ms", "1000", "--time", "-2"),
    )
    # The tool compares checksums of all replicas and repeats its report.
    running.await_said(f"max lag is 0 for partition {topic}-0 at offset 500 among 1 partitions")
    wrong = re.search("unmatched|doesn't match|but expected|Error in processing", running.said)
    assert wrong is None, running.said


# ---------------------------------------------------------------- groups


def consumer_group_command(bench: CheckBench) -> None:
    tool = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
    topic, group = bench.topic(), bench.name("group")
    produced(bench, topic, 100)
    consumed(bench, topic, group, 100)
    its = (*bench.server, "--group", group)
    assert group in bench.java(tool, *bench.server, "--list").split()
    # Committed, end and lag: first as consumed, then after a reset to 40.
    assert rest(bench, its, topic) == (100, 100, 0)
    assert group in bench.java(tool, *its, "--describe", "--state")
    bench.java(tool, *its, "--topic", topic, "--reset-offsets", "--to-offset", "40", "--execute")
    assert rest(bench, its, topic) == (40, 100, 60)
    said = bench.java(tool, *its, "--topic", topic, "--delete-offsets")
    assert "Successful" in said, said
    bench.java(tool, *its, "--delete")
    assert group not in bench.java(tool, *bench.server, "--list").split()


def rest(bench: CheckBench, its: Iterable[str], topic: str) -> tuple[int, ...]:
    """(committed, end, lag) of a group in partition 0."""
    tool = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
    said = bench.java(tool, *its, "--describe", "--offsets")
    found = re.search(rf"{topic}\s+0\s+(.*)", said)
    if found is None:
        raise CheckFailed(said)
    # Ids in the line may contain digits, so only whole words count.
    numbers = re.findall(r"(?<!\S)\d+(?!\S)", found[1])
    return tuple(map(int, numbers[-3:]))


def groups_command(bench: CheckBench) -> None:
    topic, group = bench.topic(), bench.name("group")
    produced(bench, topic, 10)
    consumed(bench, topic, group, 10)
    said = bench.java(f"{TOOLS}.GroupsCommand", *bench.server, "--list")
    assert re.search(rf"{group}\s+\w+", said), said


# ---------------------------------------------------------------- files


def dump(bench: CheckBench, files: Iterable[Path], *more: str) -> str:
    """DumpLogSegments finds nothing wrong; what it says."""
    names = ",".join(sorted(str(path) for path in files if path.stat().st_size))
    said = bench.java(f"{TOOLS}.DumpLogSegments", "--files", names, "--deep-iteration", *more)
    assert not re.search(r"isvalid: false|mismatch|non-consecutive|Found .*error", said), said
    return said


def dump_log_segments(bench: CheckBench) -> None:
    topic = bench.topic(1, "index.interval.bytes=1024")
    produced(bench, topic, 1000)
    folders = bench.target.log_folders(topic, 0)
    # Each replica's files are checked, including those of followers.
    assert len(folders) == min(3, len(bench.target.listeners))
    for folder in folders:
        kinds = ("*.log", "*.index", "*.timeindex", "*.txnindex", "*.snapshot")
        said = dump(bench, [path for kind in kinds for path in folder.glob(kind)])
        assert len(re.findall(r"^\| offset: ", said, re.MULTILINE)) == 1000


def dump_internal_topics(bench: CheckBench) -> None:
    """Records of a committed transaction in both internal topics, as Kafka's decoders read them."""
    _, copier, group = copied(bench, 10, 5)
    for topic, decoder, wanted in (
        ("__consumer_offsets", "--offsets-decoder", group),
        ("__transaction_state", "--transaction-log-decoder", copier),
    ):
        # The partition is that of the hash, so the file is found by its content.
        files = [
            path
            for partition in range(50)
            for folder in bench.target.log_folders(topic, partition)
            for path in folder.glob("*.log")
            if wanted.encode() in path.read_bytes()
        ]
        assert files, f"nothing of {wanted} in {topic}"
        assert wanted in dump(bench, files, decoder)


class JavaTools:
    name = "java-tools"
    title = f"Apache Kafka's tools {KAFKA_VERSION}"
    wants = Wants(brokers=3)

    def prepare(self) -> ReadyChecks:
        try:
            jars = kafka.jars()
        except kafka.MavenMissing as error:
            raise Missing(str(error)) from error
        return ReadyChecks(CHECKS, jars, LIMIT_S)


CHECKS = named(
    verifiable_clients,
    verifiable_consumer_of_the_new_protocol,
    verifiable_consumers_share_a_topic,
    console_clients,
    performance_clients,
    compatibility_of_clients,
    end_to_end_latency,
    transactional_copier,
    transaction_ended_by_its_id,
    transaction_ended_by_its_start,
    broker_api_versions_command,
    cluster_tool,
    feature_command,
    topic_command,
    config_command,
    delete_records_command,
    get_offset_shell,
    log_dirs_command,
    leader_election_command,
    reassign_partitions_command,
    replica_verification_tool,
    consumer_group_command,
    groups_command,
    transactions_command,
    transactional_id_pattern,
    dump_log_segments,
    dump_internal_topics,
)
