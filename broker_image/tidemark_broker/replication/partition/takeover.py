"""Takeover from the tier by an elected leader whose log may lack records of the tier.

It follows the prefix rule (:mod:`prefix_rule`; KIP-704's recovery of an uncleanly elected leader).
The replica claims the head, queries the tier's end, and restarts its log from the tier if it lacks
or contradicts it. Only then does it lead. While the tier does not answer, the partition stays
offline with a reason.
"""

import asyncio
import logging

from tidemark.logfiles.producer_snapshot import without_transactions
from tidemark.reasons import Reason
from tidemark.tiering import Tiering
from tidemark_broker.log import StorageError, truncation
from tidemark_broker.replication.partition import prefix_rule, remote_end, roles
from tidemark_broker.replication.partition.partition import Partition, Role
from tidemark_broker.replication.remote import BootstrapPoint, RemoteUnavailable, TierEnd
from tidemark_broker.replication.threads import in_role_thread

logger = logging.getLogger(__name__)

_TIER_TIMEOUT_S = 10.0
_TIER_SAYS = "; the tier: "


async def take_over(partition: Partition) -> None:
    """Make one attempt to lead after a query of the tier; it is repeated while it fails.

    The replica claims the manifest's head in its own epoch and reads the tier's end. It restarts
    its log from the tier if it lacks or contradicts that, and then leads. The tier is queried
    without ``lock``: a newer state from the controller never waits for it, and voids the answer.
    """
    term = _term(partition)
    if partition.role is not Role.TAKING_OVER:
        return
    try:
        async with asyncio.timeout(_TIER_TIMEOUT_S):
            tier, point = await _claimed_tier(partition)
        # A role or tiering change during the query voids the answer.
        async with partition.lock:
            if partition.role is Role.TAKING_OVER and term == _term(partition):
                await _lead_from(partition, tier, point)
    except Exception as error:  # noqa: BLE001  whatever fails, it stays offline and is retried
        _stay_offline(partition, error)


def _term(partition: Partition) -> tuple[int, Tiering]:
    return partition.leader_epoch, partition.tiering


async def _claimed_tier(partition: Partition) -> tuple[TierEnd, BootstrapPoint | None]:
    """Return the tier's end, and the start for a log that lacks it."""
    remote = partition.context.remote
    if remote is None:
        raise RemoteUnavailable("this broker has no remote storage")
    tier = await remote.claimed_end(partition)
    if not _is_behind_tier(partition, tier):
        return tier, None
    return tier, await remote.bootstrap(partition, tier.next_offset)


def _is_behind_tier(partition: Partition, tier: TierEnd) -> bool:
    return prefix_rule.is_behind_tier(tier, partition.log.epochs, next_offset=partition.next_offset)


async def _lead_from(partition: Partition, tier: TierEnd, point: BootstrapPoint | None) -> None:
    """Restart the log at ``point`` (None: the log is complete), record the tier's end, and lead.

    ``tier``: end of the tier under this replica's claim. The caller holds ``lock``. Nothing has
    changed since the query, except that the log end may have.
    """
    row, log = partition.row, partition.log
    # The log may have become shorter since the query: the next attempt queries the tier again.
    if (
        row is None
        or partition.stored is None
        or (point is None and _is_behind_tier(partition, tier))
    ):
        return
    if point is not None:
        logger.warning(
            "%s: the log (end %d) does not contain what is in the tier (to %d, log start %d): it "
            "restarts at %d",
            partition.tp,
            partition.next_offset,
            tier.end.offset,
            tier.log_start_offset,
            point.next_offset,
        )
        # The log start must not fall, nor exceed the start of the new log.
        await in_role_thread(
            truncation.truncate_fully_and_start_at,
            log,
            point.next_offset,
            log_start_offset=min(
                max(point.log_start_offset, partition.log_start_offset), point.next_offset
            ),
            epochs=tuple(point.epochs),
            producer_snapshot=_snapshot(point),
            recent_batches=point.recent_batches,
        )
    # The log agrees with the tier now. Persist that before leading, so that a restart need not
    # query the tier again.
    partition.doubt = None
    remote_end.replace(partition, tier.end, tier.position)
    await partition.write_state(partition.stored)
    await roles.lead(partition, row)


def _snapshot(point: BootstrapPoint) -> bytes | None:
    """Return the producers at the end of the tier, without their transactions.

    The tier's records were stable when they were copied, so their transactions have ended, possibly
    by markers that this log lacks. The tier has their outcomes.
    """
    data = point.producer_snapshot
    return None if data is None else without_transactions(data)


def _stay_offline(partition: Partition, error: Exception) -> None:
    answer = str(error) or f"no answer within {_TIER_TIMEOUT_S:g} s"
    logger.warning("%s: the takeover from the tier failed: %s", partition.tp, answer)
    if partition.role is not Role.TAKING_OVER:
        return
    disk = isinstance(error, StorageError)
    partition.offline_reason = Reason.STORAGE_ERROR if disk else Reason.TIER_UNAVAILABLE
    doubt = partition.offline_message.split(_TIER_SAYS, 1)[0]
    partition.offline_message = f"{doubt}{_TIER_SAYS}{answer}"
