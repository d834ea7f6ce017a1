"""Changes of a manifest's head, as pure functions from head to head.

Rules (docs/explanation/architecture.md, invariants 5, 6, 8 and 10; docs/reference/tier-format.md):

* A claim is a write. It never lowers the leader epoch or the tiered epoch. Within a tiered epoch
  the state only advances: DISABLING, DISABLED, ENABLED (KIP-950; a re-enablement keeps the epoch).
  Every other change is refused unless the caller's claim is the head's.
* COPY_STARTED is committed before the upload; COPY_FINISHED only while that entry is still
  COPY_STARTED. The claim that fences a copier marks the copy that it left unfinished.
* Live entries form one line without holes. Overlap is trimmed by recording the range for which the
  new segment answers; a hole, or another history, is refused.
* Marking means moving the floor together with the log start offset: O(1).
* An entry is removed only after it was marked.
* A merge replaces adjacent live entries of the head by one entry of the same offsets, in one commit
  that also marks them. It is refused if one of them has deleted records.

Each check of a rule raises with the partition's name and the remedy. ManifestFenced means that a
newer claim is in force, Diverged that this replica's log contradicts the tier (the prefix rule),
IllegalTransition everything else.

Each function returns the same head object when there is nothing to change, so that a caller can
repeat it after an error whose outcome is not known.
"""

import uuid
from collections.abc import Collection
from dataclasses import dataclass, replace

from tidemark.tier.metadata.head import (
    ENTRIES_MAX,
    MARKS_MAX,
    PAGES_MAX,
    Claim,
    Diverged,
    Head,
    IllegalTransition,
    ManifestFenced,
    ManifestPage,
    Mark,
    PageRef,
    TopicDeleted,
)
from tidemark.tier.metadata.segment import Digests, SegmentEntry, SegmentState
from tidemark.tiering import DisablePolicy, Tiering, TieringState


@dataclass(frozen=True, slots=True)
class PendingDelete:
    """An entry whose objects may be deleted now, and its place.

    ``page``: None for the head itself, else the page's name. ``index``: the entry's place in the
    page.
    """

    entry: SegmentEntry
    page: str | None = None
    index: int = 0


def claim(
    head: Head,
    leader_epoch: int,
    tiering: Tiering,
    *,
    cluster_id: str,
    broker_id: int,
    now_ms: int,
) -> Head:
    """Claim the head for a leader epoch and the topic's tiering.

    Required before the first copy, expiration or deletion mark in a new epoch. It fences every
    older claim. A disablement with policy Delete (KIP-950) is claimed by ``disable_delete``, which
    also moves the floor. Raises ManifestFenced, IllegalTransition.
    """
    check_claim(head, leader_epoch, tiering, cluster_id)
    # In two commits, the old data would count as live in the new epoch for a moment.
    if tiering.needs_delete_commit(head.tiering.epoch):
        raise IllegalTransition(
            f"{head.name}: tiered epoch {tiering.epoch} disables with Delete, which moves the "
            "floor in the same commit: use disable_delete"
        )
    return _taken(head, leader_epoch, tiering, broker_id, now_ms)


def disable_delete(
    head: Head,
    by: Claim,
    *,
    cluster_id: str,
    broker_id: int,
    log_start_offset: int,
    now_ms: int,
    delete_delay_ms: int,
) -> Head:
    """Disable the topic with policy Delete (KIP-950) for this partition, in one commit.

    It claims the head, sets the state DISABLING, and moves the log start offset and the floor. All
    segments below them are marked for deletion. ``log_start_offset``: largest local log start
    offset in the ISR, so that no replica needs the tier any more. ``delete_delay_ms``: time until
    marked segments may be deleted.
    """
    tiering = Tiering(TieringState.DISABLING, by.tiered_epoch, DisablePolicy.DELETE)
    check_claim(head, by.leader_epoch, tiering, cluster_id)
    # One commit, because a crash between claim and floor would leave segments live for ever.
    # The log start offset never moves backwards.
    taken = _taken(head, by.leader_epoch, tiering, broker_id, now_ms)
    floor = Mark(max(log_start_offset, head.log_start_offset), by.tiered_epoch, now_ms)
    return _raise_floor(taken, floor, delete_delay_ms)


