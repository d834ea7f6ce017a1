"""Reads of the tier for clients: a bounded pool, a purgatory, and read-ahead.

A read of what is in memory runs on the event loop, because a hand-over to a thread takes more
processor time. All others run in the fetcher's pool. Requests wait for them in the purgatory, where
a disablement with Delete ends the wait. A read that takes longer than its request continues for the
next one (``read_jobs``). Data that differs from what was copied is never returned. The partition's
status reports it, and it is read again after a pause only (``damages``). For sequential readers
data is loaded in advance (``read_ahead``), by threads that no request needs.
"""

import asyncio
import logging
import uuid
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from tidemark.backoff import Backoff
from tidemark.lru import Lru
from tidemark.metrics import tier_table
from tidemark.reasons import Reason
from tidemark.records.split_bytes import SplitBytes
from tidemark.tier.metadata import queries
from tidemark.tier.metadata.head import ManifestError
from tidemark.tier.metadata.segment import SegmentEntry
from tidemark.tier.open import Tier
from tidemark.tier.reader import Snapshot
from tidemark.tier.segments.integrity import ObjectDamaged
from tidemark.tier.stores.objects import (
    NotInMemory,
    ObjectNotFound,
    SegmentUnreadable,
    StoreError,
)
from tidemark.wire.control import TIER_INTEGRITY
from tidemark_broker.lock_order import LockRank, ordered_async_lock, ordered_lock
from tidemark_broker.log import unpack_limits
from tidemark_broker.log.reading import offset_of_max_timestamp
from tidemark_broker.remote_log.disablement import fetch_key
from tidemark_broker.remote_log.manager_state import ManagerState
from tidemark_broker.remote_log.read_ahead import KnownEnd, ReadAhead, Source, Span
from tidemark_broker.remote_log.read_jobs import Abandoned, Job, ReadJobs
from tidemark_broker.remote_log.segment_reader import (
    CachedSegmentReader,
    Caches,
    SegmentReader,
)
from tidemark_broker.remote_log.tier_failure import TierFailure
from tidemark_broker.replication.remote import (
    RemoteDataCorrupt,
    RemoteOffset,
    RemoteOffsetOutOfRange,
    RemoteRead,
    RemoteUnavailable,
    TieredPartition,
)
from tidemark_broker.replication.threads import ThreadsBusy
from tidemark_broker.replication.types import TopicIdPartition

logger = logging.getLogger(__name__)

_SNAPSHOTS_MAX = 64
_SNAPSHOT_AGE_S = 1.0
_LOOKUP_S = 30.0
#: Segments from which one call loads data in advance.
_SEGMENTS_AHEAD_MAX = 4
R = TypeVar("R")


