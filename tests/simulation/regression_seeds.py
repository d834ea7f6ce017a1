"""Seeds that have found something: they always run, beside whatever seeds are run anyway.

A seed shows its finding only as long as nothing else changes what it draws: the rule itself has a
test of its own, named here.
"""

import dataclasses
from dataclasses import dataclass

from tests.simulation.cluster import BACKUPS, DOWN, MOVES, TORN, Profile
from tests.simulation.planted_bugs import MOVING, TIERED_POWER

DEFAULT = Profile()
#: Runs of a few thousand steps: many of them are part of `make test`.
SHORT = Profile(
    first_fault_s=4.0,
    trouble_s=9.0,
    last_produce_s=3.0,
    fault_s=0.7,
    user_s=2.0,
    produce_s=0.15,
    settle_s=90.0,
    unclean=False,
)
#: The users of the time when some seeds were found: a seed is a run only with its profile.
_USERS = {"delete records": 2, "tiering": 1.5}


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
        "retention took the only batches of an epoch: the log seemed to contradict the tier",
        "tests/unit/log/test_epoch_file.py",
        TIERED_POWER,
    ),
    Kept(
        194,
        "a deletion was acknowledged past an eligible leader that had not received it",
        "tests/unit/replication/test_log_start.py",
        Profile(users=_USERS),
    ),
    Kept(
        29,
        "a log start was persisted before the records below it were durable",
        "tests/unit/log/test_log_starts.py, tests/unit/log/test_epoch_file.py",
        dataclasses.replace(SHORT, users=_USERS),
    ),
    Kept(
        142,
        "a power cut took the name of the journal of log starts, and a durable start with it",
        "tests/unit/log/test_log_starts.py",
        dataclasses.replace(SHORT, users=_USERS),
    ),
    Kept(
        308,
        "after an unclean election a follower's log start may lie above the leader's: no violation",
        "tests/simulation/checks.py",
        Profile(users=_USERS),
    ),
    Kept(
        68,
        "after Retain local files stay while the tier holds visible data: no violation",
        "tests/unit/replication/test_retention_mode.py",
    ),
    Kept(
        3,
        "an unclean leader ended below what was deleted, so asking again was refused: no violation",
        "tests/simulation/deletions.py",
    ),
    Kept(
        888,
        "the disk of the only replica was lost: a deletion waits for a person, no violation",
        "tests/simulation/deletions.py",
    ),
    Kept(
        1851,
        "a deletion waited for records that an unclean election had lost, and would have deleted "
        "those that came in their place",
        "tests/unit/controller/test_record_deletion.py",
    ),
    Kept(
        320,
        "a power cut undid a truncation, so a log as long as before held other records: excused",
        "tests/simulation/brokers.py",
    ),
    *(
        Kept(
            seed,
            "sessions ended before a process that waited for its former one's end was heard: the "
            "row of an old backup was written on",
            "tests/unit/operator_shell/test_rebuilding.py",
            BACKUPS,
        )
        for seed in (2, 9)
    ),
    Kept(
        248,
        "a broker was fenced by old slices, as its session ended, before anybody had reported",
        "tests/unit/operator_shell/test_first_reports.py",
        BACKUPS,
    ),
    Kept(
        284,
        "the same, as live brokers had lost a session's time at an address where no operator was",
        "tests/unit/operator_shell/test_first_reports.py",
        BACKUPS,
    ),
    Kept(
        10117,
        "a broker was removed that min.insync.replicas needed, and the other one had lost its tail",
        "tests/unit/controller/test_registration.py",
        MOVES,
    ),
    Kept(
        10839,
        "a deleted broker has a replica of a partition that every copy was lost of: no violation",
        "tests/simulation/moves.py",
        MOVES,
    ),
    Kept(
        431,
        "the marker of a completed transaction was in a tail that a power cut took: excused",
        "tests/simulation/transactions.py",
        DOWN,
    ),
    Kept(
        953,
        "a reassignment ended and its new replica was fenced in one write: it is eligible still",
        "tests/simulation/moves.py",
        MOVES,
    ),
    Kept(
        3,
        "a broker whose log lost its tail would lead a rebuilt partition, as a replica that is not "
        "whole was taken for a proof (planted: the rule is in force)",
        "tests/unit/controller/test_rebuilding.py",
        TORN,
    ),
    Kept(
        0,
        "a broker without proof was removed, and the leader, which had lost its tail, was not "
        "known to have restarted",
        "tests/unit/controller/test_registration.py",
        MOVING,
    ),
)
