"""Copy of one segment: COPY_STARTED, upload, COPY_FINISHED.

The order keeps the tier consistent. The entry is committed before the first byte is uploaded, so
the store never contains an object that the manifest does not name. A second commit makes it live
after everything is stored. Each attempt has a new segment id. The next attempt abandons the remains
of a failed one, which are deleted like any marked segment.
"""

import asyncio
import logging
import math
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tidemark.logfiles.checkpoints import write_epochs
from tidemark.metrics import tier_table
from tidemark.tier.metadata import transitions
from tidemark.tier.metadata.head import (
    PAGES_MAX,
    Head,
    IllegalTransition,
    ManifestFenced,
    TopicDeleted,
)
from tidemark.tier.metadata.segment import SegmentEntry, new_segment
from tidemark.tier.open import Tier
from tidemark.tier.segments.auxiliary import AbortedRanges, Aux
from tidemark.tier.segments.remote_storage_manager import Copied, SegmentData
from tidemark.tier.segments.segment_origin import encode_origin
from tidemark.tier.stores.objects import StoreError
from tidemark_broker.log import PartitionLog, SegmentInfo, appending, flushing
from tidemark_broker.log.producer_snapshots import TransactionEnds
from tidemark_broker.remote_log import eligibility
from tidemark_broker.remote_log.eligibility import Blocked
from tidemark_broker.remote_log.head_writer import HeadWriter
from tidemark_broker.remote_log.tier_failure import CustomMetadataTooLarge, LocalDataMissing
from tidemark_broker.remote_log.uploads import Upload
from tidemark_broker.replication.partition import Partition
from tidemark_broker.replication.remote import WaitingRecords

logger = logging.getLogger(__name__)

#: Segments examined for the next copy: the one that contains the next offset to copy (or ends
#: there), and the one after it.
CANDIDATES = 2
#: Pages of a manifest (of 256 segments each) above which no segment is closed early. The rest is
#: for segments of the usual size.
_PAGES_WITH_SMALL_SEGMENTS = PAGES_MAX * 3 // 4
#: Local segments of a log at which no segment is closed early: each has up to five files.
_LOCAL_SEGMENTS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class _Prepared:
    """Synced segment, ready for the upload."""

    data: SegmentData
    leader_epochs: tuple[tuple[int, int], ...]


