"""The readable topics and partitions, with the start and end of each.

Either the tier alone provides them, or brokers do and the tier adds its ranges. Everything is read
once and heads are kept, so that a plan uses a consistent state.
"""

import copy
import itertools
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tidemark.kafka_client.access import KafkaAccess
from tidemark.kafka_client.values import EARLIEST, EARLIEST_LOCAL, LATEST
from tidemark.log_lineage import LogLineage, ReadPosition, Restore, divergence
from tidemark.tier.metadata.head import TopicDeleted
from tidemark.tier.metadata.manifest import HeadNotFound, PageNotFound
from tidemark.tier.metadata.queries import SegmentRange
from tidemark.tier.metadata.segment import SegmentEntry
from tidemark.tier.metadata.topics import TopicNotFound, TopicObject
from tidemark.tier.reader import Snapshot
from tidemark_pipeline.errors import DataLoss
from tidemark_pipeline.read import options as names
from tidemark_pipeline.read import timestamp_lookup
from tidemark_pipeline.read.options import Options
from tidemark_pipeline.read.positions import Extent
from tidemark_pipeline.read.tier_access import ReadableTier, open_readable

if TYPE_CHECKING:
    from tidemark.kafka_client.blocking_client import BlockingKafkaClient, TopicSummary

R = TypeVar("R")
_HEADS_AT_ONCE = 8
_ATTEMPTS = 5


class Part(NamedTuple):
    """A partition of one topic. ``topic_id`` is None where no tier is read."""

    topic: str
    partition: int
    topic_id: uuid.UUID | None = None


