"""What a deleted topic leaves in the tier: heads become tombstones, objects go, then the topic
object.

One call does a bounded piece of it and says what remains; the controller asks again. It blocks. It
needs no claim: from the tombstone on every leader of the topic is refused.
"""

import logging
import uuid

from tidemark.tier import queries, transitions
from tidemark.tier.manifest import LoadedHead, PageCache
from tidemark.tier.open import Tier
from tidemark_broker.remote_log.expirer import delete_objects
from tidemark_broker.remote_log.shared import Shared

logger = logging.getLogger(__name__)

SEGMENTS_AT_ONCE = 1000


def delete_topic(shared: Shared, tier: Tier, topic_id: uuid.UUID) -> int:
    """Bury every head first, so that nothing new is begun; then delete what is marked long enough.
    The number of segments that still have objects."""
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
    due = queries.pending_deletes(
        loaded.head,
        pages,
        now_ms=shared.context.wall_ms(),
        delay_ms=shared.dynamic.delete_delay_ms,
        limit=max(budget, 0),
    )
    due = tuple(item for item in due if item.entry.segment_id not in shared.uploads)
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