class RemoteFetcher:
    """Reader of the tier for the consumers of this broker."""

    def __init__(
        self, shared: ManagerState, snapshot_of: Callable[[TieredPartition], Snapshot | None]
    ) -> None:
        """Create the reader without cached data.

        ``snapshot_of``: returns the manifest snapshot that this broker has in memory as the
        partition's leader, None if it does not lead.
        """
        self._shared = shared
        self._snapshot_of = snapshot_of
        #: Manifests read for partitions that this broker does not lead, with the time of the read
        #: in monotonic seconds.
        self._snapshots: OrderedDict[TopicIdPartition, tuple[float, Snapshot]] = OrderedDict()
        self.caches = Caches(shared.settings, shared.chunk_files, shared.metrics.add)
        self._read_ahead = ReadAhead(
            stream_bytes=shared.settings.read_ahead_bytes,
            total_bytes=shared.settings.read_ahead_total_bytes,
            unit_bytes=self.caches.chunk_bytes,
            clock=shared.context.monotonic,
        )
        #: Held by the read on the event loop. Reads of local logs do not wait for it.
        self._turn = ordered_async_lock(LockRank.TIER_READ)
        #: Number of calls in the pool that load data in advance.
        self._loads_in_advance = 0
        #: Objects that reads have found damaged or missing, for the partitions' status.
        self.damages = Damages(shared.settings.request_backoff, shared.context.monotonic)
        #: Reads in progress, and results that came after their request had timed out.
        self._jobs: ReadJobs[Any] = ReadJobs(
            shared.pools.fetcher,
            clock=shared.context.monotonic,
            size_of=_size_of,
            kept_bytes=shared.settings.chunk_cache_bytes,
            on_end=shared.context.purgatory.notify,
        )

    @property
    def size_bytes(self) -> int:
        """Memory of cached data."""
        return self.caches.size_bytes + self._jobs.kept_bytes

    async def read(
        self, partition: TieredPartition, offset: int, max_bytes: int, deadline_s: float
    ) -> RemoteRead:
        """Read whole batches from the tier for a consumer's Fetch; see :meth:`RemoteLog.read`.

        At most ``max_bytes`` are returned, but always the whole first batch. ``deadline_s`` is in
        monotonic seconds. Raises TimeoutError when it passes, also while the fetch quota (KIP-956)
        is exhausted; the read then continues for the client's next request.
        """
        # The response is full already.
        if max_bytes <= 0:
            return RemoteRead(b"", offset)
        # The quota is checked before the read, its size is only known afterwards.
        await self._shared.quotas.fetch.wait(deadline_s)
        self._shared.metrics.add(tier_table.FETCH_REQUESTS)
        stream = self._read_ahead.find(partition.key, offset)
        begin = None if stream is None else stream.end
        is_continued = stream is not None and self._read_ahead.protects(stream)
        # A hand-over to a thread takes longer than a read of what is in memory.
        done = await self._read_cached(partition, offset, max_bytes, begin)
        if done is None:
            done = await self._read_in_thread(
                partition, offset, max_bytes, begin, deadline_s, is_continued=is_continued
            )
        found, end = done
        # The next read begins in the chunk in which this one has ended.
        if is_continued and end.source is not Source.STORE:
            self.caches.protect(end.entry, end.position)
        self._shared.metrics.add(tier_table.FETCH_BYTES, len(found.data))
        self._shared.quotas.fetch.record(len(found.data))
        # Load the next bytes while the client processes these.
        self._load_ahead(partition, offset, found, end)
        return found

    async def _read_cached(
        self, partition: TieredPartition, offset: int, max_bytes: int, begin: KnownEnd | None
    ) -> "tuple[RemoteRead, _ReadEnd] | None":
        """Read on the event loop what is in memory, None if anything is not.

        ``begin``: end of the read before, if this one continues it. After an error the read is
        repeated in a thread, which reports it.
        """
        try:
            # One read at a time: many unfinished ones would hold memory, and each would end later.
            # In the order of arrival and without a deadline: a client that was answered empty would
            # have to wait behind all others again.
            async with self._turn:
                tier, _, entry = self._known(partition, offset, begin)
                reader = CachedSegmentReader(tier, self.caches, entry)
                # The position at the start of a segment needs no search.
                position = 0 if offset == entry.start_offset else _position_in(entry, begin)
                # Data of the page cache is copied and checked. A produce waits for a part of it.
                for _ in reader.load_in_parts(offset, max_bytes, position):
                    await asyncio.sleep(0)
                # Records may have been deleted, or the topic disabled, meanwhile.
                tier, snapshot, known = self._known(partition, offset, begin)
                if known.segment_id != entry.segment_id:
                    return None
                found, end = _reads(offset, max_bytes, position)(reader)
        except (NotInMemory, StoreError, ManifestError, ObjectDamaged):
            return None
        self.damages.sound(partition.key, entry, offset, found.next_offset)
        return found, _ReadEnd(tier, snapshot, entry, end, reader.source)

    def _known(
        self, partition: TieredPartition, offset: int, begin: KnownEnd | None
    ) -> tuple[Tier, Snapshot, SegmentEntry]:
        """Return the segment of ``offset`` as far as memory has it, and the head that names it.

        Raises NotInMemory, StoreUnavailable and ManifestError.
        """
        snapshot = self._snapshot(partition) if partition.tiering.reads_tier else None
        if snapshot is None or offset < partition.log_start_offset:
            raise NotInMemory
        return self._shared.guard.tier(), snapshot, _continued(snapshot, begin, offset)

    async def _read_in_thread(
        self,
        partition: TieredPartition,
        offset: int,
        max_bytes: int,
        begin: KnownEnd | None,
        deadline_s: float,
        *,
        is_continued: bool,
    ) -> "tuple[RemoteRead, _ReadEnd]":
        snapshot = self._snapshot(partition)

        def work(tier: Tier) -> tuple[RemoteRead, _ReadEnd]:
            found, end = self._read(tier, partition, snapshot, offset, max_bytes, begin)
            # Protected at once, because other reads evict it before the loop has the result.
            if is_continued:
                self.caches.protect(end.entry, end.position)
            return found, end

        # Requests with the same offset and size share one read.
        return await self._run(partition, ("read", offset, max_bytes), work, deadline_s, offset)

    async def offset_by_timestamp(
        self, partition: TieredPartition, timestamp_ms: int
    ) -> RemoteOffset | None:
        """Look up a time in the tier; see :class:`RemoteLog`."""
        snapshot, log_start = self._snapshot(partition), partition.log_start_offset

        def work(tier: Tier) -> RemoteOffset | None:
            return self._by_timestamp(tier, partition, snapshot, timestamp_ms, log_start)

        return await self._look_up(partition, work, log_start)

    async def newest_offset(self, partition: TieredPartition) -> RemoteOffset | None:
        """Return the tier's first record with the largest timestamp (:class:`RemoteLog`)."""
        snapshot, log_start = self._snapshot(partition), partition.log_start_offset

        def work(tier: Tier) -> RemoteOffset | None:
            return self._newest(tier, partition, snapshot, log_start)

        return await self._look_up(partition, work, log_start)

    async def _look_up(
        self,
        partition: TieredPartition,
        work: Callable[[Tier], RemoteOffset | None],
        log_start: int,
    ) -> RemoteOffset | None:
        """Run a look-up in the fetcher's threads; return the record, or None.

        ``log_start``: log start offset when the look-up began. Raises RemoteUnavailable if it has
        moved meanwhile, or if the store fails or does not answer in time.
        """
        deadline_s = self._shared.context.monotonic() + _LOOKUP_S
        try:
            return await self._run(partition, None, work, deadline_s, log_start)
        except RemoteOffsetOutOfRange as error:
            # The log start moved during the look-up, so its result is not "none" but outdated.
            if log_start < partition.log_start_offset:
                raise RemoteUnavailable(f"{error}; retry") from error
            return None
        except TimeoutError:
            raise RemoteUnavailable("the remote storage did not answer in time") from None

    async def bytes_below(self, partition: TieredPartition, offset: int) -> int:
        """Return the bytes below an offset; see :class:`RemoteLog`."""
        snapshot, log_start = self._snapshot(partition), partition.log_start_offset

        def work(tier: Tier) -> int:
            return (snapshot or self._fresh(tier, partition)).bytes_below(offset)

        deadline_s = self._shared.context.monotonic() + _LOOKUP_S
        try:
            return await self._run(partition, None, work, deadline_s, log_start)
        except RemoteOffsetOutOfRange as error:
            raise RemoteUnavailable(f"{error}; retry") from error
        except TimeoutError:
            raise RemoteUnavailable("the remote storage did not answer in time") from None

    def forget(self, key: TopicIdPartition) -> None:
        """Drop the data of a removed replica."""
        self._snapshots.pop(key, None)
        self.damages.forget(key)

    # ------------------------------------------------------------ waiting

    async def _run(
        self,
        partition: TieredPartition,
        request_key: Hashable,
        work: Callable[[Tier], R],
        deadline_s: float,
        offset: int,
    ) -> R:
        """Run a read of the tier in the fetcher's thread pool and return its result.

        Requests with the same ``request_key`` share one read. With None the read is not shared, for
        example a look-up whose result is valid only at that moment. The caller waits in the
        purgatory, where a disablement with policy Delete ends the wait. ``offset``: first offset of
        the requested data; ``deadline_s`` is in monotonic seconds.

        Raises RemoteOffsetOutOfRange for deleted or disabled data, RemoteDataCorrupt for damage,
        RemoteUnavailable for a retriable failure, and TimeoutError.
        """
        # A new object equals no other key, so the read is not shared.
        key = object() if request_key is None else (partition.key, request_key)
        if not partition.tiering.reads_tier:
            raise RemoteOffsetOutOfRange(f"{partition.tp}: its tier is not readable any more")
        try:
            tier = self._shared.guard.tier()
            job: Job[R] = self._jobs.join(key, lambda: work(tier))
        except (StoreError, ThreadsBusy) as error:
            raise self._unavailable(partition, offset, error) from error
        try:
            await self._wait(partition, job, deadline_s, offset)
        finally:
            # A shared read continues after a timeout, for the client's next request.
            self._jobs.leave(job, keep=request_key is not None)
        # Translate the tier's errors to those that the request handlers know.
        try:
            return job.future.result()
        except queries.TierOffsetOutOfRange as error:
            # The replica's own log start follows the head's once it is durable.
            if error.log_start_offset > offset:
                raise RemoteUnavailable(f"{error}; it is being deleted") from error
            raise RemoteOffsetOutOfRange(str(error)) from error
        except ObjectDamaged as error:
            self._shared.metrics.add(tier_table.FETCH_ERRORS)
            self._shared.metrics.add(tier_table.INTEGRITY_ERRORS)
            raise RemoteDataCorrupt(str(error)) from error
        except Abandoned:
            raise TimeoutError from None
        except (StoreError, ManifestError, OSError) as error:
            self._shared.guard.suspect(error)
            raise self._unavailable(partition, offset, error) from error

    def _unavailable(
        self, partition: TieredPartition, offset: int, error: Exception
    ) -> RemoteUnavailable:
        """Count and log a failed read; return its error for the request handlers."""
        self._shared.metrics.add(tier_table.FETCH_ERRORS)
        # An unreadable segment was logged when it was found.
        if not isinstance(error, SegmentUnreadable):
            logger.warning("%s: reading the tier from offset %d: %s", partition.tp, offset, error)
        return RemoteUnavailable(str(error))

    async def _wait(
        self, partition: TieredPartition, job: Job[R], deadline_s: float, offset: int
    ) -> None:
        context, future = self._shared.context, job.future
        left_s = deadline_s - context.monotonic()
        await context.purgatory.wait([fetch_key(partition), job], future.done, left_s)
        if offset < partition.log_start_offset:
            raise RemoteOffsetOutOfRange(f"{partition.tp}: offset {offset} was deleted meanwhile")
        if future.cancelled() or not future.done():
            raise TimeoutError

    def _snapshot(self, partition: TieredPartition) -> Snapshot | None:
        own = self._snapshot_of(partition)
        if own is not None:
            return own
        known = self._snapshots.get(partition.key)
        if known is None or self._shared.context.monotonic() - known[0] > _SNAPSHOT_AGE_S:
            return None
        return known[1]

    # ------------------------------------------------------------ in a thread

    def _read(
        self,
        tier: Tier,
        partition: TieredPartition,
        snapshot: Snapshot | None,
        offset: int,
        max_bytes: int,
        begin: KnownEnd | None,
    ) -> "tuple[RemoteRead, _ReadEnd]":
        """Read with the known manifest snapshot, and retry once with a fresh one if that fails.

        Runs in a thread. Return the batches, and where they end. An object that even a fresh
        manifest names but the store lacks is recorded as damage. ``begin``: end of the read before,
        if this one continues it.
        """
        if snapshot is not None:
            # The snapshot may be older than a deletion or a compaction of the manifest.
            try:
                return self._read_with(tier, partition, snapshot, offset, max_bytes, begin)
            except (
                ObjectNotFound,
                ManifestError,
                queries.TierOffsetOutOfRange,
            ) as error:
                logger.info("%s: reading the manifest again: %s", partition.tp, error)
        fresh = self._fresh(tier, partition)
        try:
            return self._read_with(tier, partition, fresh, offset, max_bytes, begin)
        except ObjectNotFound as error:
            # A fresh manifest names an object that does not exist: this is damage.
            entry = fresh.find(offset)
            if entry is not None:
                text = (
                    f"{error}, but the manifest names it: restore the object from a copy, or give "
                    "up its records with a RecordDeletion before offset "
                    f"{entry.end_offset_inclusive + 1}"
                )
                self._record(partition, entry, Reason.REMOTE_OBJECT_MISSING, text)
            raise

    def _fresh(self, tier: Tier, partition: TieredPartition) -> Snapshot:
        snapshot = tier.reader.snapshot(
            partition.topic_id, partition.partition, partition.tier_position
        )
        self._snapshots[partition.key] = (self._shared.context.monotonic(), snapshot)
        # Snapshots are valid for a second only, so few are needed.
        while len(self._snapshots) > _SNAPSHOTS_MAX:
            self._snapshots.popitem(last=False)
        return snapshot

    def _read_with(
        self,
        tier: Tier,
        partition: TieredPartition,
        snapshot: Snapshot,
        offset: int,
        max_bytes: int,
        begin: KnownEnd | None,
    ) -> "tuple[RemoteRead, _ReadEnd]":
        """Read the batches at ``offset`` from the segment that ``snapshot`` names for it.

        Return the batches, and where they end. Raises TierOffsetOutOfRange if no live segment
        contains the offset.
        """
        entry = snapshot.find(offset)
        if entry is None:
            # The caller distinguishes a deleted offset from one above the tier's end.
            head = snapshot.head
            raise queries.TierOffsetOutOfRange(
                f"{head.name}: offset {offset} is not in the tier, which ends at "
                f"{head.highest_remote_offset}",
                log_start_offset=head.log_start_offset,
            )

        read = _reads(offset, max_bytes, _position_in(entry, begin))
        found, end = self._checked(tier, partition, entry, offset, read)
        # A successful read clears damage that was recorded there.
        self.damages.sound(partition.key, entry, offset, found.next_offset)
        return found, _ReadEnd(tier, snapshot, entry, end)

    def _checked(
        self,
        tier: Tier,
        partition: TieredPartition,
        entry: SegmentEntry,
        offset: int,
        read: Callable[[SegmentReader], R],
    ) -> R:
        """Call ``read`` with the segment's reader; on damage, call it once more without the cache.

        The damage may have been in the cache or in transit. If the second attempt fails too, it is
        in the store: the damage of ``offset`` is recorded for the partition's status, and
        ObjectDamaged is raised. SegmentUnreadable is recorded and raised, too. During the pause
        after a failure, its error is raised again without a read.
        """
        # Clients repeat a failed request at once, and each request to the store has its price.
        self.damages.check(partition.key, entry, offset)
        try:
            return read(SegmentReader(tier, self.caches, entry))
        except ObjectDamaged as error:
            logger.info("%s: reading once more: %s", partition.tp, error)
        except SegmentUnreadable as error:
            self._record(partition, entry, error.reason, str(error))
            raise
        # The second attempt must not use the cached copy.
        self.caches.forget(entry.segment_id)
        try:
            return read(SegmentReader(tier, self.caches, entry))
        except ObjectDamaged as error:
            self.caches.forget(entry.segment_id)
            # Without its auxiliary object no record of a segment can be read.
            at = None if error.key == entry.aux_key else offset
            self._record(partition, entry, TIER_INTEGRITY, str(error), at)
            raise

    def _record(
        self,
        partition: TieredPartition,
        entry: SegmentEntry,
        reason: str,
        message: str,
        offset: int | None = None,
    ) -> None:
        """Record a failed read of a segment, and log the first one; see :meth:`Damages.record`."""
        if self.damages.record(partition.key, entry, offset, reason, message):
            logger.error("%s: %s", partition.tp, message)

    def _by_timestamp(
        self,
        tier: Tier,
        partition: TieredPartition,
        snapshot: Snapshot | None,
        timestamp_ms: int,
        log_start: int,
    ) -> RemoteOffset | None:
        """Return the tier's first record at or after ``timestamp_ms``, or None (in a thread).

        ``log_start``: the replica's log start offset, which may be above that of the manifest.
        """
        # One limit for the whole look-up, however many segments it reads.
        snapshot, limits = snapshot or self._fresh(tier, partition), unpack_limits()
        entry = snapshot.find_by_timestamp(timestamp_ms)
        # A segment's largest timestamp may be of a record below the start: try the next one.
        while entry is not None:
            start = max(entry.from_offset, snapshot.head.log_start_offset, log_start)
            find = partial(
                SegmentReader.first_at_or_after,
                timestamp_ms=timestamp_ms,
                start_offset=start,
                limits=limits,
            )
            found = self._checked(tier, partition, entry, start, find)
            if found is not None:
                return found
            entry = _next_not_older(snapshot, entry, timestamp_ms)
        return None

    def _newest(
        self, tier: Tier, partition: TieredPartition, snapshot: Snapshot | None, log_start: int
    ) -> RemoteOffset | None:
        """Return the tier's first record with the largest timestamp, or None (in a thread).

        It serves ListOffsets with MAX_TIMESTAMP (KIP-734). Segments are tried by largest timestamp,
        descending, so usually one is read. ``log_start``: the replica's log start offset.
        """
        snapshot = snapshot or self._fresh(tier, partition)
        best: RemoteOffset | None = None
        for entry in snapshot.by_newest():
            # No later segment of this order can contain a newer record.
            if best is not None and entry.max_timestamp_ms < best.timestamp_ms:
                break
            # Deleted records do not count.
            start = max(entry.from_offset, snapshot.head.log_start_offset, log_start)
            if start > entry.end_offset_inclusive:
                continue
            find = partial(_newest_of, largest_ms=entry.max_timestamp_ms, start_offset=start)
            found = self._checked(tier, partition, entry, start, find)
            # Of equal timestamps the first record counts, as within a log.
            if found is not None and (
                best is None
                or (-found.timestamp_ms, found.offset) < (-best.timestamp_ms, best.offset)
            ):
                best = found
        return best

    # ------------------------------------------------------------ read-ahead

    def _load_ahead(
        self, partition: TieredPartition, offset: int, found: RemoteRead, end: "_ReadEnd"
    ) -> None:
        """Load in advance what the reader of ``found`` will need next, in the fetcher's threads."""
        stream = self._read_ahead.after_read(
            partition.key,
            offset,
            found.next_offset,
            len(found.data),
            is_last=found.next_offset > end.snapshot.head.highest_remote_offset,
        )
        stream.found(end.source)
        stream.end = KnownEnd(end.entry, end.position, end.snapshot.head.position)
        if not self._read_ahead.protects(stream):
            return
        pool = self._shared.pools.fetcher
        # Half of the threads at most load in advance, and one is always left for a request.
        while (
            pool.idle_threads > 1
            and self._loads_in_advance < self._shared.settings.reader_threads // 2
            and (span := self._read_ahead.next_span(stream)) is not None
        ):
            self._loads_in_advance += 1
            pool.submit(partial(end.load, self.caches, span), self._load_ended)
            if stream.is_in_page_cache:
                return

    def _load_ended(self) -> None:
        self._loads_in_advance -= 1


