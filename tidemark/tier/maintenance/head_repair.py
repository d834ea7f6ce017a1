"""Repair of a head that went back, from a replica's knowledge and from the objects in the store.

A head that was replaced by an older copy of itself no longer names the segments that were copied
since. Their objects, and pages that were sealed since, are still in the store. A leader that has
the newest head in memory writes it again. Otherwise the lost entries are added to the older head:
those of later pages, and those of complete copies whose auxiliary objects record a later head
(``segment_origin``). A leader copies only committed records. So every complete copy that continues
the line, in offsets and in leader epochs, up to the known end, belongs to it. Segments that were
merged and deleted since are replaced again.

A repair needs a proof: every live segment of the new head is in the store with its size, and the
line reaches the tier's end that the replica has on its disk. Without the proof nothing is written,
and the error names what is missing. A log start beyond that end (a RecordDeletion) is a proof, too:
no lost segment is part of the log any more.
"""

import contextlib
import itertools
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from tidemark.tier.metadata import queries, transitions
from tidemark.tier.metadata.codec import ManifestCorrupt, encode_page
from tidemark.tier.metadata.head import (
    Diverged,
    Head,
    HeadPosition,
    IllegalTransition,
    ManifestPage,
    PageRef,
)
from tidemark.tier.metadata.layout import (
    AUX_SUFFIX,
    LOG_SUFFIX,
    head_key,
    page_key,
    pages_prefix,
    partition_data_prefix,
    place_of_data,
    place_of_page,
)
from tidemark.tier.metadata.manifest import HeadWentBack, LoadedHead, PageCache, PageNotFound
from tidemark.tier.metadata.segment import SegmentEntry, SegmentState
from tidemark.tier.metadata.transitions import reference_of
from tidemark.tier.open import Tier
from tidemark.tier.segments.remote_storage_manager import stored_log_bytes
from tidemark.tier.segments.segment_origin import SegmentOrigin, origin_version, read_origin
from tidemark.tiering import Tiering


class Irreparable(Exception):
    """A repair cannot be proven; the message names what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Knowledge of a partition's tier from outside the store.

    ``head``: the newest head in memory. ``end_offset``, ``end_epoch``: last record known to be in
    the tier, -1 for none; ``end_offset`` None: not known (a restore). ``tiered_epoch``: of the head
    that named that record. ``leader_epoch``, ``broker_id``, ``tiering``: of the repairing leader;
    None without a leader."""

    leader_epoch: int = -1
    broker_id: int | None = None
    tiering: Tiering | None = None
    end_offset: int | None = None
    end_epoch: int = -1
    tiered_epoch: int = -1
    log_start_offset: int = -1
    head: Head | None = None


def repair(tier: Tier, error: HeadWentBack, evidence: Evidence, *, now_ms: int) -> LoadedHead:
    """Write a head that names all segments of the lost one, with a version above every seen one.
    Blocks. Raises HeadWentBack, whose message also names what is missing, and StoreUnavailable."""
    try:
        return tier.manifests.repair(error, repaired(tier, error, evidence, now_ms=now_ms))
    except Irreparable as missing:
        raise HeadWentBack(f"{error}; {missing}", error.known, error.found) from error


def restore_pages(tier: Tier, head: Head) -> None:
    """Rewrite missing pages that a head needs, from memory or from their segments' objects.
    Blocks. Raises PageNotFound, whose message names what is missing, and StoreUnavailable."""
    if not head.pages:
        return
    listed = set(_listed_pages(tier, head))
    needed = [ref for ref in head.pages if not _is_dead_page(head, ref)]
    if all(ref.name in listed for ref in needed):
        return
    try:
        _StoredObjects(tier, head).with_pages(head)
    except Irreparable as missing:
        raise PageNotFound(f"{head.name}: {missing}; nothing is deleted meanwhile") from missing


