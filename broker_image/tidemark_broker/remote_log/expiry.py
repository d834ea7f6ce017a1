"""What of the local log counts for retention beside the tier. Pure; the rule itself is
:mod:`tidemark.tier.retention`."""

from collections.abc import Sequence

from tidemark_broker.log import SegmentInfo
from tidemark_broker.remote_log.eligibility import first_ending_behind


def local_only_bytes(segments: Sequence[SegmentInfo], highest_remote_offset: int) -> int:
    """Bytes of the local log that the tier does not hold; what is in both counts once."""
    first = first_ending_behind(segments, highest_remote_offset + 1)
    return sum(segments[at].size_bytes for at in range(first, len(segments)))