@dataclass(frozen=True, slots=True)
class _ReadEnd:
    """Position in a segment at which a read has ended, and where its data was."""

    tier: Tier
    snapshot: Snapshot
    entry: SegmentEntry
    position: int
    source: Source = Source.STORE

    def load(self, caches: Caches, span: Span) -> None:
        """Load bytes after the position into the caches, in a thread.

        Best effort: the read that needs the data reports an error.
        """
        try:
            self._load(caches, span)
        except (StoreError, ManifestError, ObjectDamaged, OSError) as error:
            logger.debug("reading ahead failed: %s", error)

    def _load(self, caches: Caches, span: Span) -> None:
        """Load the bytes of ``span``, which may be in several segments."""
        entry, start, left = self.entry, self.position + span.start, span.size
        # Each segment costs two requests, so a span of tiny segments is not loaded to its end.
        for _ in range(_SEGMENTS_AHEAD_MAX):
            end = min(start + left, entry.size_bytes)
            if end > start:
                SegmentReader(self.tier, caches, entry).load_in_advance(start, end)
                left -= end - start
            # A reader close to the segment's end needs the next one's entry and indexes soon.
            if end + span.size < entry.size_bytes:
                return
            following = self.snapshot.find(entry.end_offset_inclusive + 1)
            if following is None:
                return
            entry, start = following, max(start - entry.size_bytes, 0)
            SegmentReader(self.tier, caches, entry).load_indexes()
            if not left:
                return


