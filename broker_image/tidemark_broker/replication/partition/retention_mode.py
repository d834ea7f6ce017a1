"""Permissions of local retention, derived from a topic's tiering state (KIP-950) and this
replica's knowledge of the tier. Pure.
"""

from tidemark.tiering import LocalRetention, Tiering
from tidemark_broker.log import TieredRetention


def retention_mode(
    tiering: Tiering,
    *,
    highest_remote_offset: int | None,
    trusted_remote_offset: int,
    log_start_offset: int,
    tier_available: bool = True,
) -> TieredRetention | None:
    """Return what local retention may delete; None for a topic without a tier.

    ``highest_remote_offset``: the tier's last offset (inclusive), -1 for an empty tier, None for
    unknown, which does not count as empty. ``trusted_remote_offset``: last offset up to which log
    and tier have the same records (:func:`prefix_rule.trusted_offset`); only segments up to it may
    be deleted. While the tier is unavailable nothing local is deleted.
    """
    # Records below the log start do not count: they are deleted in both tiers.
    tier_is_empty = highest_remote_offset is not None and highest_remote_offset < log_start_offset
    allowed = tiering.local_retention(tier_is_empty=tier_is_empty)
    if allowed is LocalRetention.WHOLE:
        return None
    return TieredRetention(
        highest_remote_offset=trusted_remote_offset,
        copy_enabled=tiering.copies,
        suspended=allowed is LocalRetention.SUSPENDED or not tier_available,
    )
