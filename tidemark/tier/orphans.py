"""Orphans: objects of a partition that no manifest names, nor ever will. Pure functions.

The order makes this correct: objects are listed first, and the head is read afterwards.

* A segment's objects are uploaded only after COPY_STARTED was committed under a fresh id. A listed
  segment that a later head does not name therefore had its entry once, and lost it for good.
* A page is written *before* the head that names it, so an unnamed page may still be named. Its name
  has the head's page number at that time, and this number only grows. A page with a lower number
  than the head's next cannot be named any more, because the commit that wrote it had an earlier
  base. Other pages are kept.
"""

from collections.abc import Collection, Iterator, Mapping

from tidemark.tier.head import Head, ManifestPage
from tidemark.tier.layout import KeyLocation
from tidemark.tier.queries import Pages


def unnamed_segments(head: Head, pages: Pages, places: Collection[KeyLocation]) -> frozenset[str]:
    """Return the names of segments (keys without suffix) that the head does not name."""
    left = {place.name for place in places}
    left -= {entry.key for entry in head.entries}
    for name, gone in _likely_first(head, places):
        if not left:
            # Every listed segment is named: the remaining pages need not be read.
            break
        left -= set(_names(pages[name], gone))
    return frozenset(left)


def unnamed_pages(head: Head, places: Collection[KeyLocation]) -> frozenset[str]:
    """Return the names of pages that no head names, nor ever will."""
    named = {ref.name for ref in head.pages}.union(head.trash)
    over = head.deleted_at_ms is not None
    return frozenset(
        place.name
        for place in places
        if place.name not in named and (over or place.number < head.next_page)
    )


def _likely_first(head: Head, places: Collection[KeyLocation]) -> Iterator[tuple[str, int]]:
    """Yield pages with the bit masks of their deleted entries, most likely matches first.

    Pages whose offsets overlap the listed segments come first. The caller stops as soon as every
    listed segment is found in a page, so usually the other pages are not read.
    """
    # Range of start offsets of the listed segments.
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


def _names(page: ManifestPage, gone: int) -> Iterator[str]:
    """Return the keys of the page's entries whose objects are not known to be deleted."""
    return (entry.key for index, entry in enumerate(page.entries) if not gone >> index & 1)