def start_copy(head: Head, by: Claim, entry: SegmentEntry) -> Head:
    """Record COPY_STARTED for a segment; the upload may begin only after this is committed.

    One copy at a time: ``abandon_copy`` first gives up an earlier, unfinished attempt. Raises
    ManifestFenced if the claim ``by`` is no longer the head's, IllegalTransition, Diverged.
    """
    check_holder(head, by)
    check_copying_allowed(head)
    # The same entry again is a repetition after a lost answer.
    known = _find(head, entry)
    if known == entry:
        return head
    _check_new(head, by, entry, known, head.copying)
    # Refuse before the upload what could not be finished after it.
    check_room(head)
    # Called for its checks only: ``finish_copy`` decides the first served offset.
    answering_from(head, entry)
    return replace(head, entries=(*head.entries, entry))


def finish_copy(
    head: Head,
    by: Claim,
    entry: SegmentEntry,
    custom_metadata: bytes | None,
    digests: Digests | None = None,
) -> Head:
    """Record COPY_FINISHED: from this commit on, readers are served from the segment.

    ``custom_metadata`` is the storage manager's, byte for byte (KIP-917); ``digests`` are those of
    the stored objects. Raises ManifestFenced, IllegalTransition, Diverged.
    """
    known = _unfinished(head, by, entry, custom_metadata, digests)
    if known is None:
        return head
    # Segments may have been added or expired since COPY_STARTED, so the first offset that is served
    # from this one is determined again.
    start = answering_from(head, known)
    finished = replace(
        known,
        state=SegmentState.COPY_FINISHED,
        custom_metadata=custom_metadata,
        digests=digests,
        from_offset=start,
    )
    others = tuple(e for e in head.entries if e.segment_id != known.segment_id)
    # The first live segment determines where the contiguous live offsets start.
    line_start = start if head.live_end is None else head.line_start_offset
    return replace(head, entries=(*others, finished), line_start_offset=line_start)


def start_merge(head: Head, by: Claim, entry: SegmentEntry, parts: Collection[uuid.UUID]) -> Head:
    """Record COPY_STARTED for the segment that is to replace the adjacent segments ``parts``.

    One merge at a time, beside at most one copy. Raises ManifestFenced, IllegalTransition.
    """
    check_holder(head, by)
    check_copying_allowed(head)
    known = _find(head, entry)
    if known == entry:
        return head
    _check_new(head, by, entry, known, head.merging)
    check_room(head)
    _check_replaced(head, entry, parts)
    return replace(head, entries=(*head.entries, entry))


def finish_merge(
    head: Head,
    by: Claim,
    entry: SegmentEntry,
    parts: Collection[uuid.UUID],
    custom_metadata: bytes | None,
    digests: Digests | None = None,
    *,
    now_ms: int,
) -> Head:
    """Record COPY_FINISHED for a merged segment, and DELETE_STARTED for those that it replaces.

    Readers with an older head still find the replaced objects for ``remote.delete.delay.ms``.
    Raises ManifestFenced, and IllegalTransition if a part was expired, deleted or sealed meanwhile.
    """
    known = _unfinished(head, by, entry, custom_metadata, digests)
    if known is None:
        return head
    # Parts may have expired or been sealed since COPY_STARTED.
    _check_replaced(head, known, parts)
    finished = replace(
        known,
        state=SegmentState.COPY_FINISHED,
        custom_metadata=custom_metadata,
        digests=digests,
    )
    # In place of its parts, because entries are in the order of their offsets.
    others = tuple(e for e in head.entries if e.segment_id != known.segment_id)
    return replace(head, entries=replaced_by(others, finished, parts, now_ms=now_ms))


def replaced_by(
    entries: tuple[SegmentEntry, ...],
    merged: SegmentEntry,
    parts: Collection[uuid.UUID],
    *,
    now_ms: int,
) -> tuple[SegmentEntry, ...]:
    """Return the entries with ``parts`` marked, and the merged one in their place of the line."""
    last = max(at for at, e in enumerate(entries) if e.segment_id in parts)
    marked = tuple(
        replace(e, state=SegmentState.DELETE_STARTED, marked_at_ms=now_ms)
        if e.segment_id in parts
        else e
        for e in entries
    )
    return (*marked[: last + 1], merged, *marked[last + 1 :])


def abandon_copy(head: Head, by: Claim, entry: SegmentEntry, *, now_ms: int) -> Head:
    """Give up a copy or a merge: COPY_STARTED becomes DELETE_STARTED. A finished one is not given
    up.
    """
    check_holder(head, by)
    known = _find(head, entry)
    if known is None or known.state is SegmentState.DELETE_STARTED:
        return head
    if known.state is SegmentState.COPY_FINISHED:
        raise IllegalTransition(f"{head.name}: {entry.key} is finished; only expiry removes it")
    marked = replace(known, state=SegmentState.DELETE_STARTED, marked_at_ms=now_ms)
    return replace(head, entries=_with(head.entries, marked))