def _listed_pages(tier: Tier, head: Head) -> Iterator[str]:
    prefix = pages_prefix(head.topic_id, head.partition)
    return _page_names(info.key for info in tier.store.list(prefix))


def _is_dead_page(head: Head, ref: PageRef) -> bool:
    """Return whether no segment of the page is live any more."""
    return head.is_below_floor(ref.end_offset_inclusive, ref.max_tiered_epoch)


def check_against_objects(tier: Tier, topic_id: uuid.UUID, partition: int) -> LoadedHead:
    """Load the head, and check that no object was copied under a later version of it.

    For callers that have no recorded position of the head to compare with. Blocks. Raises
    HeadWentBack if the head was replaced by an older copy of itself, and what
    ``ManifestStore.load`` raises.
    """
    topic = tier.manifests.load(topic_id, partition).head
    # List objects before the head is read: a copy that starts after the listing cannot make a
    # current head look old.
    copies = dict(complete_copies(tier, topic))
    loaded = tier.manifests.load(topic_id, partition)
    head = loaded.head
    pages = tier.manifests.pages(topic_id, partition)
    unnamed = set(copies).difference(_named(head, pages))
    # Each copy records the head's version at its start. Only unnamed copies are of interest.
    began = {
        key: origin_version([tier.segments.stores[copies[key][0]]], tier.segments.keys, key) or 0
        for key in unnamed
    }
    newest = max(began, key=lambda key: (began[key], key), default="")
    # Unnamed copies of this version or an earlier one are leftovers of failed attempts.
    if began.get(newest, 0) <= head.version or head.deleted_at_ms is not None:
        return loaded
    raise HeadWentBack(
        f"{head_key(topic_id, partition)} in {tier.store.describe()} is of version {head.version}, "
        f"and {newest} was copied under version {began[newest]}: the head was replaced by an "
        "older copy of itself. Restore the newest version of that object",
        HeadPosition(began[newest], ""),
        loaded,
    )


def _named(head: Head, pages: PageCache) -> Iterator[str]:
    """Yield the keys of the segments that a head names. Pages of an old head may be deleted."""
    yield from (entry.key for entry in head.entries)
    for ref in head.pages:
        with contextlib.suppress(PageNotFound, ManifestCorrupt):
            yield from (entry.key for entry in pages[ref.name].entries)


def repaired(tier: Tier, error: HeadWentBack, evidence: Evidence, *, now_ms: int) -> Head:
    """Return a head that again names every segment that was in the tier.

    ``error``: the older head that was found (None if the object is missing), and the newest
    position that is known. ``evidence``: the replica's knowledge of the tier. Writes missing pages,
    but not the head. Raises Irreparable with the missing object.
    """
    # Start from the newest head that is readable, in the store or in the replica's memory.
    found = None if error.found is None else error.found.head
    newest = max(
        (head for head in (found, evidence.head) if head is not None),
        key=lambda head: head.version,
        default=None,
    )
    if newest is None:
        raise Irreparable("no head is in the store, and none in memory")
    store = _StoredObjects(tier, newest)
    # The newest head is known as a whole: only its pages and segments are checked.
    if newest.position == error.known:
        head = store.with_pages(newest)
        store.check_live(head)
        return _claimed(head, evidence)
    # Otherwise rebuild it from the older head, first with the floor that the older head knows.
    tiering = _tiering(newest.tiering, evidence)
    epochs = [max(newest.floor_epoch, error.known.floor_epoch, tiering.first_live_epoch)]
    if evidence.tiered_epoch > newest.tiering.epoch:
        # An unseen disablement with Delete (KIP-950) may have removed what the older head calls
        # live. Its floor is tried second.
        epochs.append(max(epochs[0], evidence.tiered_epoch))
    for last, floor_epoch in ((epoch is epochs[-1], epoch) for epoch in epochs):
        try:
            return _with_lost_entries(store, newest, evidence, floor_epoch, now_ms)
        except Irreparable:
            if last:
                raise
    raise AssertionError("unreachable: the last attempt returns or raises")


