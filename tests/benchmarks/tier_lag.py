"""``make bench-tier-lag``: seconds from the acknowledgement of a record until it is in the tier.

Two topics on three brokers have the maximum lag ``--lag-s``. Each partition of the idle one
receives a record from time to time. The other one is written to at a constant rate. A probe is a
record (idle), or the end of the log at one look (load). It is in the tier once the tier's end, as
ListOffsets reports it, has passed it. Printed are the distribution of each, and the segments and
the PUT requests that they took, those of merges included. The exit status is an error if p99
exceeds the maximum lag.
"""

import argparse
import math
import random
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Producer

from tests.benchmarks.results import Results, one_line
from tests.benchmarks.sides import OURS
from tests.conformance.local_cluster import RunningCluster, run_cluster
from tidemark.ids import parse_id
from tidemark.kafka_client.access import KafkaAccess
from tidemark.kafka_client.blocking_client import BlockingKafkaClient
from tidemark.kafka_client.values import LATEST, LATEST_TIERED
from tidemark.tier.open import open_tier
from tidemark_devcluster.tier import storage

_BROKERS = 3
_IDLE_PARTITIONS, _LOADED_PARTITIONS = 40, 1
_VALUE = random.Random(1).randbytes(8192)
_POLL_S = 0.05
#: Minimum duration of the load, in maximum lags, so that the figures are those of a steady load.
_LOADED_LAGS = 8
_PART_BYTES = 8 << 20
#: Requests of a segment of 1 GiB: its parts, begin and end of the upload, the auxiliary object, and
#: two commits.
_PUTS_OF_GIB = 128 + 5
#: Pause between two listings of the tier. Replaced segments stay for ``remote.delete.delay.ms``.
_LIST_S = 5.0
_P99 = "p99 s"


@dataclass(slots=True)
class LagProbes:
    """Probes of one topic. Offsets are exclusive, times are of :func:`time.monotonic`."""

    topic: str
    partitions: int
    waiting: dict[int, deque[tuple[float, int]]] = field(init=False)
    seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.waiting = {partition: deque() for partition in range(self.partitions)}

    def add(self, partition: int, offset: int, at_s: float) -> None:
        """Add a probe: everything below ``offset`` is acknowledged at ``at_s``."""
        self.waiting[partition].append((at_s, offset))

    def look(self, client: BlockingKafkaClient) -> None:
        """Finish the probes that are in the tier now."""
        ends = client.list_offsets(self.topic, dict.fromkeys(self.waiting, LATEST_TIERED))
        now_s = time.monotonic()
        for partition, probes in self.waiting.items():
            while probes and probes[0][1] <= ends[partition] + 1:
                self.seconds.append(now_s - probes.popleft()[0])


