"""What local retention may do in each state of a topic's tiering (KIP-950).

Pure. While a disablement is under way nothing local goes, so that the local log starts that the
controller was told stay true. After Retain, local data goes only once the tier holds nothing that
is still visible, because moving the log start would condemn the older remote part.
"""

from tidemark.wire.control import DisablePolicy, TieringState
from tidemark_broker.log import TieredRetention


def retention_mode(
    state: TieringState,
    policy: DisablePolicy,
    *,
    highest_remote_offset: int | None,
    trusted_remote_offset: int,
    log_start_offset: int,
    tier_available: bool = True,
) -> TieredRetention | None:
    """None: retention of a topic without a tier. ``highest_remote_offset`` inclusive, -1: the
    tier is empty; None: nothing is known of it, so that it is not taken for empty.
    ``trusted_remote_offset``: as far as the log is of the tier's history
    (:func:`prefix.trusted_offset`); only up to there may local segments go. While the tier is not available (or is another one) nothing local goes."""
    if state is TieringState.NONE:
        return None
    if state is TieringState.ENABLED:
        return TieredRetention(
            highest_remote_offset=trusted_remote_offset, suspended=not tier_available
        )
    tier_is_empty = highest_remote_offset is not None and highest_remote_offset < log_start_offset
    if state is TieringState.DISABLED and (policy is DisablePolicy.DELETE or tier_is_empty):
        return None
    return TieredRetention(
        highest_remote_offset=trusted_remote_offset, copy_enabled=False, suspended=True
    )
