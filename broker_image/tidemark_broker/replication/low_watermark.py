"""The low watermark of KIP-107: below it no live replica holds a visible record.

The smallest log start offset of the leader and of every *assigned, alive* follower, not only of
the ISR; and of everyone who may be elected, alive or not: the ISR, and eligible leaders (KIP-966)
while there are any. A replica's log start counts only once its checkpoint is durable, so every
value here is one that survives a crash of its replica, and no leader that is elected cleanly has a
lower one (invariant 2). A replica that joins the ISR later has it already (:func:`isr.may_join`).
"""

from collections.abc import Collection, Mapping

UNKNOWN = -1


def low_watermark(
    leader_log_start_offset: int, reported: Mapping[int, int], others: Collection[int]
) -> int:
    """``reported``: the log start last reported by each follower (-1: it never fetched)."""
    followers = [reported.get(node, UNKNOWN) for node in others]
    return min([leader_log_start_offset, *followers])
