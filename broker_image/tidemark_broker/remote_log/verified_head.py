"""Checked load of a partition's head, and repair of a head that went back.

Every replica stores the position of the newest known head on its disk, beside the end of the tier.
An older head was replaced by an earlier copy of itself, and no decision is based on it. The leader
repairs it if the repair can be proven (``tidemark.tier.maintenance.head_repair``). Otherwise the
partition's tier and local retention stop, with the reason ``TierIntegrity``. All calls block.
"""

import logging

from tidemark.tier.maintenance import head_repair
from tidemark.tier.maintenance.head_repair import Evidence
from tidemark.tier.metadata.head import Claim, Head, ManifestFenced
from tidemark.tier.metadata.manifest import HeadNotFound, HeadWentBack, LoadedHead, Transition
from tidemark.tier.open import Tier
from tidemark_broker.replication.partition import Partition

logger = logging.getLogger(__name__)


def load(
    tier: Tier, partition: Partition, by: Claim, *, now_ms: int, memory: Head | None = None
) -> LoadedHead:
    """Load the head of the partition's manifest; repair it if the store returns an outdated one.

    The manifest lists the remote segments (KIP-405's remote log metadata), and its head is the
    object that each change replaces. A head is outdated if it is older than the newest one that
    this replica knows from its state file or from ``memory`` (the newest head that the leader has,
    None for none). ``by``: claim of the leader, under which the repair is written.

    Raises HeadWentBack if the head cannot be repaired, ManifestFenced if a newer leader has claimed
    it, and what ``ManifestStore.load`` raises.
    """
    topic_id, number = partition.topic_id, partition.partition
    known = partition.tier_position
    # The leader's memory may be ahead of its state file, which is written later.
    if memory is not None and (known is None or known.is_behind(memory.position)):
        known = memory.position
    try:
        return tier.manifests.load(topic_id, number, known)
    except HeadNotFound as error:
        # Only the head's live segments prove that this is still the same store.
        if memory is None or known is None or memory.live_end is None:
            raise
        gone = HeadWentBack(str(error), known, None)
        try:
            return _repair(tier, partition, gone, by, now_ms, memory)
        except HeadWentBack:
            raise error from None
    except HeadWentBack as error:
        return _repair(tier, partition, error, by, now_ms, memory)


def commit(
    tier: Tier,
    partition: Partition,
    loaded: LoadedHead,
    transition: Transition,
    by: Claim,
    *,
    now_ms: int,
) -> LoadedHead:
    """Apply a change to the manifest's head and write it, by a conditional write.

    If the store has an older head meanwhile, it is repaired first. ``loaded``: head that is
    changed. ``by``: claim of the leader, under which a repair is written.
    """
    try:
        # The store's conditional write detects that the head has changed.
        return tier.manifests.commit(loaded, transition)
    except (HeadWentBack, HeadNotFound):
        repaired = load(tier, partition, by, now_ms=now_ms, memory=loaded.head)
        return tier.manifests.commit(repaired, transition)


def _repair(
    tier: Tier,
    partition: Partition,
    error: HeadWentBack,
    by: Claim,
    now_ms: int,
    memory: Head | None,
) -> LoadedHead:
    """Write a repaired head in place of an outdated one and return it.

    ``error`` has the outdated head, or none if the head is missing. Raises HeadWentBack if the
    repair cannot be proven, and ManifestFenced if a newer leader has claimed the head.
    """
    found = error.found
    # A newer leader has claimed the head: it decides about a repair.
    if found is not None and by.is_older_than(found.head.claim):
        raise ManifestFenced(
            f"{partition.tp}: {error}; broker {found.head.broker_id} has claimed it in leader "
            f"epoch {found.head.leader_epoch}"
        ) from error
    # Everything this replica knows of the tier limits which repair is acceptable.
    end = partition.remote_end
    evidence = Evidence(
        leader_epoch=by.leader_epoch,
        broker_id=partition.context.node_id,
        tiering=partition.tiering.in_force,
        end_offset=-1 if end is None else end.offset,
        end_epoch=-1 if end is None else end.epoch,
        tiered_epoch=partition.head_tiered_epoch,
        log_start_offset=partition.log_start_offset,
        head=memory,
    )
    repaired = head_repair.repair(tier, error, evidence, now_ms=now_ms)
    logger.error("%s: %s; repaired as version %d", partition.tp, error, repaired.head.version)
    return repaired
