"""Head of a partition's manifest: the one small object that describes what is in the tier.

An entry's state is its own, overlaid by the head (docs/reference/tier-format.md). The *floor* is
the pair (log start offset, floor epoch): every copied entry that ends below the offset, or that has
an older tiered epoch, counts as DELETE_STARTED. Marking 100,000 entries therefore costs as much as
marking one. Older entries are in sealed, immutable pages; the head keeps a reference with a summary
of each. The reference has a bit mask of the page's deleted entries; those bits and the own states
of the entries in the head are the only exceptions to the floor.

Two facts keep this small. Entries are in the order in which they were finished. Their end offsets
ascend, and their tiered epochs never descend, so the floor always marks a prefix. And the log
start offset only grows. A short list of marks records when the floor moved, because
``remote.delete.delay.ms`` counts from there.

This module has the data and what follows from the head alone; ``transitions`` changes it,
``queries`` reads it together with pages.
"""

import uuid
from dataclasses import dataclass

from tidemark.tier.metadata.segment import SegmentEntry, SegmentState
from tidemark.tiering import Tiering

#: Entries of a sealed page. The head of 100,000 segments then has 390 references and at most 256
#: entries: below 190 KB.
PAGE_ENTRIES = 256
#: Limits of what a head may hold; beyond them nothing new is copied.
PAGES_MAX = 4096
ENTRIES_MAX = 1024
#: Floor movements that are remembered one by one.
MARKS_MAX = 64


class ManifestError(Exception):
    """Base of what the manifest refuses."""


class ManifestFenced(ManifestError):
    """A newer leader epoch or tiered epoch has claimed the head: stop, and delete nothing."""


class IllegalTransition(ManifestError):
    """The head's state does not allow this; the message says what to do instead."""


class Diverged(ManifestError):
    """The segment contradicts what is in the tier (the prefix rule): this log must take over from
    the tier before it may copy."""


class TopicDeleted(ManifestError):
    """The head is the tombstone of a deleted topic."""


@dataclass(frozen=True, slots=True, order=False)
class Claim:
    """Epochs under which a leader writes: its leader epoch and the topic's tiered epoch."""

    leader_epoch: int
    tiered_epoch: int

    def is_older_than(self, other: "Claim") -> bool:
        """Return whether either epoch is older: a former leader, or one that has not received a
        disablement.
        """
        return self.leader_epoch < other.leader_epoch or self.tiered_epoch < other.tiered_epoch


@dataclass(frozen=True, slots=True)
class HeadPosition:
    """Version of a head, the id of the commit that wrote it, and its floor's tiered epoch, which an
    older head may not know.

    Positions of a partition's head only increase, and one version has one commit. Anything else
    means that the head was replaced by an older copy of itself."""

    version: int
    commit_id: str
    floor_epoch: int = 0

    def is_behind(self, known: "HeadPosition") -> bool:
        """Return whether a head at this position is older than, or conflicts with, ``known``."""
        return self.version < known.version or (
            self.version == known.version and self.commit_id != known.commit_id
        )


@dataclass(frozen=True, slots=True)
class Mark:
    """Floor as it was at least from ``at_ms`` on."""

    offset: int
    tiered_epoch: int
    at_ms: int

    def covers(self, end_offset_inclusive: int, tiered_epoch: int) -> bool:
        """Return whether an entry with this end and tiered epoch is below the floor."""
        return end_offset_inclusive < self.offset or tiered_epoch < self.tiered_epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRef:
    """Reference to a sealed page, with a summary by which most queries need not load it.

    - ``count``, ``size_bytes``: number of the page's entries, and bytes of their logs
    - ``start_offset``, ``first_end_offset_inclusive``: offsets that the first entry serves
    - ``end_offset_inclusive``, ``end_leader_epoch``: of the last entry
    - ``gone``: bit mask; bit i is set when entry i is deleted; ``gone_bytes``: their bytes
    """

    name: str
    count: int
    start_offset: int
    first_end_offset_inclusive: int
    end_offset_inclusive: int
    end_leader_epoch: int
    size_bytes: int
    min_tiered_epoch: int
    max_tiered_epoch: int
    max_timestamp_ms: int
    gone: int = 0
    gone_bytes: int = 0

    @property
    def left(self) -> int:
        """Entries whose objects are not known to be deleted."""
        return self.count - self.gone.bit_count()