class Survey:
    """Reader of topics and their offsets, from the object store and the brokers.

    It serves one plan or several consecutive ones. Close it after use.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._tier: ReadableTier | None = (
            None if options.storage is None else open_readable(options.storage, options.aiven)
        )
        self._brokers = None if options.access is None else _brokers(options.access)
        self._snapshots: dict[Part, Snapshot | None] = {}

    def of_topics(self, options: Options) -> "Survey":
        """Return a survey of other topics of the same cluster, with this one's connections.

        It is used by the same thread, and ends with this one.
        """
        other = copy.copy(self)
        other._options, other._snapshots = options, {}
        return other

    def __enter__(self) -> "Survey":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connections to brokers."""
        if self._brokers is not None:
            self._brokers.close()

    def forget(self) -> None:
        """Discard heads, so that later calls read them again."""
        self._snapshots.clear()

    @property
    def reads_brokers(self) -> bool:
        """Return whether rows are read from brokers."""
        return self._brokers is not None and self._options.tier != names.ONLY_REMOTE

    def parts(self) -> list[Part]:
        """Return all partitions to read, in order.

        Raises TopicNotFound, TopicAmbiguous, StoreUnavailable, Unreachable, ClusterRefused
        and OptionError.
        """
        selection = self._options.topics
        topics = self._named() if selection.names else self._matching()
        return [
            Part(topic.name, partition, topic.topic_id)
            for topic in sorted(topics, key=lambda topic: topic.name)
            for partition in selection.partitions_of(topic.name, topic.partitions)
        ]

    def topics(self) -> set[str]:
        """Return the existing topics that the options name or match; internal ones do not match.

        Nothing of a single topic is read, so a damaged one hides no other. Raises the same.
        """
        if not self._options.topics.names:
            pattern = re.compile(self._options.topics.pattern)
            return {name for name in self._visible_topics() if pattern.fullmatch(name)}
        requested = self._options.topics.names
        if self._brokers is not None:
            return set(self._brokers.topics(requested))
        return self._visible_topics() & set(requested)

    def _visible_topics(self) -> set[str]:
        """Return all topics that are not internal.

        Brokers mark internal topics. In the tier their names start with two underscores.
        """
        if self._brokers is not None:
            known = self._brokers.topics()
            return {name for name, topic in known.items() if not topic.internal}
        assert self._tier is not None
        return {name for name in self._tier.topic_names() if not name.startswith("__")}

    def extents(self, parts: Sequence[Part]) -> dict[Part, Extent]:
        """Return the readable offsets of each partition: log start and exclusive end."""
        # Ends first: records that are written from now on are not part of the read. Heads are read
        # after them, so that they include the expirations until then.
        latest = self.ends(parts)
        self._load(parts)
        # With tier=local only offsets on the brokers' disks are readable (EARLIEST_LOCAL, KIP-405).
        brokers_starts = self._brokers_offsets(
            parts, EARLIEST_LOCAL if self._options.tier == names.ONLY_LOCAL else EARLIEST
        )
        extents: dict[Part, Extent] = {}
        for part in parts:
            snapshot = self._snapshot(part)
            # The later of both log starts: DeleteRecords may have reached only the brokers or only
            # the manifest. Brokers answer -1 if they have no offset.
            start = max(brokers_starts.get(part, 0), 0)
            if snapshot is not None:
                start = max(start, snapshot.head.log_start_offset)
                if not self.reads_brokers:
                    # Without brokers, offsets below the tier's first one cannot be read.
                    start = max(start, snapshot.head.remote_log_start_offset or 0)
            extents[part] = Extent(start, max(start, latest[part]))
        return extents

    def ends(self, parts: Sequence[Part]) -> dict[Part, int]:
        """Return the end of each partition: the last stable offset, or without brokers the
        tier's end.
        """
        if self.reads_brokers:
            return self._brokers_offsets(parts, LATEST)
        self._load(parts)
        return {part: _tier_end(self._snapshot(part)) for part in parts}

    def log_starts(self, parts: Sequence[Part]) -> dict[Part, int]:
        """Return the log start of each partition, the later one of the manifest's and the brokers'.

        A deletion may not have reached the other side yet (invariant 27). Partitions without a
        known log start are left out. Unlike :meth:`extents` it ignores which offsets are readable.
        """
        # Brokers answer -1 for a partition without the requested offset.
        log_starts = {
            part: at for part, at in self._brokers_offsets(parts, EARLIEST).items() if at >= 0
        }
        self._load(parts)
        for part in parts:
            snapshot = self._snapshot(part)
            if snapshot is not None:
                log_starts[part] = max(log_starts.get(part, 0), snapshot.head.log_start_offset)
        return log_starts

    def positions(self, offsets: Mapping[Part, int]) -> dict[Part, ReadPosition]:
        """Return each offset with a leader epoch, to be stored and later compared with the log.

        The epoch is at least that of the record before the offset. Call this before
        :meth:`divergences` of the start positions. A log that loses records between the two calls
        is then noticed by that call, or by the next check of the positions. Raises
        :class:`DataLoss` if a log ends below its offset.
        """
        # Without brokers the manifest's epochs are the only ones known.
        if self._brokers is None:
            self._load(list(offsets))
            return {
                part: ReadPosition(offset, self._epoch_in_tier(part, offset))
                for part, offset in offsets.items()
            }
        positions: dict[Part, ReadPosition] = {}
        # The leader's epoch is an upper bound for the epochs of all records below its last stable
        # offset.
        for part, end in _answers(offsets, self._brokers.log_ends).items():
            if end.offset < offsets[part]:
                raise DataLoss(
                    f"{part.topic}-{part.partition}: the log ends at {end.offset}, below offset "
                    f"{offsets[part]} that was planned to be read: a leader was elected uncleanly. "
                    "Restart the job"
                )
            positions[part] = ReadPosition(offsets[part], end.leader_epoch)
        return positions

    def divergences(self, positions: Mapping[Part, ReadPosition]) -> dict[Part, int]:
        """Return the first lost offset of each position whose log has lost records below it
        (:mod:`tidemark.log_lineage`)."""
        lineages = self._lineages(positions)
        lost_from = {part: divergence(at, lineages[part]) for part, at in positions.items()}
        return {part: offset for part, offset in lost_from.items() if offset is not None}

    def _lineages(self, positions: Mapping[Part, ReadPosition]) -> dict[Part, LogLineage]:
        """Return for each partition what :mod:`tidemark.log_lineage` compares with its position.

        That is the end of the log, and the start of the first epoch later than the position's.
        """
        by_topic = {part.topic_id: self.restores(part) for part in positions}
        # Without brokers the manifest's segments show where a later epoch starts.
        if self._brokers is None:
            self._load(list(positions))
            return {
                part: LogLineage(
                    partition=part.partition,
                    restores=by_topic[part.topic_id],
                    later_epoch_start=self._later_epoch_in_tier(part, at),
                )
                for part, at in positions.items()
            }
        # With brokers the end of the recorded epoch (OffsetForLeaderEpoch, KIP-320) is the start of
        # the next one. Positions of older versions have no epoch.
        brokers = self._brokers
        log_ends = _answers(positions, brokers.log_ends)
        epochs = {
            part: at.leader_epoch for part, at in positions.items() if at.leader_epoch is not None
        }
        epoch_ends = _answers(
            epochs,
            lambda topic, members: brokers.epoch_ends(
                topic, {number: epochs[part] for number, part in members.items()}
            ),
        )
        return {
            part: LogLineage(
                partition=part.partition,
                restores=by_topic[part.topic_id],
                leader_epoch=log_ends[part].leader_epoch,
                end=log_ends[part].offset,
                later_epoch_start=epoch_ends[part].offset if part in epoch_ends else None,
            )
            for part in positions
        }

    def restores(self, part: Part) -> tuple[Restore, ...]:
        """Return the restores of the topic, none if it is not in the tier or no tier is read."""
        if self._tier is None or part.topic_id is None:
            return ()
        try:
            return self._tier.reader.topic(part.topic_id).restores
        except TopicNotFound:
            return ()

    def _epoch_in_tier(self, part: Part, offset: int) -> int | None:
        """Return the epoch of the last record below an offset.

        If that record has expired, it is the epoch of the last leader.
        """
        snapshot = self._snapshot(part)
        if snapshot is None:
            return None
        entry = self._with_pages(part, lambda manifest: manifest.find(offset - 1))
        return snapshot.head.leader_epoch if entry is None else entry.epoch_at(offset - 1)

    def _later_epoch_in_tier(self, part: Part, position: ReadPosition) -> int | None:
        """Return the first offset of a later epoch than the position's.

        None if the tier has no such epoch below the position: then it is not needed.
        """
        epoch = position.leader_epoch
        entry = self._with_pages(part, lambda manifest: manifest.find(position.offset - 1))
        if epoch is None or entry is None or entry.epoch_at(position.offset - 1) <= epoch:
            return None
        return self._with_pages(part, lambda manifest: _first_later(manifest, epoch))

    def find(self, part: Part, timestamp_ms: int) -> int | None:
        """Return the first offset of this time or later; None if no record is as late."""
        # Brokers search their tier as well, so one request covers the whole log.
        if self.reads_brokers:
            assert self._brokers is not None
            timestamps = {part.partition: timestamp_ms}
            offset = self._brokers.list_offsets(part.topic, timestamps)[part.partition]
            return None if offset < 0 else offset
        snapshot = self._snapshot(part)
        if snapshot is None or self._tier is None:
            return None
        return timestamp_lookup.find(self._tier, snapshot, timestamp_ms)

    def ranges(self, part: Part, start: int, until: int) -> tuple[int, Iterator[SegmentRange]]:
        """Return (start, segment ranges) of the tier from the start to ``until``.

        The start is later than requested if the requested offset has expired meanwhile. The ranges
        are read from the manifest as they are consumed.
        """

        def begin(snapshot: Snapshot) -> tuple[int, SegmentRange | None, Iterator[SegmentRange]]:
            found, ranges = tier_ranges(snapshot, start, until)
            return found, next(ranges, None), ranges

        answer = self._with_pages(part, begin)
        if answer is None:
            return start, iter(())
        found, first, ranges = answer
        if first is None:
            return found, ranges
        return found, itertools.chain([first], self._following(part, first, ranges, until))

    def _following(
        self, part: Part, first: SegmentRange, ranges: Iterator[SegmentRange], until: int
    ) -> Iterator[SegmentRange]:
        """Yield the ranges behind ``first``; a head that was replaced meanwhile is read again."""
        last = first
        for _ in range(_ATTEMPTS):
            try:
                for found in ranges:
                    last = found
                    yield found
                return
            except PageNotFound:
                self._snapshots.pop(part, None)
                snapshot = self._snapshot(part)
                if snapshot is None:
                    raise
                _, ranges = tier_ranges(snapshot, last.to_offset_inclusive + 1, until)
        yield from ranges

    def reads_parts(self, entry: SegmentEntry) -> bool:
        """Return whether several tasks may read a segment."""
        return self._tier is not None and self._tier.segments.reads_parts(entry)

    def sizes(self, part: Part, start: int, until: int) -> list[tuple[int, int, int]]:
        """Return (first offset, exclusive end, bytes) of consecutive ranges of the tier.

        A page of the manifest counts as one range, so a long manifest is not read for it.
        """
        answer = self._with_pages(part, lambda snapshot: list(snapshot.sizes(start, until)))
        return answer or []

    def _with_pages(self, part: Part, look: Callable[[Snapshot], R | None]) -> R | None:
        """Return what ``look`` finds in the partition's manifest, None without a manifest."""
        # Pages that no head names are deleted, so an outdated head is replaced by the current one.
        for attempt in range(1, _ATTEMPTS + 1):
            snapshot = self._snapshot(part)
            if snapshot is None:
                return None
            try:
                return look(snapshot)
            except PageNotFound:
                if attempt == _ATTEMPTS:
                    raise
                del self._snapshots[part]  # a newer head no longer names the page
        raise AssertionError("not reached")

    def _named(self) -> "Iterable[TopicObject | TopicSummary]":
        """Return each topic that the options name. Raises TopicNotFound."""
        requested = self._options.topics.names
        if self._brokers is None:
            assert self._tier is not None
            return [self._tier.reader.find_topic(name) for name in requested]
        known = self._brokers.topics(requested)
        missing = [name for name in requested if name not in known]
        # The client leaves unknown topics out of its result.
        if missing:
            access = self._options.access
            where = f" at {','.join(access.bootstrap)}" if access else ""
            raise TopicNotFound(f"brokers{where} know no topic {', '.join(map(repr, missing))}")
        return known.values()

    def _matching(self) -> "Iterable[TopicObject | TopicSummary]":
        """Return the topics that match the options' pattern.

        Internal topics are left out: brokers mark them, and in the tier their names start with two
        underscores.
        """
        pattern = re.compile(self._options.topics.pattern)
        if self._brokers is not None:
            return [
                topic
                for topic in self._brokers.topics().values()
                if not topic.internal and pattern.fullmatch(topic.name)
            ]
        # Without brokers, the topics are those of the tier.
        assert self._tier is not None
        return [
            self._tier.reader.find_topic(name)
            for name in self._visible_topics()
            if pattern.fullmatch(name)
        ]

    def _brokers_offsets(self, parts: Sequence[Part], timestamp: int) -> dict[Part, int]:
        brokers = self._brokers
        if brokers is None:
            return {}
        return _answers(
            parts,
            lambda topic, members: brokers.list_offsets(topic, dict.fromkeys(members, timestamp)),
        )

    def _load(self, parts: Sequence[Part]) -> None:
        # A single head is read by the caller's thread when it is needed.
        missing = [part for part in parts if part not in self._snapshots]
        if self._tier is None or len(missing) < 2:
            return
        with ThreadPoolExecutor(_HEADS_AT_ONCE, "heads") as threads:
            self._snapshots.update(zip(missing, threads.map(self._read, missing), strict=True))

    def _snapshot(self, part: Part) -> Snapshot | None:
        if part not in self._snapshots:
            self._snapshots[part] = self._read(part)
        return self._snapshots[part]

    def _read(self, part: Part) -> Snapshot | None:
        """Return the snapshot, None if nothing of the partition was tiered yet.

        Raises TopicDeleted.
        """
        if self._tier is None or part.topic_id is None:
            return None
        try:
            snapshot = self._tier.reader.snapshot(part.topic_id, part.partition)
        except HeadNotFound:
            return None
        if snapshot.head.deleted_at_ms is not None:
            raise TopicDeleted(f"{part.topic} was deleted")
        return snapshot