def _with_lost_entries(
    store: "_StoredObjects", newest: Head, evidence: Evidence, floor_epoch: int, now_ms: int
) -> Head:
    """Return the older head with its lost entries restored, from the replica's log start on.

    ``newest``: the head to start from. ``floor_epoch``: entries with a lower tiered epoch count as
    deleted. Raises Irreparable if offsets are missing that were in the tier.
    """
    # Retention and disablements since the older head only show in the log start and the floor.
    head = transitions.raise_floor_to(
        newest, max(newest.log_start_offset, evidence.log_start_offset), floor_epoch, now_ms=now_ms
    )
    head = store.with_pages(head)
    # None: the replica does not know where the tier ended.
    end = evidence.end_offset
    # A copy beyond the known end may never have been finished, and another leader may have written
    # other records there since: that part is copied again from the log.
    later = [
        entry
        for entry in store.later_copies(head)
        if end is None or entry.end_offset_inclusive <= end
    ]
    # In the order of offsets, each copy that continues the log is added.
    for entry in later:
        try:
            head = transitions.restore_entry(head, entry)
        except (IllegalTransition, Diverged):
            continue  # nothing new, expired, leaves a hole, or belongs to another history
    # Segments of the older head that were merged since, and deleted.
    for entry in later:
        head = _with_merged(head, entry, store, now_ms=now_ms)
    # The restored segments must exist, and must reach the end that is known.
    store.check_live(head)
    if end is None:
        _check_contiguous(head, later)
    else:
        _check_end(head, store.pages, end, evidence.end_epoch)
    # An upload in progress under the lost head is not continued.
    head = transitions.give_up_copying(head, now_ms=now_ms)
    return _claimed(replace(head, next_page=max(head.next_page, store.next_page)), evidence)


def _with_merged(head: Head, merged: SegmentEntry, store: "_StoredObjects", *, now_ms: int) -> Head:
    """Return the head with a merged segment in place of the segments that it replaced, if one of
    them is missing in the store; else the head itself.
    """
    others = tuple(entry for entry in head.entries if entry.segment_id != merged.segment_id)
    parts = [
        entry
        for entry in others
        if entry.state is SegmentState.COPY_FINISHED
        and merged.start_offset <= entry.start_offset
        and entry.end_offset_inclusive <= merged.end_offset_inclusive
    ]
    if not parts or all(store.has(entry) for entry in parts):
        return head
    changed = transitions.replaced_by(
        others,
        replace(merged, from_offset=parts[0].from_offset),
        {entry.segment_id for entry in parts},
        now_ms=now_ms,
    )
    # Refused if a part of its offsets is served by a segment that it does not replace.
    line = [entry for entry in changed if entry.state is SegmentState.COPY_FINISHED]
    for entry, following in itertools.pairwise(line):
        if following.from_offset != entry.end_offset_inclusive + 1:
            return head
    return replace(head, entries=changed)


def _claimed(head: Head, evidence: Evidence) -> Head:
    """Return the head as claimed by the repairing leader. The lost head may have had that claim
    from a commit whose answer was lost."""
    return replace(
        head,
        leader_epoch=max(head.leader_epoch, evidence.leader_epoch),
        broker_id=head.broker_id if evidence.broker_id is None else evidence.broker_id,
        tiering=_tiering(head.tiering, evidence),
    )


def _tiering(found: Tiering, evidence: Evidence) -> Tiering:
    """Return a tiering state that is not older than the lost head's and not newer than the
    leader's."""
    epoch, own = evidence.tiered_epoch, evidence.tiering
    if own is None or epoch <= found.epoch or own.epoch < epoch:
        return found
    return own if own.epoch == epoch else replace(found, epoch=epoch)


