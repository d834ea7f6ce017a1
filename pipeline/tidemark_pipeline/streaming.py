"""A tiered topic as a stream: offsets by partition, a micro-batch from one to the next.

Offsets are JSON as Spark's Kafka source writes them into a checkpoint: ``{"t": {"0": 17}}``, the
first offset that is not read yet. A batch is planned from two of them alone, so one that Spark
repeats after a crash has the same rows.

Spark asks a Python source for the latest offset without saying where the query is (as of 4.1; and
it knows nothing of ``ReadLimit``). But it has said so before: it plans a batch up to there, and
after a restart an empty one. So the reader remembers the end of what was planned last, and begins a
new query at its starting positions. That is what limits of a micro-batch are counted from.

With ``Trigger.AvailableNow`` Spark asks once and makes one micro-batch of all that is there then;
with a limit that one batch is all that a run reads. :func:`run_available` keeps to the limit
and reads everything.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tidemark_pipeline.errors import DataLoss
from tidemark_pipeline.limits import Waiting, Weight, limited
from tidemark_pipeline.options import Options
from tidemark_pipeline.plan import Planned, Reach, asked, plan_reaches, starting
from tidemark_pipeline.positions import Extent
from tidemark_pipeline.survey import Part, Survey
from tidemark_pipeline.tasks import bytes_of

_STOP_LOOK_S = 0.2
Offsets = dict[str, dict[str, int]]
#: By topic and partition.
Places = dict[tuple[str, int], int]


class TidemarkPartition(InputPartition):
    """One task."""

    def __init__(self, planned: Planned, since_ms: int | None = None) -> None:
        super().__init__(planned)
        self.planned = planned
        self.since_ms = since_ms


class TidemarkStreamReader(DataSourceStreamReader):
    """Plans on the driver, reads on executors."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._initial: Places | None = None
        #: The end of what was planned last.
        self._planned: Places | None = None
        #: Where the query ends, once it is known.
        self._last: Places | None = None
        #: Of the driver, whose connections last as long as the query.
        self._survey: Survey | None = None

    def initialOffset(self) -> Offsets:
        """Where a new query begins."""
        return to_json(self._begin(self._look()))

    def latestOffset(self) -> Offsets:
        """Where the next micro-batch ends: at most where its limits and the query's end allow."""
        survey = self._look()
        parts = survey.parts()
        known = self._planned if self._planned is not None else self._begin(survey)
        ends = self._ends(survey, parts)
        new = [part for part in parts if _key(part) not in known]
        starts = dict(known)
        starts.update({_key(p): extent.log_start for p, extent in survey.extents(new).items()})
        waiting = {
            part: self._waiting(survey, part, starts[_key(part)], ends[part]) for part in parts
        }
        found = limited(waiting, self._options.limits)
        # What is no longer there stays: planning says what that means.
        return to_json(known | {_key(part): end for part, end in found.items()})

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """The tasks of one micro-batch. Raises :class:`DataLoss`."""
        begin, until = from_json(start), from_json(end)
        self._planned = until
        if begin == until:
            return []
        survey = self._look()
        parts = {_key(part): part for part in survey.parts()}
        self._check_there(until, parts, begin)
        wanted = [parts[key] for key in until if key in parts]
        reaches = {
            part: self._reach(part, extent, begin.get(_key(part)), until[_key(part)])
            for part, extent in survey.extents(wanted).items()
        }
        plan = plan_reaches(survey, self._options, reaches)
        return [TidemarkPartition(each) for each in plan.tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Arrow batches of one task."""
        if not isinstance(partition, TidemarkPartition):
            raise TypeError(f"{partition!r} was not planned by this source")
        from tidemark_pipeline.reading import read_planned  # on executors alone

        yield from read_planned(self._options, partition.planned)

    def stop(self) -> None:
        """The query has ended."""
        if self._survey is not None:
            self._survey.close()

    def _look(self) -> Survey:
        """Things as they are now."""
        if self._survey is None:
            self._survey = Survey(self._options)
        self._survey.forget()
        return self._survey

    def _begin(self, survey: Survey) -> Places:
        if self._initial is None:
            extents = survey.extents(survey.parts())
            self._initial = {
                _key(part): starting(survey, self._options, part, extent)
                for part, extent in extents.items()
            }
        return self._initial

    def _ends(self, survey: Survey, parts: Sequence[Part]) -> dict[Part, int]:
        """The end of each as it is now, or where the query ends."""
        if self._options.ending is None:
            return survey.ends_of(parts)
        if self._last is None:
            self._last = {
                _key(part): asked(survey, self._options, part, extent).end
                for part, extent in survey.extents(parts).items()
            }
        return {part: self._last.get(_key(part), 0) for part in parts}

    def _waiting(self, survey: Survey, part: Part, start: int, end: int) -> Waiting:
        if self._options.limits.bytes is None or end <= start:
            return Waiting(start, end)
        _, _, ranges = survey.ranges(part, start, end)
        weights = [
            Weight(
                each.to_offset_inclusive + 1,
                bytes_of(each) / (each.to_offset_inclusive + 1 - each.from_offset),
            )
            for each in ranges
        ]
        return Waiting(start, end, weights)

    def _check_there(
        self, until: Places, parts: Mapping[tuple[str, int], Part], begin: Places
    ) -> None:
        gone = [key for key in until if key not in parts and until[key] > begin.get(key, 0)]
        if gone and self._options.fail_on_data_loss:
            topic, partition = gone[0]
            raise DataLoss(f"{topic}-{partition} is gone, with offsets that were not read yet")

    def _reach(self, part: Part, extent: Extent, begin: int | None, until: int) -> Reach:
        start = extent.log_start if begin is None else begin
        lost = begin is not None and start < extent.log_start and start < until
        if (lost or until > extent.end or until < start) and self._options.fail_on_data_loss:
            raise DataLoss(
                f"{part.topic}-{part.partition}: the query is at offset {start} and reads to "
                f"{until}, but the log goes from {extent.log_start} to {extent.end}: records have "
                "expired, or the topic was made anew. Begin a new query, or set "
                "failOnDataLoss=false"
            )
        end = min(until, extent.end)
        return Reach(min(max(start, extent.log_start), end), end)


def run_available(writer: DataStreamWriter, stop: threading.Event | None = None) -> StreamingQuery:
    """Start a query, let it read all that its options' ``endingOffsets`` allow in as many
    micro-batches as its limits need, or until ``stop`` is set, and stop it. Set ``endingOffsets``
    to ``latest``: that is the end when the query starts, so it ends however much is written
    meanwhile.

    Raises StreamingQueryException where it failed."""
    query = writer.trigger(processingTime="0 seconds").start()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_STOP_LOOK_S):
            if stop is not None and stop.is_set():
                query.stop()
                return

    watcher = threading.Thread(target=watch, name="stop-query", daemon=True)
    watcher.start()
    try:
        query.processAllAvailable()
    finally:
        over.set()
        watcher.join()
        query.stop()
    return query


def to_json(places: Places) -> Offsets:
    """As a checkpoint has it, in the order of partitions."""
    found: Offsets = {}
    for (topic, partition), offset in sorted(places.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def from_json(offsets: Offsets) -> Places:
    """And back."""
    return {
        (topic, int(partition)): int(offset)
        for topic, rows in offsets.items()
        for partition, offset in rows.items()
    }


def _key(part: Part) -> tuple[str, int]:
    return part.topic, part.partition
