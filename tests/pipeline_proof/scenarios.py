"""One topic, and all that is in the way of Spark while it reads it.

Each scenario does its harm while a read or an export is on its way, holds what came against what
confluent-kafka reads, and says what it saw; a difference ends the proof. They follow one another:
the later ones find the topic as the earlier ones left it.
"""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tests import apicurio
from tests.conformance.local_cluster import RunningCluster, wait
from tests.pipeline_proof.expected_sums import Sums, Truth, sums
from tests.pipeline_proof.poison_records import PoisonCase, Produced, cases
from tests.pipeline_proof.records import PARTITIONS, RecordWriter
from tests.pipeline_proof.store import BusyStore, Objects
from tidemark.tier.metadata.queries import SegmentRange
from tidemark_cli.records import flights
from tidemark_devcluster.tier import read_options
from tidemark_pipeline.export.formats import catalog_settings
from tidemark_pipeline.export.iceberg import IcebergTable
from tidemark_pipeline.export.row_shapes import RAW_DDL
from tidemark_pipeline.export.table import TableLayout
from tidemark_pipeline.export.table_options import CATALOG, TableOptions
from tidemark_pipeline.jobs.export import ExportProgress, export
from tidemark_pipeline.read.options import parse
from tidemark_pipeline.read.topic_survey import Part, Survey

BROKERS = 3
#: A partition whose leader is killed, and which the first object to be harmed is of.
FIRST = 0
_WAIT_S = 600.0
_COMMIT_S = 5
#: Records of each format between poisoned ones.
_SOUND = 500
_FAR_MS = 4_102_444_800_000
#: A small read may be over before its worker is killed.
_ATTEMPTS = 20
_CATALOG = "proof"
_ADAPTIVE = "spark.sql.adaptive.enabled"
_TASKS = "pyspark.worker"


class ProofFailed(AssertionError):
    """Spark has not read what confluent-kafka has."""


@dataclass(frozen=True, slots=True)
class Size:
    """``records``: approximate number at the start; ``segment_bytes``: of the topic."""

    records: int
    segment_bytes: int


