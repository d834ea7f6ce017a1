"""Apache Kafka's own clients as its system tests run them: they count, and say what they did in
lines of JSON.
"""

import json
import re
from typing import Any

from tests.suites.checks import CheckBench

TOOLS = "org.apache.kafka.tools"


def produced(bench: CheckBench, topic: str, count: int) -> None:
    """Produce ``count`` records into a topic, acknowledged by all replicas."""
    said = bench.java(
        f"{TOOLS}.VerifiableProducer",
        *(*bench.server, "--topic", topic, "--max-messages", str(count), "--acks", "-1"),
    )
    assert sum(event["name"] == "producer_send_success" for event in events(said)) == count


def events(said: str) -> list[dict[str, Any]]:
    """The lines of JSON that Kafka's verifiable clients say."""
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def consumed(bench: CheckBench, topic: str, group: str, count: int, *more: str) -> str:
    """Read ``count`` records as the only member of a group."""
    said = bench.java(
        f"{TOOLS}.VerifiableConsumer",
        *(*bench.server, "--topic", topic, "--group-id", group),
        *("--max-messages", str(count), "--reset-policy", "earliest", *more),
    )
    # The consumer reports batches, so counts are added up.
    seen = sum(event["count"] for event in events(said) if event["name"] == "records_consumed")
    assert seen == count, f"{seen} of {count} records"
    committed = [event for event in events(said) if event["name"] == "offsets_committed"]
    assert committed, said
    assert all(item["success"] for item in committed), said
    return said


def verifiable_clients(bench: CheckBench) -> None:
    topic = bench.topic(3)
    produced(bench, topic, 1000)
    consumed(bench, topic, bench.name("group"), 1000)


def verifiable_consumer_of_the_new_protocol(bench: CheckBench) -> None:
    topic = bench.topic(3)
    produced(bench, topic, 500)
    consumed(bench, topic, bench.name("group"), 500, "--group-protocol", "consumer")


def held(said: str) -> int:
    """Return the number of partitions that a member was assigned and has not released."""
    signs = {"partitions_assigned": 1, "partitions_revoked": -1}
    return sum(
        signs.get(event["name"], 0) * len(event.get("partitions", ())) for event in events(said)
    )


def verifiable_consumers_share_a_topic(bench: CheckBench) -> None:
    """Two of a group, cooperative; all partitions go to the one that is left."""
    topic, group = bench.topic(6), bench.name("group")
    produced(bench, topic, 600)
    assignor = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
    # Cooperative assignment (KIP-429) revokes only what moves.
    members = [
        bench.start(
            f"{TOOLS}.VerifiableConsumer",
            *(*bench.server, "--topic", topic, "--group-id", group),
            *("--reset-policy", "earliest", "--assignment-strategy", assignor),
        )
        for _ in range(2)
    ]
    for member in members:
        member.await_said("partitions_assigned")
    members[0].stop()
    members[0].await_said("shutdown_complete")
    # The remaining member gets the others' partitions when the group has rebalanced.
    while held(members[1].said) != 6:
        bench.rest_a_moment(f"one member holds {held(members[1].said)} of 6 partitions")


def console_clients(bench: CheckBench) -> None:
    topic = bench.topic()
    lines = [f"line {number}" for number in range(300)]
    bench.java(
        f"{TOOLS}.ConsoleProducer",
        *(*bench.server, "--topic", topic),
        stdin="".join(f"{line}\n" for line in lines),
    )
    said = bench.java(
        f"{TOOLS}.consumer.ConsoleConsumer",
        *(*bench.server, "--topic", topic, "--from-beginning"),
        *("--group", bench.name("group"), "--max-messages", str(len(lines))),
    )
    assert [line for line in said.splitlines() if line.startswith("line ")] == lines


def performance_clients(bench: CheckBench) -> None:
    topic = bench.topic(3)
    said = bench.java(
        f"{TOOLS}.ProducerPerformance",
        *(*bench.server, "--topic", topic, "--num-records", "20000"),
        *("--record-size", "100", "--throughput", "-1"),
    )
    assert "20000 records sent" in said, said
    said = bench.java(
        f"{TOOLS}.ConsumerPerformance",
        *(*bench.server, "--topic", topic, "--num-records", "20000", "--timeout", "60000"),
        *("--group", bench.name("group")),
    )
    # The line of figures starts with a date.
    (figures,) = (line for line in said.splitlines() if re.match(r"\d{4}-", line))
    assert int(figures.split(", ")[4]) >= 20000, said


def compatibility_of_clients(bench: CheckBench) -> None:
    said = bench.java(
        f"{TOOLS}.ClientCompatibilityTest",
        *(*bench.server, "--topic", bench.topic()),
        *("--num-cluster-nodes", str(len(bench.target.listeners))),
        *("--offsets-for-times-supported", "true", "--cluster-id-supported", "true"),
        *("--expect-record-too-large-exception", "false", "--create-topics-supported", "true"),
        *("--describe-acls-supported", "true", "--describe-configs-supported", "true"),
        *("--idempotent-producer-supported", "true"),
    )
    assert "SUCCESS" in said.upper(), said


def end_to_end_latency(bench: CheckBench) -> None:
    said = bench.java(
        f"{TOOLS}.EndToEndLatency",
        *(*bench.server, "--topic", bench.topic(), "--num-records", "500"),
        *("--producer-acks", "all", "--record-size", "100"),
    )
    assert "Percentiles: 50th" in said, said
