"""Seeds that have found something: they always run, beside whatever seeds are run anyway.

A seed shows its finding only as long as nothing else changes what it draws: the rule itself has a
test of its own, named here.
"""

from dataclasses import dataclass

from tests.simulation.cluster import Profile
from tests.simulation.planted import TIERED_POWER

DEFAULT = Profile()


@dataclass(frozen=True, slots=True)
class Kept:
    """``found``: what went wrong; ``rule``: the test that checks just that."""

    seed: int
    found: str
    rule: str
    profile: Profile = DEFAULT


KEPT: tuple[Kept, ...] = (
    Kept(
        231,
        "an eligible leader gave up its log to fetch again what a Delete had left",
        "tests/unit/replication/test_deleted_remote_part.py",
    ),
    Kept(
        774,
        "a member of the ISR began behind the log start that a Delete had committed; and a fenced "
        "former leader ended its own session by each AlterPartition",
        "tests/integration/remote_log/test_disabling.py, tests/unit/controller/test_isr.py",
    ),
    Kept(
        907,
        "a follower joined that began behind the log start that a Delete had committed",
        "tests/unit/replication/test_deleted_remote_part.py",
    ),
    Kept(
        926,
        "a Delete committed a log start behind which an eligible leader began",
        "tests/integration/remote_log/test_disabling.py",
    ),
    Kept(
        1122,
        "a follower whose log ended within the first batch that a deletion had left never came on",
        "tests/unit/replication/test_former_leader.py",
    ),
    Kept(
        2,
        "retention took the only batches that told an epoch: the log seemed to contradict the tier",
        "tests/unit/log/test_epoch_file.py",
        TIERED_POWER,
    ),
)