def expire_to(head: Head, by: Claim, offset: int, *, now_ms: int, delete_delay_ms: int) -> Head:
    """Raise the log start offset (retention, DeleteRecords), and with it the floor.

    Segments wholly below are marked; a segment that contains the offset stays. Never lowers it.
    """
    check_holder(head, by)
    if offset <= head.log_start_offset:
        return head
    return _raise_floor(head, Mark(offset, head.floor_epoch, now_ms), delete_delay_ms)


def raise_floor_to(head: Head, offset: int, floor_epoch: int, *, now_ms: int) -> Head:
    """Move log start and floor of a head that is repaired (``head_repair``). There is no claim to
    check, because the repaired head has not been written yet."""
    return _raise_floor(head, Mark(offset, floor_epoch, now_ms), delete_delay_ms=0)


def restore_entry(head: Head, entry: SegmentEntry) -> Head:
    """Add a complete copy to a head that is repaired, behind its live segments.

    Raises IllegalTransition if it adds no offset or leaves a gap, and Diverged if it belongs to
    another history.
    """
    start = answering_from(head, entry)
    others = tuple(e for e in head.entries if e.segment_id != entry.segment_id)
    line_start = start if head.live_end is None else head.line_start_offset
    again = replace(entry, from_offset=start)
    return replace(head, entries=(*others, again), line_start_offset=line_start)


def give_up_copying(head: Head, *, now_ms: int) -> Head:
    """Mark the unfinished copy, if any: its copier no longer writes to this head."""
    return replace(head, entries=tuple(_marked_if_copying(e, now_ms) for e in head.entries))


def make_tombstone(head: Head, *, now_ms: int) -> Head:
    """Make the head the tombstone of a deleted topic: everything is marked, and no leader may write
    again.

    A broker that the controller names does this; it needs no claim.
    """
    if head.deleted_at_ms is not None:
        return head
    entries = tuple(_marked_if_copying(entry, now_ms) for entry in head.entries)
    return replace(head, entries=entries, deleted_at_ms=now_ms)


def hand_over(head: Head, *, from_cluster: str, to_cluster: str, now_ms: int) -> Head:
    """Claim the head for another cluster, which restores the topic from the tier.

    A higher leader epoch fences every writer of the old cluster, and an unfinished copy is marked
    for deletion. Raises IllegalTransition if the head belongs to a third cluster.
    """
    # Done by an earlier attempt, or the topic is deleted.
    if head.cluster_id == to_cluster or head.deleted_at_ms is not None:
        return head
    if head.cluster_id != from_cluster:
        raise IllegalTransition(
            f"{head.name}: the manifest belongs to cluster {head.cluster_id}, not to {from_cluster}"
        )
    return replace(
        head,
        cluster_id=to_cluster,
        leader_epoch=head.leader_epoch + 1,
        entries=tuple(_marked_if_copying(entry, now_ms) for entry in head.entries),
    )


def finish_delete(head: Head, by: Claim | None, deleted: Collection[PendingDelete]) -> Head:
    """Record DELETE_FINISHED for entries whose objects are deleted.

    Entries in the head are removed; those in a page get their bit in the page's reference. A page
    whose entries are all deleted is moved to the trash. ``by`` None: the head is the tombstone of a
    deleted topic, which no leader claims.
    """
    if by is not None:
        check_holder(head, by)
    elif head.deleted_at_ms is None:
        raise IllegalTransition(f"{head.name}: without a claim only a tombstone can be cleared")
    for item in deleted:
        check_marked(head, item.entry)
    # Entries of the head by id, entries of pages by their bit.
    here = {item.entry.segment_id for item in deleted if item.page is None}
    entries = tuple(entry for entry in head.entries if entry.segment_id not in here)
    refs = tuple(_without(ref, deleted) for ref in head.pages)
    # A repetition after a lost answer: everything is recorded already.
    if entries == head.entries and refs == head.pages:
        return head
    kept = tuple(ref for ref in refs if ref.left)
    dropped = tuple(ref.name for ref in refs if not ref.left)
    return replace(head, entries=entries, pages=kept, trash=head.trash + dropped)


