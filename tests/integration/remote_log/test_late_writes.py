"""A topic is deleted while something of it is still on its way to the store: nothing comes back."""

import asyncio
import contextlib
import uuid
from dataclasses import replace

from tests.integration.remote_log.conftest import MakeHost
from tests.integration.remote_log.orphans import no_orphans
from tests.integration.remote_log.tiered_host import TOPIC, TOPIC_ID, TieredHost
from tests.integration.remote_log.watched_store import Held, ready, watch, watched_leader
from tidemark.ids import id_text
from tidemark.tier.objects import StoreUnavailable
from tidemark.tier.open import Tier
from tidemark.tier.topics import TopicObject
from tidemark_broker.replication.remote import RemoteUnavailable


def left_of_it(host: TieredHost) -> list[str]:
    """All objects of the topic but tombstones."""
    tier = host.tier()
    found = [info.key for info in tier.store.list("") if id_text(TOPIC_ID) in info.key]
    return [key for key in found if not _is_tombstone(tier, key)]


def _is_tombstone(tier: Tier, key: str) -> bool:
    if key.startswith("heads/"):
        return tier.manifests.load(TOPIC_ID, 0).head.deleted_at_ms is not None
    return key.startswith("topics/") and b'"deleted":true' in tier.store.get(key).data


async def with_unrelated_topic(host: TieredHost) -> None:
    """The store is open, and the topic is not there yet."""
    kept = host.topic
    host.topic = replace(kept, topic_id=uuid.uuid4(), name="unrelated", tiering_state=0)
    await host.broker.manager.apply(host.states())
    await ready(host)
    host.topic = kept


async def other_broker(make_host: MakeHost, host: TieredHost) -> TieredHost:
    """Live, of the same store; it never had the topic."""
    other = make_host(node_id=2)
    other.store_id = host.remote.status().store_id
    await with_unrelated_topic(other)
    return other


async def emptied_by(other: TieredHost) -> None:
    """Delete as the operator does: repeated until nothing is left, despite errors."""
    async with asyncio.timeout(10):
        while True:
            with contextlib.suppress(RemoteUnavailable):
                if not await other.remote.delete_topic(TOPIC_ID, TOPIC, 1, 0):
                    return
            await asyncio.sleep(0.02)


async def held_first_head(host: TieredHost) -> Held:
    """A leader is about to make the partition's first head."""
    held = Held("create", f"heads/{id_text(TOPIC_ID)}")
    await with_unrelated_topic(host)
    watch(host, held)
    await host.apply()
    await host.until(held.begun.is_set)
    return held


async def test_the_topic_object_does_not_come_back(make_host: MakeHost, host: TieredHost) -> None:
    """Or the next topic of that name would share it with a dead one."""
    held = Held("create", f"topics/{id_text(TOPIC_ID)}")
    await with_unrelated_topic(host)
    watch(host, held)
    await host.apply()
    await host.produce(300)
    await host.until(held.begun.is_set)
    await host.copied()
    await host.delete()
    await emptied_by(await other_broker(make_host, host))
    await held.release()
    assert left_of_it(host) == []
    await no_orphans(host)
    topics = host.tier().topics
    again = TopicObject(topic_id=uuid.uuid4(), name=TOPIC, cluster_id="c", partitions=1)
    topics.put(again)
    assert topics.find(TOPIC) == again


async def test_a_first_head_does_not_come_after_the_end(
    make_host: MakeHost, host: TieredHost
) -> None:
    held = await held_first_head(host)
    await host.delete()
    await emptied_by(await other_broker(make_host, host))
    await held.release()
    assert left_of_it(host) == []
    await no_orphans(host)


async def test_a_leader_that_was_cut_off_writes_nothing(
    make_host: MakeHost, host: TieredHost
) -> None:
    """The operator waits for live brokers only; this one receives the deletion last."""
    host.context.propose_isr = lambda *_: None
    held = await held_first_head(host)
    await emptied_by(await other_broker(make_host, host))
    await held.release()
    await host.produce(300)
    await asyncio.sleep(0.3)
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
    assert await host.remote.delete_topic(TOPIC_ID, TOPIC, 1, 0)
    refuses = False
    await host.delete_remote()
    assert left_of_it(host) == []
    await no_orphans(host)


async def test_a_page_that_no_head_names_goes_too(make_host: MakeHost, host: TieredHost) -> None:
    """Its writer was killed after the page and before the head."""
    dead = False

    def before(name: str, _: str) -> None:
        nonlocal dead
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


async def test_two_brokers_may_empty_it_at_once(make_host: MakeHost, host: TieredHost) -> None:
    await watched_leader(host, lambda *_: None, page_entries=2)
    await host.produce(400)
    await host.copied()
    other = await other_broker(make_host, host)
    await host.delete()
    await asyncio.gather(emptied_by(host), emptied_by(other))
    assert left_of_it(host) == []
    await no_orphans(host)
