"""Share of the local log that counts for retention in addition to the tier.

Pure; the rule itself is in :mod:`tidemark.tier.retention`.
"""

from collections.abc import Sequence

from tidemark_broker.log import SegmentInfo
from tidemark_broker.remote_log.eligibility import first_ending_behind


def local_only_bytes(segments: Sequence[SegmentInfo], highest_remote_offset: int) -> int:
    """Return the bytes of the local log that the tier does not have, so that nothing counts
    twice.
    """
    first = first_ending_behind(segments, highest_remote_offset + 1)
    return sum(segments[at].size_bytes for at in range(first, len(segments)))
