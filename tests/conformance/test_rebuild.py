"""The API's data is lost, or comes back old, under a stock client: no acknowledged record is lost,
and no replica is deleted."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from local_cluster import RunningCluster, wait
from steady_writer import PARTITIONS, AcknowledgedWriter, read

from tidemark.annotations import ADOPT_TOPIC_ID
from tidemark.leader_epochs import GENERATION
from tidemark_devcluster import processes

pytestmark = [pytest.mark.slow, pytest.mark.full]

#: The API's versions go back this far: watches that continue at their old version receive nothing.
VERSIONS = 600
SPEC = {"partitions": PARTITIONS, "config": {"min.insync.replicas": "2"}}


def _leader_moves(cluster: RunningCluster, topic: str, writer: AcknowledgedWriter) -> None:
    """To another broker and perhaps back: what was decided before is old."""
    before = cluster.view(topic).rows[0]
    cluster.local.kill_broker(before.leader)
    try:
        _until(
            lambda: cluster.view(topic).rows[0].leader not in (-1, before.leader),
            "another to lead",
            writer,
        )
    finally:
        cluster.local.start_broker(before.leader)
    _until(lambda: _all_in_sync(cluster, topic), "all to be in sync", writer)


def _all_in_sync(cluster: RunningCluster, topic: str) -> bool:
    rows = cluster.view(topic).rows
    return len(rows) == PARTITIONS and all(len(row.isr) == len(row.replicas) for row in rows)


def _until(holds: Callable[[], bool], what: str, writer: AcknowledgedWriter) -> None:
    """Wait, and continue writing."""

    def look() -> bool:
        writer.write(5)
        return holds()

    wait(look, what, 120)


def _replicas(cluster: RunningCluster, topic: str) -> list[Path]:
    """The folders of a topic's replicas, of all brokers that have one: other tests add brokers."""
    return [
        next(cluster.local.layout.broker_data(node_id).glob(f"**/{topic}-{row.partition}"))
        for row in cluster.view(topic).rows
        for node_id in row.replicas
    ]


@contextmanager
def _without(cluster: RunningCluster, name: str, start: Callable[[], None]) -> Iterator[None]:
    """A process of the cluster is killed, and started again afterwards."""
    record = processes.find(cluster.local.layout, name)
    assert record is not None
    processes.kill(cluster.local.layout, record)
    # The block runs while the process is down.
    try:
        yield
    finally:
        start()


def _rebuilt(cluster: RunningCluster) -> bool:
    """Nothing of it is left to do."""
    body = cluster.kube.get("Cluster", cluster.local.settings.cluster)
    assert body is not None
    return "rebuilding" not in body["status"]


def _is_rebuilt(cluster: RunningCluster, topic: str) -> bool:
    view = cluster.view(topic)
    # Leaders no longer move, because a stock client does not retry its request for end offsets.
    # GENERATION marks leader epochs of a rebuild, which are above every earlier one.
    raised = all(row.leader_epoch >= GENERATION and row.leader == row.hosts[0] for row in view.rows)
    ready = view.condition("Ready").get("status") == "True"
    return raised and ready and _all_in_sync(cluster, topic) and _rebuilt(cluster)


def _check(
    cluster: RunningCluster, topic: str, writer: AcknowledgedWriter, folders: list[Path]
) -> None:
    writer.flush()
    # Reading from a leader that has not applied its epoch would fail the stock client.
    cluster.wait_for_leaders(topic)
    assert not writer.refused
    found = read(cluster, topic)
    assert [value for value, count in Counter(found).items() if count > 1] == [], "nothing twice"
    assert set(found) == writer.acknowledged
    assert all(folder.is_dir() for folder in folders), "no replica is deleted"


def _remove(cluster: RunningCluster, kind: str, body: dict[str, Any]) -> None:
    """Remove an object by force, without finalizers or cleanup."""
    name = body["metadata"]["name"]
    path = cluster.kube._path(kind, name)
    patch = {"metadata": {"finalizers": None}}
    # A merge patch removes the finalizers, so the operator has no chance to clean up.
    cluster.kube.merge_patch(path, patch)
    cluster.kube.delete(kind, name)