@dataclass(frozen=True, slots=True)
class ManifestPage:
    """A sealed page: entries in the order in which they were finished. Never changed."""

    name: str
    topic: str
    topic_id: uuid.UUID
    partition: int
    entries: tuple[SegmentEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Head of one partition's manifest, as stored in the tier; see the module.

    - ``version``: grows by one with every commit; ``commit_id`` is the last commit's
    - ``leader_epoch``, ``tiering``: those under which a leader has claimed the head (``tiering``
      has a policy only while the policy applies)
    - ``log_start_offset``, ``floor_epoch``: entries below either of them are deleted
    - ``line_start_offset``: first offset of the contiguous live entries, meaningless without any
    - ``next_page``: number in the name of the next page
    - ``marks``: latest moves of the log start and floor, with their times
    - ``pages``: references to pages with the older entries; ``entries``: the newest ones
    - ``trash``: names of pages that no longer belong to the head and are to be deleted
    - ``deleted_at_ms``: set in the tombstone of a deleted topic
    """

    topic: str
    topic_id: uuid.UUID
    partition: int
    cluster_id: str
    version: int = 0
    commit_id: str = ""
    leader_epoch: int
    tiering: Tiering
    broker_id: int
    log_start_offset: int
    floor_epoch: int
    line_start_offset: int
    next_page: int = 0
    marks: tuple[Mark, ...] = ()
    pages: tuple[PageRef, ...] = ()
    entries: tuple[SegmentEntry, ...] = ()
    trash: tuple[str, ...] = ()
    deleted_at_ms: int | None = None

    @property
    def position(self) -> HeadPosition:
        """Position of this head in the sequence of its commits."""
        return HeadPosition(self.version, self.commit_id, self.floor_epoch)

    @property
    def claim(self) -> Claim:
        """Epochs under which the head may be written."""
        return Claim(self.leader_epoch, self.tiering.epoch)

    @property
    def name(self) -> str:
        """The partition, for messages."""
        return f"{self.topic}-{self.partition}"

    def is_below_floor(self, end_offset_inclusive: int, tiered_epoch: int) -> bool:
        """Return whether a copied entry with this end and tiered epoch counts as DELETE_STARTED."""
        return (
            self.deleted_at_ms is not None
            or end_offset_inclusive < self.log_start_offset
            or tiered_epoch < self.floor_epoch
        )

    @property
    def finished_entries(self) -> tuple[SegmentEntry, ...]:
        """Copied entries that are not sealed yet, marked ones included."""
        return tuple(e for e in self.entries if e.state is SegmentState.COPY_FINISHED)

    @property
    def copying(self) -> SegmentEntry | None:
        """The copy under way, if any: never more than one. A merge is no copy: it adds no
        offset.
        """
        end = self.highest_remote_offset
        return next((e for e in self._started if e.end_offset_inclusive > end), None)

    @property
    def merging(self) -> SegmentEntry | None:
        """The merge under way, if any: never more than one."""
        end = self.highest_remote_offset
        return next((e for e in self._started if e.end_offset_inclusive <= end), None)

    @property
    def _started(self) -> tuple[SegmentEntry, ...]:
        return tuple(e for e in self.entries if e.state is SegmentState.COPY_STARTED)

    @property
    def live_end(self) -> tuple[int, int] | None:
        """Last offset in the tier and its leader epoch, or None while the tier has no live segment.

        Entries that are marked for deletion are the oldest ones. The newest finished entry
        therefore decides, and no page has to be loaded.
        """
        # The newest finished entry is always in the head, unless everything has been sealed.
        last = next(
            (e for e in reversed(self.entries) if e.state is SegmentState.COPY_FINISHED), None
        )
        if last is not None:
            end, epoch, tiered_epoch = (
                last.end_offset_inclusive,
                last.end_leader_epoch,
                last.tiered_epoch,
            )
        elif self.pages:
            # The summary of the last page says the same of the newest sealed entry.
            ref = self.pages[-1]
            end, epoch, tiered_epoch = (
                ref.end_offset_inclusive,
                ref.end_leader_epoch,
                ref.max_tiered_epoch,
            )
        else:
            return None
        # If even the newest segment is below the floor, everything is marked for deletion.
        return None if self.is_below_floor(end, tiered_epoch) else (end, epoch)

    @property
    def highest_remote_offset(self) -> int:
        """Last offset of the live line, inclusive; -1 for none."""
        end = self.live_end
        return -1 if end is None else end[0]

    @property
    def highest_remote_epoch(self) -> int:
        """Leader epoch of ``highest_remote_offset``; -1 for none."""
        end = self.live_end
        return -1 if end is None else end[1]

    @property
    def next_copy_offset(self) -> int:
        """First offset to copy next: max(log start, live end + 1)."""
        # Records below the log start are deleted, so copying them would be wasted.
        return max(self.log_start_offset, self.highest_remote_offset + 1)

    @property
    def remote_log_start_offset(self) -> int | None:
        """First offset of the live segments in the tier; None while there is none."""
        if self.live_end is None:
            return None
        return max(self.log_start_offset, self.line_start_offset)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left: no entry in any state, no page, no page to be deleted."""
        return not (self.entries or self.pages or self.trash)


def new_head(
    *,
    topic: str,
    topic_id: uuid.UUID,
    partition: int,
    cluster_id: str,
    leader_epoch: int,
    tiering: Tiering,
    broker_id: int,
    log_start_offset: int,
) -> Head:
    """Return the first head of a partition, already claimed by the leader that creates it.

    ``leader_epoch`` and ``tiering`` are those of that leader. ``log_start_offset``: of its log.
    Offsets below it were never in this tier.
    """
    # The manifest's offsets start at the leader's log start offset.
    return Head(
        topic=topic,
        topic_id=topic_id,
        partition=partition,
        cluster_id=cluster_id,
        leader_epoch=leader_epoch,
        tiering=tiering.in_force,
        broker_id=broker_id,
        log_start_offset=log_start_offset,
        # After a disablement with Delete (KIP-950), only segments of later epochs are live.
        floor_epoch=tiering.first_live_epoch,
        line_start_offset=log_start_offset,
    )
