"""Classification of listed keys: named by a manifest, unnamed, or of unknown origin.

Keys are processed in chunks, so memory does not grow with the store. They are listed first, and the
heads of their partitions are read afterwards. This order makes the result correct:

* A segment's objects are uploaded only after COPY_STARTED was committed under a fresh id. A listed
  segment that a later head does not name therefore had its entry once, and lost it for good.
* A page is written *before* the head that names it, so an unnamed page may still be named. Its name
  has the head's page number at that time, and this number only grows. A page with a lower number
  than the head's next cannot be named any more, because the commit that wrote it had an earlier
  base. Other pages are kept.

A head that was replaced by an older version of itself does not name the segments that were copied
since. Objects are listed before the head is read. If a listed object was copied under a later head,
this head is not the newest, and no object of its partition counts as unnamed. An object without the
version of its head (written by an older version of Tidemark) counts as unnamed only below the end
of the line, because a head that went back has lost its end.
"""

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from tidemark.tier.metadata.head import Head, ManifestError, ManifestPage
from tidemark.tier.metadata.layout import (
    KeyLocation,
    head_key,
    place_of_data,
    place_of_page,
    topic_data_prefix,
)
from tidemark.tier.metadata.manifest import HeadNotFound, PageNotFound
from tidemark.tier.metadata.queries import Pages
from tidemark.tier.open import Tier
from tidemark.tier.segments.segment_origin import origin_version
from tidemark.tier.stores.objects import SegmentUnreadable

_HEAD_READS = 3


class HasKey(Protocol):
    """Listed object or upload that has a key."""

    @property
    def key(self) -> str:
        """Key relative to the store's prefix."""


_Item = TypeVar("_Item", bound=HasKey)
_Placed = Sequence[tuple[KeyLocation, _Item]]


@dataclass(slots=True)
class ClassifiedItems(Generic[_Item]):
    """Classified items.

    ``unnamed``: no manifest names them, nor ever will. ``unknown``: items whose folder has no head,
    with that folder. ``troubles``: messages about partitions that could not be classified.
    """

    unnamed: list[_Item] = field(default_factory=list)
    unknown: list[tuple[str, _Item]] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)


