"""A lost cluster's topics are restored from the tier alone: brokers' disks and etcd are lost."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from e2e.commands import TIDEMARK, run
from tests.conformance.local_cluster import RunningCluster, run_cluster, wait
from tests.table_jars import MavenMissing, jars
from tidemark.ids import parse_id
from tidemark.kafka_client.access import KafkaAccess
from tidemark.kafka_client.blocking_client import BlockingKafkaClient
from tidemark.tier.metadata.manifest import ManifestStore
from tidemark.tier.stores.directory import DirectoryStore
from tidemark_operator.resources.topic_config import TYPED
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.java import JavaMissing, find_java

TIERED = {"enabled": True, "localRetention": {"size": "1Mi"}}
CONFIG = {"segment.bytes": "1048576", "retention.ms": "-1"}
PARTITIONS = 2
RECORDS = 4000


def produce(cluster: RunningCluster, topic: str, first: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    for number in range(first, first + RECORDS):
        producer.produce(topic, b"%08d" % number + bytes(1000), partition=number % PARTITIONS)
        producer.poll(0)
    assert producer.flush(60) == 0


def consume(cluster: RunningCluster, topic: str, ends: dict[int, int]) -> dict[int, list[int]]:
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
def test_topic_is_restored_from_the_tier_alone(tmp_path: Path) -> None:
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
        assert "already exists; left unchanged" in run(folder, "restore", "--from-cluster", old_id)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(1800)
def test_export_continues_correctly_after_a_restore(
    tmp_path: Path,
) -> None:
    """The table has the local tail that was lost with the brokers. Before the log has reached the
    table's offset again, and when it is behind it, the export is refused, and nothing is deleted;
    the new table that the message names gets every record. A client's committed epoch shows where
    the log parted, too (KIP-320)."""
    try:
        find_java()
        jar = jars(Format.ICEBERG)[0]
    except (JavaMissing, MavenMissing) as error:
        pytest.skip(str(error))

    def export(folder: Path, table: str) -> tuple[int, str]:
        done = subprocess.run(
            [
                *(*TIDEMARK, "spark", "export", topic, "--table", table, "--jar", str(jar)),
                *("--warehouse", str(tmp_path / "lake"), "--delete-after-commit"),
                *("--conf", "spark.driver.memory=512m", "--log", str(tmp_path / "spark.log")),
            ],
            env={**os.environ, "TIDEMARK_DIR": str(folder), "COLUMNS": "400"},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    with run_cluster(tmp_path / "old", brokers=1) as old:
        topic = old.new_topic(
            partitions=PARTITIONS, replicationFactor=1, config=CONFIG, tiering=TIERED
        )
        topic_id = old.view(topic).status["topicId"]
        produce(old, topic, 0)
        wait(lambda: all(copied(old.tier_folder, topic_id)), "both partitions in the tier")
        old_id = old.kube.get("Cluster", "tidemark")["status"]["clusterId"]  # type: ignore[index]
        wait(lambda: any((old.tier_folder / "topics").glob("*.json")), "the topic object")
        # As a broker that is lost leaves it: the tail is exported, and its deletion is not copied.
        lost = shutil.copytree(old.tier_folder, tmp_path / "tier when the brokers were lost")
        code, said = export(tmp_path / "old", "db.before")
        assert code == 0, said
    folder = tmp_path / "new"
    folder.mkdir()
    lost.rename(folder / "tier")
    shutil.rmtree(tmp_path / "old")

    with run_cluster(folder, brokers=1) as new:
        ends = ends_shown(run(folder, "restore", "--from-cluster", old_id, "--dry-run"))
        assert all(0 < end < RECORDS // PARTITIONS for end in ends.values())
        run(folder, "restore", "--from-cluster", old_id)
        wait(
            lambda: (
                bool(new.kube.objects("Topic"))
                and new.view(topic).condition("Ready").get("status") == "True"
            ),
            "the topic to be Ready",
            120.0,
        )
        for first in (RECORDS, 2 * RECORDS):
            code, said = export(folder, "db.before")
            assert code == 1, said
            assert f"the log has lost the records from offset {ends[0]} up to" in said
            assert "Export into a new table" in said
            produce(new, topic, first)
        full = {part: end + 2 * RECORDS // PARTITIONS for part, end in ends.items()}
        consume(new, topic, full)  # from offset 0: nothing was deleted
        with BlockingKafkaClient(KafkaAccess((new.bootstrap,))) as brokers:
            found = brokers.epoch_ends(topic, dict.fromkeys(ends, 2**20))
        assert {part: end.offset for part, end in found.items()} == ends
        code, said = export(folder, "db.after")
        assert code == 0, said
        assert f"{sum(full.values()):,} rows" in said
        assert f"{sum(full.values()):,} deleted from the topic" in said


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
    """Return the end offsets that ``--dry-run`` would restore."""
    found = {}
    for line in shown.splitlines():
        words = line.split()
        if words[:1] == ["partition"]:
            found[int(words[1].rstrip(":"))] = int(words[5].rstrip(","))
    return found
