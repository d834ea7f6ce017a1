"""Apache Kafka's own programs as the judge: our files are dumped by its DumpLogSegments, and its
Java clients produce to, read from and delete from our brokers.
"""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from confluent_kafka import Producer
from local_cluster import RunningCluster, wait

from tests.kafka_programs import java, kafka_jars
from tests.unit.log.conftest import LogBench
from tests.unit.log.test_producers_of_a_log import finish
from tests.unit.log.test_producers_of_a_log import produce as produce_in
from tidemark_broker.log import flushing

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.full]

SMALL_SEGMENTS = {"segment.bytes": str(1024 * 1024), "index.interval.bytes": "1024"}
RECORD = re.compile(r"^\| offset: (\d+) ", re.MULTILINE)
#: What DumpLogSegments says of damage, in any of its checks.
TROUBLE = re.compile(
    r"isvalid: false|mismatch|non-consecutive|Found .*error|invalid", re.IGNORECASE
)


@pytest.fixture(scope="module")
def jars() -> Path:
    return kafka_jars()


def dump(jars: Path, files: list[Path]) -> str:
    names = ",".join(str(file) for file in sorted(files))
    return java(
        jars, "org.apache.kafka.tools.DumpLogSegments", "--files", names, "--deep-iteration"
    )


def produce(cluster: RunningCluster, topic: str, codec: str, count: int) -> None:
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "acks": "all",
            "compression.type": codec,
            "batch.num.messages": 20,
            "linger.ms": 2,
        }
    )
    for number in range(count):
        producer.produce(
            topic, key=f"{codec} {number}", value=os.urandom(number * 8 % 4000), partition=0
        )
    assert producer.flush(60) == 0


@pytest.mark.parametrize("crash", [False, True], ids=["as written", "as recovered"])
def test_kafka_finds_our_log_files_valid(cluster: RunningCluster, jars: Path, crash: bool) -> None:
    topic = cluster.new_topic(config=SMALL_SEGMENTS)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        produce(cluster, topic, codec, 500)
    leader = cluster.view(topic).rows[0].leader
    # After a kill the broker recovers the log: it truncates the active segment and rebuilds
    # indexes.
    if crash:
        cluster.local.kill_broker(leader)
        cluster.local.start_broker(leader)
        wait(lambda: len(cluster.view(topic).rows[0].isr) == 3, "the ISR to be whole")
    folder = cluster.log_folder(leader, topic)
    files = [*folder.glob("*.log"), *folder.glob("*.index"), *folder.glob("*.timeindex")]
    # More than one segment, so closed segments and the active one are read.
    assert len(list(folder.glob("*.log"))) > 1
    text = dump(jars, files)
    assert not TROUBLE.findall(text), text
    assert sorted(map(int, RECORD.findall(text))) == list(range(2500))


def test_kafka_reads_producer_snapshots_and_transaction_index(jars: Path, tmp_path: Path) -> None:
    bench = LogBench(tmp_path / "t-0")
    log = bench.create()
    # Producer 7 writes three records, producer 8 two, then producer 7 aborts: the transaction index
    # gets an entry, the snapshot gets both producers.
    produce_in(log, 7, 0, 3, transactional=True)
    produce_in(log, 8, 0, 2)
    finish(log, 7, commit=False)
    bench.fill(log, [1])
    log.advance_high_watermark(log.next_offset)  # or there is a marker that may yet go
    flushing.close(log)
    folder = bench.directory
    text = dump(
        jars, [*folder.glob("*.log"), *folder.glob("*.txnindex"), *folder.glob("*.snapshot")]
    )
    assert not TROUBLE.findall(text), text
    assert "endTxnMarker: ABORT" in text
    # Offsets 0 to 5: three records of producer 7, two of producer 8, and the marker.
    assert re.search(r"producerId: 7 firstOffset: 0 lastOffset: 5 lastStableOffset: 6", text), text
    assert re.search(r"producerId: 8 producerEpoch: 0 .*lastSequence: 1\b", text), text


def test_kafka_finds_the_segments_in_the_tier_valid(
    cluster: RunningCluster, jars: Path, tmp_path: Path
) -> None:
    topic = cluster.new_topic(
        tiering={"enabled": True}, config={**SMALL_SEGMENTS, "retention.ms": "-1"}
    )
    produce(cluster, topic, "lz4", 3000)

    def objects() -> list[Path]:
        return sorted(cluster.tier_folder.glob(f"data/{topic}-*/**/*.log"))

    wait(lambda: len(objects()) > 1, "segments in the tier")
    for copied in objects()[:2]:  # Kafka's program wants the name that the file had in the log
        shutil.copy(copied, tmp_path / f"{copied.name[:20]}.log")
    text = dump(jars, list(tmp_path.glob("*.log")))
    assert not TROUBLE.findall(text), text
    assert len(RECORD.findall(text)) > 100


def test_java_clients_produce_read_and_delete(
    cluster: RunningCluster, jars: Path, tmp_path: Path
) -> None:
    topic = cluster.new_topic()
    server = ("--bootstrap-server", cluster.bootstrap)
    lines = [f"line {number}" for number in range(300)]
    # ConsoleProducer writes, DeleteRecordsCommand moves the log start, GetOffsetShell reads it.
    java(
        jars,
        "org.apache.kafka.tools.ConsoleProducer",
        *server,
        *("--topic", topic, "--command-property", "enable.idempotence=false"),
        stdin="".join(f"{line}\n" for line in lines),
    )
    wanted = tmp_path / "delete.json"
    place = {"topic": topic, "partition": 0, "offset": 123}
    wanted.write_text(json.dumps({"version": 1, "partitions": [place]}))
    said = java(
        jars,
        "org.apache.kafka.tools.DeleteRecordsCommand",
        *server,
        *("--offset-json-file", str(wanted)),
    )
    assert f"{topic}-0\tlow_watermark: 123" in said
    ends = java(
        jars, "org.apache.kafka.tools.GetOffsetShell", *server, "--topic", topic, "--time", "-2"
    )
    assert ends.strip() == f"{topic}:0:123"
    # "earliest" is the new log start, so Java's consumer does not see the first 123 lines.
    text = java(
        jars,
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *server,
        *("--topic", topic, "--partition", "0", "--offset", "earliest"),
        *("--max-messages", str(300 - 123), "--timeout-ms", "30000"),
    )
    assert text.splitlines() == lines[123:]
