"""What a deleted topic leaves in the tier: heads become tombstones, objects go, then the topic
object.

One call does a bounded piece of it and says what remains; the controller asks again. It blocks. It
needs no claim: from the tombstone on every leader of the topic is refused. As in Kafka, what was
copied goes at once: nobody is to read a deleted topic. What was given up in the middle of its copy
waits for ``remote.delete.delay.ms``, since the upload may still arrive.
"""

import logging
import uuid

from tidemark.tier import queries, transitions
from tidemark.tier.manifest import LoadedHead, PageCache
from tidemark.tier.open import Tier
from tidemark.tier.segment import SegmentEntry
from tidemark_broker.remote_log.expirer import delete_objects
from tidemark_broker.remote_log.shared import Shared

logger = logging.getLogger(__name__)

SEGMENTS_AT_ONCE = 1000


def delete_topic(shared: Shared, tier: Tier, topic_id: uuid.UUID) -> int:
    """Bury every head first, so that nothing new is begun; then delete. The number of segments that
    still have objects."""
    heads = []
    for partition in tier.manifests.partitions(topic_id):
        loaded = tier.manifests.load(topic_id, partition)
        buried = tier.manifests.commit(
            loaded, lambda head: transitions.bury(head, now_ms=shared.context.wall_ms())
        )
        heads.append((partition, buried))
    budget, remaining = SEGMENTS_AT_ONCE, 0
    for partition, buried in heads:
        pages = tier.manifests.pages(topic_id, partition)
        left, deleted = _clear(shared, tier, buried, pages, budget)
        budget -= deleted
        remaining += left
    if not remaining:
        tier.topics.remove(topic_id)
        logger.info("topic id %s: nothing is left in the tier", topic_id)
    return remaining


def _clear(
    shared: Shared, tier: Tier, loaded: LoadedHead, pages: PageCache, budget: int
) -> tuple[int, int]:
    """(segments that remain, segments deleted) of one partition."""
    now_ms = shared.context.wall_ms()
    marked = queries.pending_deletes(
        loaded.head, pages, now_ms=now_ms, delay_ms=0, limit=max(budget, 0)
    )
    due = tuple(item for item in marked if not _may_still_arrive(shared, item.entry, now_ms))
    done, error = delete_objects(shared, tier, due if budget > 0 else ())
    if done or loaded.head.trash:
        loaded = tier.manifests.commit(
            loaded, lambda head: transitions.finish_delete(head, None, done)
        )
    if error is not None:
        raise error
    if loaded.head.trash:
        loaded = tier.manifests.commit(
            loaded, lambda head: transitions.finish_delete(head, None, ())
        )
    return queries.totals(loaded.head, pages).pending_segments, len(done)


def _may_still_arrive(shared: Shared, entry: SegmentEntry, now_ms: int) -> bool:
    """Whether somebody may still be uploading it: here, or a leader that was given up lately."""
    if entry.segment_id in shared.uploads:
        return True
    given_up_ms = entry.marked_at_ms
    return given_up_ms is not None and given_up_ms + shared.dynamic.delete_delay_ms > now_ms
