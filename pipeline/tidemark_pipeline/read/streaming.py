"""A tiered topic as a stream: offsets by partition, a micro-batch from one to the next.

Offsets are JSON as Spark's Kafka source writes them into a checkpoint: ``{"t": {"0": 17}}``, the
first offset that is not read yet. A batch is planned from two of them alone, so one that Spark
repeats after a crash has the same rows.

A checkpoint may outlive the topic. So it also contains, under names that no topic can have, the ids
of topics and the leader epochs of offsets. Each batch compares them with the present topic
(:mod:`tidemark.log_lineage`). Checkpoints of older versions have neither.

Spark requests the latest offset from a Python source without passing the query's position (as of
4.1; it does not support ``ReadLimit`` either). But it has planned a batch up to that position
before, and after a restart an empty one. So the reader remembers the end of the last planned batch,
and a new query starts at its starting positions. Limits of a micro-batch are counted from there.

With ``Trigger.AvailableNow`` Spark requests the latest offset once and makes one micro-batch up to
it. With a limit, that one batch is all that a run reads. :func:`run_available` applies the limit
and reads everything.
"""

import threading
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tidemark.ids import id_text
from tidemark.log_lineage import ReadPosition, loss_text
from tidemark_pipeline.errors import DataLoss
from tidemark_pipeline.read.options import BatchLimits, Options
from tidemark_pipeline.read.plan import (
    BYTES_ASSUMED,
    PlannedTask,
    ReadRange,
    plan_ranges,
    requested_range,
    starting,
)
from tidemark_pipeline.read.positions import Extent
from tidemark_pipeline.read.topic_survey import Part, Survey

_STOP_POLL_S = 0.2
#: Offsets in the form of a checkpoint.
Offsets = dict[str, dict[str, Any]]
_EPOCHS, _TOPIC_IDS = "#leaderEpochs", "#topicIds"
#: Property of a task with the columns that its query uses (``pipeline/columnar``).
_COLUMNS = "tidemark.columns"


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Progress of a query. ``positions``: by topic and partition. ``topic_ids``: as text, by topic,
    if known."""

    positions: Mapping[tuple[str, int], ReadPosition] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    def offset(self, part: Part) -> int | None:
        """Return the offset of a partition, None if the query does not know the partition."""
        position = self.positions.get(_key(part))
        return None if position is None else position.offset

    def to_json(self) -> Offsets:
        """Return the form of a checkpoint, ordered by partition."""
        offsets: Offsets = {}
        epochs: Offsets = {}
        for (topic, partition), at in sorted(self.positions.items()):
            offsets.setdefault(topic, {})[str(partition)] = at.offset
            if at.leader_epoch is not None:
                epochs.setdefault(topic, {})[str(partition)] = at.leader_epoch
        if epochs:
            offsets[_EPOCHS] = epochs
        if self.topic_ids:
            offsets[_TOPIC_IDS] = dict(sorted(self.topic_ids.items()))
        return offsets

    @classmethod
    def from_json(cls, offsets: Offsets) -> Self:
        """Read the form of a checkpoint."""
        epochs = offsets.get(_EPOCHS, {})
        positions = {
            (topic, int(partition)): ReadPosition(int(offset), epochs.get(topic, {}).get(partition))
            for topic, rows in offsets.items()
            if topic not in (_EPOCHS, _TOPIC_IDS)
            for partition, offset in rows.items()
        }
        return cls(positions, offsets.get(_TOPIC_IDS, {}))


class TidemarkPartition(InputPartition):
    """Task of a read: one planned task, or several small ones."""

    def __init__(self, planned: Sequence[PlannedTask], since_ms: int | None = None) -> None:
        super().__init__(planned)
        self.planned = planned
        self.since_ms = since_ms


def read_partition(options: Options, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the Arrow batches of one task of a batch or a stream."""
    if not isinstance(partition, TidemarkPartition):
        raise TypeError(f"{partition!r} was not planned by this source")
    from tidemark_pipeline.read.arrow import with_columns  # on executors alone
    from tidemark_pipeline.read.task_execution import read_planned

    built = replace(options, columns=used_columns(options.columns))
    for planned in partition.planned:
        for batch in read_planned(built, planned, partition.since_ms):
            yield with_columns(batch, options.columns)


