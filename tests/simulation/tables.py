"""Simulation of a topic and its table over restores, unclean elections and rollbacks.

The topic is a list of records for each partition, with real leader epochs and a real tier in
memory; stub brokers answer for it. The table is a stub, too: snapshots with rows. All decisions are
made by production code: the export with its checks, claims, commits and deletions, the lineage of
the log and of the table, and ``tidemark restore``. One seed is one run, the same in any process.

After each accepted run of the export, the table has every record of the topic below its offsets
exactly once. No record is deleted from the topic that the table lacks. A refusal has a cause, and
its remedy works.
"""

import dataclasses
import itertools
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

from tests.simulation.cluster import SimulationOutcome
from tests.unit.tier.conftest import MemoryStore
from tidemark.kafka_client.blocking_client import EpochEndAnswer, StableLogEnd, TopicSummary
from tidemark.kafka_client.values import LATEST
from tidemark.log_lineage import ReadPosition
from tidemark.logfiles.leader_epochs import LeaderEpochs
from tidemark.tier.maintenance.topic_restore import claim, restorable
from tidemark.tier.metadata import transitions
from tidemark.tier.metadata.head import Claim, new_head
from tidemark.tier.metadata.layout import HEADS_PREFIX
from tidemark.tier.metadata.manifest import ManifestStore
from tidemark.tier.metadata.segment import new_segment
from tidemark.tier.metadata.topics import TopicCatalog, TopicObject
from tidemark.tier.open import Tier
from tidemark.tier.reader import TierReader
from tidemark.tier.segments.remote_storage_manager import (
    RemoteStorageManager,
    encode_custom_metadata,
)
from tidemark.tier.stores.objects import NO_BUCKET
from tidemark.tiering import Tiering, TieringState
from tidemark_pipeline.errors import DataLoss
from tidemark_pipeline.export import iceberg_lineage
from tidemark_pipeline.export.export_progress import (
    Exported,
    ExportError,
    check_not_superseded,
    new_claim,
)
from tidemark_pipeline.export.iceberg_lineage import Ancestor
from tidemark_pipeline.export.table import RowCounts, Written
from tidemark_pipeline.jobs import export as job
from tidemark_pipeline.read.options import OptionError, parse
from tidemark_pipeline.read.plan import requested_range
from tidemark_pipeline.read.topic_survey import Survey

TOPIC = "orders"
STEPS = 60
#: Metadata files that a table keeps, by which ancestors are known that have expired.
METADATA_FILES = 6
_START_MS = 1_800_000_000_000
_DAY_MS = 86_400_000
#: (partition, offset, number of the record)
Row = tuple[int, int, int]


class Violation(Exception):
    """An invariant does not hold."""


class Killed(Exception):
    """Ends the job at this point."""


@dataclasses.dataclass(slots=True)
class Log:
    """One partition. ``records``: numbers by offset from 0; those below ``start`` are deleted.
    ``expired``: offsets deleted by retention, which no table needs to have."""

    records: list[int] = dataclasses.field(default_factory=list)
    start: int = 0
    epochs: LeaderEpochs = dataclasses.field(default_factory=LeaderEpochs)
    leader_epoch: int = 0
    expired: set[int] = dataclasses.field(default_factory=set)

    @property
    def end(self) -> int:
        return len(self.records)

    def lead(self, epoch: int) -> None:
        self.leader_epoch = epoch
        self.epochs = self.epochs.assign(epoch, self.end)

    def lose_from(self, offset: int) -> None:
        del self.records[offset:]
        self.epochs = self.epochs.truncate_from_end(offset)
        self.expired = {item for item in self.expired if item < offset}

    def delete_below(self, offset: int) -> None:
        self.start = max(self.start, offset)
        self.epochs = self.epochs.truncate_from_start(self.start)


