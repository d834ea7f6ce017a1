"""How an elected leader whose log may lack what is in the tier takes over from there.

The prefix rule (:mod:`prefix_rule`; KIP-704's recovery of a leader elected uncleanly): it claims
the head, asks for the tier's end, and starts its log from the tier where it lacks or contradicts
that; only then does it lead. While the tier does not answer, the partition stays offline and says
why.
"""

import asyncio
import logging

from tidemark.logfiles.producer_snapshot import without_transactions
from tidemark.reasons import Reason
from tidemark.tiering import Tiering
from tidemark_broker.log import StorageError
from tidemark_broker.replication.partition import prefix_rule, remote_end, roles
from tidemark_broker.replication.partition.partition import Partition, Role
from tidemark_broker.replication.remote import BootstrapPoint, RemoteUnavailable, TierEnd
from tidemark_broker.replication.threads import in_role_thread

logger = logging.getLogger(__name__)

_TIER_TIMEOUT_S = 10.0
_TIER_SAYS = "; the tier: "


async def take_over(partition: Partition) -> None:
    """The prefix rule, one try: an elected leader asks the tier for its end, under a claim of its
    own epoch, and starts its log from the tier where it lacks or contradicts that; then it leads.

    The tier is asked without ``lock``: a newer state never waits for it, and voids the answer.
    """
    term = _term(partition)
    if partition.role is not Role.TAKING_OVER:
        return
    try:
        async with asyncio.timeout(_TIER_TIMEOUT_S):
            tier, point = await _claimed_tier(partition)
        async with partition.lock:
            if partition.role is Role.TAKING_OVER and term == _term(partition):
                await _lead_from(partition, tier, point)
    except Exception as error:  # noqa: BLE001  whatever fails, it stays offline and is tried again
        _stay_offline(partition, error)


def _term(partition: Partition) -> tuple[int, Tiering]:
    return partition.leader_epoch, partition.tiering


async def _claimed_tier(partition: Partition) -> tuple[TierEnd, BootstrapPoint | None]:
    """The tier's end, and where the log must start if it lacks that."""
    remote = partition.context.remote
    if remote is None:
        raise RemoteUnavailable("this broker has no remote storage")
    tier = await remote.claimed_end(partition)
    if not _lacks(partition, tier):
        return tier, None
    return tier, await remote.bootstrap(partition, tier.next_offset)


def _lacks(partition: Partition, tier: TierEnd) -> bool:
    return prefix_rule.lacks(tier, partition.log.epochs, next_offset=partition.next_offset)


async def _lead_from(partition: Partition, tier: TierEnd, point: BootstrapPoint | None) -> None:
    """The caller holds ``lock``; nothing has changed since the tier was asked."""
    row, log = partition.row, partition.log
    if row is None or partition.stored is None or (point is None and _lacks(partition, tier)):
        return
    if point is not None:
        logger.warning(
            "%s: the log (end %d) does not hold what is in the tier (to %d, log start %d): it "
            "starts anew at %d",
            partition.tp,
            partition.next_offset,
            tier.end.offset,
            tier.log_start_offset,
            point.next_offset,
        )
        await in_role_thread(
            log.truncate_fully_and_start_at,
            point.next_offset,
            log_start_offset=min(
                max(point.log_start_offset, partition.log_start_offset), point.next_offset
            ),
            epochs=tuple(point.epochs),
            producer_snapshot=_snapshot(point),
            recent_batches=point.recent_batches,
        )
    partition.doubt = None
    remote_end.replace(partition, tier.end, tier.position)
    await partition.write_state(partition.stored)
    await roles.lead(partition, row)


def _snapshot(point: BootstrapPoint) -> bytes | None:
    """Producers at the end of the tier. What is in the tier was stable when it was copied, so their
    transactions have ended, if by markers that this log lacks; how, the tier tells itself."""
    data = point.producer_snapshot
    return None if data is None else without_transactions(data)


def _stay_offline(partition: Partition, error: Exception) -> None:
    answer = str(error) or f"no answer within {_TIER_TIMEOUT_S:g} s"
    logger.warning("%s: taking over from the tier failed: %s", partition.tp, answer)
    if partition.role is not Role.TAKING_OVER:
        return
    disk = isinstance(error, StorageError)
    partition.offline_reason = Reason.STORAGE_ERROR if disk else Reason.TIER_UNAVAILABLE
    doubt = partition.offline_message.split(_TIER_SAYS, 1)[0]
    partition.offline_message = f"{doubt}{_TIER_SAYS}{answer}"
