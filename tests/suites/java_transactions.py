"""Transactions of Apache Kafka's clients, and what its tools say and do about them."""

import re

from tests.suites.checks import CheckBench
from tests.suites.java_clients import TOOLS, produced

_COMMAND = f"{TOOLS}.TransactionsCommand"


def copied(bench: CheckBench, count: int, size: int, *more: str) -> tuple[str, str, str]:
    """Copy ``count`` records in transactions of ``size``; return (the sink, the transactional
    id, the group).
    """
    source, sink = bench.topic(), bench.topic()
    copier, group = bench.name("copier"), bench.name("group")
    produced(bench, source, count)
    bench.java(
        f"{TOOLS}.TransactionalMessageCopier",
        *("--broker-list", bench.server[1], "--transactional-id", copier, "--input-topic", source),
        *("--input-partition", "0", "--output-topic", sink, "--transaction-size", str(size)),
        *("--consumer-group", group, "--max-messages", str(count), *more),
    )
    return sink, copier, group


def committed(bench: CheckBench, topic: str) -> list[int]:
    """The numbers in a topic, as a reader of what is committed finds them."""
    said = bench.java(
        f"{TOOLS}.consumer.ConsoleConsumer",
        *(*bench.server, "--topic", topic, "--from-beginning", "--isolation-level"),
        *("read_committed", "--timeout-ms", "8000"),
    )
    return [int(line) for line in said.splitlines() if line.isdecimal()]


def transactional_copier(bench: CheckBench) -> None:
    """With some of its transactions aborted, each record is copied once."""
    sink, _, _ = copied(bench, 1000, 50, "--enable-random-aborts", "--use-group-metadata")
    # Random aborts repeat their input, so only committed copies are counted.
    assert sorted(committed(bench, sink)) == list(range(1000))


def transactions_command(bench: CheckBench) -> None:
    sink, copier, _ = copied(bench, 100, 50)
    assert copier in bench.java(_COMMAND, *bench.server, "list")
    said = bench.java(_COMMAND, *bench.server, "describe", "--transactional-id", copier)
    assert "CompleteCommit" in said, said
    place = ("--topic", sink, "--partition", "0")
    said = bench.java(_COMMAND, *bench.server, "describe-producers", *place)
    assert re.search(r"^\d+\s+\d+", said, re.MULTILINE), said
    bench.java(_COMMAND, *bench.server, "find-hanging", "--broker-id", "1")


def transactional_id_pattern(bench: CheckBench) -> None:
    """KIP-1152: an expression stands for a whole id."""
    _, copier, _ = copied(bench, 10, 10)
    listing = (*bench.server, "list", "--transactional-id-pattern")
    assert copier in bench.java(_COMMAND, *listing, r"cop\w+-\d+")
    assert copier not in bench.java(_COMMAND, *listing, "copier")


def left_open(bench: CheckBench) -> tuple[str, str]:
    """A producer is killed in a transaction: (its topic, its id)."""
    topic, producer = bench.topic(), bench.name("producer")
    # Slow enough that the kill comes within the transaction.
    running = bench.start(
        f"{TOOLS}.ProducerPerformance",
        *(*bench.server, "--topic", topic, "--num-records", "100000", "--record-size", "100"),
        *("--throughput", "20", "--transactional-id", producer),
        *("--transaction-duration-ms", "600000", "--reporting-interval", "500"),
    )
    running.await_said("records sent")
    running.kill()
    return topic, producer


def state(bench: CheckBench, transactional_id: str) -> str:
    """As a table of the tool has it."""
    said = bench.java(_COMMAND, *bench.server, "list")
    (found,) = re.findall(rf"^{transactional_id}\s+\d+\s+\d+\s+(\w+)", said, re.MULTILINE)
    return str(found)


def transaction_ended_by_its_id(bench: CheckBench) -> None:
    topic, producer = left_open(bench)
    assert state(bench, producer) == "Ongoing"
    # The coordinator aborts by the transactional id (KIP-664), without the producer.
    end = ("forceTerminateTransaction", "--transactionalId", producer)
    bench.java(_COMMAND, *bench.server, *end)
    assert state(bench, producer) == "Empty"
    # Later records are readable once the open transaction has ended.
    produced(bench, topic, 10)
    assert committed(bench, topic) == list(range(10))


def transaction_ended_by_its_start(bench: CheckBench) -> None:
    """As one ends a transaction that its coordinator knows nothing of."""
    topic, _ = left_open(bench)
    place = ("--topic", topic, "--partition", "0")
    bench.java(_COMMAND, *bench.server, "abort", *place, "--start-offset", "0")
    produced(bench, topic, 10)
    assert committed(bench, topic) == list(range(10))
