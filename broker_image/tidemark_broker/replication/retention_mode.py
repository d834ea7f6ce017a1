"""What local retention may do, as the log understands it: the state of a topic's tiering (KIP-950)
together with what this replica knows of the tier. Pure."""

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
    """None: retention of a topic without a tier. ``highest_remote_offset`` inclusive, -1: the
    tier is empty; None: nothing is known of it, so that it is not taken for empty.
    ``trusted_remote_offset``: as far as the log is of the tier's history
    (:func:`prefix.trusted_offset`); only up to there may local segments go. While the tier is not
    available (or is another one) nothing local goes."""
    tier_is_empty = highest_remote_offset is not None and highest_remote_offset < log_start_offset
    allowed = tiering.local_retention(tier_is_empty=tier_is_empty)
    if allowed is LocalRetention.WHOLE:
        return None
    return TieredRetention(
        highest_remote_offset=trusted_remote_offset,
        copy_enabled=tiering.copies,
        suspended=allowed is LocalRetention.SUSPENDED or not tier_available,
    )