class ReferenceClassifier:
    """Classifier that reads the heads of one tier. Calls block and raise StoreUnavailable."""

    def __init__(self, tier: Tier) -> None:
        self._tier = tier

    def of_data(self, items: Sequence[_Item]) -> ClassifiedItems[_Item]:
        """Classify objects under ``data/``, or uploads that are to become such."""
        return self._classify(items, place_of_data, self._of_segments)

    def of_pages(self, items: Sequence[_Item]) -> ClassifiedItems[_Item]:
        """Classify objects under ``pages/``."""
        return self._classify(items, place_of_page, _of_pages)

    def _classify(
        self,
        items: Sequence[_Item],
        parse: Callable[[str], KeyLocation],
        look: Callable[[Head, _Placed[_Item]], ClassifiedItems[_Item]],
    ) -> ClassifiedItems[_Item]:
        """Classify listed keys, partition by partition.

        ``parse``: returns the place that a key names, or raises ValueError. ``look``: classifies
        the keys of one partition by its head.
        """
        judged: ClassifiedItems[_Item] = ClassifiedItems()
        for (topic_id, partition), placed in _placed(items, parse, judged).items():
            found = self._partition(topic_id, partition, placed, look)
            judged.unnamed += found.unnamed
            judged.unknown += found.unknown
            judged.troubles += found.troubles
        return judged

    def _partition(
        self,
        topic_id: uuid.UUID,
        partition: int,
        placed: _Placed[_Item],
        look: Callable[[Head, _Placed[_Item]], ClassifiedItems[_Item]],
    ) -> ClassifiedItems[_Item]:
        """Classify the listed keys of one partition with the partition's head.

        ``placed``: the keys, parsed, with their items. ``look``: the classification by a head; it
        may load pages and then raises PageNotFound if the head is outdated. Without a head the keys
        are of unknown origin. Any other problem is returned in ``troubles`` and nothing is
        classified.
        """
        trouble = ""
        # Each page that is dropped after the head was read needs another read of the head.
        for _ in range(_HEAD_READS):
            try:
                return look(self._tier.manifests.load(topic_id, partition).head, placed)
            except HeadNotFound:
                folders = [(f"{place.folder}{partition}/", item) for place, item in placed]
                return ClassifiedItems(unknown=folders)
            # The page was deleted after this head was read: the next head no longer names it.
            # Commits kept dropping pages. The next sweep tries again.
            except PageNotFound as error:
                trouble = str(error)  # dropped since the head was read: another head says more
            except ManifestError as error:
                return ClassifiedItems(troubles=[str(error)])
        return ClassifiedItems(troubles=[trouble])

    def _of_segments(self, head: Head, placed: _Placed[_Item]) -> ClassifiedItems[_Item]:
        """Classify a partition's keys of segments by its head.

        Keys in the folder of another topic name are of unknown origin.
        """
        folder = topic_data_prefix(head.topic, head.topic_id)
        in_folder = [(place, item) for place, item in placed if place.folder == folder]
        pages = self._tier.manifests.pages(head.topic_id, head.partition)
        names = unnamed_segments(head, pages, [place for place, _ in in_folder])
        unnamed = [(place, item) for place, item in in_folder if place.name in names]
        # The id belongs to a topic, the name does not: the owner is not known.
        unknown = [(place.folder, item) for place, item in placed if place.folder != folder]
        kept, troubles = self._kept_for_newer_head(head, [place for place, _ in unnamed])
        return ClassifiedItems(
            unnamed=[item for place, item in unnamed if place.name not in kept],
            unknown=unknown,
            troubles=troubles,
        )

    def _kept_for_newer_head(
        self, head: Head, unnamed: Sequence[KeyLocation]
    ) -> tuple[frozenset[str], list[str]]:
        """Return segments to keep because a newer head may name them, and messages about them.

        ``head``: the head as read. ``unnamed``: segments in the store that it does not name.
        """
        # A segment that was copied under a later head proves that this head is old.
        segments = self._tier.segments
        names = frozenset(place.name for place in unnamed)
        try:
            began = {
                name: origin_version(segments.stores.values(), segments.keys, name)
                for name in names
            }
        except SegmentUnreadable as error:
            # Any of them may prove that the head is old. Other partitions are still swept.
            return names, [str(error)]
        newest = max(began, key=lambda name: began[name] or 0, default="")
        version = began.get(newest) or 0
        if version > head.version:
            trouble = (
                f"{head_key(head.topic_id, head.partition)} in {self._tier.store.describe()} is of "
                f"version {head.version}, and {newest} was copied under version {version}: the "
                "head is older than its objects, nothing of the partition is removed; the leader "
                "repairs it, or names in the Topic's condition TierIntegrity what is missing"
            )
            return frozenset(began), [trouble]
        # A newer head names additional segments, which start behind the present ones. A segment
        # there that records no version may be one of them.
        line_end = _last_start(head)
        undated = frozenset(
            place.name
            for place in unnamed
            if began[place.name] is None and place.number >= line_end and head.deleted_at_ms is None
        )
        if not undated:
            return undated, []
        trouble = (
            f"{len(undated)} segments, {min(undated)} among them, are at the end of {head.name} "
            "and do not record the version of their head. They are kept until later segments are "
            "copied"
        )
        return undated, [trouble]


def _last_start(head: Head) -> int:
    """Return the first offset of the last live segment; the log start if none is live."""
    for entry in reversed(head.finished_entries):
        return max(entry.start_offset, head.log_start_offset)
    return max(head.pages[-1].start_offset if head.pages else 0, head.log_start_offset)


def _of_pages(head: Head, placed: _Placed[_Item]) -> ClassifiedItems[_Item]:
    names = unnamed_pages(head, [place for place, _ in placed])
    return ClassifiedItems(unnamed=[item for place, item in placed if place.name in names])


def _placed(
    items: Sequence[_Item], parse: Callable[[str], KeyLocation], judged: ClassifiedItems[_Item]
) -> Mapping[tuple[uuid.UUID, int], list[tuple[KeyLocation, _Item]]]:
    """Group listed items by topic id and partition.

    An item whose key does not parse is added to ``judged.unknown`` with its folder.
    """
    placed: dict[tuple[uuid.UUID, int], list[tuple[KeyLocation, _Item]]] = {}
    for item in items:
        try:
            place = parse(item.key)
        except ValueError:
            judged.unknown.append((f"{item.key.rpartition('/')[0]}/", item))
        else:
            placed.setdefault((place.topic_id, place.partition), []).append((place, item))
    return placed


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