def seal(head: Head, name: str, page_entries: int) -> tuple[Head, ManifestPage] | None:
    """Move the oldest finished entries from the head to an immutable page.

    Returns the new head and the page. The page must be written before the head that refers to it.
    None while there are not more entries than a page holds, so the newest entry always stays in the
    head. ``name``: of the new page.
    """
    finished = head.finished_entries
    if len(finished) <= page_entries:
        return None
    sealed = finished[:page_entries]
    page = ManifestPage(name, head.topic, head.topic_id, head.partition, sealed)
    ids = {entry.segment_id for entry in sealed}
    entries = tuple(entry for entry in head.entries if entry.segment_id not in ids)
    pages = (*head.pages, reference_of(page))
    return replace(head, entries=entries, pages=pages, next_page=head.next_page + 1), page


def _taken(head: Head, leader_epoch: int, tiering: Tiering, broker_id: int, now_ms: int) -> Head:
    """Return the head claimed for these epochs, or the same object if nothing changes."""
    entries = head.entries
    # A new claim fences the copier of the old one: its unfinished copy is marked for deletion.
    if Claim(leader_epoch, tiering.epoch) != head.claim:
        entries = tuple(_marked_if_copying(entry, now_ms) for entry in entries)
    taken = replace(
        head,
        leader_epoch=leader_epoch,
        tiering=tiering.in_force,
        broker_id=broker_id,
        entries=entries,
    )
    return head if taken == head else taken


def _marked_if_copying(entry: SegmentEntry, now_ms: int) -> SegmentEntry:
    if entry.state is not SegmentState.COPY_STARTED:
        return entry
    return replace(entry, state=SegmentState.DELETE_STARTED, marked_at_ms=now_ms)


def _raise_floor(head: Head, floor: Mark, delete_delay_ms: int) -> Head:
    """Move the floor: log start offset and tiered epoch, below which entries are marked.

    Each move is recorded with its time, since marked objects are kept for ``delete_delay_ms``.
    Moves whose delay has passed are equivalent, so one of them is enough. If too many are younger,
    the newest is replaced (its entries are deleted later, never sooner).
    """
    if floor.offset == head.log_start_offset and floor.tiered_epoch == head.floor_epoch:
        return head
    marks = head.marks
    # The second move is due already, and it covers everything that the first one marked.
    while len(marks) > 1 and marks[1].at_ms + delete_delay_ms <= floor.at_ms:
        marks = marks[1:]
    if len(marks) >= MARKS_MAX:
        marks = marks[:-1]
    return replace(
        head,
        log_start_offset=floor.offset,
        floor_epoch=floor.tiered_epoch,
        marks=(*marks, floor),
    )


def _without(ref: PageRef, deleted: Collection[PendingDelete]) -> PageRef:
    """Return the reference with the bits of the deleted entries of this page."""
    gone, gone_bytes = ref.gone, ref.gone_bytes
    for item in deleted:
        if item.page == ref.name and not gone >> item.index & 1:
            gone |= 1 << item.index
            gone_bytes += item.entry.size_bytes
    return ref if gone == ref.gone else replace(ref, gone=gone, gone_bytes=gone_bytes)


def reference_of(page: ManifestPage) -> PageRef:
    """Return a head's reference to a page: a summary by which most queries need not load it.

    Raises IndexError for an empty page.
    """
    first, last = page.entries[0], page.entries[-1]
    return PageRef(
        name=page.name,
        count=len(page.entries),
        start_offset=first.from_offset,
        first_end_offset_inclusive=first.end_offset_inclusive,
        end_offset_inclusive=last.end_offset_inclusive,
        end_leader_epoch=last.end_leader_epoch,
        size_bytes=sum(entry.size_bytes for entry in page.entries),
        min_tiered_epoch=first.tiered_epoch,
        max_tiered_epoch=last.tiered_epoch,
        max_timestamp_ms=max(entry.max_timestamp_ms for entry in page.entries),
    )


def _find(head: Head, entry: SegmentEntry) -> SegmentEntry | None:
    return next((e for e in head.entries if e.segment_id == entry.segment_id), None)


def _with(entries: tuple[SegmentEntry, ...], changed: SegmentEntry) -> tuple[SegmentEntry, ...]:
    return tuple(changed if e.segment_id == changed.segment_id else e for e in entries)


