"""A topic is deleted while a write of it is still on its way: no object of it may come back."""

import asyncio
import contextlib
import uuid
from dataclasses import replace

from tests.integration.remote_log.conftest import MakeHost
from tests.integration.remote_log.orphans import no_orphans
from tests.integration.remote_log.tiered_host import TOPIC, TOPIC_ID, TieredHost
from tests.integration.remote_log.watched_store import BlockedCall, ready, watch, watched_leader
from tidemark.ids import id_text
from tidemark.tier.metadata.topics import TopicObject
from tidemark.tier.open import Tier
from tidemark.tier.stores.objects import StoreUnavailable
from tidemark_broker.replication.remote import RemoteUnavailable


def left_of_it(host: TieredHost) -> list[str]:
    """Return all objects of the topic except tombstones."""
    tier = host.tier()
    # Heads, pages, segments and the catalogue entry all have the topic's id in their key.
    found = [info.key for info in tier.store.list("") if id_text(TOPIC_ID) in info.key]
    return [key for key in found if not _is_tombstone(tier, key)]


def _is_tombstone(tier: Tier, key: str) -> bool:
    if key.startswith("heads/"):
        return tier.manifests.load(TOPIC_ID, 0).head.deleted_at_ms is not None
    return key.startswith("topics/") and b'"deleted":true' in tier.store.get(key).data


async def with_unrelated_topic(host: TieredHost) -> None:
    """Open the store with another topic, before the tested topic exists."""
    tested_topic = host.topic
    # tiering_state 0: the unrelated topic itself writes nothing to the tier.
    host.topic = replace(tested_topic, topic_id=uuid.uuid4(), name="unrelated", tiering_state=0)
    await host.broker.manager.apply(host.states())
    await ready(host)
    host.topic = tested_topic


async def other_broker(make_host: MakeHost, host: TieredHost) -> TieredHost:
    """Return a live broker of the same store that never had the topic."""
    other = make_host(node_id=2)
    other.store_id = host.remote.status().store_id
    await with_unrelated_topic(other)
    return other


async def emptied_by(other: TieredHost) -> None:
    """Delete as the operator does: repeated until nothing is left, despite errors."""
    async with asyncio.timeout(10):
        while True:
            # Errors are expected while the other broker still holds a claim; the operator retries,
            # too.
            with contextlib.suppress(RemoteUnavailable):
                if not await other.remote.delete_topic(TOPIC_ID, TOPIC, 1, 0):
                    return
            await asyncio.sleep(0.02)


async def blocked_first_head(host: TieredHost) -> BlockedCall:
    """Return the blocked call with which a leader creates the partition's first head."""
    blocked = BlockedCall("create", f"heads/{id_text(TOPIC_ID)}")
    await with_unrelated_topic(host)
    watch(host, blocked)
    await host.apply()
    await host.until(blocked.begun.is_set)
    return blocked


async def test_late_catalogue_entry_of_a_deleted_topic_is_removed(
    make_host: MakeHost, host: TieredHost
) -> None:
    """A stale catalogue entry would make the next topic of that name share it."""
    blocked = BlockedCall("create", f"topics/{id_text(TOPIC_ID)}")
    await with_unrelated_topic(host)
    watch(host, blocked)
    await host.apply()
    # The copier continues while the write of the catalogue entry is blocked.
    await host.produce(300)
    await host.until(blocked.begun.is_set)
    await host.copied()
    await host.delete()
    # Another broker deletes everything while the write is still on its way.
    await emptied_by(await other_broker(make_host, host))
    # The write reaches the store after the deletion.
    await blocked.release()
    assert left_of_it(host) == []
    await no_orphans(host)
    # A new topic of the same name is unambiguous.
    topics = host.tier().topics
    recreated = TopicObject(topic_id=uuid.uuid4(), name=TOPIC, cluster_id="c", partitions=1)
    topics.put(recreated)
    assert topics.find(TOPIC) == recreated


async def test_late_first_head_of_a_deleted_topic_is_refused(
    make_host: MakeHost, host: TieredHost
) -> None:
    blocked = await blocked_first_head(host)
    await host.delete()
    await emptied_by(await other_broker(make_host, host))
    # The conditional create of the head fails, because the tombstone has its place.
    await blocked.release()
    assert left_of_it(host) == []
    await no_orphans(host)


async def test_partitioned_leader_of_a_deleted_topic_writes_nothing(
    make_host: MakeHost, host: TieredHost
) -> None:
    """The operator waits for live brokers only, so this one receives the deletion last."""
    # Without ISR proposals the leader cannot tell the controller of its manifest.
    host.context.propose_isr = lambda *_: None
    blocked = await blocked_first_head(host)
    await emptied_by(await other_broker(make_host, host))
    await blocked.release()
    await host.produce(300)
    # Three intervals of the remote log manager: copies would have happened by now.
    await asyncio.sleep(0.3)
    # Only now the deletion arrives at the leader that was cut off.
    await host.delete()
    assert left_of_it(host) == []
    await no_orphans(host)


async def test_deletion_of_pages_that_the_store_refused_is_retried(host: TieredHost) -> None:
    refuses = True

    def before(name: str, key: str) -> None:
        if name == "delete" and key.startswith("pages/") and refuses:
            raise StoreUnavailable("SlowDown", reason="SlowDown", retriable=True)

    await watched_leader(host, before, page_entries=2)
    await host.produce(400)
    await host.copied()
    assert any(key.startswith("pages/") for key in left_of_it(host))
    await host.delete()
    # Pages remain, so the command reports that something is left.
    assert await host.remote.delete_topic(TOPIC_ID, TOPIC, 1, 0)
    refuses = False
    await host.delete_remote()
    assert left_of_it(host) == []
    await no_orphans(host)


async def test_deletion_removes_pages_that_no_head_names(
    make_host: MakeHost, host: TieredHost
) -> None:
    """The writer was killed after the page and before the head that names it."""
    dead = False

    def before(name: str, _: str) -> None:
        nonlocal dead
        # From the first page on every call fails, as those of a killed process.
        pages = host.tier().store.list("pages/") if name == "replace" else ()
        dead = dead or any(True for _ in pages)
        if dead:
            raise StoreUnavailable("killed", reason="killed", retriable=True)

    await watched_leader(host, before, page_entries=2)
    await host.produce(400)
    await host.until(lambda: dead)
    await emptied_by(await other_broker(make_host, host))
    assert left_of_it(host) == []
    await no_orphans(host)


async def test_two_brokers_delete_the_same_topic_concurrently(
    make_host: MakeHost, host: TieredHost
) -> None:
    # Two entries per page: heads, pages and segments all exist.
    await watched_leader(host, lambda *_: None, page_entries=2)
    await host.produce(400)
    await host.copied()
    other = await other_broker(make_host, host)
    await host.delete()
    # Both see the same objects; a missing one is not an error of a deletion.
    await asyncio.gather(emptied_by(host), emptied_by(other))
    assert left_of_it(host) == []
    await no_orphans(host)
