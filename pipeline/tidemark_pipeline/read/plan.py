"""Plan of a read, pinned once by the driver.

It starts at the highest of the requested offset, the head's log start and the brokers' log start,
as an acknowledged DeleteRecords may not have reached the head yet (invariant 27). It ends at the
requested offset, else at the brokers' last stable offset. Without brokers it ends at the end of the
tier, and says so.
"""

import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tidemark.message_text import count
from tidemark_pipeline.errors import DataLoss
from tidemark_pipeline.read.filters import NO_NARROWING, Narrowing
from tidemark_pipeline.read.options import OptionError, Options
from tidemark_pipeline.read.positions import Extent, FixedOffset, NoSuchTime, offset_of
from tidemark_pipeline.read.tasks import RemoteTask, Task, cut
from tidemark_pipeline.read.topic_survey import Part, Survey

logger = logging.getLogger(__name__)

#: Most remote tasks of a plan, about: beyond it, tasks are larger than the options request. Spark's
#: driver needs memory and time for each.
_TASKS_MAX = 10_000
#: Tasks below this size are read together.
_SMALL_BYTES = 8 * 1024 * 1024
#: Bytes of a record of which nothing is known but its offset.
BYTES_ASSUMED = 1024


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """Task with its partition."""

    part: Part
    task: Task


