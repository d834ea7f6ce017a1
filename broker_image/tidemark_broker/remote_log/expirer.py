"""Retention and deletion in the tier, one run at a time.

Marking and deleting are two steps. A commit raises the head's log start and with it the floor. The
objects are deleted only after ``remote.delete.delay.ms``, by the leader of that time, whatever the
topic's state is then. A last commit drops their entries.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, islice

from tidemark.metrics import tier_table
from tidemark.tier.metadata import queries, transitions
from tidemark.tier.metadata.head import Head
from tidemark.tier.metadata.retention import RetentionLimits, expired_up_to
from tidemark.tier.metadata.segment import SegmentEntry
from tidemark.tier.metadata.topics import TopicObject
from tidemark.tier.metadata.transitions import PendingDelete
from tidemark.tier.open import Tier
from tidemark.tier.stores.objects import DeletesRefused, StoreError
from tidemark_broker.log import SegmentInfo
from tidemark_broker.remote_log.disablement import follow_local_starts
from tidemark_broker.remote_log.eligibility import first_ending_behind
from tidemark_broker.remote_log.head_writer import HeadWriter
from tidemark_broker.remote_log.manager_state import ManagerState


def local_only_bytes(segments: Sequence[SegmentInfo], highest_remote_offset: int) -> int:
    """Return the bytes of the local log that the tier does not have, so that nothing counts
    twice.
    """
    first = first_ending_behind(segments, highest_remote_offset + 1)
    return sum(segments[at].size_bytes for at in range(first, len(segments)))


logger = logging.getLogger(__name__)

DELETES_AT_ONCE = 100


class Expirer:
    """Expiry and deletion in one leader's term."""

    def __init__(self, writer: HeadWriter) -> None:
        self._writer = writer
        self._shared = writer.shared
        self._partition = writer.partition
        self._described: TopicObject | None = None
        #: Head (None: none yet) to which retention was last applied, and its oldest live segment.
        self._oldest: tuple[Head | None, Sequence[SegmentEntry]] = None, ()

    async def run_once(self) -> bool:
        """Do one run; return True if there is more to delete right now."""
        await self._writer.refresh()
        self._writer.publish()
        await self._describe_topic()
        await self._expire()
        # During a disablement the log start may have to follow a new ISR member.
        if self._writer.term.tiering.is_deleting:
            await follow_local_starts(self._writer)
        return await self._delete()

    @property
    def log_start_moved(self) -> bool:
        """Whether records were deleted that the head still has."""
        return (
            self._writer.term.tiering.may_expire
            and self._partition.log_start_offset > self._writer.head.log_start_offset
        )

    async def _expire(self) -> None:
        """Raise the manifest's log start offset to what retention or DeleteRecords requires.

        Segments completely below it are thereby marked for deletion. While a disablement is in
        progress (``may_expire`` False) nothing is expired here.
        """
        if not self._writer.term.tiering.may_expire:
            return
        # DeleteRecords has moved the replica's own log start, which the head follows.
        new_start = max(self._partition.log_start_offset, await self._retained_from())
        head = self._writer.head
        if new_start <= head.log_start_offset:
            return
        await self._writer.expire_to(new_start)
        logger.info(
            "%s: the log now starts at %d in the tier, before it was %d",
            self._partition.tp,
            new_start,
            head.log_start_offset,
        )

    async def _retained_from(self) -> int:
        """Return the log start offset that retention.ms and retention.bytes require.

        It is the head's current log start offset if nothing expires.
        """
        log, head = self._partition.log, self._writer.head
        # Read now, so that a changed configuration applies to this run.
        config = log.config
        limits = RetentionLimits(
            retention_ms=config.retention_ms,
            retention_bytes=config.retention_bytes,
            deletes=config.deletes,
        )
        # An empty tier has nothing to expire.
        if head.live_end is None:
            return head.log_start_offset
        # A failed store is an error of a topic without limits, too, which needs no thread.
        tier = self._shared.guard.tier()
        if not limits.are_set:
            return head.log_start_offset
        # All figures are of one moment: a copy that finishes meanwhile would count twice.
        expired = partial(
            expired_up_to,
            limits=limits,
            live_bytes=self._writer.totals.live_bytes,
            local_bytes=local_only_bytes(
                log.segment_infos(head.highest_remote_offset + 1), head.highest_remote_offset
            ),
            now_ms=self._shared.context.wall_ms(),
        )
        # Nothing expires before the oldest segment. While that stays, no thread is needed.
        known, oldest = self._oldest
        if known is head and expired(oldest) is None:
            return head.log_start_offset
        new_start = await self._shared.pools.expiration(self._expired_up_to, tier, head, expired)
        return head.log_start_offset if new_start is None else new_start

    def _expired_up_to(
        self, tier: Tier, head: Head, expired: Callable[[Iterable[SegmentEntry]], int | None]
    ) -> int | None:
        """Apply retention, in a thread because it may load a page."""
        live = queries.live_segments(head, self._writer.pages(tier))
        oldest = tuple(islice(live, 1))
        self._oldest = head, oldest
        return expired(chain(oldest, live))

    async def _delete(self) -> bool:
        """Delete the objects of marked segments whose ``remote.delete.delay.ms`` has passed.

        Then commit a head without them. Return True if more segments may be due right now, since
        one run deletes at most DELETES_AT_ONCE. Raises the store's error if some objects could not
        be deleted.
        """
        writer, shared, by = self._writer, self._shared, self._writer.term.by
        head = writer.head
        if writer.totals.pending_segments:
            # Objects of a running upload are not deleted: the upload could store them again.
            tier = shared.guard.tier()
            due = await shared.pools.expiration(self._due, tier, head)
            done, error = await shared.pools.expiration(delete_objects, shared, tier, due)
            if done:
                await writer.commit(lambda head: transitions.finish_delete(head, by, done))
                logger.info("%s: deleted %d segments in the tier", self._partition.tp, len(done))
            if len(due) >= DELETES_AT_ONCE and done:
                return True  # even if the store refuses some of them
            if error is not None:
                raise error
        # ``trash`` lists manifest pages that the head no longer uses. Every commit deletes them
        # from the store, even one that changes nothing else.
        if writer.head.trash:
            await writer.commit(lambda head: head)
        return False

    def _due(self, tier: Tier, head: Head) -> Sequence[PendingDelete]:
        """Return the segments to delete now, in a thread because it may load pages."""
        due = queries.pending_deletes(
            head,
            self._writer.pages(tier),
            now_ms=self._shared.context.wall_ms(),
            delay_ms=self._shared.dynamic.delete_delay_ms,
            limit=DELETES_AT_ONCE,
        )
        return [item for item in due if item.entry.segment_id not in self._shared.uploads]

    async def _describe_topic(self) -> None:
        """Write the topic's description to the store if it has changed, as partition 0's leader.

        A reader finds the topic in the tier by this object, and a restore starts from it.
        """
        partition, view = self._partition, self._partition.view
        # One writer for each topic: partition 0's leader.
        if partition.partition != 0 or view is None:
            return
        # A topic without anything in the tier, now or later, needs no description.
        if not self._writer.term.tiering.copies and self._writer.head.is_empty:
            return
        topic = TopicObject(
            topic_id=partition.topic_id,
            name=partition.topic,
            cluster_id=self._shared.guard.cluster_id,
            partitions=len(view.partitions),
            config=dict(view.config),
            replication_factor=max(len(row.replicas) for row in view.partitions.values()),
        )
        # Written once for each change, not with every run.
        if topic == self._described:
            return
        tier = self._shared.guard.tier()
        await self._shared.pools.expiration(tier.topics.put, topic)
        self._described = topic


