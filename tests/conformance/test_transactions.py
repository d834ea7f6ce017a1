"""Transactions of stock clients, with coordinators and leaders killed under them: each input is
in the output once, or not at all, and readers of committed records see no aborted ones.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from local_cluster import RunningCluster, wait

from tests.kafka_programs import java, kafka_jars

COUNT = 600
IN_EACH = 20


def transactional(cluster: RunningCluster, name: str, timeout_ms: int = 30_000) -> Producer:
    """Its client closes what it has not used for some seconds: once a group's coordinator has gone,
    librdkafka 2.16 waits in ``send_offsets_to_transaction`` for any of its connections to change,
    whatever the time-out (its issues 5511 and 5456), with Apache Kafka too."""
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": timeout_ms,
            "connections.max.idle.ms": 3000,
        }
    )
    producer.init_transactions(60)
    return producer


def read(cluster: RunningCluster, topic: str, isolation: str = "read_committed") -> list[bytes]:
    """All that there is."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    # EOF means the last stable offset for read_committed, and the high watermark otherwise.
    while (message := consumer.poll(30)) is not None:
        if message.error() is None:
            values.append(message.value())
        elif message.error().code() == KafkaError._PARTITION_EOF:
            break
    consumer.close()
    return values


def fill(cluster: RunningCluster, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(60) == 0


@contextmanager
def brokers_killed_in_turn(cluster: RunningCluster, topic: str) -> Iterator[Callable[[int], None]]:
    """Kill each of the three brokers once, a third of the way apart, which includes the
    coordinator.

    Each returns once others lead, for clients that wait for it: see :func:`transactional`.
    """
    killed: list[int] = []
    returns: list[Future[None]] = []

    def returned(node_id: int) -> None:
        wait(lambda: node_id not in cluster.view(topic).rows[0].isr, "others to lead")
        cluster.local.start_broker(node_id)

    def hook(count: int) -> None:
        if count in (COUNT // 4, COUNT // 2, COUNT * 3 // 4):
            # One broker is down at a time, or min.insync.replicas would refuse the producer.
            for return_ in returns:
                return_.result(60)
            wait(lambda: len(cluster.view(topic).rows[0].isr) == 3, "all to be in sync")
            node_id = next(n for n in cluster.view(topic).rows[0].replicas if n not in killed)
            cluster.local.kill_broker(node_id)
            killed.append(node_id)
            # The restart is a task: the client must come through the failover while the hook
            # returns.
            returns.append(threads.submit(returned, node_id))

    with ThreadPoolExecutor(1) as threads:
        yield hook
    for return_ in returns:
        return_.result(60)
    wait(lambda: len(cluster.view(topic).rows[0].isr) == 3, "all to be in sync again")


def copy(cluster: RunningCluster, source: str, target: str, hook: Callable[[int], None]) -> None:
    """Consume, produce and commit the offsets in transactions; a failed one is aborted, and
    read again from the committed offsets.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": f"copier of {source}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    # The id survives the copier, so a successor fences it and aborts its open transaction.
    producer = transactional(cluster, f"copier of {source}")
    consumer.subscribe([source])
    copied = 0
    while copied < COUNT:
        producer.begin_transaction()
        try:
            messages = consumer.consume(IN_EACH, timeout=5)
            good = [item for item in messages if item.error() is None]
            # Output and input offsets become visible together, or not at all.
            for message in good:
                producer.produce(target, message.value())
            positions = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 60)
            producer.commit_transaction(60)
        # A coordinator that moved fails the transaction in a way that an abort repairs.
        except KafkaException as error:
            if not (error.args[0].txn_requires_abort() or error.args[0].retriable()):
                raise
            producer.abort_transaction(60)
            # The consumer has read ahead of what is committed, so it returns to the committed
            # offsets.
            for place in consumer.committed(consumer.assignment(), 30):
                consumer.seek(TopicPartition(place.topic, place.partition, max(place.offset, 0)))
        else:
            for _ in good:
                copied += 1
                hook(copied)
    consumer.close()


@pytest.mark.full
@pytest.mark.slow
def test_transactional_copy_is_exactly_once_across_broker_failures(cluster: RunningCluster) -> None:
    source, target = (cluster.new_topic(config={"min.insync.replicas": "2"}) for _ in range(2))
    values = [b"value-%05d" % number for number in range(COUNT)]
    fill(cluster, source, values)
    with brokers_killed_in_turn(cluster, target) as hook:
        copy(cluster, source, target, hook)
    # Equality covers loss, duplicates and order.
    assert read(cluster, target) == values


@pytest.mark.slow
def test_read_committed_excludes_aborted_and_open_transactions(
    cluster: RunningCluster,
) -> None:
    topic = cluster.new_topic()
    producer = transactional(cluster, f"mixed in {topic}")
    for number in range(10):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number)
        assert producer.flush(60) == 0  # what waits to be sent an abort would throw away
        if number % 2:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    assert producer.flush(60) == 0
    committed = [b"%d" % number for number in range(0, 10, 2)]
    # Ten transactions of which five committed, and one open: 5 values of 11 are readable.
    assert read(cluster, topic) == committed
    assert len(read(cluster, topic, "read_uncommitted")) == 11
    successor = transactional(cluster, f"mixed in {topic}")  # which aborts what is open
    with pytest.raises(KafkaException) as raised:
        producer.commit_transaction(60)
    assert raised.value.args[0].fatal()
    # InitProducerId raised the epoch: the first producer is fenced, and the open one aborted.
    successor.begin_transaction()
    successor.produce(topic, b"last")
    successor.commit_transaction(60)
    assert read(cluster, topic) == [*committed, b"last"]


@pytest.mark.full
@pytest.mark.slow
def test_transaction_is_aborted_after_its_timeout(cluster: RunningCluster) -> None:
    topic = cluster.new_topic()
    producer = transactional(cluster, f"slow in {topic}", timeout_ms=2000)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    assert producer.flush(60) == 0
    # The record of another producer is behind the open one, so readers of committed records wait
    # for the timeout.
    fill(cluster, topic, [b"behind"])
    wait(lambda: read(cluster, topic) == [b"behind"], "the abort by its coordinator")
    with pytest.raises(KafkaException):
        producer.commit_transaction(60)


@pytest.fixture(scope="module")
def jars() -> Path:
    return kafka_jars()


@pytest.mark.full
@pytest.mark.java
@pytest.mark.slow
def test_java_transactional_message_copier(cluster: RunningCluster, jars: Path) -> None:
    """Its producer speaks ``transaction.version`` 2, and aborts at random."""
    source, target = (cluster.new_topic() for _ in range(2))
    values = [b"%d" % number for number in range(COUNT)]
    fill(cluster, source, values)
    java(
        jars,
        "org.apache.kafka.tools.TransactionalMessageCopier",
        *("--broker-list", cluster.bootstrap),
        *("--transactional-id", f"copier-{source}", "--consumer-group", f"group-{source}"),
        *("--input-topic", source, "--input-partition", "0", "--output-topic", target),
        *("--transaction-size", str(IN_EACH), "--max-messages", str(COUNT)),
        *("--enable-random-aborts", "--use-group-metadata"),
    )
    assert Counter(read(cluster, target)) == Counter(values)


@pytest.mark.full
@pytest.mark.java
@pytest.mark.slow
def test_transactions_tool_lists_describes_and_aborts(cluster: RunningCluster, jars: Path) -> None:
    topic = cluster.new_topic()
    name = f"hangs-in-{topic}"
    # The timeout is longer than the test, so only the tool can end the transaction.
    producer = transactional(cluster, name, timeout_ms=600_000)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    assert producer.flush(60) == 0

    def tool(*arguments: str) -> str:
        return java(
            jars,
            "org.apache.kafka.tools.TransactionsCommand",
            *("--bootstrap-server", cluster.bootstrap, *arguments),
        )

    # TransactionsCommand prints the coordinator's state names (KIP-664).
    assert re.search(rf"{name}\s+\d+\s+\d+\s+Ongoing", tool("list"))
    described = tool("describe", "--transactional-id", name)
    assert "Ongoing" in described
    assert f"{topic}-0" in described
    # An abort by partition and offset writes the marker through WriteTxnMarkers to the leader.
    tool("abort", "--topic", topic, "--partition", "0", "--start-offset", "0")
    fill(cluster, topic, [b"behind"])
    assert read(cluster, topic) == [b"behind"]


@pytest.mark.full
@pytest.mark.java
@pytest.mark.slow
def test_kafka_decodes_the_transaction_state_log(cluster: RunningCluster, jars: Path) -> None:
    topic = cluster.new_topic()
    name = f"dumped-{topic}"
    producer = transactional(cluster, name)
    producer.begin_transaction()
    producer.produce(topic, b"value")
    producer.commit_transaction(60)

    # The log of each replica has the same records. One of them is enough.
    def dumped() -> str:
        logs = [
            log
            for node_id in (1, 2, 3)
            for log in cluster.local.layout.broker_data(node_id).glob(
                "**/__transaction_state-*/*.log"
            )
            if name.encode() in log.read_bytes()
        ]
        names = ",".join(map(str, logs[:1]))
        return java(
            jars,
            "org.apache.kafka.tools.DumpLogSegments",
            *("--transaction-log-decoder", "--files", names),
        )

    text = dumped()
    assert name in text
    statuses = re.findall(r'"?transactionStatus"?[:=]\s*"?(\d)', text)
    assert {"0", "1", "2"} <= set(statuses), text  # Empty, Ongoing, PrepareCommit
