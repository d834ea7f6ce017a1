"""What tiering does to a topic in each of its states (KIP-950): the table of disabling, in one place.

A topic's tiering is a state, the tiered epoch and the policy of the latest disablement. A Topic's
status, a broker's view of a topic, a replica's state file and the head of a manifest each hold this
one value. What may be done under it is asked of the value and decided nowhere else: a question is a
row of the table, its docstring says what Retain and Delete make of it, and
``tests/unit/test_tiering.py`` is the table itself.
"""

import enum
from dataclasses import dataclass, replace


class TieringState(enum.IntEnum):
    """KIP-950's states, by the numbers with which they travel; a topic that never was tiered is
    ``NONE``."""

    NONE = 0
    ENABLED = 1
    DISABLING = 2
    DISABLED = 3


class DisablePolicy(enum.IntEnum):
    """``remote.log.disable.policy``, by the numbers with which it travels."""

    RETAIN = 0
    DELETE = 1


class LocalRetention(enum.Enum):
    """What retention may take from a broker's disk."""

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
    """``epoch``: KIP-950's tiered epoch, -1 for a topic that never was tiered. ``policy``: of the
    latest disablement, None before the first one; it holds from that on until the topic is enabled
    again (:attr:`policy_holds`), and means nothing then."""

    state: TieringState = TieringState.NONE
    epoch: int = -1
    policy: DisablePolicy | None = None

    # ------------------------------------------------------------ where it stands

    @property
    def ever_tiered(self) -> bool:
        """Data of the topic is in the tier, or was."""
        return self.state is not TieringState.NONE

    @property
    def is_off(self) -> bool:
        """Tiering may begin, or begin again: it never did, or a disablement is done."""
        return self.state in (TieringState.NONE, TieringState.DISABLED)

    @property
    def is_disabling(self) -> bool:
        """A disablement is under way: some replica has not acknowledged it yet."""
        return self.state is TieringState.DISABLING

    @property
    def policy_holds(self) -> bool:
        """A disablement is under way or done, so that its policy decides."""
        return self.state in (TieringState.DISABLING, TieringState.DISABLED)

    @property
    def disable_policy(self) -> DisablePolicy:
        """The policy where one must be named: Retain is Kafka's default."""
        return DisablePolicy.RETAIN if self.policy is None else self.policy

    @property
    def in_force(self) -> "Tiering":
        """The same with a policy exactly while that holds, as the head of a manifest has it."""
        return replace(self, policy=self.disable_policy if self.policy_holds else None)

    # ------------------------------------------------------------ the table of disabling

    @property
    def copies(self) -> bool:
        """Are closed segments copied? While enabled only: either disablement ends that at once, and
        the claim under its epoch fences a copy under way (invariants 6 and 9)."""
        return self.state is TieringState.ENABLED

    @property
    def may_expire(self) -> bool:
        """May retention mark remote segments? With Retain it goes on from the remote log start;
        with Delete the floor of the head is the mark, and whoever leads deletes below it."""
        return self.ever_tiered and not self.deletes

    @property
    def reads_tier(self) -> bool:
        """May a part of the log lie in the tier only, and be read from there? With Retain always;
        with Delete until the disablement is done: the commit that moves the head's log start ends
        it, and whoever acknowledged has made that log start durable, below which no log begins
        again."""
        return self.ever_tiered and (self.is_disabling or not self.deletes)

    @property
    def deletes(self) -> bool:
        """Is what was tiered given up? With Delete: one commit of the head moves the log start to
        the largest local one of those that may be elected, and the floor with it. The leader
        acknowledges after that, a follower once its own log start has reached it; with Retain the
        claim and the stored tiered epoch are enough."""
        return self.policy_holds and self.disable_policy is DisablePolicy.DELETE

    @property
    def is_deleting(self) -> bool:
        """The same, and not acknowledged by all yet."""
        return self.deletes and self.is_disabling

    @property
    def first_live_epoch(self) -> int:
        """The oldest tiered epoch that counts in a head made now. Enabled again after a Delete, a
        topic's tier begins empty, and copying at its log start."""
        return self.epoch if self.deletes else 0

    def has_to_delete(self, head_tiered_epoch: int) -> bool:
        """Under a head of that tiered epoch: is the one commit of a Delete still to be made?"""
        return self.deletes and head_tiered_epoch < self.epoch

    def remote_part_is_gone(self, head_tiered_epoch: int) -> bool:
        """Under a head of that tiered epoch: has the commit of a Delete, which not all have
        acknowledged yet, taken the remote part away?"""
        return self.is_deleting and not self.has_to_delete(head_tiered_epoch)

    def local_retention(self, *, tier_is_empty: bool) -> LocalRetention:
        """While a disablement is under way nothing local goes, so that the local log starts that
        were reported stay true. After Retain local data goes once the tier holds nothing that is
        visible (``tier_is_empty``): moving the log start would condemn the older remote part."""
        if self.copies:
            return LocalRetention.COPIED
        if self.is_off and (not self.reads_tier or tier_is_empty):
            return LocalRetention.WHOLE
        return LocalRetention.SUSPENDED

    # ------------------------------------------------------------ from one to the next

    def successor(
        self, *, enabled: bool, policy: DisablePolicy | None, default_policy: DisablePolicy
    ) -> "Tiering":
        """What a Topic's spec makes of it; the very same where there is nothing to do, and while
        Disabling, when the spec has no say (invariant 7). ``policy`` is the Topic's own,
        ``default_policy`` that of its Cluster.

        Disabling raises the epoch and freezes the policy. From Disabled with Retain to Disabling
        with Delete is an addition to KIP-950, and needs the Topic's own word: a changed default must
        not delete what a finished disablement kept."""
        if self.is_off and enabled:
            return replace(self, state=TieringState.ENABLED, epoch=max(self.epoch, 0))
        if self.copies and not enabled:
            return self._disabling(default_policy if policy is None else policy)
        kept = self.ever_tiered and self.is_off and not self.deletes
        if kept and policy is DisablePolicy.DELETE:
            return self._disabling(DisablePolicy.DELETE)
        return self

    @property
    def acknowledged(self) -> "Tiering":
        """What follows Disabling once every replica has acknowledged that."""
        return replace(self, state=TieringState.DISABLED)

    def goes_back_from(self, before: "Tiering") -> bool:
        """Is it an earlier state of the same tiered epoch?"""
        return self.epoch == before.epoch and _ORDER.index(self.state) < _ORDER.index(before.state)

    def changes_policy_of(self, before: "Tiering") -> bool:
        """Does it name another policy for a disablement of the same tiered epoch?"""
        frozen = self.epoch == before.epoch and self.policy_holds and before.policy_holds
        return frozen and self.disable_policy is not before.disable_policy

    def _disabling(self, policy: DisablePolicy) -> "Tiering":
        return Tiering(TieringState.DISABLING, self.epoch + 1, policy)


NEVER_TIERED = Tiering()