def tier_ranges(snapshot: Snapshot, start: int, until: int) -> tuple[int, Iterator[SegmentRange]]:
    """Return the start of a read and the tier's ranges from there to ``until``.

    The start is later than ``start`` if that has expired. The ranges raise PageNotFound.
    """
    head = snapshot.head
    start = max(start, head.log_start_offset)
    first = head.remote_log_start_offset
    if first is None or max(start, first) >= until:
        return start, iter(())
    return start, snapshot.iter_plan(max(start, first), until)


def _first_later(snapshot: Snapshot, epoch: int) -> int | None:
    """Return the first offset in the tier of a later leader epoch. Raises PageNotFound."""
    for entry in snapshot.live_segments():
        for segment_epoch, start in entry.leader_epochs:
            if segment_epoch > epoch:
                # Segments may overlap, so an epoch may start at an offset that is read from the
                # segment before.
                return max(start, entry.from_offset)
    return None


def _brokers(access: KafkaAccess) -> "BlockingKafkaClient":
    """Return a client; Kafka's protocol is imported only here, as that takes a third of a
    second.
    """
    from tidemark.kafka_client.blocking_client import BlockingKafkaClient

    return BlockingKafkaClient(access)


def _tier_end(snapshot: Snapshot | None) -> int:
    return 0 if snapshot is None else snapshot.head.next_copy_offset


def _answers(
    parts: Iterable[Part], query: Callable[[str, Mapping[int, Part]], Mapping[int, R]]
) -> dict[Part, R]:
    """Return the brokers' answer about each partition.

    ``query``: returns the answers about partitions of one topic by number. Each topic needs one
    request per leader, not one per partition.
    """
    by_topic: dict[str, dict[int, Part]] = {}
    for part in parts:
        by_topic.setdefault(part.topic, {})[part.partition] = part
    answers: dict[Part, R] = {}
    for topic, members in by_topic.items():
        found = query(topic, members)
        answers.update({part: found[number] for number, part in members.items()})
    return answers
