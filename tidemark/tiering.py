"""Tiering of a topic in each of its states (KIP-950): the table of disablement, in one place.

A topic's tiering is a state, the tiered epoch and the policy of the latest disablement. A Topic's
status, a broker's view of a topic, a replica's state file and the head of a manifest each contain
this one value. Every decision that depends on it is a property of the value and is made nowhere
else: each property is a row of the table, and its docstring describes Retain and Delete.
"""

import enum
from dataclasses import dataclass, replace


class TieringState(enum.IntEnum):
    """States of KIP-950, with their numbers on the wire. ``NONE``: the topic was never tiered."""

    NONE = 0
    ENABLED = 1
    DISABLING = 2
    DISABLED = 3


class DisablePolicy(enum.IntEnum):
    """Values of ``remote.log.disable.policy``, with their numbers on the wire."""

    RETAIN = 0
    DELETE = 1


class LocalRetention(enum.Enum):
    """Data that retention may delete from a broker's disk."""

    WHOLE = "as of a topic without a tier: by the topic's limits, and the log start moves along"
    COPIED = "by the local limits, and no more than the tier has"
    SUSPENDED = "nothing"


#: KIP-950's machine; the last step is an addition (:meth:`Tiering.successor`).
STEPS = (
    (TieringState.ENABLED, TieringState.DISABLING),
    (TieringState.DISABLING, TieringState.DISABLED),
    (TieringState.DISABLED, TieringState.ENABLED),
    (TieringState.DISABLED, TieringState.DISABLING),
)
#: Within one tiered epoch: a re-enablement keeps the epoch.
_ORDER = (TieringState.DISABLING, TieringState.DISABLED, TieringState.ENABLED)


