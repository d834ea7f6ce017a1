"""Which objects of a partition nothing names, nor ever will: pure functions.

What keeps this right is an order: objects are listed first, and the head is read afterwards.

* A segment's objects are uploaded only after COPY_STARTED was committed under a fresh id. So one
  that was listed and that a later head does not name had its entry once, and lost it for good.
* A page is written *before* the head that names it, so a page that is not named may still be. Its
  name has the head's page number at that time, and a head only goes from one number to a higher
  one: a page of a lower number than the head's next is not named any more by anybody, since the
  commit that wrote it had a base that is gone. The others wait.
"""

from collections.abc import Collection, Iterator, Mapping

from tidemark.tier.head import Head, Page
from tidemark.tier.layout import Place
from tidemark.tier.queries import Pages


def unnamed_segments(head: Head, pages: Pages, places: Collection[Place]) -> frozenset[str]:
    """Names of segments (keys without suffix) that the head does not name."""
    left = {place.name for place in places}
    left -= {entry.key for entry in head.entries}
    for name, gone in _likely_first(head, places):
        if not left:
            break
        left -= set(_names(pages[name], gone))
    return frozenset(left)


def unnamed_pages(head: Head, places: Collection[Place]) -> frozenset[str]:
    """Names of pages that no head names, nor will."""
    named = {ref.name for ref in head.pages}.union(head.trash)
    over = head.deleted_at_ms is not None
    return frozenset(
        place.name
        for place in places
        if place.name not in named and (over or place.number < head.next_page)
    )


def _likely_first(head: Head, places: Collection[Place]) -> Iterator[tuple[str, int]]:
    """Pages with their masks of what is gone: first those whose offsets meet those that are looked
    for, so that where nothing is an orphan the others are not read."""
    low = min((place.number for place in places), default=0)
    high = max((place.number for place in places), default=0)
    masks: Mapping[str, int] = {ref.name: ref.gone for ref in head.pages}
    near = [
        ref.name
        for ref in head.pages
        if ref.end_offset_inclusive >= low and ref.start_offset <= high
    ]
    yield from ((name, masks.get(name, 0)) for name in near)
    known = set(near)
    yield from ((name, gone) for name, gone in masks.items() if name not in known)


def _names(page: Page, gone: int) -> Iterator[str]:
    """Keys of the page's entries whose objects are not known to be deleted."""
    return (entry.key for index, entry in enumerate(page.entries) if not gone >> index & 1)