def used_columns(columns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns that a task has to build: all, or those that its query uses.

    Only the extension ``pipeline/columnar`` reports the used ones.
    """
    context = TaskContext.get()
    used = None if context is None else context.getLocalProperty(_COLUMNS)
    if used is None:
        return columns
    # A batch without a column would have no number of rows. The last one needs no copy of bytes.
    return tuple(name for name in columns if name in used.split(",")) or columns[-1:]


class TidemarkStreamReader(DataSourceStreamReader):
    """Spark's reader of a topic as a stream: the driver plans micro-batches, executors read."""

    def __init__(self, options: Options) -> None:
        self._options = options
        # Offset at which a new query starts, computed once.
        self._initial: StreamOffset | None = None
        #: End of the last planned micro-batch, which is the query's current offset.
        self._planned: StreamOffset | None = None
        #: Exclusive end offsets of the whole query, once they are known; None for an endless one.
        self._last: Mapping[tuple[str, int], int] | None = None
        #: The stream offset that latestOffset returned last. The log has been checked up to it.
        self._reached: StreamOffset | None = None
        #: Connections of the driver, which last as long as the query.
        self._survey: Survey | None = None

    def initialOffset(self) -> Offsets:
        """Return the start of a new query."""
        return self._start(self._refreshed_survey()).to_json()

    def latestOffset(self) -> Offsets:
        """Return the end of the next micro-batch, limited by its options and the query's end.

        Spark calls it before :meth:`partitions`. Raises :class:`DataLoss` if the topic lost records
        that the query has read.
        """
        survey = self._refreshed_survey()
        parts = survey.parts()
        # The query's offset is the end of the last planned batch, or its starting options.
        known = self._planned if self._planned is not None else self._start(survey)
        ends = self._ends(survey, parts)
        # A partition that was added since then starts at its log start.
        new = [part for part in parts if known.offset(part) is None]
        starts = {part: known.offset(part) or 0 for part in parts}
        starts.update({part: extent.log_start for part, extent in survey.extents(new).items()})
        # If a log ends below the query's offset, it may have lost records, for example when the
        # topic was restored from its tier. With failOnDataLoss that raises here, as the query would
        # otherwise wait until new records reach its offset; :meth:`partitions` checks the other
        # logs. Without failOnDataLoss the query goes back to the first lost offset once.
        is_strict = self._options.fail_on_data_loss
        behind = [part for part in parts if survey.reads_brokers and ends[part] < starts[part]]
        lost = self._diverged(survey, behind if is_strict else parts, known)
        starts.update(lost)
        # Divide the batch's limits (bytes or offsets) among the partitions.
        batch_ends = end_of_batch(survey, self._options.limits, starts, ends)
        # An unchanged offset keeps its stored leader epoch: nothing proves that the records below
        # it belong to a later one.
        moved = {
            part: end
            for part, end in batch_ends.items()
            if part in lost or known.offset(part) != end
        }
        positions = {_key(part): at for part, at in survey.positions(moved).items()}
        # Deleted partitions stay in the offset, and with failOnDataLoss the first ID of a topic is
        # kept. So :meth:`partitions` raises DataLoss for a deleted or re-created topic.
        ids = _ids_of(parts)
        self._reached = StreamOffset(
            {**known.positions, **positions},
            {**ids, **known.topic_ids} if is_strict else {**known.topic_ids, **ids},
        )
        return self._reached.to_json()

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Return the tasks of the micro-batch between two stream offsets.

        Raises :class:`DataLoss` if records of the batch are no longer available.
        """
        begin, until = StreamOffset.from_json(start), StreamOffset.from_json(end)
        self._planned = until
        # Spark plans an empty batch after a restart to report the query's position.
        if begin.positions == until.positions:
            return []
        survey = self._refreshed_survey()
        parts = {_key(part): part for part in survey.parts()}
        self._check_present(until, parts, begin)
        present = [parts[key] for key in until.positions if key in parts]
        # Check that the log still has the records that the query has already read.
        lost = self._diverged(survey, present, begin)
        # This reader did not compute the end: Spark repeats a batch of its checkpoint. The batch
        # must have the same rows as before, so the log is checked up to its end, too.
        if until != self._reached:
            lost |= self._diverged(survey, present, until)
        read_ranges = {}
        # Each partition is read from the query's offset. If data loss is accepted, it is read again
        # from the first lost offset.
        for part, extent in survey.extents(present).items():
            begins_at = begin.offset(part)
            if part in lost and begins_at is not None:
                begins_at = min(begins_at, max(lost[part], extent.log_start))
            ends_at = until.positions[_key(part)].offset
            read_ranges[part] = self._read_range(part, extent, begins_at, ends_at)
        plan = plan_ranges(survey, self._options, read_ranges)
        return [TidemarkPartition(group) for group in plan.groups(self._options.task_bytes)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the Arrow batches of one task."""
        return read_partition(self._options, partition)

    def stop(self) -> None:
        """Close the connections of a query that has ended."""
        if self._survey is not None:
            self._survey.close()

    def _refreshed_survey(self) -> Survey:
        """Return a survey of the current state."""
        if self._survey is None:
            self._survey = Survey(self._options)
        # Heads and log starts of the last micro-batch may be outdated.
        self._survey.forget()
        return self._survey

    def _start(self, survey: Survey) -> StreamOffset:
        # Computed once: `latest` and times would otherwise move while the query has no batch.
        if self._initial is None:
            extents = survey.extents(survey.parts())
            offsets = {
                part: starting(survey, self._options, part, extent)
                for part, extent in extents.items()
            }
            positions = survey.positions(offsets)
            self._initial = StreamOffset(
                {_key(part): at for part, at in positions.items()}, _ids_of(positions)
            )
        return self._initial

    def _ends(self, survey: Survey, parts: Sequence[Part]) -> dict[Part, int]:
        """Return the current end of each partition, or the end of the query."""
        if self._options.ending is None:
            return survey.ends(parts)
        # Fixed when the query starts, so that it ends although producers continue.
        if self._last is None:
            self._last = {
                _key(part): requested_range(survey, self._options, part, extent).end
                for part, extent in survey.extents(parts).items()
            }
        return {part: self._last.get(_key(part), 0) for part in parts}

    def _check_present(
        self, until: StreamOffset, parts: Mapping[tuple[str, int], Part], begin: StreamOffset
    ) -> None:
        """Raise :class:`DataLoss` if a partition with unread offsets or a topic was deleted.

        ``until`` and ``begin``: end and start of the micro-batch. ``parts``: the current
        partitions. A re-created topic counts as deleted. Nothing is checked with
        failOnDataLoss=false.
        """
        if not self._options.fail_on_data_loss:
            return
        nothing = ReadPosition(0)
        # A partition may disappear if the query has already read all of it.
        for key, at in until.positions.items():
            if key not in parts and at.offset > begin.positions.get(key, nothing).offset:
                raise DataLoss(
                    f"{key[0]}-{key[1]} no longer exists, and its last offsets were not read. "
                    "Start a new query with a new checkpoint, or set failOnDataLoss=false"
                )
        for topic, topic_id in _ids_of(parts.values()).items():
            if until.topic_ids.get(topic, topic_id) != topic_id:
                raise DataLoss(
                    f"{topic} was deleted and re-created since the query read it (its id was "
                    f"{until.topic_ids[topic]} and is {topic_id}). Start a new query with a new "
                    "checkpoint, or set failOnDataLoss=false"
                )

    def _diverged(
        self, survey: Survey, parts: Sequence[Part], places: StreamOffset
    ) -> dict[Part, int]:
        """Return the first lost offset of each partition whose log lost records already read.

        Raises :class:`DataLoss` unless data loss is accepted. The query then continues from these
        offsets.
        """
        positions = {
            part: places.positions[_key(part)] for part in parts if _key(part) in places.positions
        }
        # A partition that the query does not know yet has no stored position to compare.
        lost = survey.divergences(positions) if positions else {}
        for part, lost_from in lost.items():
            if self._options.fail_on_data_loss:
                what = loss_text(f"{part.topic}-{part.partition}", positions[part], lost_from)
                raise DataLoss(
                    f"{what}. Start a new query with a new checkpoint, or set "
                    f"failOnDataLoss=false to continue from offset {lost_from}"
                )
        return lost

    def _read_range(self, part: Part, extent: Extent, begin: int | None, until: int) -> ReadRange:
        start = extent.log_start if begin is None else begin
        # Records below the log start have expired; they are lost only if the batch includes them.
        lost = begin is not None and start < extent.log_start and start < until
        if (lost or until > extent.end or until < start) and self._options.fail_on_data_loss:
            raise DataLoss(
                f"{part.topic}-{part.partition}: the query is at offset {start} and reads to "
                f"{until}, but the log goes from {extent.log_start} to {extent.end}: records have "
                "expired, or the topic was re-created. Start a new query with a new checkpoint, or "
                "set failOnDataLoss=false"
            )
        end = min(until, extent.end)
        return ReadRange(min(max(start, extent.log_start), end), end)


def run_available(writer: DataStreamWriter, stop: threading.Event | None = None) -> StreamingQuery:
    """Run a query until it has read everything up to ``endingOffsets``, then stop it.

    It makes as many micro-batches as the query's limits require, unlike ``Trigger.AvailableNow``,
    and stops early if ``stop`` is set. With ``endingOffsets=latest`` the end is fixed when the
    query starts, so it ends even if producers continue.

    Returns the stopped query. Raises StreamingQueryException if the query failed.
    """
    query = writer.trigger(processingTime="0 seconds").start()
    # processAllAvailable blocks this thread, so another one watches ``stop``.
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_STOP_POLL_S):
            if stop is not None and stop.is_set():
                query.stop()
                return

    watcher = threading.Thread(target=watch, name="stop-query", daemon=True)
    watcher.start()
    try:
        query.processAllAvailable()
    finally:
        # The watcher ends first, so that it cannot stop a query that is already stopped.
        ended.set()
        watcher.join()
        query.stop()
    return query


