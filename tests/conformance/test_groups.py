"""Stock clients in consumer groups: they share partitions, resume, and survive a coordinator
failover; Kafka's own programs read what the groups persisted.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer
from local_cluster import RunningCluster, wait

from tests.kafka_programs import java, kafka_jars
from tidemark.logfiles.names import GROUP_OFFSETS_TOPIC

# kafka-python leaves its sockets to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore:unclosed <socket:ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)
COUNT = 300
_numbers = itertools.count(1)
#: Errors that librdkafka reports while it searches for a coordinator that has moved.
_PASSING = (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS)


@pytest.fixture
def group() -> str:
    return f"group-{next(_numbers)}"


def filled(cluster: RunningCluster, partitions: int = 3) -> str:
    """Create a topic with the same number of values in each partition."""
    topic = cluster.new_topic(partitions=partitions)
    fill(cluster, topic, partitions, range(COUNT))
    return topic


def fill(cluster: RunningCluster, topic: str, partitions: int, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for partition in range(partitions):
        for number in numbers:
            producer.produce(topic, f"{partition} {number}".encode(), partition=partition)
    assert producer.flush(60) == 0


def consumer(cluster: RunningCluster, group: str, **more: object) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            **more,
        }
    )


def take(
    members: list[Consumer], count: int, timeout_s: int = 90, beside: Collection[bytes] = ()
) -> Counter[bytes]:
    """Poll the members until they have ``count`` different values, not counting those in
    ``beside``: after a failover a group may receive earlier values again.
    """
    got: Counter[bytes] = Counter()

    def polled() -> bool:
        # A rebalance advances only while every member polls.
        for member in members:
            for message in member.consume(100, timeout=0.2):
                if message.error() is None:
                    got[message.value()] += 1
                else:
                    assert message.error().code() in _PASSING, message.error()
        return len(got.keys() - beside) >= count

    wait(polled, f"{count} values in the group", timeout_s)
    return got


def take_kafka_python(bootstrap: str, topic: str, group: str, count: int) -> list[bytes]:
    client = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap.split(","),
        group_id=group,
        auto_offset_reset="earliest",
        consumer_timeout_ms=60_000,
    )
    try:
        return [message.value for message in itertools.islice(client, count)]
    finally:
        client.close()


def take_aiokafka(bootstrap: str, topic: str, group: str, count: int) -> list[bytes]:
    async def run() -> list[bytes]:
        client = AIOKafkaConsumer(
            topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest"
        )
        await client.start()
        try:
            async with asyncio.timeout(60):
                return [(await client.getone()).value for _ in range(count)]
        finally:
            await client.stop()

    return asyncio.run(run())


def take_confluent(bootstrap: str, topic: str, group: str, count: int) -> list[bytes]:
    client = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    )
    client.subscribe([topic])
    try:
        values: list[bytes] = []
        while len(values) < count:
            message = client.poll(60)
            assert message is not None, f"{len(values)} of {count} came"
            assert message.error() is None, message.error()
            values.append(message.value())
        return values
    finally:
        client.close()


CLIENTS: dict[str, Callable[[str, str, str, int], list[bytes]]] = {
    "confluent-kafka": take_confluent,
    "kafka-python": take_kafka_python,
    "aiokafka": take_aiokafka,
}


@pytest.mark.parametrize("name", CLIENTS)
def test_group_resumes_where_it_stopped(cluster: RunningCluster, group: str, name: str) -> None:
    topic = filled(cluster)
    first = CLIENTS[name](cluster.bootstrap, topic, group, 3 * COUNT)
    assert len(set(first)) == 3 * COUNT
    # The group is empty now, its offsets are committed.
    fill(cluster, topic, 3, range(COUNT, COUNT + 10))
    second = CLIENTS[name](cluster.bootstrap, topic, group, 30)
    assert set(second) == {
        f"{partition} {number}".encode()
        for partition in range(3)
        for number in range(COUNT, COUNT + 10)
    }


@pytest.mark.parametrize(
    "assignor", [pytest.param("range", marks=pytest.mark.long), "cooperative-sticky"]
)
def test_members_share_the_partitions(cluster: RunningCluster, group: str, assignor: str) -> None:
    topic = filled(cluster)
    members = [
        consumer(cluster, group, **{"partition.assignment.strategy": assignor}) for _ in range(3)
    ]
    for member in members:
        member.subscribe([topic])

    # Joining needs every member to poll: JoinGroup and SyncGroup wait for all of them.
    def shared() -> bool:
        for member in members:
            member.poll(0.1)
        return all(len(member.assignment()) == 1 for member in members)

    wait(shared, "each member to have one partition")
    # A clean close sends LeaveGroup, so the others need not wait for the session timeout.
    members.pop().close()

    def taken_over() -> bool:
        for member in members:
            member.poll(0.1)
        return sum(len(member.assignment()) for member in members) == 3

    wait(taken_over, "the others to have all of them")
    for member in members:
        member.close()


def test_static_member_returns_without_rebalance(cluster: RunningCluster, group: str) -> None:
    topic = filled(cluster, partitions=2)
    # A session timeout of 30 s is longer than the restart, so the coordinator keeps the place.
    more = {"session.timeout.ms": 30_000}
    members = [consumer(cluster, group, **{"group.instance.id": item, **more}) for item in "ab"]
    for member in members:
        member.subscribe([topic])

    def shared(count: int = 2) -> bool:
        for member in members:
            member.poll(0.1)
        return all(len(member.assignment()) == 1 for member in members[:count])

    wait(shared, "each member to have one partition")
    before = members[0].assignment()
    members.pop().close()  # a static member does not leave
    members.append(consumer(cluster, group, **{"group.instance.id": "b", **more}))
    members[1].subscribe([topic])
    wait(shared, "the second one to have its partition again")
    # Without a rebalance the other member's assignment cannot have changed (KIP-345).
    assert members[0].assignment() == before
    for member in members:
        member.close()


def commit(member: Consumer) -> None:
    """Commit the read offsets, of which there may be none."""
    try:
        member.commit(asynchronous=False)
    except KafkaException as error:
        if error.args[0].code() != KafkaError._NO_OFFSET:
            raise


def committed(client: Consumer, places: list[TopicPartition]) -> list[TopicPartition]:
    """Return the committed offsets, with retries while the coordinator moves back to a
    restarted broker.
    """
    found: list[TopicPartition] = []

    def answered() -> bool:
        try:
            found[:] = client.committed(places, timeout=30)
        except KafkaException as error:
            if error.args[0].code() not in _PASSING:
                raise
        return bool(found)

    wait(answered, "the coordinator to answer")
    return found


@pytest.mark.full
@pytest.mark.slow
def test_group_survives_coordinator_failure(cluster: RunningCluster, group: str) -> None:
    topic = filled(cluster)
    # A short commit interval, so that offsets are on the way when the coordinator dies.
    members = [consumer(cluster, group, **{"auto.commit.interval.ms": 200}) for _ in range(2)]
    for member in members:
        member.subscribe([topic])
    # Both members have committed what they read before the failure.
    got = take(members, 3 * COUNT)
    for member in members:
        commit(member)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    described = admin.describe_consumer_groups([group])[group].result(30)
    assert len(described.members) == 2
    # Killing the coordinator kills leaders of the topic as well, with one broker in three.
    coordinator = described.coordinator.id
    cluster.local.kill_broker(coordinator)
    try:
        # The members have to find the new coordinator before they can commit these values.
        fill(cluster, topic, 3, range(COUNT, COUNT + 50))
        more = take(members, 150, beside=got)
        assert set(more) - set(got) == {
            f"{partition} {number}".encode()
            for partition in range(3)
            for number in range(COUNT, COUNT + 50)
        }
        for member in members:
            commit(member)
        # The group's partition of __consumer_offsets has another leader.
        after = admin.describe_consumer_groups([group])[group].result(30)
        assert after.coordinator.id != coordinator
    finally:
        cluster.local.start_broker(coordinator)
        for member in members:
            member.close()
    # A client that was never a member reads the offsets after the first coordinator returned.
    other = consumer(cluster, group)
    places = [TopicPartition(topic, partition) for partition in range(3)]
    assert [item.offset for item in committed(other, places)] == [COUNT + 50] * 3
    other.close()


def test_committed_offset_keeps_its_metadata(cluster: RunningCluster, group: str) -> None:
    topic = filled(cluster, partitions=1)
    client = consumer(cluster, group)
    place = TopicPartition(topic, 0, 7, metadata="seven")
    client.commit(offsets=[place], asynchronous=False)
    (kept,) = client.committed([TopicPartition(topic, 0)], timeout=30)
    assert (kept.offset, kept.metadata) == (7, "seven")
    client.close()
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    listed = {item.group_id for item in admin.list_consumer_groups().result(30).valid}
    assert group in listed
    admin.delete_consumer_groups([group])[group].result(30)
    listed = {item.group_id for item in admin.list_consumer_groups().result(30).valid}
    assert group not in listed


def read_by_java(
    jars: Path, cluster: RunningCluster, topic: str, group: str, *settings: str
) -> str:
    """Kafka's console consumer reads both partitions as a member, and the group's offsets say so;
    the class of the command that tells of groups."""
    server = ("--bootstrap-server", cluster.bootstrap)
    text = java(
        jars,
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *server,
        *("--topic", topic, "--group", group, "--from-beginning", *settings),
        *("--max-messages", str(2 * COUNT), "--timeout-ms", "60000"),
    )
    assert len(set(text.splitlines())) == 2 * COUNT
    # The group's committed offsets are the ends of both partitions, with no lag.
    command = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    said = java(jars, command, *server, "--describe", "--group", group)
    rows = [line.split() for line in said.splitlines() if line.startswith(group)]
    assert sorted(row[2:6] for row in rows) == [
        [str(partition), str(COUNT), str(COUNT), "0"] for partition in range(2)
    ]
    return command


@pytest.mark.full
@pytest.mark.java
@pytest.mark.slow
def test_java_consumer_and_group_tools(cluster: RunningCluster, group: str) -> None:
    jars: Path = kafka_jars()
    topic = filled(cluster, partitions=2)
    server = ("--bootstrap-server", cluster.bootstrap)
    command = read_by_java(jars, cluster, topic, group)
    assert group in java(jars, command, *server, "--list").split()
    java(
        jars, command, *server, "--group", group, "--topic", topic,
        "--reset-offsets", "--to-offset", "5", "--execute",
    )  # fmt: skip
    said = java(jars, command, *server, "--describe", "--group", group, "--state")
    assert "Empty" in said
    assert _dumped(cluster, jars, group)
    java(jars, command, *server, "--delete", "--group", group)
    assert group not in java(jars, command, *server, "--list").split()


def _dumped(cluster: RunningCluster, jars: Path, group: str) -> bool:
    """Return whether DumpLogSegments finds the group's generation and offsets in a broker's log."""
    # Replicas of the group's log are on every broker, so broker 1 has them as well.
    files = sorted(cluster.local.layout.broker_data(1).glob(f"**/{GROUP_OFFSETS_TOPIC}-*/*.log"))
    said = java(
        jars,
        "org.apache.kafka.tools.DumpLogSegments",
        *("--files", ",".join(map(str, files)), "--offsets-decoder"),
    )
    return f'"group":"{group}"' in said and '"protocolType":"consumer"' in said
