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

Each function returns the same head object when there is nothing to change, so that a caller can
repeat it after an error whose outcome is not known.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

from tidemark.tier.head import (
    MARKS_MAX,
    Claim,
    Head,
    IllegalTransition,
    ManifestPage,
    Mark,
    PageRef,
)
from tidemark.tier.head_rules import (
    answering_from,
    check_claim,
    check_copying_allowed,
    check_holder,
    check_marked,
    check_room,
)
from tidemark.tier.segment import Digests, SegmentEntry, SegmentState
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

    Required before the first copy, expiration or mark in a new epoch; fences every older claim. A
    disablement with Delete is claimed by ``disable_delete``, which also moves the floor.
    """
    check_claim(head, leader_epoch, tiering, cluster_id)
    # Two commits would leave a moment in which the old data counts as live in the new epoch.
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
    """Make the leader's part of a disablement with Delete in one commit.

    It claims the head, sets the state DISABLING, and moves log start (the largest local log start
    of the ISR) and floor, below which everything is marked.
    """
    tiering = Tiering(TieringState.DISABLING, by.tiered_epoch, DisablePolicy.DELETE)
    check_claim(head, by.leader_epoch, tiering, cluster_id)
    # One commit, because a crash between claim and floor would leave segments live for ever.
    taken = _taken(head, by.leader_epoch, tiering, broker_id, now_ms)
    floor = Mark(max(log_start_offset, head.log_start_offset), by.tiered_epoch, now_ms)
    return _raise_floor(taken, floor, delete_delay_ms)


def start_copy(head: Head, by: Claim, entry: SegmentEntry) -> Head:
    """Record COPY_STARTED; the upload may begin only after this is committed.

    One copy at a time: ``abandon_copy`` first gives up what an earlier attempt left.
    """
    check_holder(head, by)
    check_copying_allowed(head)
    # The same entry again is a repetition after a lost answer.
    known = _find(head, entry)
    if known == entry:
        return head
    if known is not None:
        raise IllegalTransition(f"{head.name}: segment id {entry.segment_id} was used before")
    if (entry.leader_epoch, entry.tiered_epoch) != (by.leader_epoch, by.tiered_epoch):
        raise IllegalTransition(f"{head.name}: the entry's epochs are not those of the claim")
    if entry.state is not SegmentState.COPY_STARTED:
        raise IllegalTransition(f"{head.name}: a copy begins as COPY_STARTED")
    if head.copying is not None:
        raise IllegalTransition(
            f"{head.name}: segment {head.copying.key} is still being copied; abandon it first"
        )
    # Refuse before the upload what could not be finished after it.
    check_room(head)
    answering_from(head, entry)
    return replace(head, entries=(*head.entries, entry))


def finish_copy(
    head: Head,
    by: Claim,
    entry: SegmentEntry,
    custom_metadata: bytes | None,
    digests: Digests | None = None,
) -> Head:
    """Record COPY_FINISHED: from this commit on the segment is live for the offsets that it answers
    for.

    ``custom_metadata`` is the storage manager's, byte for byte (KIP-917); ``digests`` are those of
    the stored objects.
    """
    check_holder(head, by)
    check_copying_allowed(head)
    known = _find(head, entry)
    if known is None or known.state is SegmentState.DELETE_STARTED:
        raise IllegalTransition(
            f"{head.name}: the copy {entry.key} was given up meanwhile; copy again under a new id"
        )
    # A repetition after a lost answer changes nothing; anything else is a mistake of the caller.
    if known.state is SegmentState.COPY_FINISHED:
        if (known.custom_metadata, known.digests) == (custom_metadata, digests):
            return head
        raise IllegalTransition(
            f"{head.name}: {entry.key} was finished with other custom metadata or digests"
        )
    # The line may have grown or expired since COPY_STARTED: decide again what the segment answers
    # for.
    start = answering_from(head, known)
    finished = replace(
        known,
        state=SegmentState.COPY_FINISHED,
        custom_metadata=custom_metadata,
        digests=digests,
        from_offset=start,
    )
    others = tuple(e for e in head.entries if e.segment_id != known.segment_id)
    # The first live segment starts the line.
    line_start = start if head.live_end is None else head.line_start_offset
    return replace(head, entries=(*others, finished), line_start_offset=line_start)


def abandon_copy(head: Head, by: Claim, entry: SegmentEntry, *, now_ms: int) -> Head:
    """Give up a copy: COPY_STARTED becomes DELETE_STARTED. A finished copy is not given up."""
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
    """Add a complete copy to the line of a head that went back. Raises IllegalTransition if it adds
    nothing or leaves a hole, and Diverged."""
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

    A higher leader epoch fences every writer of the old cluster, and its unfinished copy is given
    up.
    """
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

    Entries of the head are removed; those of a page get their bit in the page's reference. A page
    whose entries are all deleted is moved to the trash. ``by`` None is for a tombstone.
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
    if entries == head.entries and refs == head.pages:
        return head
    kept = tuple(ref for ref in refs if ref.left)
    dropped = tuple(ref.name for ref in refs if not ref.left)
    return replace(head, entries=entries, pages=kept, trash=head.trash + dropped)


def seal(head: Head, name: str, page_entries: int) -> tuple[Head, ManifestPage] | None:
    """Move the oldest finished entries to a page if there are more than a page holds.

    The newest entry therefore always stays in the head. Returns None when it is not yet time. Write
    the page before the head that refers to it.
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
    """Move the floor and record the time.

    Marks whose delay has passed are equivalent, so one of them is enough. If too many are younger,
    the newest is replaced (its entries are deleted later, never sooner).
    """
    if floor.offset == head.log_start_offset and floor.tiered_epoch == head.floor_epoch:
        return head
    marks = head.marks
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
    """Return a head's reference to a page with all its entries. Raises IndexError if empty."""
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