class Copier:
    """Copies of one leader's term."""

    def __init__(self, writer: HeadWriter) -> None:
        self._writer = writer
        self._shared = writer.shared
        self._partition = writer.partition
        self._transaction_ends = TransactionEnds()

    async def copy_next(self) -> bool:
        """Copy the next eligible local segment to the tier; return False if there is none.

        Raises the cause of a failed copy, and LocalDataMissing if the local log starts after the
        next offset to copy. After :class:`CustomMetadataTooLarge` nothing more is copied in this
        term.
        """
        # A commit with an unknown outcome may have copied the candidate already.
        await self._writer.refresh()
        if self._partition.row is None or not self._partition.row.manifest:
            return False  # until the controller knows of the head, "not found" could mean "empty"
        # Deleted records must neither be copied nor be mistaken for a hole.
        await self.follow_log_start()
        candidate = self._candidate()
        if candidate is Blocked.HOLE:
            raise LocalDataMissing(
                f"{self._partition.tp}: the tier ends at {self._writer.head.next_copy_offset - 1}, "
                f"but the local log starts at {self._partition.log.local_log_start_offset}. "
                "Nothing is copied, because that would leave a hole. Elect a replica that has the "
                "offsets in between, or delete the records up to there"
            )
        # Nothing is eligible; the caller waits for a change.
        if isinstance(candidate, Blocked):
            return False
        await self._copy(candidate)
        return True

    async def follow_log_start(self) -> None:
        """Raise the head's log start, so that deleted records (DeleteRecords, retention while
        disabled) are not copied.
        """
        log_start = self._partition.log_start_offset
        if log_start > self._writer.head.log_start_offset:
            await self._writer.expire_to(log_start)

    def stable_from(self) -> int | None:
        """Return the last stable offset that permits the next copy; see
        :func:`eligibility.stable_from`.
        """
        next_copy_offset = self._writer.head.next_copy_offset
        return eligibility.stable_from(self._candidates(next_copy_offset), next_copy_offset)

    def delay_s(self) -> float:
        """Return the seconds for which the topic still delays the next copy (KIP-1241), 0 for none.

        Infinite if only more records end the delay.
        """
        log, next_copy_offset = self._partition.log, self._writer.head.next_copy_offset
        config = log.config
        if not config.delays_copies:
            return 0.0
        delay_ms = eligibility.copy_delay_ms(
            # All segments count: the bytes after the candidate may permit the copy.
            log.segment_infos(next_copy_offset),
            next_copy_offset,
            lag_ms=config.effective_copy_lag_ms,
            lag_bytes=config.effective_copy_lag_bytes,
            now_ms=self._shared.context.wall_ms(),
        )
        return math.inf if delay_ms is None else delay_ms / 1000

    def waiting(self) -> WaitingRecords | None:
        """Return the committed records that are not in the tier; None if there are none."""
        return waiting_records(self._partition, self._writer.head.next_copy_offset, CANDIDATES)

    @property
    def may_close_early(self) -> bool:
        """Whether log and manifest have room for many small segments.

        Otherwise only ``segment.bytes`` and ``segment.ms`` close segments, because a full manifest
        would end all copying.
        """
        has_pages = len(self._writer.head.pages) < _PAGES_WITH_SMALL_SEGMENTS
        return has_pages and self._partition.log.segment_count < _LOCAL_SEGMENTS_MAX

    def until_close_s(self, records: WaitingRecords) -> float:
        """Return the seconds until the active segment must be closed for ``records``, so that they
        are in the tier within the topic's maximum lag; 0 for now.
        """
        close_ms = self._partition.log.config.early_close_ms
        age_ms = self._shared.context.wall_ms() - records.since_ms
        # After a restart the age is unknown, and it is negative after a step of the clock.
        if age_ms < 0 or not records.is_since_known:
            return 0.0
        return max(0.0, (close_ms - age_ms) / 1000)

    def close_active(self) -> None:
        """Close the active segment, so that it can be copied. An empty one stays."""
        appending.roll(self._partition.log, self._shared.context.wall_ms())

    def _candidates(self, next_copy_offset: int) -> Sequence[SegmentInfo]:
        """Return the segments that decide about the next copy, none if all closed ones are copied.

        Two suffice, however many the log has.
        """
        log = self._partition.log
        # Only the active segment is left, which is never copied: the state of an idle partition.
        if log.active_base_offset <= next_copy_offset:
            return ()
        return log.segment_infos(next_copy_offset, CANDIDATES)

    def _candidate(self) -> SegmentInfo | Blocked:
        log, next_copy_offset = self._partition.log, self._writer.head.next_copy_offset
        found = eligibility.next_segment(
            self._candidates(next_copy_offset),
            next_copy_offset=next_copy_offset,
            log_start_offset=log.log_start_offset,
            last_stable_offset=log.last_stable_offset,
        )
        return found if isinstance(found, Blocked) or not self.delay_s() else Blocked.DELAYED

    async def _copy(self, segment: SegmentInfo) -> None:
        """Copy one segment: commit its entry as COPY_STARTED, upload it, commit COPY_FINISHED.

        The states are those of Kafka's RemoteLogSegmentState. Raises the error of a failed step;
        the next attempt then uses a new segment id.
        """
        writer, shared, by = self._writer, self._shared, self._writer.term.by
        # The quota comes first: a started copy must not wait with an entry in COPY_STARTED.
        await shared.quotas.copy.take(segment.size_bytes)
        shared.metrics.add(tier_table.COPY_REQUESTS)
        try:
            # At most one segment is in COPY_STARTED: abandon the one of a failed attempt first.
            await self._abandon_left_over()
            # Read local files before the commit: a local error then leaves no entry behind.
            prepared = await shared.pools.copier(
                prepare, self._partition.log, segment, self._transaction_ends
            )
            entry = self._entry(segment, prepared)
            # The manifest names the objects before the store contains them.
            started = await writer.commit(lambda head: transitions.start_copy(head, by, entry))
            data = _with_origin(prepared.data, started, entry)
            await self.upload(
                entry,
                lambda tier: tier.segments.copy_segment(entry, data),
                lambda head, copied: transitions.finish_copy(
                    head, by, entry, copied.custom_metadata, copied.digests
                ),
            )
        except Exception:
            shared.metrics.add(tier_table.COPY_ERRORS)
            raise
        shared.metrics.add(tier_table.COPY_BYTES, segment.size_bytes)

    def _entry(self, segment: SegmentInfo, prepared: _Prepared) -> SegmentEntry:
        """Return the manifest entry of a new copy attempt, with a fresh segment id."""
        partition, term = self._partition, self._writer.term
        # The leader epoch and tiered epoch at the end are those of the claim under which it is
        # written; leader_epochs are those of the records in the segment.
        return new_segment(
            topic=partition.topic,
            topic_id=partition.topic_id,
            partition=partition.partition,
            segment_id=uuid.uuid4(),
            start_offset=segment.base_offset,
            end_offset_inclusive=segment.next_base_offset - 1,
            max_timestamp_ms=segment.age_timestamp_ms,
            size_bytes=prepared.data.size_bytes,
            broker_id=self._shared.context.node_id,
            event_time_ms=self._shared.context.wall_ms(),
            leader_epochs=prepared.leader_epochs,
            leader_epoch=term.leader_epoch,
            tiered_epoch=term.tiering.epoch,
        )

    async def _abandon_left_over(self) -> None:
        left = self._writer.head.copying
        if left is not None:
            await self.abandon(left)

    async def abandon(self, entry: SegmentEntry) -> None:
        """Mark the entry of a failed copy or merge for deletion."""
        by, wall_ms = self._writer.term.by, self._shared.context.wall_ms
        await self._writer.commit(
            lambda head: transitions.abandon_copy(head, by, entry, now_ms=wall_ms())
        )

    async def upload(
        self,
        entry: SegmentEntry,
        work: Callable[[Tier], Copied],
        finish: Callable[[Head, Copied], Head],
    ) -> None:
        """Upload a segment whose entry is in COPY_STARTED, and commit COPY_FINISHED.

        ``work`` uploads its objects, in a thread. ``finish`` is the transition of the head.
        """
        partition, uploads = self._partition, self._shared.uploads
        tier = self._shared.guard.tier()
        upload = Upload(tier, partition.topic_id, partition.partition, entry)
        copied = await uploads.run(upload, lambda: work(tier))
        try:
            await self._check_custom_metadata(entry, copied.custom_metadata)
            await self._finish(entry, copied, finish)
        except (ManifestFenced, TopicDeleted, asyncio.CancelledError):
            # The fencing leader may have deleted the objects before the last of them was stored.
            uploads.given_up(upload)
            raise

    async def _check_custom_metadata(self, entry: SegmentEntry, custom: bytes | None) -> None:
        """Give up a copy whose custom metadata exceeds the limit of KIP-917.

        ``custom``: bytes that the RemoteStorageManager returned for the upload, None for none. If
        they exceed ``remote.log.metadata.custom.metadata.max.bytes``, the uploaded objects are
        deleted, the entry is abandoned, and CustomMetadataTooLarge is raised.
        """
        limit = self._shared.dynamic.custom_metadata_max_bytes
        # The limit of KIP-917 is inclusive, as in Kafka.
        if custom is None or len(custom) <= limit:
            return
        logger.warning(
            "%s: segment %s has %d bytes of custom metadata, above the limit of %d: not recorded",
            self._partition.tp,
            entry.key,
            len(custom),
            limit,
        )
        # The deletion needs the custom metadata, though the manifest does not record it.
        oversized = replace(entry, custom_metadata=custom)
        tier = self._shared.guard.tier()
        await self._shared.pools.expiration(_delete_quietly, tier, oversized)
        await self.abandon(entry)
        raise CustomMetadataTooLarge(
            f"the remote storage returned {len(custom)} bytes of custom metadata, the limit is "
            f"{limit}: raise remote.log.metadata.custom.metadata.max.bytes or change the "
            "storage's configuration, then restart the broker or move the leader; nothing more is "
            "copied until then"
        )

    async def _finish(
        self, entry: SegmentEntry, copied: Copied, finish: Callable[[Head, Copied], Head]
    ) -> None:
        """Commit COPY_FINISHED for an uploaded segment; only then may readers use it.

        ``copied`` has the storage's custom metadata and the digests of the uploaded objects. If the
        entry was marked for deletion during the upload, the copy is abandoned instead.
        """
        try:
            await self._writer.commit(lambda head: finish(head, copied))
        except IllegalTransition as error:
            # Expired or abandoned during the upload: its objects are deleted like those of any
            # marked segment.
            logger.info("%s", error)
            await self.abandon(entry)
            return
        logger.info(
            "%s: copied offsets %d to %d, %d bytes",
            self._partition.tp,
            entry.start_offset,
            entry.end_offset_inclusive,
            entry.size_bytes,
        )