class Proof:
    """The topic on a cluster, and Spark. ``say``: of what is done meanwhile."""

    def __init__(
        self,
        session: SparkSession,
        cluster: RunningCluster,
        folder: Path,
        size: Size,
        say: Callable[[str], None],
    ) -> None:
        self.session, self.cluster, self.size, self.say = session, cluster, size, say
        self._folder = folder
        # Brokers go down here, and each client would tell.
        self._client = {"bootstrap.servers": cluster.bootstrap, "log_level": 2}
        self._sooner()
        # The local retention of one segment leaves most of the topic to the tier.
        self._spec: dict[str, Any] = {
            "partitions": PARTITIONS,
            "config": {
                "segment.bytes": str(size.segment_bytes),
                "retention.ms": "-1",
                "min.insync.replicas": "2",
            },
            "tiering": {"enabled": True, "localRetention": {"size": str(size.segment_bytes)}},
        }
        self.topic = cluster.new_topic(**self._spec)
        self.options = read_options(cluster.local, self.topic)
        self.objects = Objects(self.options)
        self.writer = RecordWriter(cluster.bootstrap, self.topic)
        self.truth = Truth(cluster.bootstrap, self.topic, PARTITIONS)

    # What a scenario does

    def produced(self) -> str:
        """The records, and what confluent-kafka reads of them."""
        self.writer.write(self.size.records, self._telling("produced"))
        self.settle()
        wait(lambda: all(self._tier_ends().values()), "segments to be in the tier", _WAIT_S)
        self.truth.read_on(self._telling("read by confluent-kafka"))
        return f"{self.truth.records:,} committed ones read by confluent-kafka"

    def flights(self) -> str:
        """Real records, in a topic of their own."""
        # Three partitions, and a producer with default partitioning by number.
        spec = {**self._spec, "partitions": 3}
        topic = self.cluster.new_topic(**spec)
        producer = Producer({**self._client, "linger.ms": 20})
        for number, item in enumerate(flights.load(self.size.records)):
            while True:
                try:
                    producer.produce(
                        topic, item.value, item.key, number % 3, timestamp=item.timestamp_ms
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
        if producer.flush(300):
            raise ProofFailed("not every flight was acknowledged")
        # The reference is confluent-kafka's read of the same topic.
        truth = Truth(self.cluster.bootstrap, topic, 3)
        truth.read_on()
        found = sums(self.frame(self.options | {"topic": topic}))
        if found != truth.of():
            raise ProofFailed(f"Spark reads {found}, there is {truth.of()}")
        return f"{truth.records:,} of them"

    def undisturbed(self) -> str:
        """Tier and tail, column by column."""
        self.check(self.read())
        tiers = {r["tier"]: r["count"] for r in self.frame().groupBy("tier").count().collect()}
        if not {"remote", "local"} <= tiers.keys():
            raise ProofFailed(f"rows are of both, were of {tiers}")
        return f"{tiers['remote']:,} rows of the tier, {tiers['local']:,} of brokers"

    def worker_killed(self) -> str:
        """An executor's Python process, with SIGKILL, in the middle of a task."""
        for number in range(_ATTEMPTS):
            group = f"a worker is killed {number}"

            # The job group identifies the tasks that failed in this read.
            def read(group: str = group) -> dict[int, Sums]:
                self.session.sparkContext.setJobGroup(group, group)
                return self.read()

            # Small reads may end before a worker is found at work, so several are tried.
            with ThreadPoolExecutor(1) as threads:
                reading = threads.submit(read)
                killed = self._kill_a_worker(reading.done)
                self.check(reading.result())
            if killed and (failed := self._failed_tasks(group)):
                return f"process {killed} killed, {failed} task failed and ran again"
        raise ProofFailed(f"no worker was killed at work in {_ATTEMPTS} reads")

    def leader_killed(self) -> str:
        """With SIGKILL, while the tail is read."""
        leader = self._leader()
        with self._meanwhile(lambda: self.cluster.local.kill_broker(leader)):
            self.check(self.read())
        self.cluster.local.start_broker(leader)
        self.settle()
        return f"broker {leader} was killed; broker {self._leader()} leads"

    def brokers_rolled(self) -> str:
        """Each restarted, one after the other, while Spark reads again and again."""
        rolled = threading.Event()

        def roll() -> None:
            try:
                for node in range(1, BROKERS + 1):
                    self.cluster.local.stop_broker(node)
                    self.cluster.local.start_broker(node)
                    self.settle()
            finally:
                rolled.set()

        reads = 0
        with self._meanwhile(roll):
            while not rolled.is_set():
                self.check(self.read())
                reads += 1
        return f"{BROKERS} brokers, {reads} reads"

    def no_broker(self) -> str:
        """All of them down: the tier alone."""
        for node in range(1, BROKERS + 1):
            self.cluster.local.stop_broker(node)
        try:
            ends = self._tier_ends()  # now no broker copies
            options = {k: v for k, v in self.options.items() if k != "bootstrap"}
            self.check(sums(self.frame(options)), ends=ends)
        finally:
            self.cluster.local.start_brokers(range(1, BROKERS + 1))
            self.settle()
        return f"{sum(item.records for item in self.truth.of(ends=ends).values()):,} rows"

    def busy_store(self) -> str:
        """Check reads while the store answers 503, and slowly. A directory has no such answers."""
        if "endpoint" not in self.options:
            return "not on a directory"
        with BusyStore(self.options["endpoint"]) as busy:
            self.check(self.read(endpoint=busy.endpoint))
        return f"{busy.refused} of {busy.refused + busy.passed} requests refused"

    def damaged(self) -> str:
        """Check that a changed byte, or another segment's object, is reported with its name,
        the offsets and the cause, and that reads succeed once the object is restored.
        """
        # Two kinds of damage: one bit in the middle of a segment, and a complete other segment in
        # its place.
        one, other = self._segments(FIRST)[:2]
        data = self.objects.get(one.entry.log_key)
        flipped = bytearray(data)
        flipped[len(data) // 2] ^= 0x40
        told = []
        for wrong in (bytes(flipped), self.objects.get(other.entry.log_key)):
            with self.objects.instead(one.entry.log_key, wrong):
                told.append(self._refused(one.entry.log_key))
        self.check(self.read())
        return "; ".join(told)

    def exported(self) -> str:
        """Into Iceberg, continuously, while records come; the leader is killed, brokers are rolled,
        a worker is killed, others commit to the table, and tiering is disabled with Retain and
        enabled again."""
        with self._exporting() as progress:
            # Commits of other writers to the table must not disturb the export.
            self._others_commit(progress, 2)
            self.writer.write(self.size.records // 10)
            # Records are written throughout the faults.
            with ThreadPoolExecutor(1) as threads:
                more = threads.submit(self.writer.write, self.size.records // 10)
                leader = self._leader()
                self.cluster.local.kill_broker(leader)
                self._kill_a_worker(more.done)
                self.cluster.local.start_broker(leader)
                self.settle()
                # Disabled with Retain: the export continues from brokers and from what the tier
                # keeps.
                self._tiering(enabled=False, policy="Retain")
                for node in range(1, BROKERS + 1):
                    self.cluster.local.stop_broker(node)
                    self.cluster.local.start_broker(node)
                    self.settle()
                more.result()
            self._tiering(enabled=True)
            self.writer.write(self.size.records // 10)
            self._others_commit(progress, 1)
            self._whole(progress)
        self.truth.read_on()
        self.check(sums(self._table()))
        self.check(self.read())
        return f"{self.truth.records:,} rows in {progress[-1].commits} commits"

    def expired(self) -> str:
        """Check segments that expire, with their objects, between a plan and its read.

        The read fails with that reason. If losses are allowed, it leaves out nothing else.
        """
        # Both reads are planned before the deletion, so their tasks name objects that will be
        # deleted.
        strict, lenient = self.frame(), self.frame(self.options | {"failOnDataLoss": "false"})
        aggregated = [self._planned(_aggregated(item)) for item in (strict, lenient)]
        segments = self._segments(FIRST)
        start = segments[len(segments) // 2].entry.start_offset
        gone = segments[0].entry.log_key
        admin = AdminClient(self._client)
        # DeleteRecords up to the middle: the segments below it are deleted from the tier.
        deletions = admin.delete_records([TopicPartition(self.topic, FIRST, start)])
        for deletion in deletions.values():
            deletion.result(60)
        wait(lambda: not self.objects.has(gone), f"{gone} to go", _WAIT_S)
        try:
            aggregated[0].collect()
        except Exception as error:
            if "expired during the read" not in str(error):
                raise
        else:
            raise ProofFailed("what had expired was read")
        # The lenient read may have any of the deleted records, but must have all others.
        rows = aggregated[1].collect()
        counts = {row["partition"]: row["records"] for row in rows}
        least = self.truth.of({FIRST: start})
        for partition, item in self.truth.of().items():
            known = least[partition].records
            if not known <= counts[partition] <= item.records:
                raise ProofFailed(f"partition {partition}: {counts[partition]} rows, not {known}")
        # A new plan starts at the new log start.
        self.check(self.read(), starts={FIRST: start})
        return f"partition {FIRST} begins at {start}; of its rows {counts[FIRST]:,} were still read"

    def deleted(self) -> str:
        """Check that tiering can be disabled with Delete during an export: the table keeps its
        rows, and a read starts at the brokers' log start.
        """
        with self._exporting() as progress:
            self._whole(progress)
            # What the table has now must stay, although the tier is deleted.
            before = self.truth.of()
            self._tiering(enabled=False, policy="Delete")
            self.writer.write(self.size.records // 10)
            self._whole(progress)
        self.truth.read_on()
        self.check(sums(self._table()))
        starts = {item.partition: extent.log_start for item, extent in self._extents().items()}
        self.check(self.read(), starts=starts)
        lost = sum(item.records for item in self.truth.of(ends=starts).values())
        if not lost:
            raise ProofFailed("the disablement has deleted nothing")
        kept = sum(item.records for item in before.values())
        return f"{lost:,} records gone from the topic, of which the table has {kept:,}"

    def poisoned(self) -> str:
        """Records of JSON, Avro and Protobuf that once ended an export or lost a value: no job
        ends, and each record is in the table, or a dead letter with its cause."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with apicurio.running(port, self._folder / "registry.log") as registry:
            return "; ".join(
                f"{case.name}: {self._poisoned(case)}" for case in cases(registry, _SOUND)
            )

    def _poisoned(self, case: PoisonCase) -> str:
        # Timestamps far in the future are allowed here, as some records have them.
        config = {**self._spec["config"], "message.timestamp.after.max.ms": str(2**63 - 1)}
        topic = self.cluster.new_topic(**{**self._spec, "partitions": 1, "config": config})
        options = read_options(self.cluster.local, topic)
        lake = {"warehouse": str(self._folder / "lake"), "table": f"poison.{case.name}"}
        # Schema files as a user would give them.
        for suffix, text in case.files.items():
            file = self._folder / f"{case.name}{suffix}"
            file.write_text(text)
            lake["schema_file"] = str(file)
        wanted = TableOptions.of({**lake, **case.table})
        for name, value in catalog_settings(CATALOG, {"type": "hadoop", **wanted.catalog}).items():
            self.session.conf.set(name, value)
        records: dict[int, Produced] = {}
        # Two exports: the second has schemas that the first has not seen.
        for batch in (lambda: case.first, case.then):
            self._produce(topic, batch(), records)
            progress = export(self.session, options, wanted.tables(self.session, options))
            if progress.lag:
                raise ProofFailed(f"{case.name}: the export ended {progress.lag} offsets behind")
        # Dead letters: exactly the poisoned records, each with its cause.
        table = self.session.table(wanted.name_of(wanted.table))
        found = self.session.table(wanted.name_of(wanted.letters)).select("offset", "error")
        letters = {row["offset"]: row["error"] for row in found.collect()}
        causes = {offset: record.cause for offset, record in records.items() if record.cause}
        if letters.keys() != causes.keys() or found.count() != len(letters):
            raise ProofFailed(f"{case.name}: dead letters are {letters}, not of {causes}")
        for offset, cause in causes.items():
            if cause not in letters[offset]:
                raise ProofFailed(f"{case.name}: {offset} is {letters[offset]!r}, not {cause!r}")
        # Rows: all others, or the last of each key.
        offsets = sorted(row[0] for row in table.select("kafka.offset").collect())
        if case.keys:
            complete = len(offsets) == case.keys and not letters.keys() & set(offsets)
        else:
            complete = offsets == sorted(records.keys() - causes.keys())
        if not complete:
            raise ProofFailed(f"{case.name}: {len(offsets)} rows of {len(records)} records")
        if set(table.columns) != {*case.columns, "kafka"}:
            raise ProofFailed(f"{case.name}: the table has the columns {table.columns}")
        # Rows behind the year 2100 are found by a query, so the partitioning accepts them.
        far = sum(record.timestamp_ms > _FAR_MS for record in records.values())
        if table.where("kafka.timestamp > timestamp '2100-01-01'").count() != far:
            raise ProofFailed(f"{case.name}: a query does not find the {far} rows behind 2100")
        return f"{len(offsets):,} rows, {len(letters)} dead letters"

    def _produce(self, topic: str, batch: Sequence[Produced], into: dict[int, Produced]) -> None:
        """Produce records; add them to ``into`` by offset."""
        producer = Producer({**self._client, "linger.ms": 20, "enable.idempotence": True})

        # The offset is known with the acknowledgement, and identifies the record's row.
        def acknowledged(record: Produced) -> Callable[[Any, Any], None]:
            def told(error: Any, message: Any) -> None:
                if error is not None:
                    raise ProofFailed(f"{topic}: {error}")
                into[message.offset()] = record

            return told

        for record in batch:
            producer.produce(
                topic,
                record.value,
                record.key,
                timestamp=record.timestamp_ms,
                on_delivery=acknowledged(record),
            )
        if producer.flush(120):
            raise ProofFailed("not every record was acknowledged")

    # What they share

    def frame(self, options: Mapping[str, str] | None = None) -> DataFrame:
        """A table of the topic."""
        given = self.options if options is None else options
        return self.session.read.format("tidemark").options(**given).load()

    def _planned(self, frame: DataFrame) -> DataFrame:
        """Its tasks are known now. Spark makes an adaptive plan in the midst of reading only."""
        self.session.conf.set(_ADAPTIVE, "false")
        try:
            frame._jdf.queryExecution().toRdd().getNumPartitions()
        finally:
            self.session.conf.unset(_ADAPTIVE)
        return frame

    def read(self, **options: str) -> dict[int, Sums]:
        """Return Spark's sums of a read."""
        return sums(self.frame(self.options | options))

    def check(
        self,
        found: Mapping[int, Sums],
        starts: Mapping[int, int] | None = None,
        ends: Mapping[int, int] | None = None,
    ) -> None:
        """Raises :class:`ProofFailed` where it is not what confluent-kafka has read."""
        known = self.truth.of(starts, ends)
        if dict(found) != known:
            raise ProofFailed(f"Spark reads {dict(sorted(found.items()))}, there is {known}")

    def settle(self) -> None:
        """All replicas are in sync and led."""
        wait(
            lambda: all(
                len(row.isr) == BROKERS and row.leader > 0
                for row in self.cluster.view(self.topic).rows
            ),
            "every replica to be in sync",
            _WAIT_S,
        )

    def _sooner(self) -> None:
        """Objects that nothing names go soon."""
        name = self.cluster.local.settings.cluster
        found = self.cluster.kube.get("Cluster", name)
        assert found is not None
        spec = found["spec"]
        spec["config"] = {**spec.get("config", {}), "remote.delete.delay.ms": "1000"}
        self.cluster.kube.apply("Cluster", name, spec)

    def _telling(self, what: str) -> Callable[[int], None]:
        told_s = time.monotonic()

        def tell(count: int) -> None:
            nonlocal told_s
            if time.monotonic() - told_s > 5:
                told_s = time.monotonic()
                self.say(f"{count:,} {what}")

        return tell

    @contextmanager
    def _meanwhile(self, do: Callable[[], object]) -> Iterator[None]:
        """``do`` begins a second after what is inside; its errors are raised."""

        def later() -> None:
            time.sleep(1)
            do()

        with ThreadPoolExecutor(1) as threads:
            doing = threads.submit(later)
            yield
            doing.result()

    def _leader(self) -> int:
        return int(self.cluster.view(self.topic).rows[FIRST].leader)

    def _extents(self) -> dict[Part, Any]:
        with Survey(parse(self.options)) as survey:
            return dict(survey.extents(survey.parts()))

    def _tier_ends(self) -> dict[int, int]:
        options = {k: v for k, v in self.options.items() if k != "bootstrap"}
        with Survey(parse(options)) as survey:
            return {part.partition: end for part, end in survey.ends(survey.parts()).items()}

    def _segments(self, partition: int) -> tuple[SegmentRange, ...]:
        with Survey(parse(self.options)) as survey:
            part = survey.parts()[partition]
            extent = survey.extents([part])[part]
            return tuple(survey.ranges(part, extent.log_start, extent.end)[1])

    def _refused(self, key: str) -> str:
        try:
            self.read()
        except Exception as error:
            text = str(error)
            name = f"{self.topic}-{FIRST}"
            # The message has to name the object, the partition and the offsets.
            lines = [line for line in text.splitlines() if "CorruptData: " in line]
            if not any(key in line and name in line and "offsets" in line for line in lines):
                raise
            return lines[0].partition("CorruptData: ")[2]
        raise ProofFailed(f"{key} was damaged, and was read")

    def _tiering(self, *, enabled: bool, policy: str | None = None) -> None:
        tiering = {**self._spec["tiering"], "enabled": enabled}
        if policy is not None:
            tiering["disablePolicy"] = policy
        spec = {
            "clusterRef": {"name": self.cluster.local.settings.cluster},
            "replicationFactor": BROKERS,
            **self._spec,
            "tiering": tiering,
        }
        self.cluster.kube.apply("Topic", self.topic, spec)
        wanted = "Enabled" if enabled else "Disabled"
        wait(
            lambda: self.cluster.view(self.topic).tiering.get("state") == wanted,
            f"tiering to be {wanted}",
            _WAIT_S,
        )

    # Workers

    def _workers(self) -> dict[int, int]:
        """Python processes that run tasks, with what they have used of a processor (ticks)."""
        java = int(self.session._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
        found = {}
        for daemon in _children(java):
            if _TASKS in _command(daemon):
                for worker in _children(daemon):
                    found[worker] = _ticks(worker)
        return found

    def _kill_a_worker(self, is_over: Callable[[], bool]) -> int | None:
        """One that is at work; its id."""
        # A worker whose CPU time grows is in the middle of a task.
        before = self._workers()
        while not is_over():
            for worker, ticks in self._workers().items():
                if ticks > before.get(worker, ticks):
                    # A worker that has ended meanwhile was not killed: find another one.
                    with suppress(ProcessLookupError):
                        os.kill(worker, signal.SIGKILL)
                        return worker
            before |= {w: t for w, t in self._workers().items() if w not in before}
            time.sleep(0.005)
        return None

    def _failed_tasks(self, group: str) -> int:
        tracker = self.session.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(item) for item in tracker.getJobIdsForGroup(group)]
        stages = [tracker.getStageInfo(stageId) for job in jobs if job for stageId in job.stageIds]
        return sum(stage.numFailedTasks for stage in stages if stage)

    # The export

    @contextmanager
    def _exporting(self) -> Iterator[list[ExportProgress]]:
        """Run a continuous export that reports each commit and has to end successfully."""
        progress: list[ExportProgress] = []
        stop = threading.Event()

        # Several triggers per write, so that faults fall between commits.
        def run() -> None:
            table = self._iceberg()
            export(
                self.session,
                {**self.options, "maxOffsetsPerTrigger": str(max(self.size.records // 4, 1000))},
                table,
                every_s=_COMMIT_S,
                stop=stop,
                on_progress=progress.append,
            )

        with ThreadPoolExecutor(1) as threads:
            job = threads.submit(run)
            try:
                wait(lambda: bool(progress) or job.done(), "the export to begin", _WAIT_S)
                yield progress
            finally:
                stop.set()
                job.result()

    def _iceberg(self) -> IcebergTable:
        properties = {"type": "hadoop", "warehouse": str(self._folder / "lake")}
        for name, value in catalog_settings(_CATALOG, properties).items():
            self.session.conf.set(name, value)
        return IcebergTable(self.session, f"{_CATALOG}.db.records", TableLayout(columns=RAW_DDL))

    def _table(self) -> DataFrame:
        return self.session.table(f"{_CATALOG}.db.records")

    def _others_commit(self, progress: list[ExportProgress], times: int) -> None:
        """To the table, each behind a commit of the export's."""
        session: Any = self.session
        spark3 = session._jvm.org.apache.iceberg.spark.Spark3Util
        for _ in range(times):
            # After a commit of the export, so that its next one finds another head.
            commits = progress[-1].commits
            wait(lambda: progress[-1].commits > commits, "a commit", _WAIT_S)  # noqa: B023
            table = spark3.loadIcebergTable(session._jsparkSession, f"{_CATALOG}.db.records")
            table.newFastAppend().commit()

    def _whole(self, progress: list[ExportProgress]) -> None:
        """The table has all that the topic has."""
        with Survey(parse(self.options)) as survey:
            ends = {part.partition: end for part, end in survey.ends(survey.parts()).items()}
        wait(
            lambda: all(
                progress[-1].exported.offsets.get(partition, 0) >= end
                for partition, end in ends.items()
            ),
            f"the table to have {json.dumps(ends)}",
            _WAIT_S,
        )


def _aggregated(frame: DataFrame) -> DataFrame:
    return frame.groupBy("partition").agg(f.count("*").alias("records"))


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(part) for part in task.read_text().split()]
        except OSError:  # the thread has ended
            continue
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])
