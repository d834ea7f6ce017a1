"""What a read will see, pinned once by the driver.

The start is the highest of what was asked, the head's log start and the brokers' (a DeleteRecords
that was acknowledged may not have reached the head yet: invariant 27). The end is what was asked,
else the brokers' last stable offset, else the end of the tier.
"""

import uuid
from collections.abc import Iterator

from tidemark.tier.manifest import HeadNotFound
from tidemark.tier.queries import SegmentRange
from tidemark.tier.reader import Snapshot, TierReader
from tidemark_pipeline import tail
from tidemark_pipeline.options import OptionError, Options
from tidemark_pipeline.tasks import TailTask, Task, remote_end, split_remote

#: No offset is as high: "to the end of the tier".
_NO_END = 2**63 - 1


class Planner:
    """Plans one read of one topic."""

    def __init__(self, reader: TierReader, options: Options) -> None:
        self._reader = reader
        self._options = options

    def plan(self) -> tuple[uuid.UUID, list[Task]]:
        """The topic's id and the tasks of all its partitions.

        Raises TopicNotFound, StoreUnavailable, BrokersUnavailable, OptionError, HoleInPlan.
        """
        topic = self._reader.find_topic(self._options.topic)
        numbers = list(range(topic.partitions))
        starts, ends = self._bounds(numbers)
        tasks = [
            task
            for number in numbers
            for task in self._plan_one(
                topic.topic_id, number, starts.get(number, 0), ends.get(number)
            )
        ]
        return topic.topic_id, tasks

    def _bounds(self, partitions: list[int]) -> tuple[dict[int, int], dict[int, int]]:
        """Log starts as brokers know them, and exclusive ends, by partition."""
        ending = self._options.ending_offsets
        if not self._options.bootstrap:
            return {}, dict(ending)
        source = (self._options.bootstrap, self._options.topic)
        ends = tail.list_offsets(*source, [p for p in partitions if p not in ending], tail.LATEST)
        return tail.list_offsets(*source, partitions, tail.EARLIEST), {**ends, **ending}

    def _plan_one(
        self, topic_id: uuid.UUID, partition: int, broker_start: int, end: int | None
    ) -> Iterator[Task]:
        snapshot = self._snapshot(topic_id, partition)
        head_start = snapshot.head.log_start_offset if snapshot else 0
        start = self._start(partition, max(head_start, broker_start))
        until = _NO_END if end is None else end
        ranges: tuple[SegmentRange, ...] = ()
        if snapshot is not None and start < until:
            snapshot, ranges = self._reader.plan(topic_id, partition, start, until)
            version = snapshot.head.version
            yield from split_remote(partition, version, ranges, self._options.task_bytes)
        behind = remote_end(ranges, start)
        if self._options.bootstrap and end is not None and behind < end:
            yield TailTask(partition, behind, end)

    def _start(self, partition: int, log_start: int) -> int:
        starting = self._options.starting_offsets.get(partition, log_start)
        if starting < log_start and self._options.fail_on_data_loss:
            raise OptionError(
                f"startingOffsets begins partition {partition} at {starting}, but its log starts "
                f"at {log_start}: start there, or set failOnDataLoss=false"
            )
        return max(starting, log_start)

    def _snapshot(self, topic_id: uuid.UUID, partition: int) -> Snapshot | None:
        try:
            return self._reader.snapshot(topic_id, partition)
        except HeadNotFound:
            return None
