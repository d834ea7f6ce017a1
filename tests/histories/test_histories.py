"""A short round on real brokers that are killed and stopped, and clients that do wrong on purpose.

Clients that need what the brokers do not serve are left out; ``make histories`` says which. What
takes part has to have got somewhere.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.histories.checker import check
from tests.histories.plan import WRONGS, make
from tests.histories.planted_bugs import BUGS, planted
from tests.histories.rounds import RoundFailed, run_round
from tests.histories.targets import BROKERS, OPERATOR, DisturbedCluster, leaders, served, tidemark
from tests.histories.workload import idle_units

pytestmark = pytest.mark.full

DISTURBED_S = 10.0
UNDISTURBED_S = 10.0
#: Rounds until every client that does wrong has been found.
ROUNDS_MAX = 3
#: Long enough for segments to be copied and deleted locally between two faults.
PLANTED_S = 30.0


class _Found(Exception):
    """A planted bug was found."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DisturbedCluster]:
    with tidemark(tmp_path_factory.mktemp("histories") / "cluster") as running:
        yield running


@pytest.fixture(autouse=True)
def _nothing_is_left(target: DisturbedCluster) -> Iterator[None]:
    """Check that the threads of a round's clients end with the round, although libraries may keep
    them: a run of half an hour had thousands.

    The remaining client may start threads for brokers that are new to it.
    """
    # The admin client's own threads start now, so they are not counted as left over.
    leaders(target.admin, [])
    before = _threads()
    yield
    assert _threads() <= before + BROKERS


def _threads() -> int:
    """Return the threads of this process, including those of libraries."""
    return sum(1 for _ in Path("/proc/self/task").iterdir())


@pytest.mark.slow
@pytest.mark.xdist_group("histories")
def test_disturbed_cluster_has_no_anomalies(target: DisturbedCluster) -> None:
    seed = random.randrange(1, 10**6)
    print(f"again: make histories SEED={seed}")
    keys = served(target.bootstrap)
    # A random seed on each run: over time, runs cover many plans.
    plan = make(seed, DISTURBED_S, keys, operator=OPERATOR in target.nodes)
    events = run_round(target, plan)
    report = check(events)
    assert not report.violations, "\n".join((report.line(), *report.proofs(events)))
    assert report.faults.total() > 0
    # A run in which some client did nothing would prove nothing for its kind.
    assert idle_units(plan, events) == set()
    assert len(target.nodes) == BROKERS + 1


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.xdist_group("histories")
def test_wrong_clients_are_detected(target: DisturbedCluster) -> None:
    """Each on its own topics would take a cluster's minute: they do it all at once, and each is
    told apart by the anomaly that shows it. What a client does wrong is a matter of chance, so
    those that were not found get another round."""
    keys = served(target.bootstrap)
    # Only those whose APIs this broker serves can be tested.
    wrongs = {name for name, (_, _, needs) in WRONGS.items() if needs <= keys}
    assert len(wrongs) >= 3
    lines = []
    for _ in range(ROUNDS_MAX):
        # Seeds of their own range, so that topics do not collide with those of the first test.
        seed = 10**6 + random.randrange(1, 10**6)
        plan = make(seed, UNDISTURBED_S, keys, operator=False, wrongs=tuple(sorted(wrongs)))
        report = check(run_round(target, plan, is_disturbed=False))
        lines.append(f"seed {seed}, looked for {sorted(wrongs)}: {report.line()}")
        found = {anomaly.name for anomaly in report.violations}
        # Keep only clients whose anomaly has not shown yet.
        wrongs = {name for name in wrongs if not WRONGS[name][1] & found}
        if not wrongs:
            return
    pytest.fail("\n".join(lines))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.xdist_group("histories")
@pytest.mark.parametrize("bug", sorted(BUGS))
def test_planted_broker_bug_is_detected(bug: str, tmp_path: Path) -> None:
    """Find each planted bug by what clients read, or by a round that cannot finish."""
    with pytest.raises(_Found):
        _find(bug, tmp_path / "cluster")


def _find(bug: str, folder: Path) -> None:
    """Raise :class:`_Found`. The exception also ends the cluster without the check of its tier, in
    which broken brokers leave objects that nothing names."""
    lines = []
    with planted(bug), tidemark(folder) as target:
        for _ in range(ROUNDS_MAX):
            seed = 10**6 + random.randrange(1, 10**6)
            keys = served(target.bootstrap)
            plan = make(seed, PLANTED_S, keys, operator=True, kinds=(BUGS[bug][1],))
            # A broken rule may also keep the round from ending, which is a finding as well.
            try:
                report = check(run_round(target, plan))
            except RoundFailed as failed:
                raise _Found from failed
            lines.append(f"seed {seed}: {report.line()}")
            if report.violations:
                raise _Found
        pytest.fail("\n".join(lines))