class TableWorld:
    """The topic, its tier, the table, and the faults that may happen to them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.events: list[str] = []
        self.figures = dict.fromkeys(("acknowledged", "exported", "refused", "restored"), 0)
        self.topic_id = uuid.UUID(int=seed + 1)
        self.store = MemoryStore()
        self.tier = self.open_tier()
        self.numbers = itertools.count()
        self.segments = itertools.count()
        self.cluster, self.now_ms = 0, _START_MS
        self.logs: dict[int, Log] = {}
        self.deletes = self.random.random() < 0.6
        self.is_older = self.random.random() < 0.2
        self.table = StubTable(self)
        self.interrupted: Callable[[], None] | None = None
        self._backup: dict[str, bytes] = {}
        for _ in range(self.random.randint(1, 2)):
            self._add_partition()
        self._describe()

    def note(self, text: str) -> None:
        self.events.append(text)

    def open_tier(self) -> Tier:
        """Open the tier as a new process that has seen no head yet."""
        manifests, topics = ManifestStore(self.store), TopicCatalog(self.store)
        segments = RemoteStorageManager({NO_BUCKET: self.store})
        return Tier(self.store, manifests, segments, topics, TierReader(manifests, topics))

    # ---------------------------------------------------------------- the topic

    def _add_partition(self) -> None:
        """Add a partition as the controller does: above the epochs of the others once these are
        high."""
        highest = max((log.leader_epoch for log in self.logs.values()), default=0)
        log = self.logs[len(self.logs)] = Log()
        log.lead(highest if highest >= 2**20 else 0)

    def _describe(self) -> None:
        self.tier.topics.put(
            TopicObject(
                topic_id=self.topic_id,
                name=TOPIC,
                cluster_id=str(self.cluster),
                partitions=len(self.logs),
            )
        )

    def any_log(self) -> int:
        return self.random.choice(sorted(self.logs))

    def produce(self) -> None:
        part = self.any_log()
        count = self.random.randint(1, 40)
        self.logs[part].records += [next(self.numbers) for _ in range(count)]
        self.figures["acknowledged"] += count
        self.note(f"{count} records: {part} ends at {self.logs[part].end}")

    def elect(self) -> None:
        part = self.any_log()
        log = self.logs[part]
        log.lead(log.leader_epoch + 1)
        self.note(f"{part} is led in epoch {log.leader_epoch}")

    def elect_uncleanly(self) -> None:
        """Elect a leader uncleanly, which takes over the records of the tier. Offsets without an
        epoch do not show such an election."""
        if self.is_older:
            return
        part = self.any_log()
        log, in_tier = self.logs[part], self._tier_end(part)
        log.lose_from(self.random.randint(max(in_tier, log.start), log.end))
        log.lead(log.leader_epoch + 1)
        self.note(f"{part} is led uncleanly in epoch {log.leader_epoch} from {log.end} on")

    def add_partition(self) -> None:
        if len(self.logs) < 4:
            self._add_partition()
            self.note(f"{len(self.logs)} partitions")
            if self.random.random() < 0.5:
                self._describe()

    def recreate(self) -> None:
        """Delete the topic and create one of the same name, which has records already."""
        self.topic_id = uuid.UUID(int=self.topic_id.int + 2**64)
        self.store.objects.clear()
        self.tier, self._backup = self.open_tier(), {}
        count, self.logs = len(self.logs), {}
        for _ in range(count):
            self._add_partition()
        self._describe()
        self.note("the topic is recreated")
        for _ in range(4):
            self.produce()

    def expire(self) -> None:
        """Expire records by retention; the tier may not know it yet."""
        part = self.any_log()
        log = self.logs[part]
        to = self.random.randint(log.start, log.end)
        log.expired |= set(range(log.start, to))
        log.delete_below(to)
        self.note(f"{part} expires to {to}")
        if self.random.random() < 0.7:
            self._tell_tier(part)

    def copy(self) -> None:
        part = self.any_log()
        log = self.logs[part]
        self._claim(part)
        self._tell_tier(part)
        # Continue at the end of the tier, which may be behind or beyond the log after a disaster.
        start = self.tier.manifests.load(self.topic_id, part).head.next_copy_offset
        if start >= log.end:
            return
        end = self.random.randint(start + 1, log.end)
        # The entry has the leader epochs of its range, by which readers notice another log.
        epochs = log.epochs.between(start, end).entries
        by = Claim(log.leader_epoch, 0)
        entry = new_segment(
            topic=TOPIC,
            topic_id=self.topic_id,
            partition=part,
            segment_id=uuid.UUID(int=next(self.segments)),
            start_offset=start,
            end_offset_inclusive=end - 1,
            max_timestamp_ms=0,
            size_bytes=1,
            broker_id=1,
            event_time_ms=0,
            leader_epochs=[(epoch.epoch, epoch.start_offset) for epoch in epochs],
            leader_epoch=by.leader_epoch,
            tiered_epoch=0,
        )
        custom = encode_custom_metadata("", 1)
        # The objects are uploaded between the two commits of the manifest.
        self.store.put(entry.log_key, b"r")
        self.store.put(entry.aux_key, b"")
        self._commit(part, lambda head: transitions.start_copy(head, by, entry))
        self._commit(part, lambda head: transitions.finish_copy(head, by, entry, custom))
        self.note(f"{part} is copied up to {end}")

    def back_up_tier(self) -> None:
        self._backup = dict(self.store.objects)
        self.note("the bucket is backed up")

    def lose_brokers(self) -> None:
        """Lose all brokers with their disks and the API's data; the bucket may be restored, too."""
        self.now_ms += self.random.randint(1, 40) * _DAY_MS
        has_heads = any(key.startswith(HEADS_PREFIX) for key in self._backup)
        if has_heads and self.random.random() < 0.3:
            self.store.objects = dict(self._backup)
            self.note("the bucket is put back")
        self.tier = self.open_tier()
        heads = list(restorable(self.tier))
        if not heads:
            return
        (found,) = heads
        was = found.topic.cluster_id
        self.cluster += 1
        origin = claim(
            self.tier,
            found,
            from_cluster=was,
            to_cluster=str(self.cluster),
            now_ms=self.now_ms,
        )
        lost, self.logs = self.logs, {}
        for part in range(origin.partitions):
            head = self.tier.manifests.load(self.topic_id, part).head
            before = lost.get(part, Log())
            log = self.logs[part] = dataclasses.replace(before, start=0)
            log.lose_from(min(head.next_copy_offset, log.end))
            # A log start that was not lost is the tier's.
            log.records += [-1] * (head.next_copy_offset - log.end)
            log.start = head.log_start_offset
            log.epochs = _epochs_of(self.tier, self.topic_id, part)
            log.lead(origin.leader_epoch)
        self.figures["restored"] += 1
        ends = {part: log.end for part, log in self.logs.items()}
        self.note(f"restored at {ends} in epoch {origin.leader_epoch}")

    def _tier_end(self, part: int) -> int:
        if part not in self.tier.manifests.partitions(self.topic_id):
            return 0
        return self.tier.manifests.load(self.topic_id, part).head.next_copy_offset

    def _claim(self, part: int) -> None:
        # The first leader creates the head, every later one claims it under its epoch.
        epoch, tiering = self.logs[part].leader_epoch, Tiering(TieringState.ENABLED, 0)
        if part not in self.tier.manifests.partitions(self.topic_id):
            self.tier.manifests.create(
                new_head(
                    topic=TOPIC,
                    topic_id=self.topic_id,
                    partition=part,
                    cluster_id=str(self.cluster),
                    leader_epoch=epoch,
                    tiering=tiering,
                    broker_id=1,
                    log_start_offset=0,
                )
            )
        self._commit(
            part,
            lambda head: transitions.claim(
                head,
                epoch,
                tiering,
                cluster_id=str(self.cluster),
                broker_id=1,
                now_ms=self.now_ms,
            ),
        )

    def _tell_tier(self, part: int) -> None:
        self._claim(part)
        log = self.logs[part]
        by = Claim(log.leader_epoch, 0)
        self._commit(
            part,
            lambda head: transitions.expire_to(
                head, by, log.start, now_ms=self.now_ms, delete_delay_ms=0
            ),
        )

    def _commit(self, part: int, transition: Callable[[Any], Any]) -> None:
        self.tier.manifests.commit(self.tier.manifests.load(self.topic_id, part), transition)

    # ---------------------------------------------------------------- the export

    def run_export(self) -> None:
        """Run a job, sometimes disturbed in the middle, then an undisturbed one, and check the
        table."""
        if self.random.random() < 0.3:
            self.interrupted = self._disturb
            self._job()
            self.interrupted = None
        refused = self._job()
        if refused is None:
            self._check_table()
            return
        self.figures["refused"] += 1
        self._check_refusal(refused)
        self._follow_remedy()

    def _job(self) -> ExportError | None:
        """Run a job. Return the error with which it was refused, None if it was not."""
        # Small batches, so that a run may leave the table behind the log.
        options = {
            "topic": TOPIC,
            "path": "/",
            "bootstrap": "b:1",
            "maxOffsetsPerTrigger": str(self.random.randint(1, 20)),
            **self.table.starting,
        }
        deleter = _Deleter(self) if self.deletes else None
        try:
            job.export(_NO_SESSION, options, self.table, deleter=deleter)
        except Killed:
            self.note("the job is killed")
        except (ExportError, DataLoss, OptionError) as error:
            self.note(f"refused: {error}")
            return error if isinstance(error, ExportError) else ExportError(str(error))
        return None

    def _disturb(self) -> None:
        """Disturb a running job."""
        happens = self.random.random()
        if happens < 0.1:
            raise Killed
        if happens < 0.25:
            what = self.random.choice(
                (self.produce, self.elect, self.elect_uncleanly, self.expire, self.add_partition)
            )
            self.table.is_disturbed |= what == self.elect_uncleanly
            what()

    def read(self, options: Mapping[str, str]) -> set[Row]:
        """Return the rows that Spark's executors read with these options, planned at this moment.

        Raises OptionError if the log has lost requested offsets.
        """
        read = parse(options)
        with Survey(read) as survey:
            ranges = {
                part.partition: requested_range(survey, read, part, extent)
                for part, extent in survey.extents(survey.parts()).items()
            }
        return {
            (part, offset, number)
            for part, offset, number in _of_logs(self.logs)
            if part in ranges and ranges[part].start <= offset < ranges[part].end
        }

    def _check_table(self) -> None:
        exported, rows = self.table.exported(), self.table.rows()
        offsets = exported.offsets
        for part, offset, number in _of_logs(self.logs):
            since = exported.since(part)
            # A partition that is added later is exported from its first record.
            if part not in self.table.first_partitions:
                since = min(since, self.logs[part].start)
            is_due = since <= offset < offsets.get(part, 0)
            is_due = is_due and offset not in self.logs[part].expired
            if is_due and number >= 0 and (part, offset, number) not in rows:
                raise Violation(
                    f"record {number} at {part}/{offset} is not in the table, which continues at "
                    f"{offsets}"
                )
        self.figures["exported"] += 1

    def check_deletion(self, below: Mapping[int, int]) -> None:
        rows = self.table.rows()
        for part, offset, number in _of_logs(self.logs):
            log = self.logs[part]
            goes = log.start <= offset < below.get(part, 0) and number >= 0
            if goes and (part, offset, number) not in rows:
                raise Violation(f"record {number} at {part}/{offset} is deleted and in no table")

    def _check_refusal(self, error: ExportError) -> None:
        """Check that the log gives a cause: it ends below the table's offsets, or has records there
        that the table lacks."""
        if "lost the records" not in str(error) or self.table.is_older or self.table.is_disturbed:
            return
        offsets, rows = self.table.exported().offsets, self.table.rows()
        would_be_left_out = any(
            row not in rows and row[1] < offsets.get(row[0], 0) and row[2] >= 0
            for row in _of_logs(self.logs)
        )
        is_behind = any(offset > self.logs.get(part, Log()).end for part, offset in offsets.items())
        if not would_be_left_out and not is_behind:
            raise Violation(f"nothing is lost, and yet: {error}")

    def _follow_remedy(self) -> None:
        self.table = StubTable(self)
        self.note("a new table")

    def step(self) -> None:
        kinds: dict[Callable[[], None], int] = {
            self.produce: 8,
            self.run_export: 8,
            self.copy: 4,
            self.elect: 2,
            self.elect_uncleanly: 1,
            self.expire: 1,
            self.add_partition: 1,
            self.back_up_tier: 1,
            self.lose_brokers: 1,
            self.table.roll_back: 1,
            self.table.pick: 1,
            self.table.expire_snapshots: 1,
            self.table.maintain: 2,
            self.table.compact: 1,
        }
        (chosen,) = self.random.choices(list(kinds), list(kinds.values()))
        chosen()


