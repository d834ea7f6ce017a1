"""Invariant 10, verified on a tier at the end of a test: every object is named by a manifest."""

from collections.abc import Iterable

from tests.integration.remote_log.tiered_host import TOPIC, TOPIC_ID, TieredHost
from tests.orphans import found, look
from tidemark.tier.metadata import queries
from tidemark.tier.metadata.manifest import HeadNotFound


async def left_clean(hosts: Iterable[TieredHost]) -> None:
    """Verify that nothing is left: without a sweep if a host still runs, else after one sweep."""
    for host in hosts:
        if not host.closed:
            await no_orphans(host)
            # One live host is enough: all hosts of a test share the tier.
            return
    # Every broker was killed or closed, so only a sweep can remove what they left.
    for host in hosts:
        swept_clean(host)


async def no_orphans(host: TieredHost) -> None:
    """Wait until brokers have removed their orphans by themselves, without a sweep."""
    try:
        await host.until(lambda: not left_in(host))
    except TimeoutError:
        # Report the objects themselves, which say more than a timeout.
        raise AssertionError(left_in(host)) from None


def swept_clean(host: TieredHost) -> None:
    """Verify that one sweep removes all orphans, whatever was killed."""
    look(host.tier(), remove=True)
    left = left_in(host)
    assert not left, left


def left_in(host: TieredHost) -> list[str]:
    """Return objects that no manifest names, those that could not be read, and named ones that
    are missing.
    """
    return [*found(look(host.tier())), *_dangling(host)]


def _dangling(host: TieredHost) -> list[str]:
    tier = host.tier()
    there = {info.key for info in tier.segments.list_topic(TOPIC, TOPIC_ID)}
    named = []
    for partition in host.rows:
        try:
            # A tombstoned or never claimed partition has no head, so nothing is named by it.
            head = tier.manifests.load(TOPIC_ID, partition).head
        except HeadNotFound:
            continue
        # The opposite fault: a manifest that names an object which was deleted too early.
        for entry in queries.live_segments(head, tier.manifests.pages(TOPIC_ID, partition)):
            named += [entry.log_key, entry.aux_key]
    return [key for key in named if key not in there]
