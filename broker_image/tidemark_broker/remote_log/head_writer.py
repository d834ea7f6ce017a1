"""Writer of a partition's head under one claim: loads, claims and commits.

Every manifest change of this leader passes through here, one commit at a time. The replica is
notified of a commit in the same step of the loop. The log start is first, which is shown once it is
durable, then the tier's end. So a follower never receives a claim without the log start that
belongs to it.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from tidemark.tier.maintenance import head_repair
from tidemark.tier.metadata import queries, transitions
from tidemark.tier.metadata.head import Claim, Head, ManifestFenced, new_head
from tidemark.tier.metadata.manifest import HeadWentBack, LoadedHead, PageCache, Transition
from tidemark.tier.metadata.queries import Totals
from tidemark.tier.open import Tier
from tidemark.tier.reader import Snapshot
from tidemark.tiering import Tiering
from tidemark_broker.lock_order import LockRank, ordered_async_lock
from tidemark_broker.remote_log import verified_head
from tidemark_broker.remote_log.bootstrap import tier_end
from tidemark_broker.remote_log.manager_state import ManagerState
from tidemark_broker.replication.partition import (
    Partition,
    isr_and_high_watermark,
    log_start,
    remote_end,
    roles,
)

logger = logging.getLogger(__name__)

NOTHING = Totals(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class LeaderTerm:
    """Term of a leader: its epoch, and the topic's tiering from the controller."""

    leader_epoch: int
    tiering: Tiering

    @property
    def by(self) -> Claim:
        """Claim of the manifest's head."""
        return Claim(self.leader_epoch, self.tiering.epoch)


def leader_term(partition: Partition) -> LeaderTerm:
    """Return the current term of a leader. No policy is in force while tiering is enabled."""
    return LeaderTerm(partition.leader_epoch, partition.tiering.in_force)


def claiming(shared: ManagerState, term: LeaderTerm) -> Transition:
    """Return a transition of the manifest's head that claims it for a leader's term.

    A claim writes the leader epoch and the tiered epoch to the head, so that an older leader is
    fenced. The tiered epoch of a disablement with policy Delete is not claimed here but by the
    commit that also moves the log start (:meth:`HeadWriter.disable_delete`). Until then only the
    leader epoch is claimed, and the tier's content stays part of the log.
    """

    def claim(head: Head) -> Head:
        # Claiming the tiered epoch of a disablement with policy Delete (KIP-950) here would mark
        # all segments for deletion before the log start has moved.
        waits = term.tiering.needs_delete_commit(head.tiering.epoch)
        return transitions.claim(
            head,
            term.leader_epoch,
            head.tiering if waits else term.tiering,
            cluster_id=shared.guard.cluster_id,
            broker_id=shared.context.node_id,
            now_ms=shared.context.wall_ms(),
        )

    return claim