@contextmanager
def _operator(cluster: RunningCluster, *, runs: bool) -> Iterator[None]:
    """Return the operator. One that survives has the same process afterwards."""
    if not runs:
        with _without(cluster, "operator", cluster.local.start_operator):
            yield
        return
    before = processes.find(cluster.local.layout, "operator")
    yield
    after = processes.find(cluster.local.layout, "operator")
    assert before is not None
    assert after is not None
    assert after.pid == before.pid


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param(False, id="operator stopped", marks=pytest.mark.long),
        pytest.param(True, id="operator running"),
    ],
)
def test_old_api_data_is_updated_to_what_brokers_received(
    cluster: RunningCluster, runs: bool
) -> None:
    """etcd is put back to what it held before leaders moved."""
    topic = cluster.new_topic(**SPEC)
    writer = AcknowledgedWriter(cluster, topic)
    folder, local = cluster.local.layout.control_plane, cluster.local
    copy = folder.with_name("control-plane-before")
    _until(lambda: len(writer.acknowledged) > 100, "a beginning", writer)
    # etcd's files are consistent only while it does not run.
    with _without(cluster, "control-plane", local.start_control_plane):
        shutil.copytree(folder / "etcd", copy)
    wait(lambda: _answers(cluster), "the API server to answer")
    # The copy is older than these leader epochs, which brokers have received and persisted.
    _leader_moves(cluster, topic, writer)
    # Push the resource versions ahead, so that watches cannot continue in the old etcd unnoticed.
    for number in range(VERSIONS):
        cluster.kube.apply_secret("others", {"number": str(number)})
    ahead = max(row.leader_epoch for row in cluster.view(topic).rows)
    folders = _replicas(cluster, topic)
    # etcd goes back in time while the producer writes and, in one case, the operator runs.
    with (
        _operator(cluster, runs=runs),
        _without(cluster, "control-plane", local.start_control_plane),
    ):
        shutil.rmtree(folder / "etcd")
        shutil.move(copy, folder / "etcd")
        writer.write(50)
    wait(lambda: _answers(cluster), "the API server to answer")
    _until(lambda: _is_rebuilt(cluster, topic), f"{topic} to be rebuilt", writer)
    # Every epoch is above the one that brokers had seen, or they would refuse the leaders.
    assert all(row.leader_epoch > ahead for row in cluster.view(topic).rows)
    _check(cluster, topic, writer, folders)
    _is_heard(cluster, topic)


@pytest.mark.long
def test_etcd_put_back_while_a_broker_is_down_hides_nothing(cluster: RunningCluster) -> None:
    """The topic has grown since the backup. New clients see every partition, the group its offsets,
    and what the two others prove is served before the third broker is back."""
    topic, group = cluster.new_topic(**SPEC), "restored"
    writer = AcknowledgedWriter(cluster, topic)
    # The backup is taken here: the topic has PARTITIONS partitions and committed offsets.
    folder, local = cluster.local.layout.control_plane, cluster.local
    copy = folder.with_name("control-plane-before")
    _until(lambda: len(writer.acknowledged) > 100, "a beginning", writer)
    writer.flush()
    committed = _commit(cluster, topic, group)
    with _without(cluster, "control-plane", local.start_control_plane):
        shutil.copytree(folder / "etcd", copy)
    wait(lambda: _answers(cluster), "the API server to answer")
    body = cluster.kube.get("Topic", topic)
    assert body is not None
    # The topic grows after the backup, so the restored API does not have two of its partitions.
    count = PARTITIONS + 2
    cluster.kube.apply("Topic", topic, body["spec"] | {"partitions": count})
    _until(lambda: len(cluster.view(topic).rows) == count, f"{topic} to grow", writer)
    cluster.wait_for_leaders(topic)
    folders = _replicas(cluster, topic)
    # A broker dies before the restore. What it knows is not available to the rebuild.
    down = cluster.view(topic).rows[0].leader
    local.kill_broker(down)
    try:
        with _without(cluster, "control-plane", local.start_control_plane):
            shutil.rmtree(folder / "etcd")
            shutil.move(copy, folder / "etcd")
            writer.write(50)
        wait(lambda: _answers(cluster), "the API server to answer")

        # Each partition has a replica on the two other brokers, which proves what the API no longer
        # contains.
        def is_served() -> bool:
            topics = _shown(cluster)
            assert len(topics[topic]) == count
            assert len(topics["__consumer_offsets"]) == 50
            leaders = {part.leader for name in topics for part in topics[name].values()}
            return leaders.isdisjoint({-1, down}) and _rebuilt_rows(cluster, topic, count)

        _until(is_served, f"{topic} to be served without broker {down}", writer)
        assert _committed(cluster, topic, group) == committed
        # The restored spec asserts fewer partitions than exist. A person must raise it.
        stalled = cluster.view(topic).condition("Stalled")
        assert stalled.get("reason") == "PartitionsBeyondSpec", stalled
        cluster.kube.apply("Topic", topic, body["spec"] | {"partitions": count})
        writer.flush()
    finally:
        # The third broker reports, and the rebuild has nothing more to wait for.
        local.start_broker(down)
    _until(lambda: _rebuilt(cluster), "the rebuilding to end", writer)
    _check(cluster, topic, writer, folders)