@dataclass(frozen=True, slots=True)
class Tiering:
    """Tiering of a topic.

    ``epoch``: KIP-950's tiered epoch, -1 for a topic that was never tiered. ``policy``: of the
    latest disablement, None before the first one. It applies until the topic is enabled again
    (:attr:`policy_applies`), and has no meaning then.
    """

    state: TieringState = TieringState.NONE
    epoch: int = -1
    policy: DisablePolicy | None = None

    # ------------------------------------------------------------ the state

    @property
    def ever_tiered(self) -> bool:
        """Whether data of the topic is in the tier, or was."""
        return self.state is not TieringState.NONE

    @property
    def is_off(self) -> bool:
        """Whether tiering can be enabled: it never was, or a disablement is complete."""
        return self.state in (TieringState.NONE, TieringState.DISABLED)

    @property
    def is_disabling(self) -> bool:
        """Whether a disablement is in progress: some replica has not acknowledged it yet."""
        return self.state is TieringState.DISABLING

    @property
    def policy_applies(self) -> bool:
        """Whether a disablement is in progress or complete, so that its policy decides."""
        return self.state in (TieringState.DISABLING, TieringState.DISABLED)

    @property
    def disable_policy(self) -> DisablePolicy:
        """Policy where one must be named: Retain is Kafka's default."""
        return DisablePolicy.RETAIN if self.policy is None else self.policy

    @property
    def in_force(self) -> "Tiering":
        """This tiering, with a policy only while that applies, as a manifest's head stores it."""
        return replace(self, policy=self.disable_policy if self.policy_applies else None)

    # ------------------------------------------------------------ the table of disabling

    @property
    def copies(self) -> bool:
        """Whether closed segments are copied: only while enabled.

        Either disablement ends copying at once, and the claim under its epoch fences a copy in
        progress (invariants 6 and 9).
        """
        return self.state is TieringState.ENABLED

    @property
    def may_expire(self) -> bool:
        """Whether retention may mark segments in the tier for deletion.

        Under policy Retain it continues to do so after a disablement. Under policy Delete the
        disablement itself has marked all segments.
        """
        return self.ever_tiered and not self.deletes

    @property
    def reads_tier(self) -> bool:
        """Whether a part of the log may be in the tier only, and be read from there.

        Under policy Retain always. Under policy Delete until the disablement is complete: every
        replica has then made the new log start offset durable, below which the tier is deleted.
        """
        return self.ever_tiered and (self.is_disabling or not self.deletes)

    @property
    def deletes(self) -> bool:
        """Whether the topic is disabled, or being disabled, with policy Delete (KIP-950).

        One commit of the manifest's head moves the log start offset to the largest local log start
        of the electable replicas, and marks all segments in the tier. The leader acknowledges the
        disablement after that commit, a follower once its own log start has reached the new one.
        """
        return self.policy_applies and self.disable_policy is DisablePolicy.DELETE

    @property
    def is_deleting(self) -> bool:
        """Whether the tiered data is given up and some replica has not acknowledged that yet."""
        return self.deletes and self.is_disabling

    @property
    def first_live_epoch(self) -> int:
        """Oldest tiered epoch whose segments are live in a manifest that is created now.

        After a disablement with policy Delete, the segments of earlier epochs are deleted.
        """
        return self.epoch if self.deletes else 0

    def needs_delete_commit(self, head_tiered_epoch: int) -> bool:
        """Return whether a disablement with policy Delete is still to be committed to the manifest.

        ``head_tiered_epoch``: tiered epoch of the manifest's head.
        """
        return self.deletes and head_tiered_epoch < self.epoch

    def has_deleted_remote_part(self, head_tiered_epoch: int) -> bool:
        """Return whether the tier is deleted already, while some replica has not acknowledged that.

        Only for a disablement with policy Delete. ``head_tiered_epoch``: tiered epoch of the
        manifest's head.
        """
        return self.is_deleting and not self.needs_delete_commit(head_tiered_epoch)

    def local_retention(self, *, tier_is_empty: bool) -> LocalRetention:
        """Return which local data retention may delete.

        During a disablement it deletes nothing, so that the reported local log starts stay valid.
        After a disablement with policy Retain it deletes local data once the tier has no live
        segment (``tier_is_empty``). Before, it would mark the older segments in the tier, too.
        """
        # While tiering is enabled, only what is copied may be deleted locally.
        if self.copies:
            return LocalRetention.COPIED
        if self.is_off and (not self.reads_tier or tier_is_empty):
            return LocalRetention.WHOLE
        return LocalRetention.SUSPENDED

    # ------------------------------------------------------------ transitions

    def successor(
        self, *, enabled: bool, policy: DisablePolicy | None, default_policy: DisablePolicy
    ) -> "Tiering":
        """Return the tiering that a Topic's spec demands, which may be the present one.

        ``policy``: the Topic's own policy for a disablement, None to use its Cluster's
        ``default_policy``. Returns the same object if nothing changes, and while Disabling, during
        which the spec has no effect (invariant 7).

        Disabling raises the epoch and freezes the policy. The step from Disabled with Retain to
        Disabling with Delete is an addition to KIP-950. It needs the Topic's own policy: a changed
        default must not delete what a completed disablement kept.
        """
        # A re-enablement keeps the epoch (KIP-950), so that Retain's segments stay live.
        if self.is_off and enabled:
            return replace(self, state=TieringState.ENABLED, epoch=max(self.epoch, 0))
        # The policy is frozen here: a later change of the spec cannot turn Retain into Delete.
        if self.copies and not enabled:
            return self._disabling(default_policy if policy is None else policy)
        # Only a completed Retain has kept data that could still be deleted.
        kept = self.ever_tiered and self.is_off and not self.deletes
        if kept and policy is DisablePolicy.DELETE:
            return self._disabling(DisablePolicy.DELETE)
        return self

    @property
    def acknowledged(self) -> "Tiering":
        """State that follows Disabling once every replica has acknowledged it."""
        return replace(self, state=TieringState.DISABLED)

    def is_regression_from(self, before: "Tiering") -> bool:
        """Return whether this is an earlier state of the same tiered epoch."""
        return self.epoch == before.epoch and _ORDER.index(self.state) < _ORDER.index(before.state)

    def changes_policy_of(self, before: "Tiering") -> bool:
        """Return whether this names another policy for a disablement of the same tiered epoch."""
        frozen = self.epoch == before.epoch and self.policy_applies and before.policy_applies
        return frozen and self.disable_policy is not before.disable_policy

    def _disabling(self, policy: DisablePolicy) -> "Tiering":
        return Tiering(TieringState.DISABLING, self.epoch + 1, policy)


NEVER_TIERED = Tiering()