def check_holder(head: Head, by: Claim) -> None:
    """Raise unless the caller's claim is the head's: a superseded leader is fenced, and a
    leader that only reads the head has no claim.
    """
    _check_not_deleted(head)
    if by == head.claim:
        return
    if by.is_older_than(head.claim):
        raise _fenced(head, by)
    raise IllegalTransition(
        f"{head.name}: leader epoch {by.leader_epoch}, tiered epoch {by.tiered_epoch} has not "
        "claimed the head yet; claim it first"
    )


def check_claim(head: Head, leader_epoch: int, tiering: Tiering, cluster_id: str) -> None:
    """Raise unless this claim may replace the head's present claim.

    A claim is the leader epoch and the tiered epoch (KIP-950) of the writing leader. Neither epoch
    may be lower than the head's. Within a tiered epoch the state only advances, and the policy of a
    disablement is frozen.

    Raises ManifestFenced for an outdated claim, IllegalTransition otherwise.
    """
    _check_not_deleted(head)
    # Two clusters on one storage location would overwrite each other's heads.
    if cluster_id != head.cluster_id:
        raise IllegalTransition(
            f"{head.name}: the manifest belongs to cluster {head.cluster_id}, not to {cluster_id}; "
            "point this cluster at a storage location of its own"
        )
    if not tiering.ever_tiered:
        raise IllegalTransition(
            f"{head.name}: a topic in state {tiering.state.name} has no manifest to claim"
        )
    # From here on the head belongs to this cluster: compare epochs, then the state within an epoch.
    by = Claim(leader_epoch, tiering.epoch)
    if by.is_older_than(head.claim):
        raise _fenced(head, by)
    # Enabled, Disabling, Disabled: the state never returns within one tiered epoch.
    if tiering.is_regression_from(head.tiering):
        raise ManifestFenced(
            f"{head.name}: tiered epoch {tiering.epoch} is {head.tiering.state.name} already and "
            f"never goes back to {tiering.state.name}; wait for the controller's newer state"
        )
    if tiering.changes_policy_of(head.tiering):
        raise IllegalTransition(
            f"{head.name}: tiered epoch {tiering.epoch} was frozen with another policy than "
            f"{tiering.disable_policy.name}; a new policy needs a new tiered epoch"
        )


def check_copying_allowed(head: Head) -> None:
    """Raise unless tiering is enabled: nothing new is copied otherwise (invariant 9)."""
    if not head.tiering.copies:
        raise IllegalTransition(
            f"{head.name}: tiering is {head.tiering.state.name}, nothing new is copied; enable it "
            "first"
        )


def check_room(head: Head) -> None:
    """Raise when the head is at one of its limits."""
    if len(head.pages) >= PAGES_MAX:
        raise IllegalTransition(
            f"{head.name}: the manifest is full ({PAGES_MAX} pages); use larger segments or a "
            "shorter retention"
        )
    if len(head.entries) >= ENTRIES_MAX:
        raise IllegalTransition(
            f"{head.name}: {len(head.entries)} entries wait in the head; deletions do not get "
            "through: look at the storage errors"
        )


def answering_from(head: Head, entry: SegmentEntry) -> int:
    """Return the first offset that readers will be served from a segment, once it is copied.

    Normally the segment's first offset. After a leader change it may be higher, because the tier
    already has the segment's beginning from a predecessor.

    Raises IllegalTransition if the segment adds no offset or leaves a gap, and Diverged if its
    leader epochs contradict those in the tier.
    """
    if entry.end_offset_inclusive < head.log_start_offset:
        raise IllegalTransition(
            f"{head.name}: {entry.key} ends below the log start {head.log_start_offset}; it is "
            "expired"
        )
    live = head.live_end
    if live is None:
        # Nothing live is in the tier, so this segment is the first one.
        return max(entry.start_offset, head.log_start_offset)
    end, epoch = live
    # Offsets in the tier must be contiguous, or a reader would find a gap.
    if entry.end_offset_inclusive <= end:
        raise IllegalTransition(
            f"{head.name}: {entry.key} ends at {entry.end_offset_inclusive}, but the tier has all "
            f"up to {end} already; copy from {end + 1}"
        )
    if entry.start_offset > end + 1:
        raise IllegalTransition(
            f"{head.name}: {entry.key} begins at {entry.start_offset} and would leave a hole "
            f"behind {end}; copy the segment that contains {end + 1}"
        )
    # Contiguous offsets of another leader's history would still be wrong records.
    _check_history(head, entry, end, epoch)
    return max(entry.start_offset, end + 1)