def waiting_records(
    partition: Partition, next_copy_offset: int, count: int | None = None
) -> WaitingRecords | None:
    """Return the committed records of a partition that are not in the tier; None if there are none.

    ``next_copy_offset``: offset after the tier's last one. ``count``: number of segments to examine
    from there, None for all. Two suffice for the time, all are needed for the bytes. Any thread may
    call it.
    """
    log = partition.log
    first_offset = max(next_copy_offset, log.log_start_offset)
    return eligibility.waiting(
        log.segment_infos(first_offset, count),
        first_offset=first_offset,
        high_watermark=log.high_watermark,
    )


def prepare(log: PartitionLog, segment: SegmentInfo, ends: TransactionEnds) -> _Prepared:
    """Make a closed segment durable and collect what is uploaded with it (blocking).

    Return the log file and the aux data: the leader epochs up to the segment's end, the producer
    snapshot and the aborted transactions that end behind it. The rest is derived during the upload.
    ``ends``: transactions whose ends former calls found, which is updated.
    """
    # A copy must not contain records that a crash of this broker could still lose.
    if log.recovery_point < segment.next_base_offset:
        flushing.flush(log, segment.next_base_offset)
    files = flushing.segment_files(log, segment.base_offset)
    epochs = log.epochs
    aux = Aux(
        offset_index=b"",
        time_index=b"",
        leader_epochs=write_epochs(epochs.truncate_from_end(segment.next_base_offset)).encode(),
        producer_snapshot=files.producer_snapshot,
        aborted=AbortedRanges(flushing.aborted_behind(log, ends, files, segment.next_base_offset)),
        # The upload checks each batch, so that damage of the local disk does not enter the tier.
        has_sound_batches=True,
    )
    # The manifest entry names only the epochs of the segment's own records.
    within = epochs.between(segment.base_offset, segment.next_base_offset).entries
    rows = [(entry.epoch, entry.start_offset) for entry in within]
    if rows and rows[0][1] > segment.base_offset:
        # Records below the log start have lost their epochs, and are never read again.
        rows[0] = (rows[0][0], segment.base_offset)
    data = SegmentData(
        files.log,
        files.size_bytes,
        aux,
        compress=log.config.compresses_remote,
        index_interval_bytes=log.config.index_interval_bytes,
        open_before=files.open_before,
    )
    return _Prepared(data, tuple(rows))


def _with_origin(data: SegmentData, head: Head, entry: SegmentEntry) -> SegmentData:
    """Add the version of the head under which the copy started."""
    origin = encode_origin(entry, head.version, head.topic, head.topic_id, head.partition)
    return replace(data, aux=replace(data.aux, origin=origin))


def _delete_quietly(tier: Tier, entry: SegmentEntry) -> None:
    """Delete the objects, best effort; the manifest's deletion removes what is left."""
    try:
        tier.segments.delete([entry])
    except StoreError as error:
        logger.warning("%s is not deleted yet: %s", entry.key, error)