def _ids_of(parts: Iterable[Part]) -> dict[str, str]:
    return {part.topic: id_text(part.topic_id) for part in parts if part.topic_id is not None}


def _key(part: Part) -> tuple[str, int]:
    return part.topic, part.partition


# ------------------------------------------------------------ Limits of a micro-batch

# End of one micro-batch when it is limited.
#
# This module does no I/O. As in Spark's Kafka source, each partition gets a share of the limit in
# proportion to its backlog, and at least one offset, so that no partition starves. Bytes come from
# the manifest's segments. Offsets that only brokers have count with the average bytes of the last
# segment.

P = TypeVar("P", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Weight:
    """Approximate bytes of each offset up to ``end``.

    ``end`` is exclusive. The range starts at the end of the previous weight.
    """

    end: int
    bytes_each: float


@dataclass(frozen=True, slots=True)
class PendingPartition:
    """Offsets that a partition has to read; ``weights`` are in order of their ends."""

    start: int
    end: int
    weights: Sequence[Weight] = ()

    @property
    def offsets(self) -> int:
        """Return the number of offsets."""
        return max(0, self.end - self.start)

    @property
    def bytes(self) -> float:
        """Return the approximate number of bytes."""
        return sum(size for _, size in self._steps())

    def end_of_bytes(self, limit: float) -> int:
        """Return the offset up to which the bytes are within the limit."""
        position = self.start
        for end, size in self._steps():
            # Bytes are assumed to be spread evenly over the offsets of one step.
            if size > limit:
                return position + int((end - position) * limit / size)
            position, limit = end, limit - size
        return self.end

    def _steps(self) -> list[tuple[int, float]]:
        """Return the pending offsets as ranges: (exclusive end, approximate bytes of the range)."""
        position, bytes_each = self.start, float(BYTES_ASSUMED)
        steps: list[tuple[int, float]] = []
        for weight in self.weights:
            bytes_each = weight.bytes_each
            end = min(weight.end, self.end)
            # A segment may end below the start of the batch.
            if end > position:
                steps.append((end, (end - position) * bytes_each))
                position = end
        # The remaining offsets are on brokers only. They count with the last segment's average.
        if position < self.end:
            steps.append((self.end, (self.end - position) * bytes_each))
        return steps


def end_of_batch(
    survey: Survey, limits: BatchLimits, starts: Mapping[Part, int], ends: Mapping[Part, int]
) -> dict[Part, int]:
    """Return the end offset of each partition in the next batch, within the limits.

    ``starts`` and ``ends``: the offsets that each partition has to read.
    """
    pending = {}
    for part, start in starts.items():
        # Bytes come from manifests, which are read only if a limit needs them.
        needed = limits.bytes is not None and ends[part] > start
        weights = [
            Weight(until, size / (until - first))
            for first, until, size in (survey.sizes(part, start, ends[part]) if needed else ())
        ]
        pending[part] = PendingPartition(start, ends[part], weights)
    return limited(pending, limits)


def limited(pending: Mapping[P, PendingPartition], limits: BatchLimits) -> dict[P, int]:
    """Return the end offset of the next micro-batch for each partition.

    ``pending``: offsets that each partition has to read. The end is never below the start.
    """
    ends = {part: max(backlog.start, backlog.end) for part, backlog in pending.items()}
    offsets = sum(backlog.offsets for backlog in pending.values())
    # Below the limit, every partition is read to its end.
    if limits.offsets is not None and offsets > limits.offsets:
        for part, backlog in pending.items():
            share = limits.offsets * backlog.offsets // offsets
            # At least one offset, or a small backlog would never be read.
            ends[part] = min(ends[part], backlog.start + max(share, 1))
    size = sum(backlog.bytes for backlog in pending.values()) if limits.bytes is not None else 0
    # With both limits, each partition ends at the smaller of the two ends.
    if limits.bytes is not None and size > limits.bytes:
        for part, backlog in pending.items():
            share_end = backlog.end_of_bytes(limits.bytes * backlog.bytes / size)
            ends[part] = min(ends[part], max(share_end, backlog.start + 1))
    return ends
