"""Deletion of a topic in the tier: heads and topic object become tombstones, everything else is
deleted.

One call does a bounded part and returns what remains; the controller repeats it. It blocks. It
needs no claim: once the tombstones exist every leader of the topic is refused, even one that was
about to write the partition's first head. As in Kafka, copied segments are deleted at once, since a
deleted topic is not read. A segment that was abandoned during its copy waits for
``remote.delete.delay.ms``, since its upload may still arrive. Finally all other objects in the
topic's folders are deleted, for example a page whose writer was killed before the head named it.
"""

import itertools
import logging
import uuid
from dataclasses import replace

from tidemark.tier.metadata import queries, transitions
from tidemark.tier.metadata.head import Head, new_head
from tidemark.tier.metadata.layout import topic_pages_prefix
from tidemark.tier.metadata.manifest import LoadedHead, PageCache
from tidemark.tier.metadata.segment import SegmentEntry
from tidemark.tier.metadata.topics import TopicObject
from tidemark.tier.open import Tier
from tidemark.tier.stores.objects import DeletesRefused
from tidemark.tiering import NEVER_TIERED
from tidemark_broker.remote_log.expirer import delete_objects
from tidemark_broker.remote_log.manager_state import ManagerState

logger = logging.getLogger(__name__)

SEGMENTS_AT_ONCE = 1000


def delete_topic(
    shared: ManagerState, tier: Tier, topic_id: uuid.UUID, name: str, partitions: int
) -> int:
    """Delete a bounded part of a topic's objects in the tier (blocking); return what remains.

    The result is the number of segments, pages, or unnamed objects that are left. The caller
    repeats the call until it is 0. ``partitions``: number of the topic's partitions. Raises
    DeletesRefused if the store refused to delete objects; those of other partitions are deleted
    first.
    """
    topic = TopicObject(
        topic_id=topic_id,
        name=name,
        cluster_id=shared.guard.cluster_id,
        partitions=partitions,
    )
    # The topic's tombstone first: from now on the topic counts as deleted.
    tier.topics.put_tombstone(topic)
    # The partitions' tombstones fence leaders that may still copy.
    heads = _write_tombstones(shared, tier, topic)
    # The budget bounds one call, so that the controller's request does not time out.
    budget, remaining = SEGMENTS_AT_ONCE, 0
    refusal: DeletesRefused | None = None
    for partition, buried in heads:
        pages = tier.manifests.pages(topic_id, partition)
        try:
            left, deleted = _clear(shared, tier, buried, pages, budget)
        except DeletesRefused as error:
            refusal = refusal or error  # the other partitions are deleted all the same
            continue
        budget -= deleted
        remaining += left
    if refusal is not None:
        raise refusal
    # Once all named objects are deleted, delete those that no manifest names.
    remaining = remaining or _sweep(tier, topic)
    if not remaining:
        logger.info("topic id %s: nothing is left in the tier", topic_id)
    return remaining


def _write_tombstones(
    shared: ManagerState, tier: Tier, topic: TopicObject
) -> list[tuple[int, LoadedHead]]:
    """Replace the manifest head of every partition by a tombstone; return them by partition number.

    A partition without a head gets a new tombstone. Tombstones that exist already stay as they are.
    """
    now_ms, found = shared.context.wall_ms(), set(tier.manifests.partitions(topic.topic_id))
    heads = []
    # Partitions without a head get a tombstone too, which fences a leader's first head.
    for partition in sorted(found.union(range(topic.partitions))):
        if partition in found:
            # However old the head is: the whole partition is to be deleted.
            loaded = tier.manifests.load_any(topic.topic_id, partition)
        else:
            loaded = tier.manifests.create(_tombstone(shared, topic, partition, now_ms))
        buried = tier.manifests.commit(
            loaded, lambda head: transitions.make_tombstone(head, now_ms=now_ms)
        )
        heads.append((partition, buried))
    return heads


def _tombstone(shared: ManagerState, topic: TopicObject, partition: int, now_ms: int) -> Head:
    """Return the tombstone of a partition that has no head, so that no leader can create one."""
    head = new_head(
        topic=topic.name,
        topic_id=topic.topic_id,
        partition=partition,
        cluster_id=topic.cluster_id,
        leader_epoch=0,
        tiering=NEVER_TIERED,
        broker_id=shared.context.node_id,
        log_start_offset=0,
    )
    return replace(head, deleted_at_ms=now_ms)


def _sweep(tier: Tier, topic: TopicObject) -> int:
    """Delete objects that no tombstone names.

    Return their number, so that a later call finds out whether that was all.
    """
    count = tier.segments.sweep_topic(topic.name, topic.topic_id, SEGMENTS_AT_ONCE)
    # Bounded like segments, so that one call stays short.
    listed = itertools.islice(tier.store.list(topic_pages_prefix(topic.topic_id)), SEGMENTS_AT_ONCE)
    pages = [info.key for info in listed]
    if pages:
        tier.store.delete_many(pages)
    if count or pages:
        logger.info("topic %s: %d objects that nothing named", topic.name, count + len(pages))
    return count + len(pages)


def _clear(
    shared: ManagerState, tier: Tier, loaded: LoadedHead, pages: PageCache, budget: int
) -> tuple[int, int]:
    """Delete the objects of at most ``budget`` segments of one partition.

    ``loaded`` is the partition's tombstone. Return two numbers: the remaining segments and manifest
    pages, and the segments deleted by this call. Raises the store's error.
    """
    now_ms = shared.context.wall_ms()
    marked = queries.pending_deletes(
        loaded.head, pages, now_ms=now_ms, delay_ms=0, limit=max(budget, 0)
    )
    # A late upload would restore a deleted object, with no head left that names it.
    due = tuple(item for item in marked if not _may_still_arrive(shared, item.entry, now_ms))
    done, error = delete_objects(shared, tier, due if budget > 0 else ())
    # ``trash`` lists pages that the tombstone no longer uses; a commit deletes them.
    if done or loaded.head.trash:
        loaded = tier.manifests.commit(
            loaded, lambda head: transitions.finish_delete(head, None, done)
        )
    if error is not None:
        raise error
    # The commit above has moved pages to the trash, which this one deletes.
    if loaded.head.trash:
        loaded = tier.manifests.commit(
            loaded, lambda head: transitions.finish_delete(head, None, ())
        )
    # What is left needs another call: segments over the budget, late uploads, undeleted pages.
    left = queries.totals(loaded.head, pages).pending_segments + len(loaded.head.trash)
    return left, len(done)


def _may_still_arrive(shared: ManagerState, entry: SegmentEntry, now_ms: int) -> bool:
    """Return whether an upload may still be running: here, or on a leader that was superseded
    recently.
    """
    if entry.segment_id in shared.uploads:
        return True
    given_up_ms = entry.marked_at_ms
    return given_up_ms is not None and given_up_ms + shared.dynamic.delete_delay_ms > now_ms