def _rebuilt_rows(cluster: RunningCluster, topic: str, count: int) -> bool:
    rows = cluster.view(topic).rows
    return len(rows) == count and all(row.leader_epoch >= GENERATION for row in rows)


def _shown(cluster: RunningCluster) -> dict[str, Any]:
    """Return the partitions of every topic as a new client sees them."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 1})
    found = admin.list_topics(timeout=30).topics
    return {name: known.partitions for name, known in found.items()}


def _group(cluster: RunningCluster, group: str) -> Consumer:
    return Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": group, "enable.auto.commit": False}
    )


def _commit(cluster: RunningCluster, topic: str, group: str) -> dict[int, int]:
    """Commit offsets of a group, by partition."""
    consumer = _group(cluster, group)
    offsets = [TopicPartition(topic, number, 10 + number) for number in range(PARTITIONS)]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()
    return {offset.partition: offset.offset for offset in offsets}


def _committed(cluster: RunningCluster, topic: str, group: str) -> dict[int, int]:
    consumer = _group(cluster, group)
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    found = consumer.committed(places, timeout=60)
    consumer.close()
    return {item.partition: item.offset for item in found}


def _is_heard(cluster: RunningCluster, topic: str) -> None:
    """Check that later changes of users reach the operator, through each of its watches."""
    for kind, name in (("Topic", topic), ("Cluster", cluster.local.settings.cluster)):
        # A change of the spec has an effect only if the operator's watch of this kind is alive.
        body = cluster.kube.get(kind, name)
        assert body is not None
        spec = {"config": {**body["spec"].get("config", {}), "min.insync.replicas": "1"}}
        cluster.kube.apply(kind, name, body["spec"] | spec)
        wait(lambda: _is_observed(cluster, kind, name), f"{kind} {name} to be observed", 30)  # noqa: B023
    cluster.kube.apply(kind, name, body["spec"])


def _is_observed(cluster: RunningCluster, kind: str, name: str) -> bool:
    body = cluster.kube.get(kind, name)
    assert body is not None
    return bool(body["status"]["observedGeneration"] == body["metadata"]["generation"])


def _answers(cluster: RunningCluster) -> bool:
    try:
        return cluster.kube.get("Cluster", cluster.local.settings.cluster) is not None
    except Exception:  # noqa: BLE001 - it is tried again
        return False


def test_erased_topics_and_slices_are_recreated(cluster: RunningCluster) -> None:
    """All slices are removed, and the Topic is applied again, with another uid and no status."""
    topic = cluster.new_topic(**SPEC)
    writer = AcknowledgedWriter(cluster, topic)
    _until(lambda: len(writer.acknowledged) > 100, "a beginning", writer)
    body = cluster.kube.get("Topic", topic)
    assert body is not None
    topic_id, folders = body["status"]["topicId"], _replicas(cluster, topic)
    # The operator is down while the objects disappear, so no finalizer and no watch sees it.
    with _without(cluster, "operator", cluster.local.start_operator):
        for object_ in cluster.kube.objects("PartitionSlice"):
            _remove(cluster, "PartitionSlice", object_)
        _remove(cluster, "Topic", body)
        cluster.kube.apply("Topic", topic, body["spec"])
        writer.write(50)

    # A Topic with a new uid must not take over data by its name alone: a person names the id.
    def waits() -> bool:
        ready = cluster.view(topic).condition("Ready")
        return ready.get("reason") == "AdoptionRequired" and topic_id in ready["message"]

    _until(waits, "the Topic to wait for its adoption", writer)
    # With the annotation the operator adopts the replicas that brokers still have.
    cluster.kube.apply("Topic", topic, body["spec"], annotations={ADOPT_TOPIC_ID: topic_id})
    _until(lambda: _is_rebuilt(cluster, topic), f"{topic} to be rebuilt", writer)
    _check(cluster, topic, writer, folders)