def _continued(snapshot: Snapshot, begin: KnownEnd | None, offset: int) -> SegmentEntry:
    """Return the segment of ``offset``, where the next read begins. Raises NotInMemory."""
    # The same head still names the same segment, so nothing has to be searched.
    is_same = begin is not None and begin.head == snapshot.head.position
    if begin is not None and is_same and offset <= begin.entry.end_offset_inclusive:
        return begin.entry
    entry = snapshot.find_cached(offset)
    if entry is None:
        raise NotInMemory
    return entry


def _position_in(entry: SegmentEntry, begin: KnownEnd | None) -> int | None:
    """Return the position of the next read in a segment, None if it is not known."""
    is_same = begin is not None and begin.entry.segment_id == entry.segment_id
    return begin.position if begin is not None and is_same else None


def _reads(
    offset: int, max_bytes: int, position: int | None
) -> Callable[[SegmentReader], tuple[RemoteRead, int]]:
    """Return a function that reads from a segment: the batches, and the position behind them."""

    def read(reader: SegmentReader) -> tuple[RemoteRead, int]:
        data, next_offset, end = reader.read(offset, max_bytes, position)
        return RemoteRead(data, next_offset, reader.aborted(offset, next_offset)), end

    return read


def _newest_of(reader: SegmentReader, *, largest_ms: int, start_offset: int) -> RemoteOffset | None:
    return offset_of_max_timestamp(
        lambda timestamp_ms: reader.first_at_or_after(timestamp_ms, start_offset, unpack_limits()),
        largest_ms,
    )


