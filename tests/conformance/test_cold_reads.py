"""Stock clients read from all replicas what only the tier has, each record once and in order."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice

import pytest
from cold_topics import (
    AVAILABLE,
    BROKERS,
    COLD,
    READERS,
    RECORDS,
    VALUE,
    ConfluentReader,
    cold_topic,
    metric,
    read_bytes,
)
from local_cluster import RunningCluster, wait

from tidemark.configuration.broker_keys import REMOTE_READERS

pytestmark = [pytest.mark.slow, pytest.mark.full]


@pytest.fixture(scope="module")
def topic(cluster: RunningCluster) -> Iterator[str]:
    """A topic of three replicas whose first records are in the tier only."""
    # The setting of the whole cluster is taken back at the end.
    cluster.configure({REMOTE_READERS: "any"})
    yield cold_topic(cluster)
    cluster.configure({REMOTE_READERS: None})


def wait_for_tier(cluster: RunningCluster) -> None:
    """Wait until each broker can read the tier; one that has just started verifies it first."""
    for broker in BROKERS:
        wait(
            lambda broker=broker: metric(cluster, broker, AVAILABLE) == 1,  # type: ignore[misc]
            f"the store of broker {broker}",
        )


@contextmanager
def three_readers(
    cluster: RunningCluster, topic: str, client: str
) -> Iterator[tuple[list[Iterator[int]], dict[int, float]]]:
    """Start three consumers, of which each has its first record from another replica.

    Yield the offsets that each will return next, and the figures of before.
    """
    wait_for_tier(cluster)
    # A broker that has just joined the ISR is not known to the leader as live yet.
    wait(lambda: serving(cluster, topic) == set(BROKERS), "all replicas to serve")
    before = {broker: read_bytes(cluster, broker) for broker in BROKERS}
    readers = [READERS[client](cluster.bootstrap, topic) for _ in BROKERS]
    try:
        offsets = [reader.offsets() for reader in readers]
        assert [next(reader) for reader in offsets] == [0, 0, 0]
        assert all(served(cluster, before).values()), before
        yield offsets, before
    finally:
        for reader in readers:
            reader.close()


def served(cluster: RunningCluster, before: Mapping[int, float]) -> dict[int, float]:
    """Return the bytes that each broker has read from the tier since then."""
    return {broker: read_bytes(cluster, broker) - before[broker] for broker in BROKERS}


def read_on(readers: Sequence[Iterator[int]]) -> None:
    """Read every other record once, in order, with all readers at the same time."""
    with ThreadPoolExecutor(len(readers)) as threads:
        for offsets in threads.map(lambda reader: list(islice(reader, RECORDS - 1)), readers):
            assert offsets == list(range(1, RECORDS))


@pytest.mark.parametrize("client", READERS)
def test_three_consumers_read_cold_records_from_three_replicas(
    cluster: RunningCluster, topic: str, client: str
) -> None:
    with three_readers(cluster, topic, client) as (readers, before):
        read_on(readers)
        # Each broker has served one of them.
        for broker, size in served(cluster, before).items():
            assert COLD * len(VALUE) <= size < 1.5 * RECORDS * len(VALUE), (broker, size)


@pytest.mark.parametrize("client", READERS)
def test_consumers_return_to_the_leader_when_followers_may_not_serve_any_more(
    cluster: RunningCluster, topic: str, client: str
) -> None:
    """Each follower redirects its consumer, which must neither loop, nor skip or repeat records."""
    leader = cluster.view(topic).rows[0].leader
    with three_readers(cluster, topic, client) as (readers, before):
        cluster.configure({REMOTE_READERS: "leader"})
        try:
            # New connections show when the leader stops redirecting.
            wait(lambda: serving(cluster, topic) == {leader}, "brokers to have the setting")
            read_on(readers)
        finally:
            cluster.configure({REMOTE_READERS: "any"})
        for broker, size in served(cluster, before).items():
            if broker != leader:
                assert size < COLD * len(VALUE) / 2, (broker, size)


def serving(cluster: RunningCluster, topic: str) -> set[int]:
    """Return the brokers from which three new consumers read."""
    before = {broker: read_bytes(cluster, broker) for broker in BROKERS}
    for _ in BROKERS:
        reader = ConfluentReader(cluster.bootstrap, topic)
        assert next(reader.offsets()) == 0
        reader.close()
    return {broker for broker, size in served(cluster, before).items() if size}


def test_consumer_continues_when_the_replica_that_serves_it_is_killed(
    cluster: RunningCluster, topic: str
) -> None:
    leader = cluster.view(topic).rows[0].leader
    killed = next(broker for broker in BROKERS if broker != leader)
    with three_readers(cluster, topic, "confluent-kafka") as (readers, _):
        cluster.local.kill_broker(killed)
        try:
            read_on(readers)
        finally:
            cluster.local.start_broker(killed)
    wait(lambda: len(cluster.view(topic).rows[0].isr) == 3, "the killed broker to be in the ISR")