def _check_end(head: Head, pages: PageCache, end: int, end_epoch: int) -> None:
    """Check that the live segments reach the known end of the tier, in the same history.

    ``end``: last offset that was in the tier; ``end_epoch``: its leader epoch, -1 if unknown.
    Raises Irreparable.
    """
    # Everything up to the known end is expired, so nothing can be missing.
    if end < head.log_start_offset:
        return
    if head.highest_remote_offset < end:
        raise Irreparable(
            f"offsets {head.next_copy_offset} to {end} were in the tier, and no complete copy of "
            f"offset {head.next_copy_offset} is in the store"
        )
    # The same offset of another leader epoch is another record (KIP-101).
    entry = queries.find(head, pages, end)
    if entry is not None and end_epoch not in (-1, entry.epoch_at(end)):
        raise Irreparable(
            f"offset {end} was of leader epoch {end_epoch} in the tier, and {entry.key} "
            f"has leader epoch {entry.epoch_at(end)} there"
        )


def _check_contiguous(head: Head, later: Iterable[SegmentEntry]) -> None:
    """Check that every later copy was added to the head; used if the tier's end is not known."""
    for entry in later:
        if entry.end_offset_inclusive > head.highest_remote_offset:
            raise Irreparable(
                f"{entry.key} with offsets up to {entry.end_offset_inclusive} does not continue "
                f"the line, which ends at {head.highest_remote_offset}: restore what is between, "
                "or remove its objects"
            )


