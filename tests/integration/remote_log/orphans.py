"""Invariant 10, checked on a tier at the end of a test: the tier has no unnamed objects."""

from collections.abc import Iterable

from tests.integration.remote_log.tiered_host import TOPIC, TOPIC_ID, TieredHost
from tests.orphans import found, look
from tidemark.tier import queries
from tidemark.tier.manifest import HeadNotFound


async def left_clean(hosts: Iterable[TieredHost]) -> None:
    """At the end of a test, whatever it did: by themselves if one of them still runs."""
    for host in hosts:
        if not host.closed:
            await no_orphans(host)
            return
    for host in hosts:
        swept_clean(host)


async def no_orphans(host: TieredHost) -> None:
    """In the end, without a sweep: brokers leave none by themselves."""
    try:
        await host.until(lambda: not left_in(host))
    except TimeoutError:
        raise AssertionError(left_in(host)) from None


def swept_clean(host: TieredHost) -> None:
    """After one sweep, whatever died."""
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
            head = tier.manifests.load(TOPIC_ID, partition).head
        except HeadNotFound:
            continue
        for entry in queries.live_segments(head, tier.manifests.pages(TOPIC_ID, partition)):
            named += [entry.log_key, entry.aux_key]
    return [key for key in named if key not in there]