@dataclass(frozen=True, slots=True)
class ReadRange:
    """The offsets of a partition that are read: from ``start`` up to, not including, ``end``."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """Offsets and tasks of one read.

    ``ends_with_tier``: no brokers are read, so records that are not in the tier yet are missing.
    """

    read_ranges: Mapping[Part, ReadRange]
    tasks: Sequence[PlannedTask]
    ends_with_tier: bool

    def lines(self) -> Iterator[str]:
        """Yield a log line for each partition: its offsets, and the work in tier and brokers."""
        remote, size, tail = (dict.fromkeys(self.read_ranges, 0) for _ in range(3))
        for part, task in ((planned.part, planned.task) for planned in self.tasks):
            if isinstance(task, RemoteTask):
                remote[part] += 1
                size[part] += task.size_bytes
            else:
                tail[part] += task.end_offset - task.start_offset
        for part, read_range in self.read_ranges.items():
            end = ", where the tier ends" if self.ends_with_tier else ""
            yield (
                f"{part.topic}-{part.partition}: offsets {read_range.start} to {read_range.end} "
                f"(exclusive{end}): about {size[part]} bytes of the tier in "
                f"{count(remote[part], 'task')}, {count(tail[part], 'offset')} of brokers"
            )

    def groups(self, task_bytes: int) -> Iterator[tuple[PlannedTask, ...]]:
        """Yield the work of each Spark task: a planned task, or several small ones in a row.

        A task costs about as much as reading a few megabytes, so small pieces of many partitions
        are read by one. A small piece also joins the task before it of the same partition. It is
        usually the tail on brokers, and that task reads the last segments of the tier.
        """
        most = min(task_bytes, _SMALL_BYTES)
        group: list[PlannedTask] = []
        size = 0
        for planned in self.tasks:
            planned_bytes = _size_of(planned.task)
            # A small piece of the same partition may make the task as large as the options request.
            continues = planned_bytes <= most and group and group[-1].part == planned.part
            if group and size + planned_bytes > (task_bytes if continues else most):
                yield tuple(group)
                group, size = [], 0
            group.append(planned)
            size += planned_bytes
        # The last group has no piece after it.
        if group:
            yield tuple(group)


def _size_of(task: Task) -> int:
    if isinstance(task, RemoteTask):
        return task.size_bytes
    return (task.end_offset - task.start_offset) * BYTES_ASSUMED


def explain(options: Options) -> str:
    """Return the plan of a batch read at this moment, as text.

    Raises the same as :func:`plan_batch`.
    """
    with Survey(options) as survey:
        return "\n".join(plan_batch(survey, options).lines())


def plan_batch(survey: Survey, options: Options, narrowing: Narrowing = NO_NARROWING) -> ReadPlan:
    """Return the plan for everything between the starting and the ending positions.

    Raises TopicNotFound, StoreUnavailable, Unreachable, ClusterRefused, OptionError,
    MissingOffsets.
    """
    # Partitions that no row of the query can be in are not even looked up.
    parts = [p for p in survey.parts() if narrowing.has(p.topic, p.partition)]
    extents = survey.extents(parts)
    read_ranges = {
        part: _narrowed(requested_range(survey, options, part, extent), narrowing)
        for part, extent in extents.items()
    }
    return plan_ranges(survey, options, read_ranges, narrowing)


def plan_ranges(
    survey: Survey,
    options: Options,
    read_ranges: Mapping[Part, ReadRange],
    narrowing: Narrowing = NO_NARROWING,
) -> ReadPlan:
    """Return the plan that reads these offsets, and log it.

    ``read_ranges``: offsets by partition, none below the log start. ``narrowing``: bounds from the
    query's filters.
    """
    # Partitions without records to read need no manifest.
    read = {part: at for part, at in read_ranges.items() if at.start < at.end}
    task_bytes = options.task_bytes
    # With a bound of time most of the tier may be left out, so its size says nothing.
    if narrowing.since_ms is None and narrowing.until_ms is None:
        found = (survey.sizes(part, at.start, at.end) for part, at in read.items())
        tier_bytes = sum(size for ranges in found for _, _, size in ranges)
        task_bytes = max(task_bytes, tier_bytes // _TASKS_MAX)
    tasks = [
        PlannedTask(part, task)
        for part, read_range in read.items()
        for task in _tasks(survey, options, part, read_range, narrowing, task_bytes)
    ]
    plan = ReadPlan(read_ranges, tasks, ends_with_tier=not survey.reads_brokers)
    for line in plan.lines():
        logger.info("%s", line)
    return plan


def requested_range(survey: Survey, options: Options, part: Part, extent: Extent) -> ReadRange:
    """Return the offsets of one partition that the options request, within its extent.

    ``extent``: the readable offsets. Raises OptionError if an offset is outside the extent and
    ``failOnDataLoss`` is set.
    """
    start = starting(survey, options, part, extent)
    # An end below the start gives an empty read.
    end = ending(survey, options, part, extent)
    return ReadRange(min(start, end), end)


def ending(survey: Survey, options: Options, part: Part, extent: Extent) -> int:
    """Return the exclusive offset at which the options end the read of a partition, within its
    extent.

    Raises OptionError if an explicit offset is beyond the extent and ``failOnDataLoss`` is set.
    """
    position = None if options.ending is None else options.ending.of(part.topic, part.partition)
    find = functools.partial(survey.find, part)
    end = extent.end if position is None else offset_of(position, extent, find)
    # Only an explicit offset beyond the end is an error. A timestamp later than all records means
    # the end.
    if isinstance(position, FixedOffset) and options.fail_on_data_loss and end > extent.end:
        where = "log" if survey.reads_brokers else "tier, and no brokers are read,"
        raise OptionError(
            f"endingOffsets ends {part.topic}-{part.partition} at {end}, but its {where} ends at "
            f"{extent.end}: end there, or set failOnDataLoss=false"
        )
    return min(end, extent.end)


def starting(survey: Survey, options: Options, part: Part, extent: Extent) -> int:
    """Return the offset at which the options start to read a partition, within its extent.

    Raises OptionError if an explicit offset is outside the extent, or no record is as late as the
    starting time.
    """
    position = options.starting.of(part.topic, part.partition)
    # ``find`` sends a request, so it is called only if the option is a timestamp.
    find = functools.partial(survey.find, part)
    try:
        start = offset_of(position, extent, find, strict=options.strict_times)
    except NoSuchTime as error:
        raise OptionError(
            f"{part.topic}-{part.partition}: {error}; set startingOffsetsByTimestampStrategy=latest"
            " to begin at the end"
        ) from error
    # An explicit offset that has expired is data loss, unless it is accepted. An offset beyond the
    # end usually belongs to another topic, or to a log that lost records.
    within = min(max(start, extent.log_start), extent.end)
    if start != within and options.fail_on_data_loss:
        raise OptionError(
            f"startingOffsets begins partition {part.partition} of {part.topic} at {start}, but "
            f"its log {'starts' if start < within else 'ends'} at {within}: start there, or set "
            "failOnDataLoss=false"
        )
    return within


def _narrowed(read_range: ReadRange, narrowing: Narrowing) -> ReadRange:
    # Filters move both ends inwards only, and never past each other.
    start = max(read_range.start, narrowing.first_offset)
    end = min(read_range.end, narrowing.last_offset + 1)
    return ReadRange(min(start, read_range.end), max(end, min(start, read_range.end)))


def _tasks(
    survey: Survey,
    options: Options,
    part: Part,
    read_range: ReadRange,
    narrowing: Narrowing,
    task_bytes: int,
) -> Iterator[Task]:
    """Yield the tasks that read one partition: remote segments, and offsets on brokers.

    Raises :class:`DataLoss` if requested offsets have expired, and MissingOffsets if some offset
    has no source.
    """
    # The manifest may have been read after the extent, and retention may have moved the log start
    # meanwhile.
    start, ranges = survey.ranges(part, read_range.start, read_range.end)
    if start > read_range.start and options.fail_on_data_loss:
        raise DataLoss(
            f"{part.topic}-{part.partition}: the offsets from {read_range.start} to {start - 1} "
            "expired while the read was planned"
        )
    # Retention may have removed everything that was requested.
    if start >= read_range.end:
        return
    # A segment's entry has its largest timestamp only. So an upper time bound is usable only if the
    # user states how far timestamps are out of order (``timestamp_skew_ms``).
    until_ms, skew_ms = narrowing.until_ms, options.timestamp_skew_ms
    yield from cut(
        part.partition,
        start,
        read_range.end,
        ranges,
        brokers=survey.reads_brokers,
        task_bytes=task_bytes,
        reads_parts=survey.reads_parts,
        since_ms=narrowing.since_ms,
        over_ms=None if until_ms is None or skew_ms is None else until_ms + skew_ms,
    )