class StubTable:
    """Snapshots with rows, a tag, and the last metadata files, as in Iceberg."""

    def __init__(self, world: TableWorld) -> None:
        self._world = world
        self._ids = itertools.count(1)
        self._there: dict[int, Ancestor] = {0: Ancestor(0, None)}
        self._rows: dict[int, frozenset[Row]] = {0: frozenset()}
        self._main, self._tag = 0, 0
        self._metadata: list[dict[int, Ancestor]] = []
        self._mine: Exported | None = None
        #: Its commits name no leader epochs.
        self.is_older = world.is_older
        #: A leader was elected uncleanly during a batch: it may have read what was written since,
        #: and is taken for one that has not.
        self.is_disturbed = False
        #: Options of a new table.
        is_new = not world.deletes and world.random.random() < 0.3
        self.starting = {"startingOffsets": "latest"} if is_new else {}
        #: Partitions to which the starting option applied.
        self.first_partitions: frozenset[int] = frozenset()

    def rows(self) -> frozenset[Row]:
        """Return the rows of the newest snapshot."""
        return self._rows[self._main]

    def exported(self) -> Exported:
        """Return the table's progress."""
        return self._standing() or Exported(TOPIC)

    # ---------------------------------------------------------------- of a job

    def claim(self, topic: str, topic_id: str) -> Exported:
        self._mine = new_claim(
            self._standing(),
            *(topic, topic_id, str(next(self._ids))),
            deletes=self._world.deletes,
        )
        self._commit(self.rows(), self._mine)
        return self._mine

    def commit(self, frame: Mapping[str, str], exported: Exported) -> Written:
        """Commit a batch. ``frame``: options of its read, which is planned when it is written."""
        mine, world = self._mine, self._world
        assert mine is not None
        # Another job may have committed since this one started.
        check_not_superseded(mine, self._standing())
        # A batch waits while the table is maintained.
        if world.interrupted is not None:
            world.interrupted()
        read = world.read(frame)
        if read and mine.topic_id != str(world.topic_id):
            raise Violation(f"records of another topic are exported: {min(read)}")
        if not mine.offsets:
            self.first_partitions = frozenset(exported.offsets)
        # A row that is in the table already would be a duplicate.
        if twice := self.rows() & read:
            raise Violation(f"{min(twice)} is exported into the table once more")
        if world.interrupted is not None:
            world.interrupted()
        # An older version of the job does not record leader epochs.
        kept = dataclasses.replace(exported, leader_epochs={}) if self.is_older else exported
        self._commit(self.rows() | read, kept)
        self._mine = kept
        return Written(rows=len(read))

    def progress(self) -> Exported:
        assert self._mine is not None
        check_not_superseded(self._mine, self._standing())
        return self._mine

    def counts(self) -> RowCounts:
        return RowCounts()

    def close(self) -> None:
        pass

    # ---------------------------------------------------------------- of others

    def roll_back(self) -> None:
        self._main = self._world.random.choice(sorted(self._there))
        self._changed(f"the table is rolled back to {self._main}")

    def pick(self) -> None:
        """Add the rows of a snapshot after a rollback, like ``cherrypick_snapshot``."""
        self.roll_back()
        line = self._line()
        others = [
            (item.id, added)
            for item in self._there.values()
            if item.id not in line and item.parent_id not in (None, self._main)
            if (added := self._rows[item.id] - self._rows[item.parent_id or 0])
        ]
        if others:
            source, added = self._world.random.choice(others)
            self._commit(self.rows() | added, None, {"source-snapshot-id": str(source)})
            self._changed(f"snapshot {source} is picked: {self._main}")

    def compact(self) -> None:
        self._commit(self.rows(), None)
        self._changed(f"others compact: {self._main}")

    def expire_snapshots(self) -> None:
        """Expire snapshots as another tool, which keeps named ones."""
        self._there = {item: self._there[item] for item in {self._main, self._tag}}
        self._changed("others let snapshots expire")

    def maintain(self) -> None:
        """Do the upkeep of ``tidemark spark maintain``: commit the progress again, then expire."""
        self.compact()
        try:
            found = self._standing()
        except ExportError:
            found = None
        if found is not None:
            self._commit(self.rows(), found)
        self.expire_snapshots()

    def _standing(self) -> Exported | None:
        at = iceberg_lineage.progress_from_ancestors(
            "lake.db.orders", self._there[self._main], self._find, self._there.get(self._tag)
        )
        if at is None and self.rows():
            raise ExportError("the table has rows, and no commit says which")
        return None if at is None else at.exported

    def _find(self, snapshot_id: int) -> Ancestor | None:
        for known in (self._there, *reversed(self._metadata)):
            if snapshot_id in known:
                return known[snapshot_id]
        return None

    def _line(self) -> set[int]:
        found, each = set[int](), self._there.get(self._main)
        while each is not None:
            found.add(each.id)
            each = None if each.parent_id is None else self._there.get(each.parent_id)
        return found

    def _commit(
        self, rows: Iterable[Row], exported: Exported | None, more: Mapping[str, str] = {}
    ) -> None:
        number = next(self._ids)
        said = {} if exported is None else exported.to_properties()
        self._there[number] = Ancestor(number, self._main, {**said, **more}, "append")
        self._rows[number] = frozenset(rows)
        self._main = number
        if exported is not None:
            self._tag = number
        self._changed("")

    def _changed(self, text: str) -> None:
        self._metadata = [*self._metadata, dict(self._there)][-METADATA_FILES:]
        if text:
            self._world.note(text)


