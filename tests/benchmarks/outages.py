"""Outages that a producer notices while brokers of a real local cluster die and come back.

A stock producer (confluent-kafka, ``acks=all``) writes small records to one partition on three
brokers, one every few milliseconds, and notes when each was acknowledged. An *outage* is the
longest time without an acknowledgement around one event; who leads, and who is in sync, is read
from the partition's slice.
"""

import bisect
import itertools
import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException, Producer

from tests.conformance.local_cluster import RunningCluster, run_cluster, wait
from tidemark_devcluster import processes
from tidemark_operator.controller.state.model import PartitionRow
from tidemark_operator.controller.state.rows import decode_row

BROKERS = 3
TIMEOUT_S = 90.0
_POLL_S = 0.02
_PAUSE_S = 0.005


class SteadyWriter:
    """Writes in a thread of its own until :meth:`stop`."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.errors: list[str] = []
        #: Value by offset, as acknowledged.
        self.acknowledged: dict[int, bytes] = {}
        self._times_s: list[float] = []
        self._topic = topic
        self._stopping = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "log_level": 2,
                # As a client that has run for long and refreshes its metadata regularly: it
                # believes at once whatever a broker says of the topic.
                "topic.metadata.propagation.max.ms": 0,
                "topic.metadata.refresh.interval.ms": 200,
                # It remembers failed connections to a broker until none was tried for this long,
                # and doubles its pause with each (10 s by default). Here the same broker is killed
                # again sooner than that, which is not a realistic operation.
                "reconnect.backoff.max.ms": 500,
                # A paused broker keeps its connections. By default the client would wait a minute
                # for the answers on them, although it knows the new leader.
                "socket.timeout.ms": 1000,
            }
        )
        self._thread = threading.Thread(target=self._run, name="writer")
        self._thread.start()

    def stop(self) -> None:
        """Write no more, and wait until all is acknowledged or failed."""
        self._stopping.set()
        self._thread.join()

    def has_written_since(self, time_s: float) -> bool:
        """Return whether a record was acknowledged after this monotonic time."""
        return bool(self._times_s) and self._times_s[-1] > time_s

    def outage_s(self, since_s: float) -> float:
        """The longest time between two acknowledgements, from the last one before ``since_s``
        on."""
        # The last acknowledgement before the event is the beginning of the gap.
        first = max(bisect.bisect(self._times_s, since_s) - 1, 0)
        return max((b - a for a, b in itertools.pairwise(self._times_s[first:])), default=0.0)

    def _run(self) -> None:
        number = 0
        while not self._stopping.is_set():
            try:
                self._producer.produce(
                    self._topic, b"%d" % number, partition=0, on_delivery=self._delivered
                )
                number += 1
            except BufferError:  # a long outage: the queue is full
                pass
            except KafkaException as error:
                self.errors.append(str(error))
            self._producer.poll(_PAUSE_S)
            self._stopping.wait(_PAUSE_S)
        left = self._producer.flush(TIMEOUT_S)
        if left:
            self.errors.append(f"{left} records were neither acknowledged nor failed")

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        self._times_s.append(time.monotonic())
        self.acknowledged[message.offset()] = message.value()


@dataclass
class Outages:
    """A cluster with a writer, and the ways to disturb it."""

    cluster: RunningCluster
    topic: str
    writer: SteadyWriter
    _slice: str = field(init=False)

    def __post_init__(self) -> None:
        rows = self.cluster.kube.objects("PartitionSlice")
        self._slice = next(row["metadata"]["name"] for row in rows if self._row_in(row))

    def _row_in(self, found: dict[str, Any]) -> PartitionRow | None:
        rows = map(decode_row, found.get("partitions") or [])
        return next((row for row in rows if row.name == self.topic), None)

    def row(self) -> PartitionRow:
        """The partition as it is stored."""
        found = self.cluster.kube.get("PartitionSlice", self._slice)
        row = None if found is None else self._row_in(found)
        if row is None:
            raise LookupError(f"{self.topic} is not in {self._slice} any more")
        return row

    def settle(self) -> None:
        """Until all replicas are in sync and records flow."""
        wait(lambda: len(self.row().isr) == BROKERS, "all replicas to be in sync", TIMEOUT_S)
        self.progress()

    def progress(self) -> None:
        """Until something is acknowledged from now on, or has failed."""
        now_s, writer = time.monotonic(), self.writer
        wait(
            lambda: writer.has_written_since(now_s) or bool(writer.errors),
            "an acknowledgement",
            TIMEOUT_S,
        )

    def kill(self, node: int) -> float:
        """kill -9 of the leader; seconds until another one is elected."""
        self.cluster.local.kill_broker(node)
        return self._elected(node)

    def _elected(self, node: int) -> float:
        """Wait for another leader than ``node``; return the seconds."""
        began_s = time.monotonic()
        # -1 is a partition without a leader.
        while self.row().leader in (node, -1):
            if time.monotonic() - began_s > TIMEOUT_S:
                raise TimeoutError(f"no leader was elected for broker {node}")
            time.sleep(_POLL_S)
        return time.monotonic() - began_s

    def pause(self, node: int) -> float:
        """SIGSTOP of the leader, as a stalled machine; seconds until another one is elected."""
        self._signal(node, signal.SIGSTOP)
        try:
            return self._elected(node)
        except TimeoutError:
            self.resume(node)
            raise

    def resume(self, node: int) -> float:
        """SIGCONT; seconds until the broker is back, in sync."""
        began_s = time.monotonic()
        self._signal(node, signal.SIGCONT)
        self.settle()
        return time.monotonic() - began_s

    def _signal(self, node: int, number: signal.Signals) -> None:
        record = processes.find(self.cluster.local.layout, f"broker-{node}")
        if record is None:
            raise LookupError(f"broker {node} does not run")
        os.kill(record.pid, number)

    def start(self, node: int) -> float:
        """Seconds until a stopped broker is back, in sync."""
        began_s = time.monotonic()
        self.cluster.local.start_broker(node)
        self.settle()
        return time.monotonic() - began_s


@contextmanager
def written_to(cluster: RunningCluster, partitions: int = 1) -> Iterator[Outages]:
    """Write to a topic with a replica on each of three brokers until the block ends.

    The records that failed are in ``writer.errors``. With more ``partitions`` the cluster has a
    second topic with the others, to which nothing is written.
    """
    if partitions > 1:
        cluster.new_topic(
            partitions=partitions - 1, replicationFactor=BROKERS, tiering={"enabled": False}
        )
    topic = cluster.new_topic(config={"min.insync.replicas": "2"})
    writer = SteadyWriter(cluster.bootstrap, topic)
    try:
        outages = Outages(cluster, topic, writer)
        outages.settle()
        yield outages
    finally:
        writer.stop()


def distribution(seconds: list[float]) -> str:
    """p50, p90, p99 and the greatest."""
    if not seconds:
        return "-"
    points = statistics.quantiles(seconds, n=100, method="inclusive") if len(seconds) > 1 else []
    named = {name: points[n - 1] if points else seconds[0] for name, n in _POINTS.items()}
    return " ".join(f"{name} {value:.2f}" for name, value in named.items()) + (
        f" max {max(seconds):.2f}"
    )


_POINTS = {"p50": 50, "p90": 90, "p99": 99}


def measure(
    work: Callable[[Outages], str],
    what: str,
    *,
    partitions: int = 1,
    operator_options: Sequence[str] = (),
) -> None:
    """Run it on a cluster of its own, then print its line of figures; fails if a record did."""
    # The cluster's processes end with the block.
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as folder:
        print(f"starting a control plane, the operator and {BROKERS} brokers", flush=True)
        with (
            run_cluster(
                Path(folder) / "cluster", brokers=BROKERS, operator_options=operator_options
            ) as cluster,
            written_to(cluster, partitions) as outages,
        ):
            figures = work(outages)
    # The writer has stopped, so every record is acknowledged or failed.
    failed = len(outages.writer.errors)
    print(f"{what}  {figures}  acknowledged {len(outages.writer.acknowledged)}  failed {failed}")
    if failed:
        raise SystemExit(f"records failed: {outages.writer.errors[:3]}")
