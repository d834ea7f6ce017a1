"""A lost cluster's topics come back from the tier alone: brokers' disks and etcd are gone."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from e2e.commands import TIDEMARK, run
from tests.conformance.local_cluster import Cluster, run_cluster, wait
from tidemark.ids import parse_id
from tidemark.tier.directory import DirectoryStore
from tidemark.tier.manifest import ManifestStore
from tidemark_operator.resources.topic_config import TYPED

TIERED = {"enabled": True, "localRetention": {"size": "1Mi"}}
CONFIG = {"segment.bytes": "1048576", "retention.ms": "-1"}
PARTITIONS = 2
RECORDS = 4000


def produce(cluster: Cluster, topic: str, first: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    for number in range(first, first + RECORDS):
        producer.produce(topic, b"%08d" % number + bytes(1000), partition=number % PARTITIONS)
        producer.poll(0)
    assert producer.flush(60) == 0


def consume(cluster: Cluster, topic: str, ends: dict[int, int]) -> dict[int, list[int]]:
    """The numbers in the values, by partition, up to where each ends."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "r", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, part, 0) for part in ends])
    found: dict[int, list[int]] = {part: [] for part in ends}

    def complete() -> bool:
        for message in consumer.consume(500, 0.5):
            assert message.error() is None, message.error()
            assert message.offset() == len(found[message.partition()])
            found[message.partition()].append(int(message.value()[:8]))
        return all(len(found[part]) >= end for part, end in ends.items())

    wait(complete, f"all of {ends}", 90.0)
    consumer.close()
    return found


@pytest.mark.long
@pytest.mark.slow
def test_a_topic_comes_back_from_the_tier_alone(tmp_path: Path) -> None:
    with run_cluster(tmp_path / "old", brokers=2) as old:
        topic = old.new_topic(
            partitions=PARTITIONS, replicationFactor=2, config=CONFIG, tiering=TIERED
        )
        topic_id = old.view(topic).status["topicId"]
        produce(old, topic, 0)
        wait(lambda: all(copied(old.tier_folder, topic_id)), "both partitions in the tier")
        old_id = old.kube.get("Cluster", "tidemark")["status"]["clusterId"]  # type: ignore[index]
        wait(lambda: any((old.tier_folder / "topics").glob("*.json")), "the topic object")
    folder = tmp_path / "new"
    folder.mkdir()
    (tmp_path / "old" / "tier").rename(folder / "tier")
    shutil.rmtree(tmp_path / "old")

    with run_cluster(folder, brokers=2) as new:
        refused = run_refused(folder, "restore")
        assert f"--from-cluster {old_id}" in refused
        shown = run(folder, "restore", "--from-cluster", old_id, "--dry-run")
        assert f"{topic} (id {topic_id}): 2 partitions, 2 replicas, tiering Enabled" in shown
        ends = ends_shown(shown)
        assert sum(ends.values()) > 1000
        assert new.kube.objects("Topic") == []
        run(folder, "restore", "--from-cluster", old_id)
        wait(
            lambda: (
                bool(new.kube.objects("Topic"))
                and new.view(topic).condition("Ready").get("status") == "True"
            ),
            "the topic to be Ready",
            120.0,
        )
        spec = new.kube.objects("Topic")[0]["spec"]
        assert new.view(topic).status["topicId"] == topic_id
        assert spec["tiering"] == {"enabled": True, "localRetention": {"size": "1048576"}}
        assert spec["config"].items() >= CONFIG.items()
        assert not TYPED & set(spec["config"])
        found = consume(new, topic, ends)
        for partition, numbers in found.items():
            expected = list(range(partition, RECORDS, PARTITIONS))[: ends[partition]]
            assert numbers == expected
        # A new producer's id is none that the tier knows: its first records are no duplicates.
        produce(new, topic, RECORDS)
        full = {part: end + RECORDS // PARTITIONS for part, end in ends.items()}
        again = consume(new, topic, full)
        for partition, numbers in again.items():
            mine = numbers[ends[partition] :]
            assert mine == list(range(RECORDS + partition, 2 * RECORDS, PARTITIONS))
        # Once more changes nothing.
        assert "is there already" in run(folder, "restore", "--from-cluster", old_id)


def copied(tier_folder: Path, topic_id: str) -> list[bool]:
    """Whether each partition has a segment in the tier."""
    manifests = ManifestStore(DirectoryStore(tier_folder))
    found = parse_id(topic_id)
    numbers = manifests.partitions(found)
    ends = [manifests.load(found, number).head.highest_remote_offset for number in numbers]
    return [end >= 0 for end in ends] if len(ends) == PARTITIONS else [False]


def run_refused(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [*TIDEMARK, *arguments],
        env={**os.environ, "TIDEMARK_DIR": str(folder), "COLUMNS": "400"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stderr


def ends_shown(shown: str) -> dict[int, int]:
    """What ``--dry-run`` says that comes back."""
    found = {}
    for line in shown.splitlines():
        words = line.split()
        if words[:1] == ["partition"]:
            found[int(words[1].rstrip(":"))] = int(words[5].rstrip(","))
    return found