class _StubBrokers:
    """Brokers that answer as leaders."""

    def __init__(self, world: TableWorld) -> None:
        self._world = world

    def close(self) -> None:
        pass

    def topics(self, _: Iterable[str] | None = None) -> dict[str, TopicSummary]:
        world = self._world
        return {TOPIC: TopicSummary(TOPIC, world.topic_id, len(world.logs), internal=False)}

    def list_offsets(self, _: str, timestamps: Mapping[int, int]) -> dict[int, int]:
        logs = self._world.logs
        return {
            part: logs[part].end if asked == LATEST else logs[part].start
            for part, asked in timestamps.items()
        }

    def log_ends(self, _: str, partitions: Iterable[int]) -> dict[int, StableLogEnd]:
        self._interrupt()
        logs = self._world.logs
        return {part: StableLogEnd(logs[part].end, logs[part].leader_epoch) for part in partitions}

    def epoch_ends(self, _: str, epochs: Mapping[int, int]) -> dict[int, EpochEndAnswer]:
        self._interrupt()
        found = {}
        for part, epoch in epochs.items():
            log = self._world.logs[part]
            end = log.epochs.end_offset_for(epoch, log.end).end_offset
            found[part] = EpochEndAnswer(None if end < 0 else end, log.leader_epoch)
        return found

    def _interrupt(self) -> None:
        if self._world.interrupted is not None:
            self._world.interrupted()