def _size_of(result: tuple[RemoteRead, _ReadEnd]) -> int:
    """Return the weight of a kept result; only reads are kept."""
    data = result[0].data
    return data.memory_bytes if isinstance(data, SplitBytes) else len(data)


def _next_not_older(
    snapshot: Snapshot, entry: SegmentEntry, timestamp_ms: int
) -> SegmentEntry | None:
    following = queries.live_segments(snapshot.head, snapshot.pages, entry.end_offset_inclusive + 1)
    return next((item for item in following if item.max_timestamp_ms >= timestamp_ms), None)


# ------------------------------------------------------------ damaged objects

# Record of damaged, missing or unreadable objects of the tier, until a read succeeds.
#
# Objects are only examined by reads, so this is what reads have found. A partition's status reports
# it until the records expire or a read of that place succeeds, since only an administrator can
# repair it. Reads of that place are attempted with growing pauses in between.

#: Limit of remembered places for each partition, and of partitions.
_PLACES_MAX = 16
_PARTITIONS_MAX = 1024


@dataclass(frozen=True, slots=True)
class _Damage:
    """Failed reads of a segment at ``offset``, None if no record of it can be read.

    ``backoff``: the pause before the next attempt.
    """

    entry: SegmentEntry
    offset: int | None
    reason: str
    message: str
    backoff: Backoff

    @property
    def place(self) -> tuple[uuid.UUID, int | None]:
        return self.entry.segment_id, self.offset

    def is_disproved_by(self, entry: SegmentEntry, start_offset: int, next_offset: int) -> bool:
        """Return whether a successful read of the segment's offsets shows that it is repaired."""
        if self.entry.segment_id != entry.segment_id:
            return False
        # A good read of another part of the segment proves nothing about this one.
        return self.offset is None or start_offset <= self.offset < next_offset


