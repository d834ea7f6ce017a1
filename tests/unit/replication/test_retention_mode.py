"""Local retention in each tiering state."""

import pytest

from tidemark.tiering import DisablePolicy, Tiering, TieringState
from tidemark_broker.log import TieredRetention
from tidemark_broker.replication.partition.partition import retention_mode

SUSPENDED = TieredRetention(highest_remote_offset=50, copy_enabled=False, suspended=True)


@pytest.mark.parametrize(
    ("state", "policy", "start", "expected"),
    [
        (TieringState.NONE, DisablePolicy.RETAIN, 0, None),
        (TieringState.ENABLED, DisablePolicy.RETAIN, 0, TieredRetention(highest_remote_offset=50)),
        (TieringState.DISABLING, DisablePolicy.RETAIN, 0, SUSPENDED),
        (TieringState.DISABLING, DisablePolicy.DELETE, 99, SUSPENDED),
        (TieringState.DISABLED, DisablePolicy.RETAIN, 0, SUSPENDED),
        # The tier ends at 50: once the log start is above it nothing is left there, and the log
        # is an ordinary one.
        (TieringState.DISABLED, DisablePolicy.RETAIN, 51, None),
        (TieringState.DISABLED, DisablePolicy.DELETE, 0, None),
    ],
)
def test_local_retention_by_tiering_state(
    state: TieringState, policy: DisablePolicy, start: int, expected: TieredRetention | None
) -> None:
    mode = retention_mode(
        Tiering(state, 1, policy),
        highest_remote_offset=50,
        trusted_remote_offset=50,
        log_start_offset=start,
    )
    assert mode == expected