class _Maintenance:
    """Maintenance of the table, for which a batch waits. The topic may be recreated meanwhile."""

    def __init__(self, world: TableWorld) -> None:
        self._world = world

    def __enter__(self) -> None:
        if self._world.interrupted is not None and self._world.random.random() < 0.1:
            self._world.recreate()

    def __exit__(self, *_: object) -> None:
        pass


class _Interval(threading.Event):
    """End of a continuous job after a few batches, between which the topic changes."""

    def __init__(self, world: TableWorld) -> None:
        super().__init__()
        self._world, self._left = world, world.random.randint(1, 3)

    def is_set(self) -> bool:
        self._left -= 1
        if self._left < 2 and self._world.random.random() < 0.2:
            self._world.add_partition()
            self._world.produce()
        return self._left < 0


class _Deleter:
    def __init__(self, world: TableWorld) -> None:
        self._world = world

    def delete(self, topic: str, topic_id: str, positions: Mapping[int, ReadPosition]) -> None:
        assert (topic, topic_id) == (TOPIC, str(self._world.topic_id))
        below = {part: at.offset for part, at in positions.items()}
        self._world.check_deletion(below)
        for part, offset in below.items():
            self._world.logs[part].delete_below(min(offset, self._world.logs[part].end))
        self._world.note(f"deleted below {dict(below)}")


