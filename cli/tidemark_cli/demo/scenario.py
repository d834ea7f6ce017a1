"""The eight steps of the demo, each with its checks.

Independent work runs in parallel: the input is read and Spark's session opens while the cluster
starts, and Spark's job runs while clients read and a broker joins.
"""

import gc
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from tidemark.kafka_client.access import KafkaAccess
from tidemark.kafka_client.blocking_client import BlockingKafkaClient
from tidemark.kafka_client.values import EARLIEST, EARLIEST_LOCAL, LATEST, LATEST_TIERED
from tidemark.message_text import count
from tidemark_cli.demo import clients
from tidemark_cli.demo.clients import Ledger, SteadyProducer
from tidemark_cli.demo.report import DemoReport
from tidemark_cli.demo.stage import (
    DELETION,
    NO_GAPS,
    PARTITIONS,
    TIERED_TOPIC,
    TOPIC,
    WAITS,
    KubectlError,
    Stage,
    StagePartition,
    apply_manifest,
    load_manifests,
    topic_manifest,
)
from tidemark_cli.inspection import topic_rows
from tidemark_cli.records.flights import FLIGHTS_TOTAL, Delay, Flight, delays_by_carrier, load
from tidemark_devcluster.cluster import LocalCluster
from tidemark_devcluster.toolchain import ToolchainError
from tidemark_devcluster.toolchain.packages import ensure_spark
from tidemark_kube.client import KubeClient
from tidemark_pipeline.java import JavaMissing, find_java

MORE = 20_000
#: Three times the interval at which a broker of a local cluster looks for segments to copy.
COPIES_NOTHING_S = 3.0
PENDING = "TIERED_STORAGE_DISABLEMENT_IN_PROGRESS"