def delete_objects(
    shared: ManagerState, tier: Tier, due: Sequence[PendingDelete]
) -> tuple[Sequence[PendingDelete], StoreError | None]:
    """Delete the log object and the aux object of each marked segment (blocking).

    Return the deleted segments, and the error that prevented the others (None if all are deleted).
    All are deleted in one request; a refused object does not stop the others. If that request
    fails, they are deleted one by one until the first failure.
    """
    if not due:
        return due, None
    # Deleted records do not stay on this broker's disk either. No manifest leads to them any more.
    if shared.chunk_files is not None:
        shared.chunk_files.forget({item.entry.segment_id for item in due})
    shared.metrics.add(tier_table.DELETE_REQUESTS, len(due))
    try:
        tier.segments.delete([item.entry for item in due])
    except DeletesRefused as error:
        shared.metrics.add(tier_table.DELETE_ERRORS, len(error.refused))
        logger.warning("%s", error)
        # A segment counts as deleted only if both of its objects are.
        return [item for item in due if not _keys_of(item) & error.refused.keys()], error
    except StoreError as error:
        # The request failed as a whole: try single deletions.
        logger.info("%d segments are not deleted at once: %s", len(due), error)
    else:
        return due, None
    for number, item in enumerate(due):
        try:
            tier.segments.delete([item.entry])
        except StoreError as error:
            shared.metrics.add(tier_table.DELETE_ERRORS)
            logger.warning("%s is not deleted yet: %s", item.entry.key, error)
            return due[:number], error
    return due, None


def _keys_of(item: PendingDelete) -> set[str]:
    return {item.entry.log_key, item.entry.aux_key}