def probe_idle(probes: LagProbes, bootstrap: str, number: int, lag_s: float) -> None:
    """Write single records to each partition, further apart than the maximum lag."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    acknowledged: deque[tuple[int, int, float]] = deque()

    def delivered(error: object, message: object) -> None:
        assert error is None, error
        place = (message.partition(), message.offset() + 1)  # type: ignore[attr-defined]
        acknowledged.append((*place, time.monotonic()))

    # A random time for each record, so that copies do not come in waves.
    period_s, now_s = 1.5 * lag_s, time.monotonic()
    due = {part: now_s + random.uniform(0, period_s) for part in probes.waiting}
    sent = 0
    with BlockingKafkaClient(KafkaAccess(tuple(bootstrap.split(",")))) as client:
        while len(probes.seconds) < number:
            now_s = time.monotonic()
            for partition, due_s in due.items():
                if now_s >= due_s and sent < number:
                    producer.produce(
                        probes.topic, _VALUE, partition=partition, on_delivery=delivered
                    )
                    due[partition], sent = now_s + random.uniform(lag_s, 2 * lag_s), sent + 1
            producer.poll(0)
            while acknowledged:
                probes.add(*acknowledged.popleft())
            probes.look(client)
            time.sleep(_POLL_S)


def probe_load(
    probes: LagProbes, bootstrap: str, number: int, bytes_per_s: float, lag_s: float
) -> None:
    """Write at a constant rate to all partitions; each look at a log end is a probe."""
    stopping = threading.Event()
    writer = threading.Thread(target=_write, args=(probes, bootstrap, bytes_per_s, stopping))
    writer.start()
    try:
        with BlockingKafkaClient(KafkaAccess(tuple(bootstrap.split(",")))) as client:
            known = dict.fromkeys(probes.waiting, 0)
            looked_s = time.monotonic()
            end_s = looked_s + _LOADED_LAGS * lag_s
            while len(probes.seconds) < number or looked_s < end_s:
                before_s, looked_s = looked_s, time.monotonic()
                ends = client.list_offsets(probes.topic, dict.fromkeys(known, LATEST))
                for partition, end in ends.items():
                    # New records were acknowledged after the look before this one.
                    if end > known[partition]:
                        probes.add(partition, end, before_s)
                        known[partition] = end
                probes.look(client)
                time.sleep(_POLL_S)
    finally:
        stopping.set()
        writer.join()


def _write(
    probes: LagProbes, bootstrap: str, bytes_per_s: float, stopping: threading.Event
) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5})
    began_s, sent = time.monotonic(), 0
    while not stopping.wait(0.01):
        while sent * len(_VALUE) < (time.monotonic() - began_s) * bytes_per_s:
            producer.produce(probes.topic, _VALUE, partition=sent % probes.partitions)
            sent += 1
            producer.poll(0)
    producer.flush()


def _puts(log_bytes: int) -> int:
    """Return the PUT requests of a segment: its upload, the auxiliary object, and two commits."""
    parts = math.ceil(log_bytes / _PART_BYTES) + 2 if log_bytes >= _PART_BYTES else 1
    return parts + 3


class WrittenLogs:
    """Log objects that a topic gets in the tier, also those that merges replace meanwhile."""

    def __init__(self, cluster: RunningCluster, topic: str) -> None:
        status = (cluster.kube.get("Topic", topic) or {})["status"]
        self._topic, self._topic_id = topic, parse_id(status["topicId"])
        self._tier = open_tier(storage(cluster.local))
        self._sizes: dict[str, int] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(_LIST_S):
            self._list()

    def _list(self) -> None:
        for found in self._tier.segments.list_topic(self._topic, self._topic_id):
            if found.key.endswith(".log"):
                self._sizes[found.key] = found.size_bytes

    def end(self) -> Sequence[int]:
        """Return the size of each of them."""
        self._stopping.set()
        self._thread.join()
        self._list()
        return tuple(self._sizes.values())

    def records_bytes(self, partitions: int) -> int:
        """Return the bytes of the live segments, which have each record once."""
        snapshots = (self._tier.reader.snapshot(self._topic_id, n) for n in range(partitions))
        return sum(entry.size_bytes for found in snapshots for entry in found.live_segments())


def _measured(
    cluster: RunningCluster, probes: LagProbes, work: Callable[[], None]
) -> dict[str, float]:
    """Run ``work`` and return figures about its probes."""
    written, began_s = WrittenLogs(cluster, probes.topic), time.monotonic()
    try:
        work()
    finally:
        sizes = written.end()
    hours = (time.monotonic() - began_s) / 3600
    # The sizes of the objects determine the requests.
    puts = sum(map(_puts, sizes))
    of_gib = puts / written.records_bytes(probes.partitions) * 2**30
    seconds = sorted(probes.seconds)
    return {
        **{f"p{n} s": seconds[math.ceil(len(seconds) * n / 100) - 1] for n in (50, 90, 99)},
        "longest s": seconds[-1],
        "probes": len(seconds),
        "segments/h": len(sizes) / hours / probes.partitions,
        "PUTs/h": puts / hours / probes.partitions,
        "PUTs/GiB": of_gib,
        "times the PUTs of segments of 1 GiB": of_gib / _PUTS_OF_GIB,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-tier-lag", description=__doc__)
    parser.add_argument("--lag-s", type=int, default=10, help="maximum lag in seconds")
    parser.add_argument("--probes", type=int, default=1000, help="of each topic")
    parser.add_argument("--rate", type=float, default=10.0, help="MB/s under load")
    parser.add_argument("--tier", default="directory", choices=("directory", "s3"))
    options = parser.parse_args()
    tiering = {
        "enabled": True,
        "localRetention": {"time": "10m"},
        "maxLag": {"time": f"{options.lag_s}s"},
    }
    config = {"retention.ms": "3600000"}
    results = Results(
        benchmark="tier-lag", rounds=1, setting={"lag s": options.lag_s, "brokers": _BROKERS}
    )
    # One cluster for both topics, one after the other: the load must not delay the idle topic.
    with (
        tempfile.TemporaryDirectory(prefix="tidemark-bench-") as folder,
        run_cluster(Path(folder) / "cluster", brokers=_BROKERS, tier=options.tier) as cluster,
    ):
        idle, loaded = (
            LagProbes(
                cluster.new_topic(
                    partitions=partitions, replicationFactor=3, config=config, tiering=tiering
                ),
                partitions,
            )
            for partitions in (_IDLE_PARTITIONS, _LOADED_PARTITIONS)
        )
        bootstrap, number, rate = cluster.bootstrap, options.probes, options.rate * 1e6
        late = []
        # Each line is printed as soon as it is known.
        for what, probes, work in (
            (
                f"idle, {_IDLE_PARTITIONS} partitions",
                idle,
                lambda: probe_idle(idle, bootstrap, number, options.lag_s),
            ),
            (
                f"load of {options.rate:g} MB/s",
                loaded,
                lambda: probe_load(loaded, bootstrap, number, rate, options.lag_s),
            ),
        ):
            figures = _measured(cluster, probes, work)
            print(f"{what}  {one_line(figures)}", flush=True)
            results.add(what, OURS, 1, figures)
            if figures[_P99] > options.lag_s:
                late.append(what)
    results.write()
    # The command fails if the promise of the maximum lag does not hold.
    if late:
        raise SystemExit(f"p99 exceeds the maximum lag of {options.lag_s} s: {', '.join(late)}")


if __name__ == "__main__":
    main()
