"""Recovery state of a leader (KIP-704), apart from the wire format that the row codec needs not."""

import enum


class LeaderRecoveryState(enum.IntEnum):
    """Recovery state of a leader (KIP-704).

    ``RECOVERING``: the leader was elected uncleanly and has not reported yet that the tier's
    records are a prefix of its log.
    """

    RECOVERED = 0
    RECOVERING = 1