def _check_new(
    head: Head,
    by: Claim,
    entry: SegmentEntry,
    known: SegmentEntry | None,
    running: SegmentEntry | None,
) -> None:
    """Raise for mistakes of the caller: wrong epochs, wrong state, or a second one at a time."""
    if known is not None:
        raise IllegalTransition(f"{head.name}: segment id {entry.segment_id} was used before")
    if (entry.leader_epoch, entry.tiered_epoch) != (by.leader_epoch, by.tiered_epoch):
        raise IllegalTransition(f"{head.name}: the entry's epochs are not those of the claim")
    if entry.state is not SegmentState.COPY_STARTED:
        raise IllegalTransition(f"{head.name}: a copy begins as COPY_STARTED")
    if running is not None:
        raise IllegalTransition(
            f"{head.name}: segment {running.key} is still being copied; abandon it first"
        )


def _unfinished(
    head: Head,
    by: Claim,
    entry: SegmentEntry,
    custom_metadata: bytes | None,
    digests: Digests | None,
) -> SegmentEntry | None:
    """Return the entry of a copy that is to be finished, None if it was finished alike before."""
    check_holder(head, by)
    check_copying_allowed(head)
    known = _find(head, entry)
    if known is None or known.state is SegmentState.DELETE_STARTED:
        raise IllegalTransition(
            f"{head.name}: the copy {entry.key} was given up meanwhile; copy again under a new id"
        )
    if known.state is not SegmentState.COPY_FINISHED:
        return known
    # A repetition after a lost answer changes nothing; anything else is a mistake of the caller.
    if (known.custom_metadata, known.digests) == (custom_metadata, digests):
        return None
    raise IllegalTransition(
        f"{head.name}: {entry.key} was finished with other custom metadata or digests"
    )


def _check_replaced(head: Head, entry: SegmentEntry, parts: Collection[uuid.UUID]) -> None:
    """Raise unless ``parts`` are adjacent live segments of the head with all offsets of the
    entry.

    None may have deleted records, which would be in the store for longer than before.
    """
    found = [e for e in head.finished_entries if e.segment_id in parts]
    # Of each part all offsets must be served from it, and the next one must continue it.
    position = entry.start_offset
    for part in found:
        if part.from_offset != position or part.start_offset != position:
            break
        position = part.end_offset_inclusive + 1
    is_complete = len(found) == len(parts) and position == entry.end_offset_inclusive + 1
    same_epoch = all(part.tiered_epoch == entry.tiered_epoch for part in found)
    if is_complete and same_epoch and entry.start_offset >= head.log_start_offset:
        return
    raise IllegalTransition(
        f"{head.name}: {entry.key} cannot replace the segments {entry.start_offset} to "
        f"{entry.end_offset_inclusive}: they have changed; merge those that are live"
    )


def check_marked(head: Head, entry: SegmentEntry) -> None:
    """Raise unless DELETE_STARTED is committed: objects are deleted only after it."""
    if entry.state is SegmentState.DELETE_STARTED:
        return
    finished = entry.state is SegmentState.COPY_FINISHED
    if finished and head.is_below_floor(entry.end_offset_inclusive, entry.tiered_epoch):
        return
    raise IllegalTransition(
        f"{head.name}: {entry.key} is not marked for deletion; nothing is deleted before that is "
        "committed"
    )


def _check_not_deleted(head: Head) -> None:
    if head.deleted_at_ms is not None:
        raise TopicDeleted(f"{head.name}: the topic with this id was deleted; stop its tasks")


def _fenced(head: Head, by: Claim) -> ManifestFenced:
    return ManifestFenced(
        f"{head.name}: leader epoch {by.leader_epoch}, tiered epoch {by.tiered_epoch} is "
        f"superseded by leader epoch {head.leader_epoch}, tiered epoch {head.tiering.epoch} "
        "(broker "
        f"{head.broker_id}, {head.tiering.state.name}); stop, and wait for the controller"
    )


def _check_history(head: Head, entry: SegmentEntry, end: int, epoch: int) -> None:
    # A segment that overlaps the tier must have the tier's epoch at the tier's end. A segment that
    # starts right behind it may have a newer one, because a leader was elected in between.
    overlaps = entry.start_offset <= end
    entry_epoch = entry.epoch_at(end if overlaps else entry.start_offset)
    if entry_epoch == epoch or (entry_epoch > epoch and not overlaps):
        return
    raise Diverged(
        f"{head.name}: the tier ends at offset {end} of leader epoch {epoch}, but {entry.key} has "
        f"leader epoch {entry_epoch} there; take this replica's log over from the tier"
    )