class Damages:
    """Damaged, missing and unreadable segments by topic id and partition. Safe between threads.

    ``backoff``: pauses between reads of the same place. ``clock`` returns monotonic seconds.
    """

    def __init__(self, backoff: Backoff, clock: Callable[[], float]) -> None:
        self._backoff = backoff
        self._clock = clock
        self._found: Lru[TopicIdPartition, dict[tuple[uuid.UUID, int | None], _Damage]] = Lru(
            _PARTITIONS_MAX
        )
        self._lock = ordered_lock(LockRank.LEAF)

    def record(
        self,
        key: TopicIdPartition,
        entry: SegmentEntry,
        offset: int | None,
        reason: str,
        message: str,
    ) -> bool:
        """Record that a read of the segment failed. Return whether it is the segment's first one.

        ``offset``: first offset of the read, None if no record of the segment can be read.
        """
        with self._lock:
            of_partition = self._found.get(key) or {}
            is_new = all(entry.segment_id != segment_id for segment_id, _ in of_partition)
            known = of_partition.get((entry.segment_id, offset))
            backoff = (known.backoff if known else self._backoff).failed(self._clock())
            damage = _Damage(entry, offset, reason, message, backoff)
            of_partition[damage.place] = damage
            # A status can show only one of them, so a few suffice.
            if len(of_partition) > _PLACES_MAX:
                del of_partition[next(iter(of_partition))]
            self._found.put(key, of_partition)
            self._found.evict()
        return is_new

    def check(self, key: TopicIdPartition, entry: SegmentEntry, offset: int) -> None:
        """Raise the error of the last read at ``offset`` if the pause after it is not over.

        Raises ObjectDamaged and SegmentUnreadable.
        """
        if not self._found:
            return
        with self._lock:
            of_partition = self._found.get(key) or {}
            for place in ((entry.segment_id, None), (entry.segment_id, offset)):
                damage = of_partition.get(place)
                if damage is None or damage.backoff.ready(self._clock()):
                    continue
                if damage.reason == TIER_INTEGRITY:
                    raise ObjectDamaged(damage.message)
                raise SegmentUnreadable(damage.message, reason=damage.reason)

    def sound(
        self, key: TopicIdPartition, entry: SegmentEntry, start_offset: int, next_offset: int
    ) -> None:
        """Record a successful read of the segment's offsets, which clears damage in between."""
        if not self._found:
            return
        with self._lock:
            for damage in tuple((self._found.get(key) or {}).values()):
                if damage.is_disproved_by(entry, start_offset, next_offset):
                    self._drop(key, damage)

    def failure(
        self, key: TopicIdPartition, is_live: Callable[[SegmentEntry], bool]
    ) -> TierFailure | None:
        """Return the first damage of a live segment, for the partition's status."""
        if not self._found:
            return None
        with self._lock:
            # Expired segments are not served any more, so their damage is dropped.
            for damage in tuple((self._found.get(key) or {}).values()):
                if is_live(damage.entry):
                    return TierFailure(damage.reason, damage.message)
                self._drop(key, damage)
        return None

    def forget(self, key: TopicIdPartition) -> None:
        """Drop the records of a removed replica."""
        with self._lock:
            self._found.pop(key)

    def _drop(self, key: TopicIdPartition, damage: _Damage) -> None:
        of_partition = self._found.get(key) or {}
        of_partition.pop(damage.place, None)
        if not of_partition:
            self._found.pop(key)