class HeadWriter:
    """Writer of a head.

    ``head`` is the last version read or written; nothing else writes while the claim is valid.
    """

    def __init__(self, shared: ManagerState, partition: Partition, term: LeaderTerm) -> None:
        """Create the writer for a leader's term; :meth:`open` reads the head."""
        self.shared = shared
        self.partition = partition
        self.term = term
        #: Live and pending segments and bytes, as of the last load or commit.
        self.totals = NOTHING
        #: Whether the term is over, so that results no longer reach the replica.
        self._retired = False
        self._loaded: LoadedHead | None = None
        #: Whether the store may have another version than ``_loaded``.
        self._outdated = False
        #: Time of the last read or commit, in monotonic seconds.
        self._read_at_s = 0.0
        #: Cached pages, with the tier object that they belong to.
        self._pages: tuple[Tier, PageCache] | None = None
        #: Serializes loads and commits.
        self._lock = ordered_async_lock(LockRank.TIER_HEAD)

    @property
    def loaded(self) -> LoadedHead | None:
        """Head with its object version, None before the first load."""
        return self._loaded

    @property
    def head(self) -> Head:
        """Head of the manifest; only after :meth:`open`."""
        if self._loaded is None:
            raise LookupError(f"{self.partition.tp}: the manifest was not loaded yet")
        return self._loaded.head

    def pages(self, tier: Tier) -> PageCache:
        """Return the partition's sealed pages (any thread)."""
        known = self._pages
        if known is None or known[0] is not tier:
            number = self.partition.partition
            known = self._pages = (tier, tier.manifests.pages(self.partition.topic_id, number))
        return known[1]

    def snapshot(self) -> Snapshot | None:
        """Return the current snapshot for readers, or None before the first load."""
        if self._loaded is None or self._pages is None:
            return None
        return Snapshot(self._loaded.head, self._loaded.version, self._pages[1])

    def retire(self) -> None:
        """Stop notifying the replica of later results."""
        self._retired = True

    async def open(self) -> None:
        """Load the manifest's head, the object in the store that lists the remote segments.

        It is created if the controller knows of none.
        """
        async with self._lock:
            if self._loaded is not None and not self._outdated:
                return
            tier = self.shared.guard.tier()
            row = self.partition.row
            known = self._loaded is not None or (row is not None and row.manifest)
            # Nothing is awaited between the result and its effect on the replica.
            self._adopt(*await self._run(self._load, tier, known))
            if not known and not self._retired:
                isr_and_high_watermark.report_manifest_created(self.partition)

    async def refresh(self) -> None:
        """Read the head again if it may be outdated.

        After a commit with an unknown outcome a decision must not use an older head than the
        committed one. The head is also read periodically: that of an idle partition could go back
        unnoticed, until a sweep finds objects that it no longer names.
        """
        now_s, interval_s = self.shared.context.monotonic(), self.shared.settings.head_check_s
        if self._loaded is not None and now_s - self._read_at_s >= interval_s:
            self._outdated = True
        if self._outdated:
            await self.open()

    def mark_outdated(self) -> None:
        """Have the head and its pages read before the next decision, because a page is missing."""
        self._outdated = True

    async def claim(self) -> None:
        """Claim the head with the topic's state and policy. Raises ManifestFenced."""
        term = self.term
        await self.commit(claiming(self.shared, term))
        logger.info(
            "%s: claimed the manifest, leader epoch %d, tiered epoch %d, %s",
            self.partition.tp,
            term.leader_epoch,
            term.tiering.epoch,
            term.tiering.state.name,
        )

    async def disable_delete(self, log_start_offset: int) -> None:
        """Commit a disablement with policy Delete (KIP-950) to the manifest's head.

        One commit claims the tiered epoch, raises the log start offset and marks all remote
        segments for deletion, so that no reader sees only a part of it.
        """
        term, shared = self.term, self.shared
        await self.commit(
            # Computed on the head at commit time: another attempt may have changed it.
            lambda head: transitions.disable_delete(
                head,
                term.by,
                cluster_id=shared.guard.cluster_id,
                broker_id=shared.context.node_id,
                log_start_offset=log_start_offset,
                now_ms=shared.context.wall_ms(),
                delete_delay_ms=shared.dynamic.delete_delay_ms,
            )
        )

    async def expire_to(self, log_start_offset: int) -> None:
        """Raise the head's log start; segments completely below are marked."""
        shared = self.shared
        await self.commit(
            lambda head: transitions.expire_to(
                head,
                self.term.by,
                log_start_offset,
                now_ms=shared.context.wall_ms(),
                delete_delay_ms=shared.dynamic.delete_delay_ms,
            )
        )

    async def commit(self, transition: Transition) -> Head:
        """Apply one transition. A cancelled caller waits until the outcome is known."""
        async with self._lock:
            if self._loaded is None:
                raise LookupError(f"{self.partition.tp}: the manifest was not loaded yet")
            self._check_term()
            tier = self.shared.guard.tier()
            # Until the result is known, the head may be either version.
            self._outdated = True
            self._adopt(*await self._run(self._commit, tier, self._loaded, transition))
            return self.head

    def publish(self) -> None:
        """Publish the manifest's state on the replica: its log start offset, then the tier's end.

        The log start offset is raised up to the high watermark, which happens once it is durable on
        this broker. The tiered epoch and the tier's end follow only after that, because a follower
        infers from the tiered epoch that the log start it received belongs to it
        (:mod:`disablement`).
        """
        partition = self.partition
        if self._retired or self._loaded is None or not partition.is_leader:
            return
        head = self._loaded.head
        # A new leader may not know yet that the head's log start is committed.
        new_start = min(head.log_start_offset, partition.high_watermark)
        if new_start > partition.log_start_offset:
            durable = log_start.raise_to(partition, new_start)
            if durable is not None:
                durable.add_done_callback(lambda _: self.publish())
        if partition.log_start_offset >= head.log_start_offset:
            remote_end.note_head(
                partition, head.tiering.epoch, head.highest_remote_offset, head.highest_remote_epoch
            )

    @property
    def awaits_commit(self) -> bool:
        """Whether the head's log start is above this leader's high watermark."""
        loaded = self._loaded
        return loaded is not None and loaded.head.log_start_offset > self.partition.high_watermark

    def _check_term(self) -> None:
        """Raise ManifestFenced if the replica no longer leads, or leads in another epoch.

        It writes nothing then, even if no other leader has fenced it yet.
        """
        partition, term = self.partition, self.term
        leads = partition.is_leader and partition.leader_epoch == term.leader_epoch
        if self._retired or not leads:
            raise ManifestFenced(
                f"{partition.tp}: this broker does not lead in epoch {term.leader_epoch} any more"
            )

    async def _run(
        self, function: Callable[..., tuple[LoadedHead, Totals]], *args: object
    ) -> tuple[LoadedHead, Totals]:
        """Run a blocking load or commit in a thread; return the head and the tier's totals.

        Raises HeadWentBack if the store returned an older head than one seen before. Local
        retention of the partition then stops, since the tier may lack what it had before.
        """
        try:
            found = await self.shared.pools.commits(function, *args)
        except HeadWentBack:
            if not self._retired:
                # Local retention must not delete what this outdated head may not name.
                remote_end.note_damage(self.partition, is_damaged=True)
            raise
        self._read_at_s = self.shared.context.monotonic()
        return found

    def _adopt(self, loaded: LoadedHead, totals: Totals) -> None:
        self._loaded, self.totals, self._outdated = loaded, totals, False
        if not self._retired:
            remote_end.note_damage(self.partition, is_damaged=False)
            remote_end.note_position(self.partition, loaded.head.position)
        self._check_prefix()
        self.publish()

    def _check_prefix(self) -> None:
        """End the leadership of a log that lacks records of the tier, as if it had been fenced."""
        partition = self.partition
        if self._retired or not partition.is_leader:
            return
        if roles.stop_if_behind_tier(partition, tier_end(self.head)):
            raise ManifestFenced(f"{partition.tp}: {partition.offline_message}")

    # ------------------------------------------------------------ in a thread

    def _load(self, tier: Tier, known: bool) -> tuple[LoadedHead, Totals]:
        """Load or create the head in a thread; return it and the tier's totals.

        ``known``: whether the partition has a head, so that a missing one is an error.
        """
        partition = self.partition
        # The head must exist, so a missing one is an error and never a reason to create it.
        if known:
            memory = None if self._loaded is None else self._loaded.head
            loaded = verified_head.load(
                tier, partition, self.term.by, now_ms=self.shared.context.wall_ms(), memory=memory
            )
            head_repair.restore_pages(tier, loaded.head)
        else:
            # Before an object is created, the store's identity is checked again.
            self.shared.guard.verify(tier)
            loaded = tier.manifests.create(self._first_head())
        return loaded, queries.totals(loaded.head, self.pages(tier))

    def _commit(
        self, tier: Tier, loaded: LoadedHead, transition: Transition
    ) -> tuple[LoadedHead, Totals]:
        """Commit a transition in a thread; return the new head and the tier's totals."""
        changed = verified_head.commit(
            tier,
            self.partition,
            loaded,
            transition,
            self.term.by,
            now_ms=self.shared.context.wall_ms(),
        )
        # An unchanged head was not written, so its totals are still valid.
        if changed is loaded:
            return loaded, self.totals
        return changed, queries.totals(changed.head, self.pages(tier))

    def _first_head(self) -> Head:
        """Return the head of an empty tier, claimed by this leader."""
        partition, term = self.partition, self.term
        return new_head(
            topic=partition.topic,
            topic_id=partition.topic_id,
            partition=partition.partition,
            cluster_id=self.shared.guard.cluster_id,
            leader_epoch=term.leader_epoch,
            tiering=term.tiering,
            broker_id=self.shared.context.node_id,
            log_start_offset=partition.log_start_offset,
        )