class Scenario:
    """The demo's steps on one local cluster, with the state that they share.

    ``stage``: access to the engine's partitions and remote segments. ``scratch``: temporary folder.
    ``flights_max``: number of records to produce.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        stage: Stage,
        report: DemoReport,
        scratch: Path,
        flights_max: int = FLIGHTS_TOTAL,
    ) -> None:
        """Prepare the scenario; nothing starts before :meth:`run`."""
        self.cluster = cluster
        self.stage = stage
        self._flights_max = flights_max
        self.report = report
        # Every record that a broker acknowledged, to compare with what clients read.
        self.ledger = Ledger()
        # Records to produce, empty until the input was read.
        self.flights: list[Flight] = []
        # Client of the API server, None until the cluster runs.
        self.kube: KubeClient | None = None
        self._scratch = scratch

    def run(self) -> None:
        """Run all steps in order; raises what a step raises."""
        log = self.cluster.layout.log("spark")
        with (
            ThreadPoolExecutor(1, "flights") as reader,
            BackgroundSpark(
                self._scratch, log, self.report.say, self.stage.spark_settings
            ) as self._spark,
        ):
            self._loading: Future[list[Flight]] = reader.submit(load, self._flights_max)
            self._run()

    def _run(self) -> None:
        steps: list[Callable[[], None]] = [
            self.place,
            self.fill,
            self.read_back,
            self.third_broker,
            self.delete_records,
            self.disable_retain,
            self.reenable_then_delete,
            self.kill_leader,
        ]
        for step in steps:
            step()

    # ------------------------------------------------------------------ the steps

    def place(self) -> None:
        """Create a tiered topic with replication factor 3 on two brokers, and check its placement.

        Each partition's third replica is a placeholder (KIP-409), an ID below zero.
        """
        report, cluster = self.report, self.cluster
        report.step("create a topic from a manifest: two brokers, replication factor 3")
        self.stage.start(report.say)
        self.kube = cluster.kube()
        report.say(apply_manifest(cluster, load_manifests(TIERED_TOPIC)[0]))
        self._wait_condition("Ready", "True", "the topic is Ready")
        # Two brokers cannot hold three replicas: each partition has a placeholder (KIP-409).
        parts, missing = self.stage.partitions(), self.stage.placeholders()
        placed = all({1, 2} == {replica for replica in p.replicas if replica >= 0} for p in parts)
        figure = "; ".join(f"{p.partition}: {list(p.replicas)}" for p in parts)
        report.check(
            "placed on two brokers, a placeholder for each third replica",
            len(parts) == missing == PARTITIONS and placed,
            f"{figure}; {count(missing, 'placeholder')}",
        )
        under = self._topic().condition("FullyReplicated")
        report.check(
            "the condition FullyReplicated is False",
            under.get("status") == "False",
            str(under.get("message")),
        )

    def fill(self) -> None:
        """Produce the records, and wait until most are in the tier and deleted from the brokers."""
        report = self.report
        report.step(f"produce {self._flights_max:,} flights and copy them to the tier")
        self.flights = self._loading.result()
        # The flights live until the end: freezing spares the garbage collector from scanning them.
        gc.freeze()
        began = time.monotonic()
        total = len(self.flights)
        clients.produce(
            self._bootstrap(),
            TOPIC,
            self.flights,
            self.ledger,
            on_progress=lambda n: (
                report.say(f"{n:,} of {total:,} sent") if n % 100_000 == 0 else None
            ),
        )
        seconds = time.monotonic() - began
        size = sum(len(f.value) for f in self.flights) / 1e6
        report.check(
            "every record was acknowledged (acks=all)",
            len(self.ledger.records) == total and not self.ledger.failures,
            f"{count(len(self.ledger.records), 'record')}, {size:.0f} MB in {seconds:.1f} s",
        )
        # Local retention is short, so that the reads that follow come mostly from the tier.
        report.wait(
            "most of the log is in the tier and deleted locally",
            lambda: self._gone_locally() > 0.75 and self._in_tier() > 0.75,
            lambda: (
                f"{self._in_tier():.0%} in the tier, {self._gone_locally():.0%} deleted locally"
            ),
            120,
        )

    def read_back(self) -> None:
        self.report.step("read everything back with third-party clients and Spark")
        self._delays = self._spark.delays(self.stage.read_options())
        self._compare("confluent-kafka", clients.read_confluent)
        self._compare("kafka-python", clients.read_kafka_python)

    def third_broker(self) -> None:
        """Add a broker and check that it fills the placeholders and joins the ISR."""
        report = self.report
        report.step("add a third broker while Spark reads")
        self.cluster.start_broker(3)
        report.wait(
            "every placeholder is filled",
            lambda: self.stage.placeholders() == 0,
            lambda: f"{count(self.stage.placeholders(), 'placeholder')} left",
            60,
        )
        report.wait(
            "the replica catches up: ISR 3",
            lambda: all(len(partition.isr) == 3 for partition in self.stage.partitions()),
            lambda: "; ".join(f"{p.partition}: {list(p.isr)}" for p in self.stage.partitions()),
            120,
        )
        # The operator reports the same in the Topic's status.
        self._wait_condition("FullyReplicated", "True", "the condition FullyReplicated is True")
        # The next step deletes records that Spark still reads, so its result is awaited here.
        self._check_spark()

    def delete_records(self) -> None:
        """Delete records older than a time; check log starts, low watermarks and remote objects."""
        report = self.report
        report.step("delete records before a time with a RecordDeletion")
        manifest = load_manifests(DELETION)[0]
        at = datetime.fromisoformat(manifest["spec"]["all"]["beforeTime"].replace("Z", "+00:00"))
        # Expected offsets come from the client's acknowledgements, independent of the brokers.
        expected = self.ledger.first_offset_at(PARTITIONS, int(at.timestamp() * 1000))
        report.say(apply_manifest(self.cluster, manifest))
        name = manifest["metadata"]["name"]
        report.wait(
            "the deletion has succeeded",
            lambda: topic_rows.condition(self._deletion(name), "Succeeded").get("status") == "True",
            lambda: str(topic_rows.condition(self._deletion(name), "Succeeded").get("message")),
            120,
        )
        starts = self._offsets(EARLIEST)
        report.check("the log start is exactly at that time", starts == expected, _pairs(starts))
        # The low watermark of a partition is the lowest log start of its replicas.
        marks = self._deletion(name).get("status", {}).get("partitions", [])
        low = {int(m["partition"]): int(m.get("lowWatermark", -1)) for m in marks}
        report.check("low watermarks in status", low == expected, _pairs(low))
        report.wait(
            "objects below the log start are deleted",
            lambda: self.stage.segments_below(starts) == 0,
            lambda: (
                f"{self.stage.segments_below(starts)} left, "
                f"{count(len(self.stage.objects()), 'object')} in all"
            ),
            60,
        )

    def disable_retain(self) -> None:
        """Disable tiering with policy Retain (KIP-950) and check that copying has stopped.

        The disablement must wait until every broker has confirmed it.
        """
        report = self.report
        report.step("disable tiering with Retain")
        self.cluster.stop_broker(3)
        report.say("broker 3 is stopped first, so that the disablement has a broker to wait for")
        self._apply_tiering(enabled=False, policy="Retain")
        self._unless_it_cannot(WAITS, self._check_waiting)
        # A second change during the disablement must be refused (KIP-950).
        self._expect_refusal()
        self.cluster.start_broker(3)
        self._wait_state("Disabled")
        self._wait_isr()
        segments = self.stage.segments()
        # Records that are produced now must stay local: no new segment may appear in the tier.
        clients.produce(self._bootstrap(), TOPIC, self.flights[:MORE], self.ledger)
        produced = time.monotonic()
        self._compare("confluent-kafka", clients.read_confluent)
        time.sleep(max(0.0, produced + COPIES_NOTHING_S - time.monotonic()))
        report.check(
            "nothing new is copied",
            self.stage.segments() == segments,
            f"{count(segments, 'segment')} before and {self.stage.segments()} after "
            f"{MORE:,} more records",
        )

    def reenable_then_delete(self) -> None:
        """Enable tiering again, then disable it with Delete and check that no object is left."""
        report = self.report
        report.step("enable tiering again, then disable it with Delete")
        before = self.stage.segments()
        self._apply_tiering(enabled=True)
        self._wait_state("Enabled")
        clients.produce(self._bootstrap(), TOPIC, self.flights[MORE : 2 * MORE], self.ledger)
        report.wait(
            "copying resumes where the tier ended",
            lambda: self.stage.segments() > before,
            lambda: f"{count(before, 'segment')} before, {self.stage.segments()} now",
            60,
        )
        self._unless_it_cannot(NO_GAPS, self._check_contiguous)
        self._compare("confluent-kafka", clients.read_confluent)
        # KIP-950's policy Delete moves the log start to the local log start and deletes every
        # remote segment.
        self._apply_tiering(enabled=False, policy="Delete")
        self._wait_state("Disabled")
        starts, local = self._offsets(EARLIEST), self._offsets(EARLIEST_LOCAL)
        report.check("log start equals local log start", starts == local, _pairs(starts))
        report.wait(
            "no object is left under the topic's prefix",
            lambda: not self.stage.objects(),
            lambda: f"{count(len(self.stage.objects()), 'object')}",
            60,
        )
        self._compare("confluent-kafka", clients.read_confluent)

    def kill_leader(self) -> None:
        """Kill a leader under load; check that no acknowledged record is lost."""
        report = self.report
        report.step("kill a leader with SIGKILL while records are produced with acks=all")
        before = self.stage.partitions()[0]
        producer = SteadyProducer(self._bootstrap(), TOPIC, self.flights, self.ledger)
        count = len(self.ledger.records)
        # Enough records before and after the kill, so that both leaders acknowledge some.
        _wait(lambda: len(self.ledger.records) > count + 2_000, 60)
        self.cluster.kill_broker(before.leader)
        report.say(f"broker {before.leader}, leader of partition 0, killed")
        report.wait(
            "another broker leads with a higher epoch",
            lambda: self._has_new_leader(before),
            lambda: "leader {0.leader}, epoch {0.leader_epoch}".format(self.stage.partitions()[0]),
            60,
        )
        # Records acknowledged from now on are those of the new leader.
        killed_at = len(self.ledger.records)
        _wait(lambda: len(self.ledger.records) > killed_at + 2_000, 60)
        producer.stop()
        report.check(
            "every record was finally acknowledged",
            not self.ledger.failures,
            f"{len(self.ledger.records) - count:,} acknowledged, {len(self.ledger.failures)} "
            "failed",
        )
        self._compare("confluent-kafka", clients.read_confluent)

    # ------------------------------------------------------------------ shared helpers

    def _topic(self) -> topic_rows.TopicRows:
        return topic_rows.topic(self._kube(), TOPIC)

    def _kube(self) -> KubeClient:
        if self.kube is None:
            raise RuntimeError("the first step has not run")
        return self.kube

    def _bootstrap(self) -> str:
        return self.cluster.addresses().bootstrap

    def _deletion(self, name: str) -> dict[str, Any]:
        return self._kube().get("RecordDeletion", name) or {}

    def _offsets(self, timestamp: int) -> dict[int, int]:
        with BlockingKafkaClient(KafkaAccess(tuple(self._bootstrap().split(",")))) as brokers:
            return brokers.list_offsets(TOPIC, dict.fromkeys(range(PARTITIONS), timestamp))

    def _share(self, offsets: Mapping[int, int]) -> float:
        ends = self._offsets(LATEST)
        return sum(max(o, 0) for o in offsets.values()) / max(sum(ends.values()), 1)

    def _gone_locally(self) -> float:
        return self._share(self._offsets(EARLIEST_LOCAL))

    def _in_tier(self) -> float:
        tiered = self._offsets(LATEST_TIERED)
        return self._share({partition: offset + 1 for partition, offset in tiered.items()})

    def _state(self) -> str:
        return str(self._topic().tiering.get("state"))

    def _wait_state(self, state: str) -> None:
        self.report.wait(
            f"the topic becomes {state}",
            lambda: self._state() == state,
            lambda: f"state {self._state()}, epoch {self._topic().tiering.get('epoch')}",
            90,
        )

    def _wait_condition(self, kind: str, expected: str, claim: str) -> None:
        self.report.wait(
            claim,
            lambda: self._topic().condition(kind).get("status") == expected,
            lambda: str(self._topic().condition(kind).get("message", "")),
            60,
        )

    def _wait_isr(self) -> None:
        _wait(lambda: all(len(partition.isr) == 3 for partition in self.stage.partitions()), 60)

    def _has_new_leader(self, before: StagePartition) -> bool:
        now = self.stage.partitions()[0]
        return now.leader not in {before.leader, -1} and now.leader_epoch > before.leader_epoch

    def _unless_it_cannot(self, claim: str, check: Callable[[], None]) -> None:
        """Make the check, or skip it if the engine cannot show the claim."""
        why = self.stage.cannot.get(claim)
        if why is None:
            check()
        else:
            self.report.skip(claim, why)

    def _check_waiting(self) -> None:
        self.report.wait(
            WAITS,
            lambda: self._topic().tiering.get("pendingBrokers") == [3],
            lambda: (
                f"state {self._state()}, waits for {self._topic().tiering.get('pendingBrokers')}"
            ),
            60,
        )

    def _apply_tiering(self, *, enabled: bool, policy: str | None = None) -> None:
        manifest = topic_manifest(enabled=enabled, policy=policy)
        self.report.say(apply_manifest(self.cluster, manifest))

    def _expect_refusal(self) -> None:
        try:
            apply_manifest(self.cluster, topic_manifest(enabled=True))
        except KubectlError as error:
            refused, text = PENDING in str(error), str(error).splitlines()[-1]
        else:
            refused, text = False, "the API server accepted it"
        self.report.check("a change during the disablement is refused", refused, text[:160])

    def _check_contiguous(self) -> None:
        """Check that the manifests cover every offset from the log start to their end exactly
        once.
        """
        gaps = self.stage.gaps(self._offsets(EARLIEST)) or []
        self.report.check(NO_GAPS, not gaps, "; ".join(gaps) or "none")

    def _compare(
        self,
        name: str,
        read: Callable[
            [str, str, Mapping[int, int], Mapping[int, int]], dict[tuple[int, int], clients.Record]
        ],
    ) -> None:
        """Check that a client reads exactly the acknowledged records of the whole topic.

        ``name``: of the client, for the report. ``read``: reads ``(bootstrap, topic, starts,
        ends)``, with offsets by partition, and returns records by partition and offset.
        """
        # Offsets are read now, as retention may have moved the log starts.
        starts, ends = self._offsets(EARLIEST), self._offsets(LATEST)
        expected = self.ledger.from_offsets(starts)
        started = time.monotonic()
        records = read(self._bootstrap(), TOPIC, starts, ends)
        seconds = time.monotonic() - started
        # Key, value and timestamp of each acknowledged record must be equal.
        wrong = [place for place, record in expected.items() if records.get(place) != record]
        offsets = sum(ends[p] - starts[p] for p in ends)
        figure = (
            f"{len(records):,} read in {seconds:.1f} s, {len(wrong):,} of {len(expected):,} differ"
        )
        if wrong:
            figure += f", first {wrong[0]}"
        # Every offset must have a record, so additional records count as an error too.
        complete = not wrong and len(records) == offsets
        self.report.check(f"{name} reads every record as it was acknowledged", complete, figure)

    def _check_spark(self) -> None:
        claim = "Spark reads the tier: delays by carrier equal those of the CSV"
        try:
            delays, seconds = self._delays.result()
        except (JavaMissing, ToolchainError) as error:
            self.report.skip(claim, str(error))
            return
        total = sum(delay.rows for delay in delays.values())
        self.report.check(
            claim,
            delays == delays_by_carrier(self.flights),
            f"{count(len(delays), 'carrier')}, {count(total, 'row')} in {seconds:.1f} s, "
            "parallel to other checks",
        )


def _wait(holds: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)


def _pairs(offsets: Mapping[int, int]) -> str:
    return ", ".join(f"{partition}: {offset:,}" for partition, offset in sorted(offsets.items()))


class BackgroundSpark:
    """Session that opens in the background.

    ``log`` is the JVM's log file. ``settings`` returns further Spark configuration, and is called
    once Spark is installed.
    """

    def __init__(
        self,
        scratch: Path,
        log: Path,
        say: Callable[[str], None],
        settings: Callable[[], Mapping[str, str]],
    ) -> None:
        self._scratch, self._log, self._say = scratch, log, say
        self._settings = settings
        self._stack = ExitStack()
        self._thread = ThreadPoolExecutor(1, "spark")
        self._session: Future[Any] = self._thread.submit(self._open)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Wait until started work has ended and the session is stopped."""
        self._thread.submit(self._stack.close)
        self._thread.shutdown()

    def delays(self, options: Mapping[str, str]) -> Future[tuple[dict[str, Delay], float]]:
        """Start to aggregate the topic that ``options`` name: delays by carrier, and the seconds it
        took.

        The result raises JavaMissing or ToolchainError if Spark is not available.
        """
        return self._thread.submit(self._aggregate, options)

    def _open(self) -> Any:
        find_java()
        ensure_spark(self._say)
        from tidemark_pipeline.session import local_session

        settings = self._settings()
        return self._stack.enter_context(
            local_session("tidemark demo", log=self._log, short=True, settings=settings)
        )

    def _aggregate(self, options: Mapping[str, str]) -> tuple[dict[str, Delay], float]:
        session = self._session.result()
        started = time.monotonic()
        from tidemark_pipeline.jobs.aggregate import aggregate

        output = self._scratch / "delays.parquet"
        rows = aggregate(session, options, by="carrier", value="arr_delay", output=output).collect()
        self._thread.submit(self._stack.close)  # in the background: the result does not wait for it
        delays = {r["carrier"]: Delay(r["rows"], r["measured"], int(r["total"] or 0)) for r in rows}
        return delays, time.monotonic() - started