class _StoredObjects:
    """Objects of one partition in the store, as listed when this is created."""

    def __init__(self, tier: Tier, head: Head) -> None:
        self._tier = tier
        self._head = head
        self.pages = tier.manifests.pages(head.topic_id, head.partition)
        self._copies = dict(complete_copies(tier, head))
        self._page_names = set(_listed_pages(tier, head))
        self._origins: dict[str, tuple[SegmentOrigin, SegmentEntry] | None] = {}

    @property
    def next_page(self) -> int:
        """Number above those of all pages in the store."""
        return max((int(name.partition("-")[0]) + 1 for name in self._page_names), default=0)

    def with_pages(self, head: Head) -> Head:
        """Return the head without pages that were dropped since; rewrite missing pages that are
        still needed. Raises Irreparable."""
        kept = [ref for ref in head.pages if self._is_there(head, ref)]
        return head if len(kept) == len(head.pages) else replace(head, pages=tuple(kept))

    def _is_there(self, head: Head, ref: PageRef) -> bool:
        """Restore a page that the head refers to; return False if the page is no longer needed.

        A missing page is rebuilt from the objects of its segments. Raises Irreparable if they do
        not yield the page that ``ref`` describes.
        """
        # The lost head may have dropped a page without live segments, and its delete may still be
        # pending. A sweep removes the rest of its segments.
        if _is_dead_page(head, ref):
            return False
        if ref.name in self._page_names:
            return True
        # The store no longer has the page. It may still be in this process's cache.
        key = page_key(head.topic_id, head.partition, ref.name)
        try:
            page = self.pages[ref.name]
        except (PageNotFound, ManifestCorrupt):
            page = self._rebuilt(head, ref)
            # A rebuilt page must match the head's summary of it, except for deletions since.
            if not page.entries or reference_of(page) != replace(ref, gone=0, gone_bytes=0):
                raise Irreparable(
                    f"page {key} is missing, and the objects of its segments do not say what was "
                    "in it: restore that object"
                ) from None
        self._tier.store.put(key, encode_page(page))
        return True

    def _rebuilt(self, head: Head, ref: PageRef) -> ManifestPage:
        """Build a page from consecutive complete copies that start where the page starts. The
        caller compares it with the head's reference."""
        named = {entry.key for entry in head.entries}
        entries: list[SegmentEntry] = []
        for key in sorted(self._copies):
            begins = entries[-1].end_offset_inclusive + 1 if entries else ref.start_offset
            place = place_of_data(key + LOG_SUFFIX)
            if key in named or begins > ref.end_offset_inclusive or place.number > begins:
                continue
            read = self._origin(key)
            if read is not None and read[1].end_offset_inclusive >= begins:
                entries.append(replace(read[1], from_offset=begins))
        return ManifestPage(ref.name, head.topic, head.topic_id, head.partition, tuple(entries))

    def _origin(self, key: str) -> tuple[SegmentOrigin, SegmentEntry] | None:
        """Read an origin once: each page that is missing looks at all segments before it."""
        if key not in self._origins:
            bucket, log_bytes = self._copies[key]
            segments = self._tier.segments
            self._origins[key] = read_origin(
                segments.stores[bucket], segments.keys, bucket, key, log_bytes
            )
        return self._origins[key]

    def later_copies(self, head: Head) -> list[SegmentEntry]:
        """Return entries that a later head may have named as copied, ordered by offset.

        Found in pages that were sealed later, and in the origins that copies record about
        themselves.
        """
        # An unfinished copy of this head may have been finished under a later one.
        known = {entry.key for entry, _ in queries.present_entries(head, self.pages)}
        started = {e.key for e in head.entries if e.state is SegmentState.COPY_STARTED}
        known -= started
        found = {entry.key: entry for entry in self._sealed_later() if entry.key in self._copies}
        for key in self._copies:
            if key in known or key in found:
                continue
            read = self._origin(key)
            if read is None:
                continue
            # The head that was found may name this copy or merge as still in progress.
            origin, entry = read
            # A copy that started under this head or an earlier one and is not named was given up.
            if origin.head_version > self._head.version or key in started:
                found[key] = entry
        live = (entry for key, entry in found.items() if key not in known)
        return sorted(live, key=lambda entry: (entry.start_offset, -entry.end_offset_inclusive))

    def _sealed_later(self) -> Iterator[SegmentEntry]:
        """Yield the entries of pages that were sealed after the head."""
        for name in sorted(self._page_names):
            if int(name.partition("-")[0]) >= self._head.next_page:
                try:
                    yield from self.pages[name].entries
                except (PageNotFound, ManifestCorrupt):
                    continue

    def has(self, entry: SegmentEntry) -> bool:
        """Return whether both objects of a segment are in the store, with the log's size."""
        return self._copies.get(entry.key, ("", -1))[1] == stored_log_bytes(entry)

    def check_live(self, head: Head) -> None:
        """Check that every live segment is in the store with its size. Raises Irreparable."""
        try:
            for entry in queries.live_segments(head, self.pages):
                if not self.has(entry):
                    _, log_bytes = self._copies.get(entry.key, ("", -1))
                    what = "is missing" if log_bytes < 0 else f"has {log_bytes} bytes"
                    raise Irreparable(
                        f"{entry.log_key} with the offsets {entry.from_offset} to "
                        f"{entry.end_offset_inclusive} {what}: restore that segment's objects, too"
                    )
        except (PageNotFound, ManifestCorrupt) as error:
            raise Irreparable(str(error)) from error


def complete_copies(tier: Tier, head: Head) -> Iterator[tuple[str, tuple[str, int]]]:
    """Yield key (without suffix), bucket and log size (bytes) of each segment of a partition that
    has both of its objects. Blocks."""
    folder = partition_data_prefix(head.topic, head.topic_id, head.partition)
    for bucket, store in tier.segments.stores.items():
        sizes: Mapping[str, int] = {info.key: info.size_bytes for info in store.list(folder)}
        for key, size_bytes in sizes.items():
            name = key.removesuffix(LOG_SUFFIX)
            if name != key and name + AUX_SUFFIX in sizes:
                yield name, (bucket, size_bytes)


def _page_names(keys: Iterable[str]) -> Iterator[str]:
    for key in keys:
        try:
            yield place_of_page(key).name
        except ValueError:
            continue