_NO_SESSION: Any = None


def _of_logs(logs: Mapping[int, Log]) -> Iterator[Row]:
    for part, log in logs.items():
        for offset, number in enumerate(log.records):
            yield part, offset, number


def _epochs_of(tier: Tier, topic_id: uuid.UUID, part: int) -> LeaderEpochs:
    """Return the epochs of a leader that takes the log over from the tier."""
    found = LeaderEpochs()
    for entry in tier.reader.snapshot(topic_id, part).live_segments():
        for epoch, start in entry.leader_epochs:
            if epoch > found.latest_epoch:
                found = found.assign(epoch, start)
    return found


@contextmanager
def _stubbed(world: TableWorld) -> Iterator[None]:
    """Run the job with stubs for Spark, brokers and the store."""

    def run(_session: Any, options: Any, batches: Any, *_: Any) -> None:
        batches.writing = _Maintenance(world)
        every_s = world.random.choice((None, 0.0))
        job._commit_batches(_NO_SESSION, options, batches, every_s, _Interval(world))

    # The store and the brokers are the simulated ones.
    with (
        mock.patch(
            "tidemark_pipeline.read.topic_survey.open_readable",
            side_effect=lambda *_: world.open_tier(),
        ),
        mock.patch(
            "tidemark_pipeline.read.topic_survey._brokers", return_value=_StubBrokers(world)
        ),
        # A frame is the options of its read.
        mock.patch.object(job, "read_topic", lambda _, options: options),
        mock.patch.object(job, "raw", lambda options: options),
        # Without the thread that reports the lag, so that a seed is one run.
        mock.patch.object(job, "_run_batches", run),
    ):
        yield


def simulate_tables(seed: int, steps: int = STEPS) -> SimulationOutcome:
    """Simulate the tables of one seed."""
    began_s = time.process_time()
    world = TableWorld(seed)
    violation = None
    done = 0
    with _stubbed(world):
        try:
            while done < steps:
                done += 1
                world.step()
            world.run_export()
        except Violation as error:
            violation = "26", str(error)
    return SimulationOutcome(
        seed, done, time.process_time() - began_s, violation, world.events, world.figures
    )
