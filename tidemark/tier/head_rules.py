"""Checks that a change of a head must pass: who may write, what may be copied, what may be deleted.

Each check raises with the partition's name and the remedy; ``transitions`` calls those that a
change needs. ManifestFenced means that a newer claim is in force, Diverged that this replica's log
contradicts the tier (the prefix rule), IllegalTransition everything else.
"""

from tidemark.tier.head import (
    ENTRIES_MAX,
    PAGES_MAX,
    Claim,
    Diverged,
    Head,
    IllegalTransition,
    ManifestFenced,
    TopicDeleted,
)
from tidemark.tier.segment import SegmentEntry, SegmentState
from tidemark.tiering import Tiering


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
