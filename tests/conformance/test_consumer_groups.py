"""Stock clients in groups of KIP-848's protocol: they share partitions, resume, follow
expressions, and survive a coordinator failover; Kafka's programs describe them.
"""

import itertools
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from local_cluster import RunningCluster, wait

from tests.conformance.test_groups import COUNT, committed, fill, filled, read_by_java, take
from tests.kafka_programs import java, kafka_jars

_numbers = itertools.count(1)


@pytest.fixture
def group() -> str:
    return f"consumer-group-{next(_numbers)}"


class Members:
    """Members that are closed with the test."""

    def __init__(self, cluster: RunningCluster, group: str) -> None:
        self.cluster, self.group = cluster, group
        self.all: list[Consumer] = []

    def join(self, topic: str, **more: object) -> Consumer:
        member = Consumer(
            {
                "bootstrap.servers": self.cluster.bootstrap,
                "group.id": self.group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                **more,
            }
        )
        member.subscribe([topic])
        self.all.append(member)
        return member

    def have(self, *counts: int) -> bool:
        """Return whether the members have these numbers of partitions, in any order."""
        for member in self.all:
            message = member.poll(0.1)
            assert message is None or message.error() is None, message.error()
        return sorted(len(item.assignment()) for item in self.all) == sorted(counts)


@pytest.fixture
def members(cluster: RunningCluster, group: str) -> Iterator[Members]:
    made = Members(cluster, group)
    yield made
    for member in made.all:
        member.close()


@pytest.mark.parametrize("assignor", ["uniform", pytest.param("range", marks=pytest.mark.long)])
def test_members_share_the_partitions(members: Members, assignor: str) -> None:
    topic = filled(members.cluster)
    # The coordinator assigns (KIP-848): the client only names an assignor.
    for _ in range(3):
        members.join(topic, **{"group.remote.assignor": assignor})
    wait(lambda: members.have(1, 1, 1), "each member to have one partition", 60)
    members.all.pop().close()
    wait(lambda: members.have(1, 2), "the others to have all of them", 60)


def test_group_resumes_where_it_stopped(members: Members) -> None:
    topic = filled(members.cluster)
    members.join(topic)
    assert len(take(members.all, 3 * COUNT)) == 3 * COUNT
    # Closing commits the offsets. New records arrive while the group is empty.
    members.all.pop().close()
    fill(members.cluster, topic, 3, range(COUNT, COUNT + 10))
    members.join(topic)
    more = take(members.all, 30)
    assert len(more) == 30
    # No value twice: the second member starts where the first one committed.
    assert max(more.values()) == 1


@pytest.mark.full
def test_regex_subscription_assigns_matching_topics(members: Members) -> None:
    topic = filled(members.cluster, partitions=2)
    members.join(f"^{topic}(-.*)?")
    wait(lambda: members.have(2), "the topic that is there", 60)


@pytest.mark.full
def test_static_member_gets_its_partitions_back(members: Members) -> None:
    topic = filled(members.cluster, partitions=2)
    for name in "ab":
        members.join(topic, **{"group.instance.id": name})
    wait(lambda: members.have(1, 1), "each member to have one partition", 60)
    # A static member keeps its assignment over a restart, so the other one keeps its own, too.
    before = members.all[0].assignment()
    members.all.pop().close()
    members.join(topic, **{"group.instance.id": "b"})
    wait(lambda: members.have(1, 1), "the second one to have its partition again", 60)
    assert members.all[0].assignment() == before


@pytest.mark.full
@pytest.mark.parametrize(
    "strategy", ["cooperative-sticky", pytest.param("range", marks=pytest.mark.long)]
)
def test_members_migrate_to_consumer_protocol_and_back(members: Members, strategy: str) -> None:
    """One member at a time, while the others continue."""
    topic = filled(members.cluster, partitions=4)
    # The group starts as a classic group with two members.
    for _ in range(2):
        members.join(
            topic,
            **{
                "group.protocol": "classic",
                "partition.assignment.strategy": strategy,
                "heartbeat.interval.ms": 300,
                "session.timeout.ms": 6000,
            },
        )
    # Both have committed once everything is read.
    got = take(members.all, 4 * COUNT)
    assert len(got) == 4 * COUNT
    wait(lambda: members.have(2, 2), "both to have their share", 60)
    # The first member of the new protocol converts the group (KIP-848, online upgrade).
    members.join(topic)
    wait(lambda: members.have(1, 1, 2), "the new one to have its share", 60)
    members.all.pop(0).close()
    wait(lambda: members.have(2, 2), "the two that are left to have all of it", 60)
    # The mixed group continues to read. Values from before may be received a second time after a
    # rebalance.
    fill(members.cluster, topic, 4, range(COUNT, COUNT + 10))
    more = take(members.all, 40, beside=got)
    assert len(set(more) - set(got)) == 40
    # The last member of the new protocol leaves, which converts the group back.
    members.all.pop().close()
    wait(lambda: members.have(4), "the last one to have all of it", 60)


@pytest.mark.full
@pytest.mark.slow
def test_group_survives_coordinator_failure(members: Members, group: str) -> None:
    cluster = members.cluster
    topic = cluster.new_topic(partitions=3)
    # Without auto-commit the committed offsets are exactly those that the test commits.
    for _ in range(2):
        members.join(topic, **{"enable.auto.commit": False})
    wait(lambda: members.have(1, 2), "both to have their share", 60)
    fill(cluster, topic, 3, range(COUNT))
    got = take(members.all, 3 * COUNT)
    # The coordinator is the leader of the group's partition of __consumer_offsets.
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    described = admin.describe_consumer_groups([group])[group].result(30)
    assert len(described.members) == 2
    coordinator = described.coordinator.id
    cluster.local.kill_broker(coordinator)
    try:
        # The members have to find the new coordinator, and the topic's partitions need new leaders.
        fill(cluster, topic, 3, range(COUNT, COUNT + 50))
        more = take(members.all, 150, beside=got)
        assert len(set(more) - set(got)) == 150
        for member in members.all:
            member.commit(asynchronous=False)
    finally:
        cluster.local.start_broker(coordinator)
    # The commits after the failover are found by the restarted cluster.
    places = [TopicPartition(topic, partition) for partition in range(3)]
    kept = committed(members.all[0], places)
    assert [item.offset for item in kept] == [COUNT + 50] * 3


@pytest.mark.full
@pytest.mark.java
@pytest.mark.slow
def test_java_consumer_and_group_tools(cluster: RunningCluster, group: str) -> None:
    jars = kafka_jars()
    topic = filled(cluster, partitions=2)
    server = ("--bootstrap-server", cluster.bootstrap)
    command = read_by_java(
        jars, cluster, topic, group, "--command-property", "group.protocol=consumer"
    )
    # "uniform" is the default server-side assignor of Kafka 4.
    state = java(jars, command, *server, "--describe", "--group", group, "--state")
    assert "Empty" in state
    assert "uniform" in state
    listed = java(jars, command, *server, "--list", "--type", "consumer")
    assert group in listed.split()
    # Group configuration exists for the consumer protocol only (KIP-848).
    of_group = (*server, "--entity-type", "groups", "--entity-name", group)
    longer = ("--alter", "--add-config", "consumer.session.timeout.ms=50000")
    java(jars, "kafka.admin.ConfigCommand", *of_group, *longer)
    said = java(jars, "kafka.admin.ConfigCommand", *of_group, "--describe")
    assert "consumer.session.timeout.ms=50000" in said
    java(jars, command, *server, "--delete", "--group", group)
    assert group not in java(jars, command, *server, "--list").split()
